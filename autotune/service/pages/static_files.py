"""Style sheets and scripts of the pages. Their URLs contain a hash of the file, so that browsers
can cache them."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from autotune import assets

router = APIRouter()

FILES: Mapping[str, str] = {
    "style.css": "text/css",
    "figures.css": "text/css",
    "live.js": "text/javascript",
    "submit.js": "text/javascript",
}
"""media type of each file"""


@router.get("/static/{name}")
async def static_file(request: Request) -> Response:
    """Return a style sheet or a script."""
    name = request.path_params["name"]
    if name not in FILES:
        raise HTTPException(404)
    return Response(
        assets.web_file(name), media_type=FILES[name], headers={"Cache-Control": "max-age=3600"}
    )
