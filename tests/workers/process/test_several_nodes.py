"""Programs over two nodes of this machine: each failure gets its kind, from the node that failed,
and nothing is left on any node."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.ports import LogRead, TrialRequest
from autotune.spec import FailureKind
from autotune.testing.runners import ended
from autotune_workers.runners.local import LocalRunner
from tests.workers.processes import running
from tests.workers.program_requests import GLOO, METRICS
from tests.workers.requests import DOUBLE, PATIENT, events_of, failure_of, measurement_of, one
from tests.workers.requests import request as asking

pytestmark = pytest.mark.alone

HERE = Path(__file__).parent
BRIEF = replace(PATIENT, min_steps=6, max_steps=8, precision=0.0)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner(max_ranks=2, device="cpu", trial=DOUBLE) as runner:
        yield runner


def on_two_nodes(number: int, argv: list[str], **fields: Any) -> TrialRequest:
    """A trial of two nodes with one rank each."""
    options = {
        "argv": argv,
        "metrics": METRICS,
        "fixed": {"dp": 2},
        "env": {"OMP_NUM_THREADS": "1"},
    }
    fixed = {"config": {"precision": "bf16"}, "cluster": {"num_nodes": 2, "gpus_per_node": 1}}
    return asking(number, dp=2, trainer="command", trainer_options=options, **fixed, **fields)


def program(number: int, *arguments: str, **fields: Any) -> TrialRequest:
    argv = [
        sys.executable,
        str(HERE / "node_program.py"),
        "--node={node_rank}",
        "--micro-batch={micro_batch_size}",
    ]
    return on_two_nodes(number, [*argv, *arguments], measure=BRIEF, **fields)


def left() -> list[int]:
    """What is left of the programs."""
    return running(HERE / "node_program.py")


def test_each_node_is_told_its_number_and_where_all_meet_and_one_is_measured(
    runner: LocalRunner,
) -> None:
    asked = replace(program(0), with_log=True)
    events = events_of(runner, asked)
    seen = measurement_of(ended(events))
    assert len(set(seen.step_times_s)) == 1, "steps of one node"
    assert seen.peak_memory_bytes, "seen by the keepers"
    logs = [event for event in events if isinstance(event, LogRead)]
    told = {event.node: line for event in logs for line in event.lines if line.startswith("told")}
    for node in (0, 1):
        assert f"'PET_NODE_RANK={node}'" in told[node]
        assert f"'NODE_RANK={node}'" in told[node]
        for words in (
            "PET_NNODES=2",
            "PET_NPROC_PER_NODE=1",
            "MASTER_ADDR=127.0.0.1",
            "GLOO_SOCKET_IFNAME=lo",
        ):
            assert words in told[node]


FAULTS = {
    "exit@1": (FailureKind.ERROR, "on node 1 (127.0.0.1)", "[node 1] ValueError: the cause"),
    "exit@0": (FailureKind.ERROR, "on node 0 (127.0.0.1)", "[node 0] ValueError: the cause"),
    "kill@1": (
        FailureKind.WORKER_LOST,
        "node 1 (127.0.0.1): the process that watches the program was lost",
        "[node 1] iteration 0",
    ),
}
"""faults that only several nodes have; the others, on one node and on two, are in
`test_misbehaving_programs`"""


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_gets_the_kind_of_the_node_that_failed(runner: LocalRunner, fault: str) -> None:
    kind, says, logged = FAULTS[fault]
    began_s = time.monotonic()
    failure = failure_of(one(runner, program(1, f"--fault={fault}")))
    took_s = time.monotonic() - began_s
    assert failure.kind is kind, failure
    assert says in failure.message
    assert any(line.startswith(logged) for line in failure.log_tail), failure.log_tail
    assert left() == [], "nothing is left on any node"
    assert took_s < BRIEF.step_timeout_s / 2, "no deadline was waited for"
    assert one(runner, program(2)).failure is None


@pytest.mark.thorough
def test_a_program_that_one_node_lacks_is_refused_there(
    runner: LocalRunner, tmp_path: Path
) -> None:
    script = tmp_path / "train"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    failure = failure_of(one(runner, on_two_nodes(0, [str(script), "{micro_batch_size}"])))
    assert failure.kind is FailureKind.ERROR
    assert failure.message.startswith("the program cannot be started on node ")


@pytest.mark.thorough
def test_standalone_would_stay_on_one_node(runner: LocalRunner) -> None:
    failure = failure_of(
        one(runner, on_two_nodes(0, ["torchrun", "--standalone", "x.py", "{micro_batch_size}"]))
    )
    assert failure.kind is FailureKind.INVALID
    assert "remove --standalone" in failure.message


@pytest.mark.thorough
def test_a_plain_torchrun_command_runs_on_two_nodes_as_it_is(runner: LocalRunner) -> None:
    argv = ["torchrun", str(GLOO), "--micro-batch={micro_batch_size}", "--steps=10", "--ranks=2"]
    assert measurement_of(one(runner, on_two_nodes(0, argv))).num_ranks == 2
