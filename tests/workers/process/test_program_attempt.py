"""Programs on places that are not there: what is told to each node, who is to blame, and how long
one waits. No process is started."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from autotune.errors import AutotuneError, RunnerError
from autotune.ports import (
    AttemptEnded,
    AttemptQueued,
    AttemptStarted,
    NodePlace,
    RunnerEvent,
    TrialRequest,
)
from autotune.spec import Failure, FailureKind
from autotune.testing.runners import ended
from autotune.trainers.base.torchrun import Placement
from autotune_workers.gang import attempt_runner
from autotune_workers.gang.attempt_runner import Place
from autotune_workers.gang.ladder import Patience
from autotune_workers.gang.wire import Message
from autotune_workers.process import attempt_logs
from autotune_workers.process.attempt_logs import NodeLog, keep_logs
from autotune_workers.process.keeper.log import LeftOut
from autotune_workers.process.program import attempt as program_attempt
from autotune_workers.process.program.attempt import ProgramAttempt, ProgramRunner
from autotune_workers.process.program.launch import prepare
from autotune_workers.process.program.places import ProgramOrder
from tests.workers.requests import PATIENT, failure_of, measurement_of
from tests.workers.requests import request as asking

METRICS = {"step": r"^step (\d+)", "step_time_s": r"time ([\d.]+)", "loss": r"loss ([\d.]+)"}


class FakeNode:
    """A keeper that does as it is told, when the test says so."""

    def __init__(self, address: str, port: int = 4000) -> None:
        self.name, self.address, self.port, self.ready = address, address, port, False
        self.order: ProgramOrder | None = None
        self.told_to_end = self.hung = False

    def begin(self, order: ProgramOrder) -> None:
        self.order = order

    def end(self, *, hung: bool = False) -> None:
        self.told_to_end, self.hung = True, hung


def asked(measure: Any = PATIENT, **options: Any) -> TrialRequest:
    argv = [sys.executable, "train.py", "--mb={micro_batch_size}", "--dp={dp}"]
    chosen = {"argv": argv, "metrics": METRICS, **options}
    return asking(
        0,
        dp=4,
        trainer="command",
        trainer_options=chosen,
        config={"precision": "bf16"},
        measure=measure,
        cluster={"num_nodes": 2, "gpus_per_node": 2},
    )


class Two:
    """An attempt on two fake nodes, and what it says."""

    def __init__(self, **fields: Any) -> None:
        self.nodes = [FakeNode("10.0.0.1", 4000), FakeNode("10.0.0.2", 5000)]
        place = Place(handles=self.nodes)
        self.attempt = ProgramAttempt(prepare(asked(**fields), is_local=True), place, 0.0)
        self.now_s = 0.0

    def say(self, node: int, event: str, **fields: Any) -> None:
        self.attempt.hear(self.nodes[node], {"event": event, **fields}, self.now_s)

    def begin(self) -> None:
        for node in (0, 1):
            self.say(node, "ready")
        for node in (0, 1):
            self.say(node, "started", pid=1, program="/p", hostname=f"host-{node}", gpus=["0", "1"])

    def lines(self, node: int, *lines: str) -> None:
        self.say(node, "lines", lines=[[1000.0 * node, line] for line in lines])

    def ended(self, node: int, code: int | None, **fields: Any) -> None:
        readings = {
            "peak_bytes": 10 * (node + 1),
            "gpu_peak_bytes": None,
            "kernel_oom": False,
            "left": [],
            **fields,
        }
        self.say(node, "ended", code=code, **readings)

    def both_ended(self, code: int) -> None:
        for node in (0, 1):
            self.ended(node, code)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.attempt.tick(self.now_s)

    @property
    def end(self) -> AttemptEnded:
        assert self.attempt.over
        (end,) = [event for event in self.attempt.events() if isinstance(event, AttemptEnded)]
        return end

    @property
    def failure(self) -> Failure:
        return failure_of(self.end)


def begun(**fields: Any) -> Two:
    two = Two(**fields)
    two.begin()
    return two


def test_all_start_when_all_are_ready_and_meet_at_node_0() -> None:
    two = Two()
    two.say(1, "ready")
    assert two.nodes[1].order is None
    two.say(0, "ready")
    first, second = (node.order for node in two.nodes)
    assert first is not None
    assert second is not None
    assert second.env["PET_NODE_RANK"] == second.env["NODE_RANK"] == "1"
    assert (second.env["MASTER_ADDR"], second.env["MASTER_PORT"]) == ("10.0.0.1", "4000")
    assert first.env["PET_NODE_RANK"] == "0"
    assert second.nodes == 2
    two.say(0, "started", pid=1, program="/p", hostname="a", gpus=["0", "1"])
    assert two.attempt.events() == []
    two.say(1, "started", pid=1, program="/p", hostname="b", gpus=["4", "5"])
    (start,) = two.attempt.events()
    places = (
        NodePlace(node="a", ranks=(0, 1), gpus=("0", "1")),
        NodePlace(node="b", ranks=(2, 3), gpus=("4", "5")),
    )
    assert start == AttemptStarted(id=two.attempt.job.request.id, places=places)


def test_torchrun_takes_these_variables_and_an_argument_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = prepare(asked(), is_local=True).order(1, master_addr="10.0.0.1", master_port=4000)
    for name, value in order.env.items():
        monkeypatch.setenv(name, value)
    told = get_args_parser().parse_args(["train.py"])
    assert (told.nnodes, told.nproc_per_node, int(told.node_rank)) == ("2", "2", 1)
    assert (told.master_addr, int(told.master_port)) == ("10.0.0.1", 4000)
    assert get_args_parser().parse_args(["--nproc-per-node=1", "train.py"]).nproc_per_node == "1"


def test_the_first_node_that_ends_a_step_is_measured_and_memory_is_that_of_all() -> None:
    two = begun()
    for step in range(12):
        two.lines(1, f"step {step} time 2.0 loss 3.0")
        two.lines(0, f"step {step} time 1.0 loss 3.0")
    two.wait(0.0)
    assert all(node.told_to_end for node in two.nodes)
    two.both_ended(-15)
    seen = measurement_of(two.end)
    assert set(seen.step_times_s) == {2.0}
    assert seen.peak_memory_bytes == 20


def test_a_node_that_merely_lost_its_peer_is_no_cause() -> None:
    two = begun()
    two.lines(0, "RuntimeError: [gloo] Connection closed by peer [10.0.0.2]")
    two.ended(0, 1)
    two.lines(1, "ValueError: the cause")
    two.wait(1.0)
    assert not two.nodes[1].told_to_end, "what it says may be the cause"
    two.ended(1, 1)
    failure = two.failure
    assert failure.kind is FailureKind.ERROR
    assert "on node 1 (10.0.0.2)" in failure.message
    assert failure.log_tail[0] == "[node 1] ValueError: the cause"
    assert failure.log_tail[1].startswith("[node 0] RuntimeError")


def test_a_node_that_goes_on_alone_is_ended() -> None:
    two = begun()
    two.ended(0, 3)
    two.wait(program_attempt.PEERS_S)
    assert two.nodes[1].told_to_end
    two.ended(1, -15)
    assert two.failure.message.endswith("exit code 3 on node 0 (10.0.0.1)")


def test_a_lost_node_ends_the_others_at_once_and_is_the_cause_of_their_end() -> None:
    two = begun()
    two.lines(1, "RuntimeError: out of luck")
    two.ended(1, 1)
    two.say(0, "gone", why="was silent for 10 s")
    failure = two.failure
    assert failure.kind is FailureKind.WORKER_LOST
    assert "node 0 (10.0.0.1): was silent for 10 s" in failure.message
    assert not two.attempt.healthy


def test_a_trial_that_was_late_because_a_node_was_lost_is_no_hang() -> None:
    two = begun(measure=replace(PATIENT, start_timeout_s=5.0))
    two.wait(6.0)
    two.ended(0, -15)
    two.say(1, "gone", why="was silent for 10 s")
    assert two.failure.kind is FailureKind.WORKER_LOST


def test_a_keeper_that_does_not_confirm_the_end_is_given_up() -> None:
    two = begun(measure=replace(PATIENT, start_timeout_s=5.0))
    two.wait(6.0)
    two.ended(0, -15)
    two.wait(program_attempt.GONE_S)
    assert two.failure.kind is FailureKind.WORKER_LOST
    assert not two.attempt.healthy


def test_left_out_lines_show_in_the_log() -> None:
    two = begun()
    two.say(0, "lines", lines=[[0.0, "the end"]], left_out=LeftOut(lines=7, bytes=3 << 20).plain())
    two.say(1, "lines", lines=[], left_out=LeftOut(lines=1, bytes=1 << 20, step_lines=1).plain())
    two.both_ended(1)
    failure = two.failure
    assert failure.log_tail[:2] == (
        "[node 0] [autotune could not read everything and left out 7 lines (3.0 MiB), with no step lines among them]",
        "[node 0] the end",
    )
    assert failure.message.endswith(
        "; not read from the program's log: 8 lines (4.0 MiB), with 1 step line among them"
    )


def test_output_of_any_node_is_life_until_the_trial_is_over() -> None:
    two = begun(measure=replace(PATIENT, step_timeout_s=10.0, trial_timeout_s=100.0))
    two.lines(0, "step 0 time 1.0 loss 2.0")
    for _ in range(9):
        two.wait(9.0)
        two.say(1, "lines", lines=[])  # output without a line
        assert not two.nodes[0].told_to_end
    two.wait(20.0)
    two.both_ended(-15)
    failure = two.failure
    assert failure.kind is FailureKind.TIMEOUT
    assert failure.message == (
        "the trial took longer than trial_timeout_s=100; the program was still active, but no step came in the last 1m 41s"
    )


def test_a_program_that_prints_nothing_more_hangs() -> None:
    two = begun(measure=replace(PATIENT, step_timeout_s=10.0, trial_timeout_s=100.0))
    two.lines(0, "step 0 time 1.0 loss 2.0")
    two.wait(9.0)
    two.lines(0, "a checkpoint is written")
    two.wait(9.0)
    assert not two.nodes[0].told_to_end
    two.wait(2.0)
    two.both_ended(-15)
    failure = two.failure
    assert failure.kind is FailureKind.HANG
    assert (
        failure.message
        == "the log has no step after step 0, and nothing else, within step_timeout_s=10"
    )


def test_the_logs_of_a_failed_attempt_are_kept_and_the_failure_says_where(tmp_path: Path) -> None:
    places = Elsewhere()
    places.free = True
    places.last_words = ["step 0 time 1.0 loss 2.0", "the last words"]
    with ProgramRunner(places, logs=tmp_path) as runner:
        runner.start(asked())
        assert (
            failure_at_end(runner).log_tail[-1]
            == f"[autotune keeps the logs of all nodes in {tmp_path / 's' / '0-1'}]"
        )
    kept = [(tmp_path / "s" / "0-1" / f"node-{node}.log").read_text() for node in (0, 1)]
    assert kept[0] == "step 0 time 1.0 loss 2.0\nthe last words\n"


def test_a_log_keeps_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_logs, "FIRST_CHARACTERS", 10)
    monkeypatch.setattr(attempt_logs, "LAST_CHARACTERS", 12)
    log = NodeLog()
    for number in range(9):
        log.add(f"line{number}")
    assert log.text == "line0\n[autotune left out 6 lines here]\nline7\nline8\n"


def test_only_the_newest_attempts_keep_their_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_logs, "KEPT", 2)
    for number, study in enumerate(("old", "new", "new")):
        place = keep_logs(tmp_path, (study, number, 1), [NodeLog()])
        os.utime(place, (number, number))
    keep_logs(tmp_path, ("new", 3, 1), [NodeLog()])
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")) == [
        "new/2-1",
        "new/3-1",
    ]
    assert not (tmp_path / "old").exists()
    (tmp_path / "file").write_text("")
    assert keep_logs(tmp_path / "file", ("s", 0, 1), [NodeLog()]) == "", (
        "a failure is told without its logs"
    )


def test_a_program_is_looked_for_in_the_environment_that_is_named_and_nowhere_else_later(
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("python3", "mytrain"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    argv = ["mytrain", "{micro_batch_size}", "{dp}"]
    for python in (tmp_path, tmp_path / "bin" / "python3"):
        order = prepare(asked(argv=argv, python=str(python)), is_local=True).order(
            0, master_addr="a", master_port=1
        )
        assert order.argv[0] == str(tmp_path / "bin" / "mytrain")
        assert order.env["PATH"].startswith(f"{tmp_path / 'bin'}:")
    with pytest.raises(AutotuneError, match="python must be an absolute path"):
        prepare(asked(argv=argv, python="env"), is_local=True)
    for absent in ("/only/there", "/usr/bin/python0.1", str(tmp_path / "bin")):
        with pytest.raises(RunnerError, match="no such environment or interpreter here"):
            prepare(asked(argv=["python", *argv], python=absent), is_local=True)
    (tmp_path / "torchrun").write_text(f"#!{sys.executable}\n")
    (tmp_path / "torchrun").chmod(0o755)
    outside = {"PATH": str(tmp_path)}
    prepare(asked(argv=["torchrun", *argv], env=outside), is_local=True)
    with pytest.raises(RunnerError, match="has no such program"):
        prepare(asked(argv=["torchrun", *argv], env=outside, python=str(tmp_path)), is_local=True)
    other = prepare(asked(argv=["python", *argv], python="/only/there"), is_local=False)
    assert other.launch.argv[0] == "/only/there/bin/python", "never a Python of this machine"
    there = prepare(asked(argv=argv, python="/only/there"), is_local=False)
    assert there.launch.argv[0] == "/only/there/bin/mytrain"
    with pytest.raises(RunnerError, match="no such program here"):
        prepare(asked(argv=argv), is_local=False)


def test_an_uploaded_folder_is_named_once_and_the_program_runs_in_its_copy(tmp_path: Path) -> None:
    argv = ["./train.sh", "{micro_batch_size}", "{dp}"]
    job = prepare(asked(argv=argv, cwd=str(tmp_path), working_dir="upload"), is_local=False)
    order = job.order(0, master_addr="a", master_port=1)
    assert (job.upload, order.cwd, order.argv[0]) == (str(tmp_path), ".", "./train.sh")
    shared = prepare(asked(argv=argv, cwd=str(tmp_path)), is_local=False)
    assert (shared.upload, shared.launch.cwd, shared.launch.argv[0]) == (
        "",
        str(tmp_path),
        str(tmp_path / "train.sh"),
    )
    with pytest.raises(RunnerError, match="no such folder here"):
        prepare(asked(argv=argv, cwd="/no/such", working_dir="upload"), is_local=False)


class Elsewhere:
    """Two nodes that somebody else uses until `free`."""

    is_local, capacity = True, 4

    def __init__(self) -> None:
        self.free, self.short = False, ""
        self.last_words: list[str] = []
        self.places: list[Place] = []
        self.disbanded: list[tuple[Place, bool]] = []

    def form(self, *, nodes: int, ranks_per_node: int, study: str, folder: str) -> Place:
        self.places.append(Place(handles=[FakeNode(f"10.0.0.{node}") for node in range(nodes)]))
        return self.places[-1]

    def wait(self, timeout_s: float) -> list[tuple[Any, Message]]:
        time.sleep(min(timeout_s, 0.005))
        said: list[tuple[Any, Message]] = []
        for node in (
            node for place in self.places for node in place.handles if self.free and not node.ready
        ):
            node.ready = True
            lines = {"event": "lines", "lines": [[0.0, line] for line in self.last_words]}
            said += [
                (node, {"event": "ready"}),
                (node, lines),
                (node, {"event": "gone", "why": "the test is over"}),
            ]
        return said

    def is_placed(self, place: Place) -> bool:
        return self.free

    def shortage(self, placement: Placement) -> str:
        return self.short

    def absence(self, placement: Placement) -> str:
        return ""

    def disband(self, place: Place, healthy: bool) -> None:
        self.disbanded.append((place, healthy))

    def close(self) -> None:
        pass


def poll_until(
    runner: ProgramRunner, done: Callable[[list[RunnerEvent]], bool]
) -> list[RunnerEvent]:
    events: list[RunnerEvent] = []
    end_s = time.monotonic() + 300
    while not done(events):
        assert time.monotonic() < end_s, events
        events += runner.poll(0.01)
    return events


def failure_at_end(runner: ProgramRunner) -> Failure:
    def is_over(events: list[RunnerEvent]) -> bool:
        return any(isinstance(event, AttemptEnded) for event in events)

    return failure_of(ended(poll_until(runner, is_over)))


HASTY = replace(PATIENT, start_timeout_s=0.05, trial_timeout_s=0.1)


def test_waiting_for_a_place_outlasts_every_deadline_and_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt_runner, "QUEUED_EVERY_S", 0.02)
    places = Elsewhere()
    runner = ProgramRunner(places)
    runner.start(asked(measure=HASTY))
    events = poll_until(runner, lambda events: len(events) > 10)
    assert all(
        isinstance(event, AttemptQueued) and "2 nodes with 2 ranks each" in event.reason
        for event in events
    )
    places.free = True
    assert failure_at_end(runner).kind is FailureKind.WORKER_LOST
    assert places.disbanded == [(places.places[0], False)]
    runner.close()


@pytest.mark.parametrize(
    ("short", "patience", "kind", "says"),
    [
        ("the cluster has one node", Patience(), FailureKind.INVALID, "the cluster has one node"),
        ("", Patience(placement_s=0.1), FailureKind.WORKER_LOST, "must be placed within 100 ms"),
    ],
)
def test_a_place_that_cannot_be_had_is_an_end(
    short: str, patience: Patience, kind: FailureKind, says: str
) -> None:
    places = Elsewhere()
    places.short = short
    runner = ProgramRunner(places, patience=patience)
    runner.start(asked(measure=HASTY))
    failure = failure_at_end(runner)
    assert failure.kind is kind
    assert says in failure.message
    assert places.places[0].handles[0].order is None, "nothing was started"
    runner.close()


def test_a_program_that_falls_silent_is_asked_for_its_collectives_and_the_rank_behind_is_named() -> (
    None
):
    it = begun(measure=replace(PATIENT, start_timeout_s=5.0))
    it.wait(5.1)
    assert all(node.hung for node in it.nodes)
    last = [7, "nccl:all_reduce"]
    it.ended(0, -15, collectives={"0": {"0": last}, "1": {"0": last}})
    it.ended(1, -15, collectives={"2": {"0": last}, "3": {"0": [6, "nccl:broadcast"]}})
    failure = it.failure
    assert (failure.kind, failure.rank) == (FailureKind.HANG, 3)
    assert "collective 7" in failure.message
