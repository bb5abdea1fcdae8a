"""Routes whose body is JSON that people write: a key that is given twice is rejected."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, final

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from autotune.spec.texts.json_text import read_json


class _StrictRequest(Request):
    async def json(self) -> Any:
        """The body. Raises `JSONDecodeError`, which FastAPI answers."""
        return read_json(await self.body())


@final
class JsonRoute(APIRoute):
    """For `APIRouter(route_class=JsonRoute)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The usual handler, of a request that reads its body so."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strict
