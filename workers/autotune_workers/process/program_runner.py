"""Trials of somebody's own program on this machine: any trainer that `autotune.trainers` can launch, the `command` trainer first of all.

Each program runs under a subreaper of its own, in a folder with the files of its launch, or in the current folder when it has none. Its
output is read line by line (`program`). It is told to end when it is measured well enough, late, diverging or cancelled, and its end is
announced when everything that it started is gone. On GPUs it sees only those that are reserved for its ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, RunnerError
from autotune.ports import AttemptEnded, AttemptId, AttemptStarted, RunnerEvent, TrialRequest
from autotune.spec import Failure, FailureKind
from autotune.trainers import Launch, trainer
from autotune.trainers.torchrun import place
from autotune.trainers.trainer import LineReader
from autotune_workers.gang.gang_runner import LONGEST_TURN_S, too_large
from autotune_workers.process.children import inherited_environment, rank_environment
from autotune_workers.process.machine import oom_kills
from autotune_workers.process.program import ProgramTrial

GONE_S = 40.0
"""for a subreaper to end its program, before it is killed itself"""
TURN_BYTES = 1 << 20
"""of a log that are read in one turn"""
LINE_BYTES = 1 << 16
"""of a line without end that are kept"""
_LINE_END = re.compile(rb"[\r\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """An attempt that is ready to be started."""

    request: TrialRequest
    launch: Launch
    read: LineReader


@dataclass(slots=True, eq=False)
class _RunningProgram:
    """A program and its subreaper."""

    trial: ProgramTrial
    subreaper: subprocess.Popen[bytes]
    channel: socket.socket
    log: int
    gpus: list[str]
    folder: str
    oom_kills: int
    line: bytes = b""
    """of its log, not yet ended"""
    unread: bytes = b""
    """of its subreaper's messages"""
    end_asked_s: float | None = None
    last: Mapping[str, Any] = field(default_factory=dict)

    def read_log(self) -> list[str]:
        """Lines that have arrived; at the end of the log also one without end."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while len(data) < TURN_BYTES:
                chunk = os.read(self.log, 1 << 16)
                if not chunk:
                    data += b"\n"
                    break
                data += chunk
        *lines, rest = _LINE_END.split(self.line + data)
        self.line = rest[:LINE_BYTES]
        return [line.decode(errors="replace") for line in lines if line]

    def listen(self) -> list[Mapping[str, Any]]:
        """What the subreaper reports."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while chunk := self.channel.recv(1 << 16):
                self.unread += chunk
        *messages, self.unread = self.unread.split(b"\n")
        return [json.loads(message) for message in messages]

    def tell_to_end(self, now_s: float) -> None:
        """Has the subreaper end the program; once."""
        if self.end_asked_s is None:
            self.end_asked_s = now_s
            with contextlib.suppress(OSError):
                self.channel.sendall(b"end")

    def free(self) -> None:
        """Closes the channels of a subreaper that has ended."""
        self.channel.close()
        os.close(self.log)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class ProgramRunner:
    """Runs programs at once as long as there are ranks for them. A `TrialRunner` but for the trainers, which its owner names."""

    def __init__(self, capacity: int, *, gpus: Sequence[str] = ()) -> None:
        """`capacity`: ranks at once; `gpus`: names for CUDA_VISIBLE_DEVICES, one per rank; empty means CPU."""
        self._capacity, self._gpus = capacity, list(gpus)
        self._waiting: deque[_Job] = deque()
        self._running: dict[AttemptId, _RunningProgram] = {}
        self._events: list[RunnerEvent] = []
        self._selector = selectors.DefaultSelector()
        self._now_s = 0.0
        self._turned_s = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether there is anything to poll for."""
        return bool(self._waiting or self._running or self._events)

    def start(self, request: TrialRequest) -> None:
        """Begins the attempt, or lets it wait until ranks are free. Raises `RunnerError` when there is no such program here."""
        if request.id in self._running or any(job.request.id == request.id for job in self._waiting):
            raise RunnerError(f"attempt {request.id} is running already")
        try:
            job = self._prepare(request)
        except RunnerError:
            raise
        except AutotuneError as error:
            failure = Failure(kind=FailureKind.INVALID, message=str(error))
            self._events.append(AttemptEnded(id=request.id, failure=failure))
            return
        if request.config.world_size > self._capacity:
            self._events.append(AttemptEnded(id=request.id, failure=too_large(request, self._capacity)))
            return
        self._waiting.append(job)
        self._launch_what_fits()

    def _prepare(self, request: TrialRequest) -> _Job:
        whose, options = trainer(request.trainer), dict(request.trainer_options)
        known = {option.name for option in whose.options}
        steps = request.measure.warmup_steps + request.measure.max_steps
        options = {**{k: v for k, v in (("steps", steps), ("seed", request.seed)) if k in known}, **options}
        launch = whose.launch(request.workload, request.config, options)
        cwd = os.path.abspath(launch.cwd)  # the current folder when it is empty
        if not os.path.isdir(cwd):
            raise RunnerError(
                f"the trainer {whose.name} runs in {cwd!r}, but there is no such folder here",
                remedy="give a folder that exists where trials run",
                field="trainer.cwd",
            )
        program = os.path.join(cwd, launch.argv[0]) if os.path.dirname(launch.argv[0]) else launch.argv[0]
        if shutil.which(program, path=_search_path(launch.env)) is None:
            raise RunnerError(
                f"the trainer {whose.name} starts {launch.argv[0]!r}, but there is no such program here",
                remedy="install it, put its folder into PATH, or name it by its path",
                field="trainer",
            )
        nodes = place(request.workload.cluster, request.config).nnodes
        if nodes > 1 and request.config.world_size <= self._capacity:
            raise AutotuneError(
                f"programs are started on this one machine, but the config is spread over {nodes} nodes of the cluster",
                remedy="describe the cluster as one node, or use cluster: local",
                field="cluster",
            )
        return _Job(request=request, launch=launch, read=whose.reader(request.trainer_options))

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """Events since the last call; waits up to `timeout_s` for the first one."""
        end_s = time.monotonic() + timeout_s
        self._turn(0.0)
        while not self._events and (left_s := end_s - time.monotonic()) > 0:
            self._turn(min(left_s, LONGEST_TURN_S))
        events, self._events = self._events, []
        return events

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt. Unknown ids are ignored."""
        for job in list(self._waiting):
            if job.request.id == attempt:
                self._waiting.remove(job)
                self._events.append(AttemptEnded(id=attempt, cancelled=True))
        if attempt in self._running:
            self._running[attempt].trial.cancel()
            self._running[attempt].tell_to_end(self._now_s)

    def close(self) -> None:
        """Ends all programs and waits until they are gone."""
        for running in self._running.values():
            running.tell_to_end(self._now_s)
        end_s = time.monotonic() + GONE_S
        for running in self._running.values():
            while running.subreaper.poll() is None and time.monotonic() < end_s:
                running.read_log()  # a full pipe would block the last message
                time.sleep(0.01)
            running.subreaper.kill()
            running.subreaper.wait()
            running.free()
        self._waiting.clear()
        self._running.clear()
        self._selector.close()

    def _turn(self, timeout_s: float) -> None:
        self._selector.select(timeout_s)
        now_s = time.monotonic()
        self._now_s += min(now_s - self._turned_s, 2 * LONGEST_TURN_S)
        self._turned_s = now_s
        for attempt, running in list(self._running.items()):
            self._attend(attempt, running)
        self._launch_what_fits()

    def _attend(self, attempt: AttemptId, running: _RunningProgram) -> None:
        """Reads what is new, looks at the deadlines, and announces the end."""
        trial, is_over = running.trial, running.subreaper.poll() is not None
        for message in running.listen():
            running.last = message
            if "started" in message:
                self._events.append(AttemptStarted(id=attempt))
            elif "refused" in message:
                reason = message["refused"]
                trial.refuse(FailureKind.ERROR, f"the program cannot be started: {reason}", reason)
        lines = running.read_log()
        while lines:
            for line in lines:
                step = trial.hear(line, self._now_s)
                if step is not None:
                    self._events.append(step)
            lines = running.read_log() if is_over else []
        trial.tick(self._now_s)
        if is_over:
            self._announce(attempt, running)
        elif trial.ending:
            running.tell_to_end(self._now_s)
            if running.end_asked_s is not None and self._now_s - running.end_asked_s > GONE_S:
                running.subreaper.kill()

    def _announce(self, attempt: AttemptId, running: _RunningProgram) -> None:
        del self._running[attempt]
        self._selector.unregister(running.log)
        self._selector.unregister(running.channel)
        self._gpus += running.gpus
        running.free()
        self._events.append(
            running.trial.end(
                code=running.last.get("code"),
                kernel_oom=oom_kills() > running.oom_kills,
                peak_bytes=running.last.get("peak_bytes"),
            )
        )

    def _launch_what_fits(self) -> None:
        """Starts waiting attempts in their order, until one does not fit."""
        while self._waiting:
            taken = sum(running.trial.request.config.world_size for running in self._running.values())
            if taken + self._waiting[0].request.config.world_size > self._capacity:
                return
            job = self._waiting.popleft()
            self._running[job.request.id] = self._launch(job)

    def _launch(self, job: _Job) -> _RunningProgram:
        size = job.request.config.world_size
        gpus, self._gpus = self._gpus[:size], self._gpus[size:]
        folder = tempfile.mkdtemp(prefix="autotune-launch-") if job.launch.files else ""
        launch = job.launch.placed(folder)
        for name, text in launch.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        channel, theirs = socket.socketpair()
        log, sink = os.pipe()
        try:
            with theirs:
                subreaper = subprocess.Popen(
                    [sys.executable, "-m", "autotune_workers.process.subreaper", "--fd", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=rank_environment({}, host="127.0.0.1"),
                )
        finally:
            os.close(sink)
        environment = {
            **inherited_environment(),
            "PYTHONUNBUFFERED": "1",
            "PATH": _search_path({}),
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
            **launch.env,
        }
        order = {"argv": launch.argv, "env": environment, "cwd": os.path.abspath(launch.cwd or folder)}
        with contextlib.suppress(OSError):  # it is gone already: its exit code will say so
            channel.sendall(json.dumps(order).encode() + b"\n")
        channel.setblocking(False)
        os.set_blocking(log, False)
        self._selector.register(channel, selectors.EVENT_READ)
        self._selector.register(log, selectors.EVENT_READ)
        return _RunningProgram(
            trial=ProgramTrial(job.request, job.read, self._now_s),
            subreaper=subreaper,
            channel=channel,
            log=log,
            gpus=gpus,
            folder=folder,
            oom_kills=oom_kills(),
        )


def _search_path(environment: Mapping[str, str]) -> str:
    """Where programs are looked for: PATH, and last beside this Python, where its torchrun is."""
    path = environment.get("PATH") or os.environ.get("PATH") or os.defpath
    return os.pathsep.join([path, str(Path(sys.executable).parent)])
