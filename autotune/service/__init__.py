"""The service: submit tuning jobs and ask for best configurations over HTTP; studies run beside it.

    server.py      serve(options): socket, application, supervisor, orderly end     options.py   how it is run
    app.py         create_app(store, options): addresses, guards, errors, OpenAPI   service.py     what all addresses share
    resources/     the addresses under /api/v1                                      documents.py the shape of the answers
    pages.py       the web pages (templates in dashboards/web)                      specs.py     specs off the wire, confined
    guards.py      Host allow-list, size and pace of bodies, headers                access.py    tokens, scopes, owners, CSRF
    rates.py       token buckets           envelope.py  the one shape of errors     counters.py  what Prometheus reads
    recent.py      answers told again while nothing has changed                     refusals.py  what was refused, for the audit
    supervisor.py  keeps studies running   launcher.py  as children (nursery.py forks, worker.py runs one study)
    ray_jobs.py    or as Ray jobs (ray_head.py holds a cluster of our own); study_metrics.py tells Ray's metrics how a study goes

The store is the only state: kill any of it at any time, start it again, and studies go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.service.app import create_app
    from autotune.service.options import ServiceOptions
    from autotune.service.server import serve

__all__ = ["ServiceOptions", "create_app", "serve"]

_HOME = {
    "ServiceOptions": "autotune.service.options",
    "create_app": "autotune.service.app",
    "serve": "autotune.service.server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'autotune.service' has no attribute {name!r}")
    from importlib import import_module

    from autotune.extras import require_extra

    require_extra("service", "the service")
    return getattr(import_module(_HOME[name]), name)
