"""Programs on the nodes of a Ray cluster: the runner's contract, two nodes of a torchrun job, and
that nothing is left of it however it ends.

One cluster of two nodes for the whole module, both on this machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.ports import LogRead, RunnerEvent, TrialRequest
from autotune.spec import FailureKind
from autotune.testing.runners import RunnerContract, ended, events_until_ended
from autotune.trainers.base.torchrun import Placement
from autotune_workers.ray.janitor import is_node
from autotune_workers.runners.ray import RayRunner
from tests.ray_roles import played, played_head, played_node
from tests.workers.processes import running, until
from tests.workers.program_requests import GLOO, on_one_node, on_two_nodes
from tests.workers.ray.test_ray import heard
from tests.workers.requests import events_of, failure_of, measurement_of, one, until_it_steps

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.alone,
    # Ray leaves sockets and log files to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SOON_S = 600.0
ENVIRONMENT = {"env": {"COLOUR": "blue"}, "node_env": {"127.0.0.2": {"COLOUR": "red"}}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes with two processors each."""
    with played_head() as (_, address), played_node(address, num_cpus=2):
        yield address


@pytest.fixture(scope="module")
def shared(cluster: str) -> Iterator[RayRunner]:
    with RayRunner(address=cluster, **ENVIRONMENT) as runner:
        yield runner


def until_nothing_runs() -> None:
    until(lambda: not running(GLOO.name), SOON_S, "processes are left")


def remove_idle(runner: RayRunner) -> None:
    """Ends the nodes that earlier tests left warm."""
    while runner._groups.remove_idle():
        pass


def measured(runner: RayRunner, asked: TrialRequest) -> list[RunnerEvent]:
    events = events_of(runner, asked)
    measurement_of(ended(events))
    return events


def said(events: list[RunnerEvent], beginning: str) -> dict[int, str]:
    """The first line of each node that begins so."""
    lines = [
        (e.node, line)
        for e in events
        if isinstance(e, LogRead)
        for line in e.lines
        if line.startswith(beginning)
    ]
    return dict(reversed(lines))


def node_actors() -> set[str]:
    import ray

    return {name for name in ray.util.list_named_actors() if is_node(name)}


@pytest.mark.thorough
class TestProgramsOnRayKeepTheRunnersContract(RunnerContract):
    @pytest.fixture
    def runner(
        self, request: pytest.FixtureRequest, cluster: str, shared: RayRunner
    ) -> Iterator[RayRunner]:
        if "clos" not in request.node.name:
            yield shared
            return
        with RayRunner(address=cluster) as fresh:
            yield fresh

    @pytest.fixture
    def request_for(self):
        return lambda number: on_one_node(number, "--step-s=0.01")


def test_a_torchrun_script_trains_on_two_nodes_and_the_next_trial_finds_them_warm(
    shared: RayRunner,
) -> None:
    remove_idle(shared)
    events = measured(shared, on_two_nodes(0))
    lines = said(events, "rank ")
    assert {line.split()[1] for line in lines.values()} == {"0", "1"}
    assert {line.split()[-1] for line in lines.values()} == {"blue", "red"}
    assert len(said(events, "2 ranks")) == 1
    until_nothing_runs()
    warm = {name for name in node_actors() if shared._groups.label in name}
    assert len(warm) == 2
    measured(shared, on_two_nodes(1))
    assert {name for name in node_actors() if shared._groups.label in name} == warm


@pytest.mark.thorough
def test_a_folder_that_was_sent_along_is_needed_no_more(shared: RayRunner, tmp_path: Path) -> None:
    here = tmp_path / "project"
    here.mkdir()
    shutil.copy(GLOO, here)
    before = set(Path(tempfile.gettempdir()).glob("autotune-program-*"))
    events = measured(shared, on_two_nodes(0, cwd=here, working_dir="upload"))
    folders = {line.split()[5] for line in said(events, "rank ").values()}
    assert len(folders) == 2, "a folder for each node"
    (here / GLOO.name).unlink()
    measured(shared, on_two_nodes(1, cwd=here, working_dir="upload"))
    until(
        lambda: set(Path(tempfile.gettempdir()).glob("autotune-program-*")) <= before,
        SOON_S,
        "unpacked folders",
    )


@pytest.mark.thorough
def test_a_node_without_the_program_refuses_it_with_its_path(shared: RayRunner) -> None:
    asked = on_two_nodes(
        0, argv=["/nowhere/bin/torchrun", "x", "--b={micro_batch_size}", "--r={dp}"]
    )
    failure = failure_of(one(shared, asked))
    assert "node 127.0.0." in failure.message
    assert "no program '/nowhere/bin/torchrun'" in failure.message
    assert "trainer.python" in failure.message


@pytest.mark.thorough
def test_a_killed_actor_is_a_lost_worker_and_nothing_is_left(shared: RayRunner) -> None:
    import ray

    remove_idle(shared)
    asked = on_two_nodes(0, endless=True)
    until_it_steps(shared, asked)
    node = shared._groups.handles("program")[1]
    os.kill(ray.get(node.actor.pid.remote(node.owner), timeout=600), signal.SIGKILL)
    failure = failure_of(ended(events_until_ended(shared, [asked.id])))
    assert failure.kind is FailureKind.WORKER_LOST
    assert "is lost" in failure.message
    until_nothing_runs()
    measured(shared, on_two_nodes(1))


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_running(cluster: str, shared: RayRunner) -> None:
    remove_idle(shared)
    with played("program", cluster, "3") as driver:
        heard(driver, "StepsReported")
        assert running(GLOO.name)
        os.kill(driver.pid, signal.SIGKILL)
        until_nothing_runs()
    until(lambda: not node_actors(), SOON_S, "actors are left")


@pytest.mark.thorough
def test_the_next_controller_of_the_study_ends_what_an_earlier_one_left(
    cluster: str, shared: RayRunner
) -> None:
    remove_idle(shared)
    with played("program", cluster, "600") as driver:
        heard(driver, "StepsReported")
        left = set(running(GLOO.name))
        os.kill(driver.pid, signal.SIGKILL)
        with played("program", cluster, "3") as heir:
            assert heard(heir, "adopted") == "adopted []"
            heard(heir, "StepsReported")
            assert not left.intersection(running(GLOO.name))
    until_nothing_runs()
    until(lambda: not node_actors(), SOON_S, "actors are left")


@pytest.mark.thorough
def test_a_node_that_is_left_out_gets_no_rank_and_one_that_is_needed_stays(cluster: str) -> None:
    with RayRunner(address=cluster) as runner:
        assert runner.leave_out("127.0.0.9", Placement(nnodes=1, nproc_per_node=1)) == "absent"
        assert runner.leave_out("127.0.0.2", Placement(nnodes=2, nproc_per_node=1)) == "needed"
        whole = runner.capacity
        assert runner.leave_out("127.0.0.2", Placement(nnodes=1, nproc_per_node=1)) == "left out"
        assert 0 < runner.capacity < whole
        for number, left_out in ((0, "127.0.0.2"), (1, "127.0.0.1")):
            runner._cluster.left_out = frozenset({left_out})
            remove_idle(runner)
            measured(runner, on_one_node(number, "--step-s=0.01"))
            (begun,) = {node.address for node in runner._groups.handles("program", or_idle=True)}
            assert begun != left_out
