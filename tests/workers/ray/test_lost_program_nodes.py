"""A program over two real nodes, of which one is lost. Ray's own deadlines are as every cluster has
them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from autotune.spec import FailureKind
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.ray.actor_handle import LOST_S
from autotune_workers.runners.ray import ABANDONED_S, RayRunner
from tests.nodes.ray_nodes import RayNodes
from tests.workers.processes import until
from tests.workers.program_requests import GLOO, on_two_nodes
from tests.workers.ray.test_lost_nodes import FAULTS, boot
from tests.workers.ray.two_node_trials import ALONE
from tests.workers.requests import failure_of, one, until_it_steps

pytestmark = ALONE

PROGRAM_END_S = 10.0
"""for a keeper to end its program, on a loaded machine"""


@pytest.fixture(scope="module")
def runner(two_nodes: RayNodes) -> Iterator[RayRunner]:
    with RayRunner(address=two_nodes.address) as runner:
        yield runner


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cut off", "raylet killed", "frozen"])
def test_a_lost_node_is_a_lost_worker_and_no_program_lives_on(
    two_nodes: RayNodes, runner: RayRunner, name: str
) -> None:
    fault, (kept, lost) = FAULTS[name], two_nodes.nodes
    asked = on_two_nodes(0, endless=True)
    until_it_steps(runner, asked)
    assert kept.processes(GLOO.name)
    assert lost.processes(GLOO.name)
    began_s = time.monotonic()
    fault.strike(two_nodes, lost)
    failure = failure_of(ended(events_until_ended(runner, [asked.id])))
    verdict_s = time.monotonic() - began_s
    print(f"\n{name}: verdict after {verdict_s:.1f} s: {failure}")
    assert failure.kind is FailureKind.WORKER_LOST
    assert lost.address in failure.message
    assert verdict_s < LOST_S + PROGRAM_END_S
    until(lambda: not kept.processes(GLOO.name), PROGRAM_END_S)
    if name == "frozen":
        fault.repair(two_nodes, lost)
    until(lambda: not lost.processes(GLOO.name), ABANDONED_S + PROGRAM_END_S)
    print(f"{name}: no program anywhere {time.monotonic() - began_s:.1f} s after it")
    if name == "cut off":
        fault.repair(two_nodes, lost)
    boot(two_nodes, lost)
    assert one(runner, on_two_nodes(1)).failure is None
