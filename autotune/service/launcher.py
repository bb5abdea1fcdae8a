"""How a study's process is started: `Launcher` is what the supervisor asks, `ProcessLauncher` forks children on this machine.

Children have sessions of their own: they outlive a service that is killed, keep their leases, and are found again by those.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.errors import RunnerError
from autotune.ports import StudyRecord

log = logging.getLogger("autotune.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A study's process is over."""

    study: str
    code: int
    """its exit code, see `autotune.service.worker`; below 0: the signal that killed it"""
    by_hand: bool = False
    """whether a person ended it from outside (Ray's dashboard), which means: cancel"""


class Launcher(Protocol):
    """Starts processes of studies and says when they end. Not thread-safe: one supervisor owns one."""

    def start(self, record: StudyRecord) -> None:
        """Starts the study's process and returns at once. Raises `RunnerError` when nothing can be started now."""
        ...

    def ended(self) -> list[Ended]:
        """Processes that ended since the last call. May wait for a moment, not longer."""
        ...

    def adopted(self) -> frozenset[str]:
        """Studies that an earlier service started and that are this launcher's to watch from now on. Asked once, first."""
        ...

    def kill(self, study: str) -> None:
        """Ends a process that did not end by itself."""
        ...

    def health(self) -> str:
        """Empty when it works, else what is wrong."""
        ...

    def close(self, grace_s: float) -> None:
        """Lets everything that it started put things down, for at most so long. Idempotent."""
        ...


class ProcessLauncher:
    """Children of a nursery on this machine."""

    def __init__(self, logs: Path, *, store_url: str, lease_s: float = 10.0) -> None:
        """`logs`: folder of the studies' logs, one file each, readable by this user only."""
        self._logs, self._store_url, self._lease_s = logs, store_url, lease_s
        self._nursery: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._running: dict[str, int] = {}

    def adopted(self) -> frozenset[str]:
        """None: children of an earlier service are known by their leases."""
        return frozenset()

    def start(self, record: StudyRecord) -> None:
        """Asks the nursery for a child; a nursery that died is replaced."""
        nursery = self._living()
        assert nursery.stdin is not None
        try:
            nursery.stdin.write(json.dumps({"start": record.id}).encode() + b"\n")
            nursery.stdin.flush()
        except BrokenPipeError:
            raise RunnerError("the nursery of studies died", remedy="it is started again") from None
        self._running[record.id] = 0

    def ended(self) -> list[Ended]:
        """What the nursery said. When it died itself, its children are on their own: their leases tell."""
        if self._nursery is None:
            return []
        over = []
        for line in self._heard(self._nursery):
            if "ended" in line:
                self._running.pop(line["ended"], None)
                over.append(Ended(study=line["ended"], code=int(line["code"])))
            else:
                self._running[line["started"]] = int(line["pid"])
        if self._nursery.poll() is not None:
            log.warning("the nursery of studies died with code %s", self._nursery.returncode)
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
        """Works as long as processes can be started at all."""
        return ""

    def pid_of(self, study: str) -> int | None:
        """The process of a study, while it runs."""
        return self._running.get(study) or None

    def close(self, grace_s: float) -> None:
        """SIGTERM to all children; those that take longer go on by themselves."""
        nursery = self._nursery
        if nursery is None:
            return
        with contextlib.suppress(BrokenPipeError, ValueError):
            assert nursery.stdin is not None
            nursery.stdin.write(b'{"stop": true}\n')
            nursery.stdin.flush()
        try:
            nursery.wait(grace_s)
        except subprocess.TimeoutExpired:
            log.warning("studies still run after %.0f s; they go on by themselves", grace_s)
            nursery.kill()
            nursery.wait()
        self._forget()

    def _living(self) -> subprocess.Popen[bytes]:
        if self._nursery is not None and self._nursery.poll() is None:
            return self._nursery
        self._logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = {**os.environ, "AUTOTUNE_STORE": self._store_url, "OMP_NUM_THREADS": "1"}
        self._nursery = subprocess.Popen(
            [sys.executable, "-m", "autotune.service.study_fork_server", str(self._logs), str(self._lease_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._nursery.stdout is not None
        os.set_blocking(self._nursery.stdout.fileno(), False)
        self._buffer = b""
        return self._nursery

    def _heard(self, nursery: subprocess.Popen[bytes]) -> list[dict[str, str]]:
        assert nursery.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while data := os.read(nursery.stdout.fileno(), 65536):
                self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def _forget(self) -> None:
        if self._nursery is not None:
            for pipe in (self._nursery.stdin, self._nursery.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._nursery = None
