"""Programs as trials: the runner's contract, each way in which a program fails, and a whole study
over one."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import RunnerError
from autotune.ports import AttemptStarted, ProgramSeen, TrialRequest
from autotune.spec import FailureKind
from autotune.testing.runners import RunnerContract, ended, events_until_ended
from autotune_workers.process.machine import descendants, is_alive
from autotune_workers.runners.local import LocalRunner
from tests.matrix import sampled
from tests.workers.processes import owner_that_runs, parent_of, running, until
from tests.workers.requests import DOUBLE, PATIENT, events_of, failure_of, measurement_of, one
from tests.workers.requests import request as asking

pytestmark = pytest.mark.alone

PROGRAM = Path(__file__).with_name("program.py")
METRICS = {
    "step": r"^iteration (\d+):",
    "loss": r"loss = ([\d.]+|nan)",
    "step_time_ms": r": ([\d.]+) ms",
    "peak_memory_gib": r"ms, ([\d.]+) GiB",
}


def options(*arguments: str, metrics: Mapping[str, str] = METRICS) -> dict[str, Any]:
    """The trainer's options for the program with these arguments."""
    argv = [
        sys.executable,
        str(PROGRAM),
        "--micro-batch={micro_batch_size}",
        "--steps={steps}",
        *arguments,
    ]
    return {"argv": argv, "metrics": dict(metrics)}


def request(
    number: int, *arguments: str, metrics: Mapping[str, str] = METRICS, **fields: Any
) -> TrialRequest:
    """A trial of the program on one rank."""
    chosen = {
        "trainer_options": options(*arguments, metrics=metrics),
        "config": {"precision": "bf16"},
        **fields,
    }
    return asking(number, dp=1, trainer="command", **chosen)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner(max_ranks=2, device="cpu", trial=DOUBLE) as runner:
        yield runner


class TestProgramsKeepTheRunnersContract(RunnerContract):
    @pytest.fixture
    def runner(self, request: pytest.FixtureRequest, runner: LocalRunner) -> Iterator[LocalRunner]:
        if "clos" not in request.node.name:
            yield runner
            return
        with LocalRunner(max_ranks=2, device="cpu", trial=DOUBLE) as fresh:
            yield fresh

    @pytest.fixture
    def request_for(self):
        return lambda number: request(number, "--step-s=0.01")


def test_a_program_is_measured_by_its_log(runner: LocalRunner) -> None:
    asked = request(0, config={"precision": "bf16", "micro_batch_size": 4})
    events = events_of(runner, asked)
    seen = measurement_of(ended(events))
    assert isinstance(events[0], AttemptStarted)
    assert seen.step_time_s == pytest.approx(0.016)
    assert seen.peak_memory_bytes == 1.5 * 2**30
    assert seen.losses[0] == pytest.approx(4.99), "the first step is warm-up"
    assert seen.grad_norms == ()
    assert seen.tokens_per_step == 4 * 16
    assert seen.flops_per_token


@pytest.mark.thorough
def test_without_a_word_of_memory_the_fullest_process_counts(runner: LocalRunner) -> None:
    metrics = {name: pattern for name, pattern in METRICS.items() if name != "peak_memory_gib"}
    seen = measurement_of(
        one(runner, request(0, "--fault=hold@1", "--step-s=0.3", metrics=metrics))
    )
    assert 200 * 2**20 < (seen.peak_memory_bytes or 0) < 2**30


LINE = """{'loss': 2.0, 'learning_rate': 5e-05}"""
BURSTY = {
    "buffered": f"for _ in range(40): os.write(1, {LINE!r}.encode().join([b'', *[b'\\n'] * 4])); time.sleep(0.1)",
    "behind tee": f"for _ in range(160): print({LINE!r} + ' ' * 2000); time.sleep(0.025)",
    "chatty": f"for _ in range(160): print(('x' * 79 + '\\n') * 1500 + {LINE!r}, flush=True); time.sleep(0.025)",
}
"""programs whose step lines come several at once"""


@pytest.mark.parametrize("kind", sampled(BURSTY, ["buffered"]))
def test_steps_whose_lines_come_in_bursts_all_count(
    runner: LocalRunner, kind: str, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"import os, time\n{BURSTY[kind]}\n")
    line = {"behind tee": "PYTHONUNBUFFERED= {} {} | tee /dev/null"}.get(kind, "exec {} {}")
    argv = ["sh", "-c", line.format(sys.executable, program), "train", "{micro_batch_size}"]
    measure = replace(PATIENT, warmup_steps=1, min_steps=60, max_steps=80, precision=1e-6)
    asked = asking(
        0,
        dp=1,
        trainer="command",
        trainer_options={"argv": argv},
        config={"precision": "bf16"},
        measure=measure,
    )
    events = events_of(runner, asked)
    found = ended(events).measurement
    assert found is not None, ended(events).failure
    assert found.time_from == "arrival"
    assert len(found.step_times_s) == 80
    (seen,) = [event for event in events if isinstance(event, ProgramSeen)]
    assert seen.together == found.steps_together
    if kind != "chatty":  # a reader that is quick enough has each of its lines by itself
        assert found.steps_together >= 3
    assert found.mean_step_time_s >= 0.02


HASTY = replace(PATIENT, step_timeout_s=10.0)
"""for programs that hang"""
FAULTS = {
    "exit@3": (FailureKind.ERROR, "exit code 3", 3),
    "raise@3": (FailureKind.ERROR, "raised ", 3),
    "oom@3": (FailureKind.OUT_OF_MEMORY, "out of memory", 3),
    "kill@3": (FailureKind.WORKER_LOST, "SIGKILL", 3),
    "sleep@3": (FailureKind.HANG, "step_timeout_s", 3),
    "stubborn@3": (FailureKind.HANG, "step_timeout_s", 3),
    "nan@3": (FailureKind.DIVERGED, "finite", 3),
    "leave@3": (FailureKind.METRICS_MISSING, "3 steps", 3),
    "silent@0": (FailureKind.METRICS_MISSING, "no step", None),
}


@pytest.mark.parametrize("fault", sampled(FAULTS, ["raise@3", "kill@3"]))
def test_each_fault_gets_its_verdict_and_the_next_trial_runs(
    runner: LocalRunner, fault: str
) -> None:
    kind, says, step = FAULTS[fault]
    measure = HASTY if kind is FailureKind.HANG else PATIENT
    failure = failure_of(
        one(runner, request(1, f"--fault={fault}", measure=replace(measure, precision=0.0)))
    )
    assert (failure.kind, failure.step) == (kind, step), failure
    assert says in failure.message
    assert "settings []" in failure.log_tail, (
        "the log is the evidence, and no setting of the service is in it"
    )
    assert running(PROGRAM) == [], "nothing of the program is left"
    assert one(runner, request(2)).failure is None


@pytest.mark.thorough
def test_a_trial_that_takes_too_long_ends_in_time(runner: LocalRunner) -> None:
    slow = replace(PATIENT, min_steps=8, max_steps=1000, precision=0.0, trial_timeout_s=3.0)
    failure = failure_of(
        one(runner, request(0, "--step-s=0.5", measure=replace(slow, warmup_steps=100)))
    )
    assert failure.kind is FailureKind.TIMEOUT


@pytest.mark.thorough
def test_a_program_that_never_speaks_hangs_in_start(runner: LocalRunner) -> None:
    measure = replace(PATIENT, start_timeout_s=3.0)
    failure = failure_of(one(runner, request(0, "--fault=sleep@0", measure=measure)))
    assert failure.kind is FailureKind.HANG
    assert "start_timeout_s" in failure.message


def test_what_a_program_started_elsewhere_ends_with_it(runner: LocalRunner) -> None:
    few = {**options("--fault=orphan@1"), "steps": 3}
    failed = failure_of(one(runner, request(0, trainer_options=few)))
    (pid,) = [int(line.split()[1]) for line in failed.log_tail if line.startswith("orphan")]
    assert not is_alive(pid)


@pytest.mark.thorough
def test_a_loser_ends_early(runner: LocalRunner) -> None:
    endless = replace(PATIENT, min_steps=5, max_steps=500, precision=0.0)
    end = one(
        runner, request(0, "--step-s=0.01", "--jitter=0.1", measure=endless, beat_step_time_s=0.001)
    )
    assert "cannot win" in end.stopped
    assert end.failure is None


def test_a_knob_that_the_program_would_not_hear_of_is_refused(runner: LocalRunner) -> None:
    failure = failure_of(one(runner, request(0, config={"precision": "bf16", "recompute": "full"})))
    assert failure.kind is FailureKind.INVALID
    assert "{recompute}" in failure.message


def test_a_program_that_is_not_there_stops_the_study(runner: LocalRunner) -> None:
    with pytest.raises(RunnerError, match="no such program"):
        runner.start(
            request(0, trainer_options={"argv": ["trainer-of-nobody", "{micro_batch_size}"]})
        )


READS_ITS_CONFIG = """
import json, os, sys
config = json.load(open(sys.argv[1]))
assert config == {"micro_batch": 1, "compile": False}, config
assert os.getcwd() == sys.argv[2], os.getcwd()
for step in range(40):
    print(json.dumps({"step": step, "step_time_s": 0.01, "loss": 2.0}))
"""


def test_a_program_reads_its_rendered_files_in_its_own_folder(
    runner: LocalRunner, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(READS_ITS_CONFIG)
    rendered = {
        "argv": [sys.executable, "train.py", "{files}/train.json", str(tmp_path)],
        "cwd": str(tmp_path),
        "files": {"train.json": {"micro_batch": "{micro_batch_size}", "compile": "{compile}"}},
    }
    measurement_of(one(runner, request(0, trainer_options=rendered)))


def test_a_folder_that_is_not_there_stops_the_study(runner: LocalRunner) -> None:
    with pytest.raises(RunnerError, match="no such folder"):
        runner.start(
            request(
                0,
                trainer_options={
                    "argv": [sys.executable, "{micro_batch_size}"],
                    "cwd": "/nowhere-at-all",
                },
            )
        )


@pytest.mark.thorough
def test_ranks_and_programs_run_side_by_side(runner: LocalRunner) -> None:
    native, program = asking(10, dp=1), request(11)
    runner.start(native)
    runner.start(program)
    events = events_until_ended(runner, [native.id, program.id])
    assert all(ended(events, asked.id).failure is None for asked in (native, program))


_OWNER = """
from autotune_workers.runners.local import LocalRunner
from tests.workers.process.test_program_runner import request
runner = LocalRunner(max_ranks=1, device="cpu")
runner.start(request(0, "--fault=stubborn@2"))
while True:
    for event in runner.poll(0.2):
        print(type(event).__name__, flush=True)
"""


def test_programs_end_with_their_owner_even_when_it_is_killed() -> None:
    with owner_that_runs(_OWNER) as (owner, said):
        assert any("Steps" in line for line in said)
        (program,) = running(PROGRAM)
        below = [program, parent_of(program)]
        assert b"keeper" in Path(f"/proc/{below[1]}/cmdline").read_bytes()
        assert set(below) <= set(descendants(owner.pid)), "its children, which it reaps"
        owner.send_signal(signal.SIGKILL)
        owner.wait(timeout=300)
        until(lambda: not any(map(is_alive, below)), 300)


def test_a_study_finds_the_best_config_of_somebodys_program() -> None:
    spec = {
        "name": "mine",
        "model": "nano-gpt",
        "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 1},
        "workload": {"seq_len": 64, "global_batch_size": 8},
        "space": {"micro_batch_size": [1, 2, 4, 8], "precision": ["fp32"]},
        "budget": {"max_trials": 6, "max_wall_s": 600},
        "measure": {
            "warmup_steps": 1,
            "min_steps": 5,
            "max_steps": 6,
            "finalists": 1,
            "final_rounds": 1,
        },
        "searcher": "grid",
        "trainer": {
            "kind": "command",
            "counts": "steps",
            **options("--accumulation={accumulation_steps}", "--precision={precision}"),
        },
        "runner": {"kind": "local", "max_ranks": 1, "device": "cpu"},
    }
    from autotune.api import load_study, tune

    result = tune(load_study(spec))
    assert result.best is not None
    assert result.best.config.micro_batch_size == 8
    assert math.isfinite(result.speedup)
    assert json.dumps([trial.to_dict() for trial in result.trials])
