"""How a study's process is started: `Launcher` is the interface that the supervisor uses,
`ProcessLauncher` forks children on this machine.

Each child has a session of its own. It outlives a service that is killed and keeps its lease, by
which the next service finds it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autotune.errors import RunnerError
from autotune.ports import StudyRecord

log = logging.getLogger("autotune.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A study's process that has ended."""

    study: str
    code: int
    """exit code, see `autotune.service.supervise.worker`; negative: the signal that killed it"""
    by_hand: bool = False
    """whether a person stopped it from outside (in Ray's dashboard); the study is then cancelled"""


class Launcher(Protocol):
    """Starts the processes of studies and reports when they end. Not thread-safe: it belongs to one
    supervisor."""

    def start(self, record: StudyRecord) -> None:
        """Starts the study's process and returns at once. Raises `RunnerError` when no process can
        be started now."""
        ...

    def ended(self) -> list[Ended]:
        """Processes that ended since the last call. Returns within about a second."""
        ...

    def adopted(self) -> frozenset[str]:
        """Studies that an earlier service started and that this launcher watches from now on.
        Called once, before all else."""
        ...

    def kill(self, study: str) -> None:
        """Kills a process that did not end by itself."""
        ...

    def health(self) -> str:
        """What is wrong; empty when the launcher works."""
        ...

    def scrape_targets(self) -> list[dict[str, Any]]:
        """What Prometheus scrapes of where the studies run
        (`autotune.service.metrics.scrape_targets`). May be called from any thread. Raises
        `RunnerError` while it cannot be told."""
        ...

    def close(self, grace_s: float) -> None:
        """Lets the processes that it started shut down, for at most `grace_s`. Idempotent."""
        ...


class ProcessLauncher:
    """Children of a `StudyForkServer` on this machine."""

    def __init__(
        self,
        logs: Path,
        *,
        store_url: str,
        lease_s: float = 10.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`logs`: the folder for the log files, one per study, readable by this user only.
        `environment`: further variables of the children."""
        self._logs, self._store_url, self._lease_s = logs, store_url, lease_s
        self._environment = dict(environment or {})
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._running: dict[str, int] = {}

    def adopted(self) -> frozenset[str]:
        """None: the supervisor finds the children of an earlier service by their leases."""
        return frozenset()

    def start(self, record: StudyRecord) -> None:
        """Asks the fork server for a child. Raises `RunnerError` while one that died has not been
        taken note of (`ended`)."""
        server = self._running_server()
        assert server.stdin is not None
        try:
            server.stdin.write(json.dumps({"start": record.id}).encode() + b"\n")
            server.stdin.flush()
        except BrokenPipeError:
            raise RunnerError(
                "the process that forks studies has died",
                remedy="the service restarts it automatically",
            ) from None
        self._running[record.id] = 0

    def ended(self) -> list[Ended]:
        """What the fork server reported. If it died itself, its children continue without it, and
        their leases show whether they live."""
        if self._fork_server is None:
            return []
        # before its reports are read: none that it made is missed
        is_lost = self._fork_server.poll() is not None
        over = []
        for line in self._reports(self._fork_server):
            if "ended" in line:
                self._running.pop(line["ended"], None)
                over.append(Ended(study=line["ended"], code=int(line["code"])))
            else:
                self._running[line["started"]] = int(line["pid"])
        if is_lost:
            log.warning(
                "the process that forks studies has died with code %s", self._fork_server.returncode
            )
            over += [Ended(study=study, code=0) for study in self._running]
            self._running.clear()
            self._forget()
        return over

    def kill(self, study: str) -> None:
        """SIGKILL."""
        if pid := self._running.get(study):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def health(self) -> str:
        """Empty: a fork server that died is replaced in the next round."""
        return ""

    def scrape_targets(self) -> list[dict[str, Any]]:
        """None: what is known of these studies stands in the service's own metrics."""
        return []

    def close(self, grace_s: float) -> None:
        """Sends SIGTERM to all children. Those that need longer than `grace_s` continue without the
        service."""
        server = self._fork_server
        if server is None:
            return
        with contextlib.suppress(BrokenPipeError, ValueError):
            assert server.stdin is not None
            server.stdin.write(b'{"stop": true}\n')
            server.stdin.flush()
        try:
            server.wait(grace_s)
        except subprocess.TimeoutExpired:
            log.warning(
                "studies are still running after %.0f s; they continue without the service", grace_s
            )
            server.kill()
            server.wait()
        self._forget()

    def _running_server(self) -> subprocess.Popen[bytes]:
        """The fork server. One that has died stays until `ended` has taken note of its children."""
        if self._fork_server is not None:
            return self._fork_server
        self._logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        own = {"AUTOTUNE_STORE": self._store_url, "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **own, **self._environment}
        self._fork_server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "autotune.service.supervise.study_fork_server",
                str(self._logs),
                str(self._lease_s),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._fork_server.stdout is not None
        os.set_blocking(self._fork_server.stdout.fileno(), False)
        self._buffer = b""
        return self._fork_server

    def _reports(self, server: subprocess.Popen[bytes]) -> list[dict[str, str]]:
        assert server.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(server.stdout.fileno(), 65536):
                self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def _forget(self) -> None:
        if self._fork_server is not None:
            for pipe in (self._fork_server.stdin, self._fork_server.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._fork_server = None
