"""Trials over two real nodes, each with two ranks: own addresses, own shared memory, own names. The
driver is on a third machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.ports import AttemptStarted, TrialRequest
from autotune.spec import FailureKind
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.runners.ray import ABANDONED_S, RayRunner
from tests.nodes import programs
from tests.nodes.ray_nodes import RayNodes
from tests.workers.processes import until
from tests.workers.ray.two_node_trials import ALONE, ENDLESS, RANKS, measured, ranks, spread
from tests.workers.requests import failure_of, request, until_it_steps

pytestmark = ALONE

LOST_S = 8.0
"""shorter than usual"""
LINE = {"step": "^step ([0-9]+)", "loss": "loss: ([0-9.]+)", "step_time_s": "step time: ([0-9.]+)"}
TORCHRUN = (
    *(
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes={nnodes}",
        "--nproc-per-node={nproc_per_node}",
    ),
    *("--node-rank={node_rank}", "--master-addr={master_addr}", "--master-port={master_port}"),
)
SCRIPTS = {"plain": LINE, "accelerated": {}, "hugging_face": {}}
"""and by what their lines are read; empty: by what is read without being told"""


def script(number: int, name: str, metrics: dict[str, str]) -> TrialRequest:
    path = Path(programs.__file__).with_name(f"{name}.py")
    argv = [*TORCHRUN, str(path), "--batch-size={micro_batch_size}", "--steps=40"]
    options = {"argv": argv, "metrics": metrics, "fixed": {"precision": "fp32"}}
    return spread(number, trainer="command", trainer_options=options)


@pytest.fixture(scope="module")
def runner(two_nodes: RayNodes) -> Iterator[RayRunner]:
    with RayRunner(address=two_nodes.address, lost_s=LOST_S) as runner:
        yield runner


def test_native_ranks_are_two_on_each_node(two_nodes: RayNodes, runner: RayRunner) -> None:
    events = measured(runner, spread(0))
    assert any(isinstance(event, AttemptStarted) for event in events)
    assert [len(node.processes(RANKS)) for node in two_nodes.nodes] == [4, 4]


def test_a_node_that_is_cut_off_is_lost(two_nodes: RayNodes, runner: RayRunner) -> None:
    asked = spread(1, measure=ENDLESS)
    until_it_steps(runner, asked)
    node = two_nodes.nodes[1]
    node.cut()
    failure = failure_of(ended(events_until_ended(runner, [asked.id], deadline_s=90.0)))
    assert failure.kind is FailureKind.WORKER_LOST
    assert f"node {node.address} was silent for 8 s" in failure.message
    node.heal()
    until(lambda: not ranks(two_nodes), ABANDONED_S)


@pytest.mark.slow
def test_a_cluster_that_is_described_as_one_node_may_consist_of_two(
    two_nodes: RayNodes, runner: RayRunner
) -> None:
    measured(runner, request(2, dp=4))
    assert [len(node.processes(RANKS)) for node in two_nodes.nodes] == [4, 4]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_somebody_else_runs_over_two_nodes(runner: RayRunner, name: str) -> None:
    measured(runner, script(10 + list(SCRIPTS).index(name), name, SCRIPTS[name]))
