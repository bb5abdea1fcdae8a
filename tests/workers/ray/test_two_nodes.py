"""Trials over two real nodes, each with two ranks: own addresses, own shared memory, own names. The driver is on a third machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.ports import AttemptStarted, RunnerEvent, TrialRequest
from autotune.spec import ClusterSpec
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.runners.ray import RayRunner
from tests.nodes import programs
from tests.nodes.ray_nodes import RayNodes
from tests.workers.requests import CPU, LINK, PATIENT, request

pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(600),
    # Ray leaves sockets and log files to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TWO_BY_TWO = ClusterSpec(name="cpu-2x2", gpu=CPU, num_nodes=2, gpus_per_node=2, intra_node=LINK, inter_node=LINK)
LINE = {"step": "^step ([0-9]+)", "loss": "loss: ([0-9.]+)", "step_time_s": "step time: ([0-9.]+)"}
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--nnodes={nnodes}", "--nproc-per-node={nproc_per_node}"),
    *("--node-rank={node_rank}", "--master-addr={master_addr}", "--master-port={master_port}"),
)
SCRIPTS = {"plain": LINE, "accelerated": {}, "hugging_face": {}}
"""and by what their lines are read; empty: by what is read without being told"""


def spread(number: int, **fields: Any) -> TrialRequest:
    """Four ranks on two nodes."""
    asked = request(number, dp=4, **fields)
    return replace(asked, workload=replace(asked.workload, cluster=TWO_BY_TWO))


def script(number: int, name: str, metrics: dict[str, str]) -> TrialRequest:
    path = Path(programs.__file__).with_name(f"{name}.py")
    argv = [*TORCHRUN, str(path), "--batch-size={micro_batch_size}", "--steps=40"]
    return spread(number, trainer="command", trainer_options={"argv": argv, "metrics": metrics})


@pytest.fixture(scope="module")
def runner(two_nodes: RayNodes) -> Iterator[RayRunner]:
    with RayRunner(address=two_nodes.address) as runner:
        yield runner


def measured(runner: RayRunner, asked: TrialRequest) -> list[RunnerEvent]:
    runner.start(asked)
    events = events_until_ended(runner, [asked.id], deadline_s=300.0)
    end = ended(events)
    assert end.failure is None, end.failure
    assert end.measurement is not None
    assert len(end.measurement.step_times_s) >= PATIENT.min_steps
    return events


def test_native_ranks_are_two_on_each_node(two_nodes: RayNodes, runner: RayRunner) -> None:
    events = measured(runner, spread(0))
    assert any(isinstance(event, AttemptStarted) for event in events)
    # each rank has a fork server of its own
    assert [len(node.processes("process.fork_server")) for node in two_nodes.nodes] == [4, 4]


def test_a_cluster_that_is_described_as_one_node_may_consist_of_two(two_nodes: RayNodes, runner: RayRunner) -> None:
    measured(runner, request(1, dp=4))
    assert [len(node.processes("process.fork_server")) for node in two_nodes.nodes] == [4, 4]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_somebody_else_runs_over_two_nodes(runner: RayRunner, name: str) -> None:
    if "command" not in runner.trainers:
        pytest.skip("programs do not run on Ray yet")
    measured(runner, script(10 + list(SCRIPTS).index(name), name, SCRIPTS[name]))
