"""The study fork server: a process that has imported everything and forks one child per study, so
that a study starts in milliseconds.

It reads orders from standard input and writes reports to standard output, one JSON object per line:

    {"start": STUDY}  ->  {"started": STUDY, "pid": N}  ...  {"ended": STUDY, "pid": N, "code": C}      C < 0: killed by signal -C
                      ->  {"ended": STUDY, "pid": 0, "code": NOT_STARTED}                              no process can be started now
    {"stop": true}        sends SIGTERM to all children; the server exits after the last child
    end of input          the service has died: the server exits, and its children continue without it

The server has one thread and no open connections that its children could inherit.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from autotune.service.supervise.worker import NOT_STARTED

LOG_MODE = 0o600
"""mode of the log files: only this user can read them"""
BEAT_S = 0.2
"""longest wait for orders before ended children are looked for, seconds"""
PRELOADED = (
    "autotune.service.supervise.worker",
    "autotune.study.assembly",
    "autotune.store.sql",
    "autotune.study.loop",
    "autotune.schema",
    *(f"autotune.search.{name}" for name in ("bayesian", "cost_ranked", "grid", "random")),
)
"""modules to import before forking"""


class StudyForkServer:
    """Reads orders, forks children and reports their ends."""

    def __init__(self, logs: Path, *, lease_s: float) -> None:
        self._logs, self._lease_s = logs, lease_s
        self._children: dict[int, str] = {}
        self._wake_read, self._wake_write = os.pipe()
        self._buffer = b""
        self._stopping = False

    def run(self) -> None:
        """Run until the input ends, or until all children have ended after a stop."""
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while not (self._stopping and not self._children):
            ready, _, _ = select.select([0, self._wake_read], [], [], BEAT_S)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            self._reap()
            if 0 in ready and not self._read_orders():
                return

    def _read_orders(self) -> bool:
        """Execute the available orders; return False at the end of the input."""
        data = os.read(0, 65536)
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "start" in order and not self._stopping:
                self._start(str(order["start"]))
            elif order.get("stop"):
                self._stopping = True
                for pid in self._children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
        return bool(data)

    def _start(self, study: str) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            # no process or no memory is left; the server and its other children continue
            print(f"study {study} cannot be started now: {error}", file=sys.stderr, flush=True)
            _report({"ended": study, "pid": 0, "code": NOT_STARTED})
            return
        if pid == 0:
            self._run_child(study)
        self._children[pid] = study
        _report({"started": study, "pid": pid})

    def _run_child(self, study: str) -> None:
        """In the child: start a session, open the log file and run the worker. Never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            os.close(self._wake_read)
            os.close(self._wake_write)
            log = os.open(
                self._logs / f"{study}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, LOG_MODE
            )
            null = os.open(os.devnull, os.O_RDONLY)
            for target, source in ((0, null), (1, log), (2, log)):
                os.dup2(source, target)
            sys.stdout = os.fdopen(
                1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
            )
            sys.stderr = os.fdopen(
                2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False
            )
            from autotune.service.supervise.worker import run

            code = run(study, lease_s=self._lease_s)
        except BaseException:  # the child must exit here and never return into the server's stack
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            study = self._children.pop(pid, None)
            if study is not None:
                _report({"ended": study, "pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _report(line: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(line).encode() + b"\n")


def preload() -> None:
    """Import what studies need, without starting anything."""
    for name in PRELOADED:
        import_module(name)


if __name__ == "__main__":
    preload()
    StudyForkServer(Path(sys.argv[1]), lease_s=float(sys.argv[2])).run()
