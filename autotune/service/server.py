"""The running service: a listening socket, the application, the supervisor, and a graceful
shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from autotune.errors import AutotuneError, ServiceError, SpecError
from autotune.extras import require_extra
from autotune.ports import TokenStore
from autotune.service.http.app import create_app
from autotune.service.metrics.scrape_targets import ScrapeTargets
from autotune.service.options import ServiceOptions
from autotune.service.supervise.launcher import Launcher, ProcessLauncher
from autotune.service.supervise.presence import announce_service
from autotune.service.supervise.supervisor import Supervisor
from autotune.settings import data_folder, settings
from autotune.store import open_store
from autotune.store.connection.location import StoreLocation, find_location
from autotune.trainers import trainer, trainer_names

log = logging.getLogger("autotune.service")

HEAD_TIMEOUT_S = 10.0
"""time within which the head of a request must arrive, seconds; otherwise the connection is
closed"""
MAX_HEAD_BYTES = 16 << 10
"""largest head of a request, bytes"""


def serve(
    options: ServiceOptions,
    *,
    store_url: str | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `on_ready` is called with the URL once connections are
    accepted.

    Raises `SpecError` if other machines can reach the service but no token exists, `ServiceError`
    if the port is taken, and `StoreError`.
    """
    address = store_url or settings().store
    with contextlib.ExitStack() as exit_stack:
        store = exit_stack.enter_context(contextlib.closing(open_store(address)))
        logging.basicConfig(
            stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        logging.getLogger("httpx").setLevel(logging.WARNING)
        _check_programs(options)
        _check_tokens_exist(store.tokens, options, find_location(address))
        _warn_if_readable(address)
        listener = exit_stack.enter_context(_listen(options))
        url = _url(options, listener)
        launcher = _launcher(options, address, url)
        supervisor = Supervisor(
            store,
            launcher,
            max_studies=options.max_studies,
            runners=frozenset(options.runners),
            poll_s=options.poll_s,
            grace_s=options.grace_s,
        )
        exit_stack.callback(supervisor.close)
        exit_stack.enter_context(announce_service(address))
        exit_stack.enter_context(ScrapeTargets(url, launcher.scrape_targets))
        app = create_app(store, options, supervisor=supervisor)
        _Server(app, options, lambda: on_ready(url)).run(sockets=[listener])


def uvicorn_config(app: FastAPI, options: ServiceOptions) -> uvicorn.Config:
    """Return uvicorn's configuration, with limits on the number, size and duration of requests."""
    return uvicorn.Config(
        app,
        http=HeadTimeoutH11,
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
    """Uvicorn with two changes: a signal only ends the server (it is not raised again afterwards),
    and `on_ready` is called."""

    def __init__(self, app: FastAPI, options: ServiceOptions, on_ready: Callable[[], None]) -> None:
        super().__init__(uvicorn_config(app, options))
        self._app, self._on_ready = app, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()
            _preload()  # otherwise the first requests would wait for these imports

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
        self._app.state.service.closing.set()  # ends open event streams, for which the server would otherwise wait
        super().handle_exit(sig, frame)


def _preload() -> None:
    """Import what pages need at their first request, which takes a quarter of a second."""
    for module in ("autotune.api", "scipy.special"):
        import_module(module)
    for name in trainer_names():
        # a broken trainer of another package is rejected when it is used
        with contextlib.suppress(AutotuneError):
            trainer(name)
    gc.freeze()  # exclude imported objects from garbage collection, which took 0.2 s more for a large study


class HeadTimeoutH11(H11Protocol):
    """Closes connections whose request head does not arrive in time, so that slow clients do not
    occupy connections."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # asyncio sets this only for sockets with an explicit protocol; without it, a body arrives 40 ms after its head
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._cancel_deadline()

    def _watch_head(self) -> None:
        is_waiting = self.conn.their_state is h11.IDLE
        if is_waiting and self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)
        elif not is_waiting:
            self._cancel_deadline()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _check_tokens_exist(tokens: TokenStore, options: ServiceOptions, store: StoreLocation) -> None:
    if not (reason := options.token_reason):
        return
    now = datetime.now(UTC)
    if not any(token.is_valid_at(now) for token in tokens.list()):
        raise SpecError(
            f"a service with {reason} needs a token from every caller, but the store {store} has no valid token",
            remedy=f"create a token in this store (autotune token create --owner NAME --scope admin), use the store that has your tokens (--store or AUTOTUNE_STORE), or serve without {reason}",
            field=reason.split()[0],
        )


def _check_programs(options: ServiceOptions) -> None:
    """Raise `SpecError` if a program folder does not exist, or if this process cannot start
    programs as the given user."""
    for root in options.program_roots:
        if not root.is_dir():
            raise SpecError(
                f"there is no folder {str(root)!r}",
                remedy="specify an existing folder",
                field="--program-root",
            )
    if options.program_user:
        import pwd

        try:
            uid = pwd.getpwnam(options.program_user).pw_uid
        except KeyError:
            raise SpecError(
                f"this machine has no user {options.program_user!r}",
                remedy="create the user first, without a login: `useradd --system NAME`",
                field="--program-user",
            ) from None
        if os.geteuid() not in (0, uid):
            raise SpecError(
                f"only root can start programs as the user {options.program_user!r}, but the service runs as user {os.geteuid()}",
                remedy="run the service as root, or omit --program-user",
                field="--program-user",
            )
    elif options.program_roots:
        log.warning(
            "callers' programs run as the service's own user and can read its database; use --program-user NAME to run them as another user"
        )


def _warn_if_readable(store: str) -> None:
    """Warn if other users of this machine can read an SQLite database, such as those of older
    releases."""
    path = find_location(store).path
    if path is not None and path.exists() and path.stat().st_mode & 0o077:
        log.warning(
            "other users of this machine can read the database %s; to prevent this, run `chmod 600 %s`",
            path,
            path,
        )


def _listen(options: ServiceOptions) -> socket.socket:
    host = options.host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, options.port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ServiceError(
            f"the service cannot listen on {options.host}:{options.port}: {getattr(error, 'strerror', None) or error}",
            remedy="choose another port with `autotune serve --port N`",
        ) from None
    listener.setblocking(False)
    return listener


def _url(options: ServiceOptions, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    host = f"[{options.host.strip('[]')}]" if ":" in options.host else options.host
    return f"http://{host}:{port}"


def _launcher(options: ServiceOptions, store_url: str, url: str) -> Launcher:
    if options.way == "ray":
        from autotune.service.supervise.ray_jobs import RayLauncher, check_address
        from autotune.service.supervise.ray_retry import RetryingRayLauncher

        if options.ray_address:
            check_address(options.ray_address)
        else:
            require_extra("ray", "the service's own Ray cluster")
        page = options.public_url or url
        return RetryingRayLauncher(
            lambda should_give_up: RayLauncher.open(
                options, store_url=store_url, url=page, should_give_up=should_give_up
            )
        )
    return ProcessLauncher(
        data_folder() / "logs",
        store_url=store_url,
        lease_s=options.lease_s,
        environment=options.study_environment,
    )
