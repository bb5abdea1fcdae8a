"""Starting the processes of studies: `Launcher` is the interface for the supervisor,
`ProcessLauncher` forks children on this machine.

Each child has its own session. It outlives a killed service and keeps its lease, by which the next
service finds it.
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
    """exit code, see `autotune.service.supervise.worker`; negative: number of the signal that
    killed it"""
    stopped_by_user: bool = False
    """whether a user stopped it from outside (in Ray's dashboard); the study is then cancelled"""


class Launcher(Protocol):
    """Starts the processes of studies and reports when they end. Not thread-safe: only one
    supervisor uses it."""

    def start(self, record: StudyRecord) -> None:
        """Start the study's process without waiting for it. Raises `RunnerError` if no process can
        be started now."""
        ...

    def ended(self) -> list[Ended]:
        """Return the processes that ended since the last call, within about a second."""
        ...

    def adopted(self) -> frozenset[str]:
        """Return the studies that an earlier service started and that this launcher now watches.
        Called once, before all other methods."""
        ...

    def kill(self, study: str) -> None:
        """Kill a process that did not end by itself."""
        ...

    def health(self) -> str:
        """Return the current problem; an empty text if the launcher works."""
        ...

    def scrape_targets(self) -> list[dict[str, Any]]:
        """Return Prometheus targets on the nodes where studies run
        (`autotune.service.metrics.scrape_targets`). May be called from any thread. Raises
        `RunnerError` while they are unknown."""
        ...

    def close(self, grace_s: float) -> None:
        """Let the started processes shut down, for at most `grace_s` seconds. Idempotent."""
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
        """`logs`: folder for the log files, one per study, readable by this user only.
        `environment`: additional environment variables of the children."""
        self._logs, self._store_url, self._lease_s = logs, store_url, lease_s
        self._environment = dict(environment or {})
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._running: dict[str, int] = {}

    def adopted(self) -> frozenset[str]:
        """Return no studies: the supervisor finds the children of an earlier service by their
        leases."""
        return frozenset()

    def start(self, record: StudyRecord) -> None:
        """Request a child from the fork server. Raises `RunnerError` if the server died and `ended`
        has not handled that yet."""
        server = self._open_server()
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
        """Return the ends that the fork server reported. If the server itself died, its children
        continue without it, and their leases show whether they live."""
        if self._fork_server is None:
            return []
        # check before reading its reports, so that no report is missed
        is_lost = self._fork_server.poll() is not None
        ended = []
        for line in self._reports(self._fork_server):
            if "ended" in line:
                self._running.pop(line["ended"], None)
                ended.append(Ended(study=line["ended"], code=int(line["code"])))
            else:
                self._running[line["started"]] = int(line["pid"])
        if is_lost:
            log.warning(
                "the process that forks studies has died with code %s", self._fork_server.returncode
            )
            ended += [Ended(study=study, code=0) for study in self._running]
            self._running.clear()
            self._close_pipes()
        return ended

    def kill(self, study: str) -> None:
        """Send SIGKILL to the study's process."""
        if pid := self._running.get(study):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def health(self) -> str:
        """Return an empty text: a fork server that died is replaced in the next round."""
        return ""

    def scrape_targets(self) -> list[dict[str, Any]]:
        """Return no targets: the service's own metrics cover these studies."""
        return []

    def close(self, grace_s: float) -> None:
        """Send SIGTERM to all children. Children that need longer than `grace_s` seconds continue
        without the service."""
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
        self._close_pipes()

    def _open_server(self) -> subprocess.Popen[bytes]:
        """Return the fork server, and start one if there is none. A dead one is kept until `ended`
        has handled its children."""
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
        """Return the reports that the fork server has written since the last call."""
        assert server.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(server.stdout.fileno(), 65536):
                self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def _close_pipes(self) -> None:
        if self._fork_server is not None:
            for pipe in (self._fork_server.stdin, self._fork_server.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._fork_server = None
