"""The adviser process of `autotune run`: reviews the command before it starts, reads its output
while it runs, and stores the observed run at its end.

While the command runs, the adviser uses at most `SHARE` of a core. Output that it cannot read in
that time is dropped, oldest first, so the last lines are always read.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, final

from autotune.diagnosis import Diagnosis, Evidence, diagnose, lines_of
from autotune.errors import AutotuneError
from autotune.observing.launch import cluster_here, results_database, target_of
from autotune.observing.versions import versions_of
from autotune.observing.words import PREFIX, after
from autotune.registry import RUNNERS, load
from autotune.results.diagnoses import predicted_fields, with_disagreements
from autotune.results.knobs_seen import PROGRAM_DEFAULTS
from autotune.reviews import Review, review
from autotune.reviews.lines import line_of_knob
from autotune.reviews.words import short_lines
from autotune.settings import user_name
from autotune.spec import Failure, Measurement, ObservedRun, Outcome, ParallelConfig
from autotune.spec.texts.secrets import masked, secrets_of, without
from autotune.trainers.base.own_program import COMMAND, name_in, program_name

PACKET = 1 << 17
"""maximum size of a received packet, bytes"""
WAITING_BYTES = 4 << 20
"""maximum size of received output that has not been read yet, bytes; older output is dropped"""
SHARE, AT_ONCE_S = 0.008, 0.5
"""CPU budget while the command runs: a fraction of a core, and CPU seconds allowed on top of it"""
PAUSE_S = 0.2
"""time between checks whether the CPU budget allows more reading, seconds"""
WARM_S = 10.0
"""run time after which modules needed at the end are imported in advance, seconds"""
LOOK_S = 2.0
"""time between readings of GPU memory, seconds"""
PART = 60_000
"""maximum payload of a packet to the main process, bytes"""
_LINE_END = re.compile(rb"[\r\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The arguments of `autotune run`."""

    command: tuple[str, ...]
    said: Mapping[str, Any] = field(default_factory=dict)
    """options of the review, for what the command does not state: model, cluster, seq_len, batch,
    precision, config"""
    store: str | None = None
    """address of the results database; None for the default"""
    as_json: bool = False
    reports: str = ""
    """folder of the probe's reports; empty if the ranks are not observed"""
    profiles: bool = False
    """whether torch's profiler records a few steps"""


def adviser_of(asked: Asked) -> Any:
    """Return the function that `run_in_place` calls in the adviser process, with its socket."""

    def advise(channel: socket.socket) -> None:
        _Adviser(asked, channel).run()

    return advise


@final
class _Adviser:
    def __init__(self, asked: Asked, channel: socket.socket) -> None:
        self._asked, self._channel = asked, channel
        self._packets: deque[bytes] = deque()
        self._bytes = 0
        self._arrived = threading.Condition()
        self._rest: dict[bytes, bytes] = {}

    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        reviewed = self._review()
        self._channel.send(b"R")
        versions = versions_of(self._asked.command)
        study = reviewed.study if reviewed else None
        program = load(RUNNERS, "local").observed_program(
            study.trainer if study else COMMAND,
            study.trainer_options if study else _log_options(self._asked.command, reviewed),
            study.workload if study else None,
            reviewed.config if reviewed else None,
        )
        versions |= program.versions(self._asked.command)
        if self._asked.reports:
            program.watch(self._asked.reports)
        started: dict[str, Any] = {}
        began_s, began_cpu_s, looked_s = time.monotonic(), time.process_time(), 0.0
        while (packet := self._take(LOOK_S)) is None or packet[:1] != b"E":
            now_s = time.monotonic()
            if packet is not None and packet[:1] == b"S":
                started = json.loads(packet[1:])
                program.begin(now_s, os.environ.get("CUDA_VISIBLE_DEVICES"))
            elif packet is not None:
                self._read(packet, program)
            if started and now_s - looked_s >= LOOK_S:
                looked_s = now_s
                if now_s - began_s > WARM_S:  # importing this at the end would take a second
                    import_module("autotune.store.sql")
                program.look(_descendants(started["pid"]))
            while time.process_time() - began_cpu_s > AT_ONCE_S + SHARE * (
                time.monotonic() - began_s
            ):
                if self._has_ended():
                    break
                time.sleep(PAUSE_S)
        for kind in list(self._rest):  # a last line without a newline
            self._read_lines(kind, b"\n", time.monotonic(), program)
        self._finish(json.loads(packet[1:]), started, reviewed, program, versions)

    def _review(self) -> Review | None:
        """Review the launch and print the result. If that fails, return a review that holds only
        the log patterns, or None if these are unknown too."""
        target = target_of(self._asked.command, os.environ)
        try:
            with self._existing_store() as store:
                result = review(target, store=store, here=cluster_here, **self._asked.said)
        except Exception as error:  # the run is stored even without a review
            self._say(f"not reviewed: {_reason_of(error)}")
            return self._log_patterns_only(target)
        for line in short_lines(result):
            self._say(line)
        return result

    @contextmanager
    def _existing_store(self) -> Iterator[Any]:
        """The results database; None if it does not exist or does not answer, because a review
        works without it."""
        with ExitStack() as stack:
            try:
                store = stack.enter_context(results_database(self._asked.store, is_needed=False))
            except Exception as error:
                self._say(f"reviewed without the results database: {_reason_of(error)}")
                store = None
            yield store

    def _log_patterns_only(self, target: Any) -> Review | None:
        with suppress(Exception):
            result = review(target, here=cluster_here)
            metrics = result.metrics
            if not metrics and result.study and result.study.trainer == COMMAND:
                metrics = result.study.trainer_options.get("metrics") or {}
            return Review(target=result.target, understood="", metrics=metrics)
        return None

    def _finish(
        self, end: Mapping[str, Any], started: Mapping[str, Any], reviewed: Review | None, program: Any, versions: Mapping[str, str]
    ) -> None:  # fmt: skip
        code, last_signal = int(end["code"]), str(end["last_signal"])
        is_interrupted = code != 0 and bool(last_signal or -code in _ENDING)
        seen, failure = program.ended(
            code, resident_bytes=end["max_rss_bytes"], is_interrupted=is_interrupted
        )
        seen, diagnosis = self._diagnosed(seen, reviewed, program)
        outcome = Outcome.of(is_interrupted=is_interrupted, has_failed=code != 0)
        study = reviewed.study if reviewed else None
        command = self._asked.command
        run = ObservedRun(
            program=program_name(study.trainer, study.trainer_options)
            if study
            else name_in(command),
            command=tuple(masked(list(command))),
            outcome=outcome,
            exit_code=code,
            workload=study.workload if study else None,
            config=reviewed.config if reviewed else None,
            estimate=reviewed.estimate if reviewed else None,
            measurement=seen,
            failure=_without_secrets(failure, command),
            versions={**versions, **(seen.versions if seen else {})},
            host=socket.gethostname(),
            owner=user_name(),
            started_at=datetime.fromtimestamp(started.get("started_s", end["ended_s"]), UTC),
            ended_at=datetime.fromtimestamp(end["ended_s"], UTC),
        )
        try:
            with results_database(self._asked.store, is_needed=True) as store:
                assert store is not None
                run = store.keep_observed(run)
            stored = f"stored as observed run {run.id}"
        except Exception as error:
            stored = f"not kept: {error}"
        for line in after(run, stored, by_output=not self._asked.reports):
            self._say(line)
        if diagnosis is not None:
            for line in lines_of(diagnosis, os.getcwd()):
                self._say(line, is_indented=True)
        if self._asked.as_json:
            document = {"review": reviewed.to_dict() if reviewed else None, "run": run.to_dict()}
            if diagnosis is not None:
                document |= diagnosis.to_dict()
            text = json.dumps(document, indent=2).encode() + b"\n"
            for at in range(0, len(text), PART):
                self._channel.send(b"J" + text[at : at + PART])

    def _diagnosed(
        self, seen: Measurement | None, reviewed: Review | None, program: Any
    ) -> tuple[Measurement | None, Diagnosis | None]:
        """The measurement with the evidence of all ranks, and the diagnosis. Without a requested
        diagnosis, the measurement as it is and None."""
        if not self._asked.reports:
            return seen, None
        predicted = predicted_fields(reviewed.estimate if reviewed else None)
        evidence = program.evidence(**predicted)
        shutil.rmtree(self._asked.reports, ignore_errors=True)
        if evidence is None:
            return seen, diagnose(
                Evidence(
                    step_times_s=seen.step_times_s if seen else (),
                    hints=program.hints,
                    is_watched=True,
                    **predicted,
                )
            )
        if self._asked.profiles and not evidence.parts_s and not evidence.profile_failed:
            evidence = replace(evidence, profile_failed="training ended before the tenth step")
        if (config := (reviewed and reviewed.config) or self._config_of_options()) is not None:
            evidence = with_disagreements(evidence, config, source="launch")
            evidence = replace(evidence, asked_at=_asked_at(reviewed, evidence) if reviewed else {})
        # the probe's step times replace those of the log, whose lines may be micro-batches or
        # repeat for each rank
        seen = replace(
            seen or Measurement(step_times_s=()),
            step_times_s=evidence.step_times_s,
            time_from="probe",
            time_resolution_s=0.0,
        )
        seen = replace(
            seen,
            evidence=evidence.shortened().to_dict(),
            versions=dict(evidence.facts.get("versions") or {}),
        )
        return seen, diagnose(evidence)

    def _config_of_options(self) -> ParallelConfig | None:
        """The config of `--config`; None without the option, or if it cannot be parsed."""
        with suppress(AutotuneError, ValueError):
            return (
                ParallelConfig.parse(str(self._asked.said["config"]))
                if self._asked.said.get("config")
                else None
            )
        return None

    def _say(self, line: str, *, is_indented: bool = False) -> None:
        indent = " " * (len(line) - len(line.lstrip())) if is_indented else ""
        self._channel.send(b"L" + (PREFIX + indent + " ".join(line.split())).encode()[:PART])

    def _listen(self) -> None:
        while packet := self._channel.recv(PACKET):
            with self._arrived:
                self._packets.append(packet)
                self._bytes += len(packet)
                while self._bytes > WAITING_BYTES:
                    oldest = next((p for p in self._packets if p[:1] not in b"SE"), b"")
                    self._packets.remove(oldest)
                    self._bytes -= len(oldest)
                self._arrived.notify()
        os._exit(0)  # the main process is gone

    def _take(self, timeout_s: float) -> bytes | None:
        with self._arrived:
            if not self._packets:
                self._arrived.wait(timeout_s)
            if not self._packets:
                return None
            packet = self._packets.popleft()
            self._bytes -= len(packet)
            return packet

    def _has_ended(self) -> bool:
        with self._arrived:
            return bool(self._packets) and self._packets[-1][:1] == b"E"

    def _read(self, packet: bytes, program: Any) -> None:
        kind, (arrived_s,) = packet[:1], struct.unpack("d", packet[1:9])
        if kind in b"34":
            kind = {b"3": b"1", b"4": b"2"}[kind]
            self._rest.pop(kind, None)
        self._read_lines(kind, packet[9:], arrived_s, program)

    def _read_lines(self, kind: bytes, text: bytes, arrived_s: float, program: Any) -> None:
        *lines, rest = _LINE_END.split(self._rest.get(kind, b"") + text)
        self._rest[kind] = rest[-PACKET:]
        for line in filter(None, lines):
            program.hear(line.decode(errors="replace"), arrived_s)


_ENDING = (1, 2, 3, 15)
"""numbers of the signals with which users end programs: SIGHUP, SIGINT, SIGQUIT, SIGTERM"""


def _reason_of(error: Exception) -> str:
    return error.message if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}"


def _asked_at(reviewed: Review, evidence: Evidence) -> dict[str, str]:
    """By knob without effect, the line of the launch that sets it (file:number)."""
    knobs = [text.partition(":")[0] for text in evidence.disagreements]
    return {
        knob: line
        for knob in knobs
        if (line := line_of_knob(reviewed, knob, PROGRAM_DEFAULTS[knob]))
    }


def _log_options(command: tuple[str, ...], reviewed: Review | None) -> dict[str, Any]:
    """Options of the command trainer with the review's log patterns, for a program without a
    study; empty without patterns."""
    return (
        {"argv": [name_in(command)], "metrics": reviewed.metrics}
        if reviewed and reviewed.metrics
        else {}
    )


def _without_secrets(failure: Failure | None, command: tuple[str, ...]) -> Failure | None:
    secrets = secrets_of(list(command))
    if failure is None or not secrets:
        return failure
    return replace(
        failure,
        message=without(secrets, failure.message),
        exception=without(secrets, failure.exception),
        log_tail=without(secrets, failure.log_tail),
    )


def _descendants(pid: int) -> list[int]:
    pids = [pid]
    for pid_of_tree in pids:  # the list grows during the loop
        with suppress(OSError):
            for task in Path(f"/proc/{pid_of_tree}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids
