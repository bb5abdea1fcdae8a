"""The application: routes, middleware and error handlers, and their OpenAPI description."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from autotune import __version__
from autotune.errors import AutotuneError
from autotune.ports import ServiceStore
from autotune.schema import StudyDocument
from autotune.service import pages
from autotune.service.http import error_responses
from autotune.service.http.access import COOKIE, Gate
from autotune.service.http.middleware import HeadAsGet, RequestGuards
from autotune.service.http.refusals import Refusals
from autotune.service.http.response_cache import ResponseCache
from autotune.service.http.service_state import ServiceState
from autotune.service.metrics.study_metrics import Counters, CountRequests
from autotune.service.options import ServiceOptions
from autotune.service.routes import (
    across_studies,
    events,
    health,
    studies,
    study_annotations,
    study_figures,
)
from autotune.service.supervise.supervisor import Supervisor

ROOT = "/api/v1"
SWITCH_S = 0.0005
"""time after which a computing thread (for a plan) lets others run, seconds; with Python's 5 ms, a
concurrent request that reads the store ten times waits 50 ms"""
DESCRIPTION = """Find the fastest stable configuration for training a model on a cluster, in about ten short real trials.
Every error is `{error: {kind, message, field, remedy}}`. Quantities are in SI units, sizes in bytes, and times in UTC."""


def create_app(
    store: ServiceStore, options: ServiceOptions, *, supervisor: Supervisor | None = None
) -> FastAPI:
    """Return the application for a store. With a supervisor, it also runs studies while the server
    runs."""
    counters = Counters()
    service = ServiceState(
        store=store,
        options=options,
        gate=Gate(store.tokens, options),
        counters=counters,
        response_cache=ResponseCache(store),
        supervisor=supervisor,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        previous_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        if supervisor is not None:
            supervisor.start()
        yield
        service.closing.set()
        sys.setswitchinterval(previous_s)

    app = FastAPI(
        title="autotune",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.service = service
    for module in (events, across_studies, health, study_annotations, study_figures, studies):
        app.include_router(module.router, prefix=ROOT)
    app.include_router(pages.router, include_in_schema=False)
    app.add_exception_handler(error_responses.RefusalError, error_responses.handle_refusal)
    app.add_exception_handler(AutotuneError, error_responses.handle_autotune_error)
    app.add_exception_handler(HTTPException, error_responses.handle_http_error)
    app.add_exception_handler(RequestValidationError, error_responses.handle_validation_error)
    app.add_exception_handler(Exception, error_responses.handle_unexpected_error)
    app.add_middleware(HeadAsGet)
    app.add_middleware(CountRequests, counters=counters)
    app.add_middleware(RequestGuards, options=options)
    app.add_middleware(Refusals, store=store)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the schema of study specs and the ways to send a token."""
    if app.openapi_schema:
        return app.openapi_schema
    document = FastAPI.openapi(app)
    parts = document.setdefault("components", {})
    _, spec = models_json_schema(
        [(StudyDocument, "validation")], ref_template="#/components/schemas/{model}"
    )
    parts.setdefault("schemas", {}).update(spec["$defs"])
    parts["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "a token from `autotune token create`",
        },
        "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
    }
    for path, methods in document["paths"].items():
        for operation in methods.values():
            open_to_all = path.startswith(f"{ROOT}/health")
            operation["security"] = [{}] if open_to_all else [{}, {"bearer": []}]
    app.openapi_schema = document
    return document
