"""What happens to a trial over two nodes when one of them dies, stands still or is cut off, with
Ray's own deadlines as every cluster has them.

For each fault: the verdict comes within the runner's own deadline, no rank of the attempt lives on
anywhere, and trials go on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from autotune.ports import AttemptEnded, AttemptQueued, RunnerEvent
from autotune.spec import FailureKind
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.ray.actor_handle import LOST_S
from autotune_workers.runners.ray import ABANDONED_S, RayRunner
from tests.nodes.network import Node
from tests.nodes.ray_nodes import RayNodes
from tests.ray_roles import played
from tests.workers.processes import until
from tests.workers.ray.test_ray import heard
from tests.workers.ray.two_node_trials import (
    ALONE,
    ENDLESS,
    LADDER_S,
    RANKS,
    measured,
    ranks,
    spread,
)
from tests.workers.requests import PATIENT, failure_of, request, until_it_steps, until_steps

pytestmark = ALONE

RAY_SAYS_S = 70.0
"""after which Ray itself calls a silent node dead"""


@dataclass(frozen=True)
class Fault:
    """What happens to the node, and what brings it back."""

    strike: Callable[[RayNodes, Node], None]
    repair: Callable[[RayNodes, Node], None]
    within_s: float
    """for the verdict"""
    lasts_s: float = 0.0
    """from the strike to the repair; 0: until the ranks are gone"""
    returns: bool = False
    """whether the node comes back by itself, with what ran there"""


def boot(cluster: RayNodes, node: Node) -> None:
    """The node is there again, with nothing on it, once Ray has understood that the old one is
    dead."""
    node.kill()
    cluster.wait_for(1, timeout_s=RAY_SAYS_S + 60)
    node.boot()
    cluster.join(node)


def kill_raylet(cluster: RayNodes, node: Node) -> None:
    for pid in node.processes("raylet/raylet "):
        os.kill(pid, signal.SIGKILL)


FAULTS = {
    "killed": Fault(lambda _, node: node.kill(), boot, LOST_S + LADDER_S),
    "without power": Fault(lambda _, node: node.lose_power(), boot, LOST_S + LADDER_S),
    "raylet killed": Fault(kill_raylet, boot, LOST_S + LADDER_S),
    "cut off": Fault(
        lambda _, node: node.cut(),
        lambda _, node: node.heal(),
        LOST_S + LADDER_S,
        lasts_s=40.0,
        returns=True,
    ),
    "frozen": Fault(
        lambda _, node: node.freeze(),
        lambda _, node: node.thaw(),
        LOST_S + LADDER_S,
        lasts_s=40.0,
        returns=True,
    ),
}


@pytest.fixture(scope="module")
def runner(two_nodes: RayNodes) -> Iterator[RayRunner]:
    with RayRunner(address=two_nodes.address) as runner:
        yield runner


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_lost_node_is_a_lost_worker_and_no_rank_lives_on(
    two_nodes: RayNodes, runner: RayRunner, name: str
) -> None:
    from ray.util.placement_group import placement_group_table

    fault, node = FAULTS[name], two_nodes.nodes[1]
    number = 10 * list(FAULTS).index(name)
    asked = spread(number, measure=ENDLESS)
    until_it_steps(runner, asked)
    began_s = struck_s = time.monotonic()
    fault.strike(two_nodes, node)
    failure = failure_of(ended(events_until_ended(runner, [asked.id], deadline_s=900.0)))
    verdict_s = time.monotonic() - began_s
    elsewhere_s = (
        until(lambda: not two_nodes.nodes[0].processes(RANKS), 30.0) + time.monotonic() - began_s
    )
    print(
        f"\n{name}: verdict after {verdict_s:.1f} s, ranks elsewhere gone after {elsewhere_s:.1f} s; {failure}"
    )
    assert failure.kind is FailureKind.WORKER_LOST
    assert verdict_s < fault.within_s
    groups = placement_group_table().values()
    assert {group["state"] for group in groups} == {"REMOVED"}, (
        "a group that lost a node would be rescheduled for ever"
    )
    if fault.returns:
        while time.monotonic() - began_s < fault.lasts_s:
            runner.poll(0.5)
        before = ranks(two_nodes)
        fault.repair(two_nodes, node)
        print(
            f"{name}: repaired {time.monotonic() - began_s:.1f} s after it, with {before} processes of ranks"
        )
    until(lambda: not ranks(two_nodes), ABANDONED_S)
    print(f"{name}: no rank anywhere {time.monotonic() - began_s:.1f} s after it")
    began_s = time.monotonic()
    events = measured(runner, request(number + 1, dp=2))
    waits = sum(isinstance(event, AttemptQueued) for event in events)
    print(
        f"{name}: the next trial, on one node, took {time.monotonic() - began_s:.1f} s and was queued {waits} times"
    )
    if not fault.returns:
        fault.repair(two_nodes, node)
    else:  # a link that is up again may be silent for as long again: whether Ray keeps the node shows then
        while time.monotonic() - struck_s < RAY_SAYS_S:
            runner.poll(0.5)
        is_kept = node.address in two_nodes.living()
        print(f"{name}: Ray {'keeps' if is_kept else 'has given up'} the node")
        if not is_kept:
            boot(two_nodes, node)
    began_s = time.monotonic()
    measured(runner, spread(number + 2))
    print(f"{name}: a trial on both nodes again took {time.monotonic() - began_s:.1f} s")


@pytest.mark.slow
def test_a_short_cut_is_no_loss(two_nodes: RayNodes, runner: RayRunner) -> None:
    asked = spread(100, measure=ENDLESS)
    until_it_steps(runner, asked)
    node = two_nodes.nodes[1]
    node.cut()
    end_s = time.monotonic() + 12.0
    while time.monotonic() < end_s:
        assert not any(isinstance(event, AttemptEnded) for event in runner.poll(0.5))
    node.heal()
    print(f"\nsteps again {until_steps(runner, 60.0):.1f} s after a cut of 12 s")
    runner.cancel(asked.id)
    assert ended(events_until_ended(runner, [asked.id])).cancelled
    measured(runner, spread(101))


@pytest.mark.slow
def test_a_living_controller_keeps_what_it_waits_for_through_a_cut(
    two_nodes: RayNodes, runner: RayRunner
) -> None:
    """The nodes are away for longer than the groups of a dead controller are kept."""
    from ray.util.placement_group import placement_group, remove_placement_group

    while runner._groups.remove_idle():
        pass
    others = placement_group([{"CPU": 2.0}] * 2, strategy="STRICT_SPREAD", name="others")
    assert others.wait(60)
    abandoned_s = 10.0
    with played("study", two_nodes.address, "3", f"{abandoned_s}", "1") as study:
        heard(study, "AttemptQueued")
        for node in two_nodes.nodes:
            node.cut()
        time.sleep(2 * abandoned_s)
        for node in two_nodes.nodes:
            node.heal()
        remove_placement_group(others)
        assert heard(study, "AttemptEnded") == "AttemptEnded measured"
        heard(study, "closed")


@pytest.mark.slow
def test_a_config_waits_for_a_node_that_is_away_and_runs_when_it_is_back(
    two_nodes: RayNodes, runner: RayRunner
) -> None:
    measured(runner, spread(130))
    node = two_nodes.nodes[1]
    node.kill()
    # the warm gang is given up
    until(lambda: not runner.poll(0.5) and len(two_nodes.living()) == 1, RAY_SAYS_S + 60)
    start_timeout_s = 40.0  # the new node's first ranks import torch
    asked = spread(131, measure=replace(PATIENT, start_timeout_s=start_timeout_s))
    runner.start(asked)
    end_s = time.monotonic() + start_timeout_s + 15.0
    events: list[RunnerEvent] = []
    while time.monotonic() < end_s:
        events += runner.poll(0.5)
    assert all(isinstance(event, AttemptQueued) for event in events), events
    assert any(
        "one of the cluster's 2 nodes is unavailable" in event.reason
        for event in events
        if isinstance(event, AttemptQueued)
    )
    node.boot()
    two_nodes.join(node)
    events = events_until_ended(runner, [asked.id], deadline_s=240.0)
    assert ended(events).failure is None, ended(events).failure


@pytest.mark.slow
def test_a_driver_that_is_cut_off_from_all_nodes_loses_its_trial(
    two_nodes: RayNodes, runner: RayRunner
) -> None:
    asked = spread(110, measure=ENDLESS)
    until_it_steps(runner, asked)
    began_s = time.monotonic()
    for node in two_nodes.nodes:
        node.cut()
    failure = failure_of(ended(events_until_ended(runner, [asked.id], deadline_s=900.0)))
    print(f"\ndriver cut off: verdict after {time.monotonic() - began_s:.1f} s; {failure}")
    assert failure.kind is FailureKind.WORKER_LOST
    until(lambda: not ranks(two_nodes), ABANDONED_S + 10.0)
    print(
        f"driver cut off: no rank anywhere {time.monotonic() - began_s:.1f} s after it, without a link"
    )
    for node in two_nodes.nodes:
        node.heal()
