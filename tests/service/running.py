"""A real service for tests: uvicorn on a free port of loopback, in a thread of this process, and
small specs for it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import uvicorn

from autotune.client import Client
from autotune.ports import ServiceStore
from autotune.service.http.app import create_app
from autotune.service.options import ServiceOptions
from autotune.service.server import uvicorn_config
from autotune.service.supervise.launcher import ProcessLauncher
from autotune.service.supervise.supervisor import Supervisor
from autotune.store import open_store

DEADLINE_S = 900.0
API = "/api/v1"


def spec(**changes: Any) -> dict[str, Any]:
    """A study of milliseconds on the simulated runner."""
    return {
        "name": "small",
        "model": "gpt2-medium",
        "cluster": "h100-sxm-1x8",
        "workload": {"seq_len": 1024, "global_batch_size": 64},
        "space": {"tp": [1, 2], "micro_batch_size": [1, 2, 4], "precision": ["bf16"]},
        "objective": {"stability_weight": 0},
        "budget": {"max_trials": 2, "min_gain": 0},
        "measure": {"finalists": 0},
        "searcher": "cost_ranked",
        "runner": {"kind": "simulated", "noise": 0.0, "outlier_every": 0},
    } | changes


def slow_spec(**changes: Any) -> dict[str, Any]:
    """A study that runs for minutes when nobody ends it."""
    return spec(
        name="slow",
        budget={"max_trials": 6, "min_gain": 0},
        runner={"kind": "simulated", "noise": 0.0, "outlier_every": 0, "time_scale": 20.0},
        **changes,
    )


class Service:
    """A running service. A context manager."""

    def __init__(
        self,
        folder: Path,
        *,
        options: ServiceOptions | None = None,
        supervised: bool = False,
        store: ServiceStore | None = None,
    ) -> None:
        """`store`: None makes an SQLite file in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.options = options or ServiceOptions(port=0)
        self.path = folder / "results.db"
        self.store: Any = store or open_store(self.path)
        self.launcher = (
            ProcessLauncher(folder / "logs", store_url=str(self.path)) if supervised else None
        )
        self.supervisor = (
            Supervisor(
                self.store,
                self.launcher,
                max_studies=self.options.max_studies,
                poll_s=0.1,
                grace_s=60.0,
            )
            if self.launcher
            else None
        )
        app = create_app(self.store, self.options, supervisor=self.supervisor)
        self.service = app.state.service
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = self._listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self._server = uvicorn.Server(uvicorn_config(app, self.options))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self._server.started)
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE_S, trust_env=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.http.close()
        self.service.closing.set()
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        self._listener.close()
        if self.supervisor is not None:
            self.supervisor.close()
        self.store.close()

    @property
    def connections(self) -> list[Any]:
        """Uvicorn's protocols of the connections that are open."""
        return list(self._server.server_state.connections)

    def client(self, token: str = "") -> Client:
        """A client of it."""
        return Client(self.url, token=token)

    def submitted(self, document: dict[str, Any], token: str = "") -> str:
        """The id of a study that the token's owner submits."""
        with self.client(token) as client:
            return str(client.submit(document)["study"]["id"])

    def token(self, scope: str, owner: str = "ann") -> str:
        """A new token."""
        return self.store.tokens.create(owner, scope)[1]


@contextlib.contextmanager
def watching(*supervisors: Supervisor) -> Iterator[None]:
    """Supervisors at work."""
    with contextlib.ExitStack() as at_the_end:
        for one in supervisors:
            at_the_end.callback(one.close)
            one.start()
        yield


def bearer(token: str) -> dict[str, str]:
    """The header of a token."""
    return {"Authorization": f"Bearer {token}"}


def until(condition: Any, deadline_s: float = DEADLINE_S) -> Any:
    """Waits until `condition()` is true and returns it."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, "the deadline passed"
        time.sleep(0.02)
    return found
