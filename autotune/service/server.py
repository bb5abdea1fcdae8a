"""The running service: a listening socket, the application, the supervisor, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from autotune.errors import ServiceError, SpecError
from autotune.ports import TokenStore
from autotune.service.app import create_app
from autotune.service.launcher import Launcher, ProcessLauncher
from autotune.service.options import ServiceOptions
from autotune.service.supervisor import Supervisor
from autotune.settings import data_folder, settings
from autotune.store import open_store

HEAD_TIMEOUT_S = 10.0
"""the head of a request must be here after so long, or the connection is closed"""
MAX_HEAD_BYTES = 16 << 10


def serve(
    options: ServiceOptions,
    *,
    store_url: str | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
    run_studies: bool = True,
) -> None:
    """Serves until SIGTERM or Ctrl-C. `on_ready` hears the address once connections are taken.

    Raises `SpecError` when it would be open to others without a token, `ServiceError` when the port is taken, `StoreError`.
    """
    address = store_url or settings().store
    store = open_store(address)
    try:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        _refuse_open_door(store.tokens, options)
        listener = _listen(options)
        url = _url(options, listener)
        launcher = _launcher(options, address, url) if run_studies else None
        supervisor = (
            Supervisor(store, launcher, max_studies=options.max_studies, poll_s=options.poll_s, grace_s=options.grace_s)
            if launcher is not None
            else None
        )
        app = create_app(store, options, supervisor=supervisor)
        try:
            _Server(app, options, lambda: on_ready(url)).run(sockets=[listener])
        finally:
            listener.close()
            if supervisor is not None:
                supervisor.close()
    finally:
        store.close()


def config_of(app: FastAPI, options: ServiceOptions) -> uvicorn.Config:
    """How the application is served: with limits on everything that a stranger can make long, large or many."""
    return uvicorn.Config(
        app,
        http=PatientH11,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=options.max_connections,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
    )


class _Server(uvicorn.Server):
    """Uvicorn, except that a signal ends the server and nothing else, and that it says when it is ready."""

    def __init__(self, app: FastAPI, options: ServiceOptions, on_ready: Callable[[], None]) -> None:
        super().__init__(config_of(app, options))
        self._app, self._on_ready = app, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {n: signal.signal(n, self.handle_exit) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._app.state.service.closing.set()  # open streams end, so that the server can
        super().handle_exit(sig, frame)


class PatientH11(H11Protocol):
    """Closes connections whose request head does not come in time: a slow client holds nothing."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # asyncio does it for sockets of a stated protocol only; head and body would wait 40 ms for each other
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._calm()

    def _watch(self) -> None:
        waiting = self.conn.their_state is h11.IDLE
        if waiting and self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)
        elif not waiting:
            self._calm()

    def _calm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _refuse_open_door(tokens: TokenStore, options: ServiceOptions) -> None:
    if options.on_loopback and not options.require_token:
        return
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    living = [t for t in tokens.list() if t.revoked_at is None and (t.expires_at is None or t.expires_at > now)]
    if not living:
        raise SpecError(
            f"at {options.host} others can reach the service, so that every caller needs a token, but there is none",
            remedy="make one first: autotune token create --owner NAME --scope admin; or listen at 127.0.0.1",
            field="--host",
        )


def _listen(options: ServiceOptions) -> socket.socket:
    host = options.host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, options.port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ServiceError(
            f"the service cannot listen at {options.host}:{options.port}: {getattr(error, 'strerror', None) or error}",
            remedy="autotune serve --port N picks another port",
        ) from None
    listener.setblocking(False)
    return listener


def _url(options: ServiceOptions, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    host = f"[{options.host.strip('[]')}]" if ":" in options.host else options.host
    return f"http://{host}:{port}"


def _launcher(options: ServiceOptions, store_url: str, url: str) -> Launcher:
    if options.way == "ray":
        from autotune.service.ray_jobs import RayLauncher

        return RayLauncher.open(options, store_url=store_url, url=options.public_url or url)
    return ProcessLauncher(data_folder() / "logs", store_url=store_url, lease_s=options.lease_s)
