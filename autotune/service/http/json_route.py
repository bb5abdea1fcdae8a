"""Routes with JSON bodies that people write: a repeated key is rejected."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, final

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from autotune.spec.texts.json_text import read_json


class _StrictRequest(Request):
    async def json(self) -> Any:
        """Return the body. Raises `JSONDecodeError`, which FastAPI handles."""
        return read_json(await self.body())


@final
class JsonRoute(APIRoute):
    """A route whose handler reads JSON strictly, for `APIRouter(route_class=JsonRoute)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the usual handler, called with a request that reads JSON strictly."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict
