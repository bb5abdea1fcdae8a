"""The ray runner: the contract, the fault table, and what only a cluster can do to a trial. One
cluster for the whole module."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune.api import load_study
from autotune.errors import RunnerError
from autotune.ports import AttemptEnded, AttemptQueued, RunnerEvent
from autotune.spec import FailureKind
from autotune.testing.runners import RunnerContract, ended, events_until_ended
from autotune_workers.process.machine import is_alive
from autotune_workers.ray.cluster.connection import answers_on_loopback
from autotune_workers.runners.ray import RayRunner
from tests.ray_roles import AUTH, authenticated, go_away, played, played_head, played_node
from tests.small_studies import spec
from tests.workers.fault_table import FAULTS, NUMBERS, ROWS, play
from tests.workers.processes import until
from tests.workers.requests import DOUBLE, PATIENT, failure_of, one, request, until_it_steps
from tests.workers.requests import request as asking

pytestmark = [
    pytest.mark.alone,
    # Ray leaves sockets and log files to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ALWAYS = "killed in the middle of a step"
SOME = ("memory exhausted in a step", "stopped")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster that this module started."""
    with (
        authenticated(),  # nothing is written to the user's home
        RayRunner(
            num_cpus=5, trial=DOUBLE
        ) as runner,  # two for `shared`, which nobody polls meanwhile, three for `native`
    ):
        yield runner.address


@pytest.fixture(scope="module")
def native(cluster: str) -> Iterator[RayRunner]:
    with RayRunner(faults=FAULTS) as runner:
        yield runner


@pytest.fixture(scope="module")
def shared(cluster: str) -> Iterator[RayRunner]:
    with RayRunner(trial=DOUBLE) as runner:
        yield runner


@pytest.fixture
def free_cluster(shared: RayRunner, native: RayRunner) -> None:
    """What these two keep warm is given back: nobody polls them meanwhile, so that they would not
    see that others wait."""
    for runner in (shared, native):
        while runner._groups.remove_idle():
            pass


def free_cpus() -> float:
    import ray

    return float(ray.available_resources().get("CPU", 0.0))


class TestRayRunner(RunnerContract):
    @pytest.fixture
    def runner(self, request: pytest.FixtureRequest, shared: RayRunner) -> Iterator[RayRunner]:
        if "clos" not in request.node.name:
            yield shared
            return
        with RayRunner(trial=DOUBLE) as runner:
            yield runner

    @pytest.fixture
    def request_for(self):
        return lambda number: asking(number, dp=1)


def test_it_listens_on_loopback_only(cluster: str) -> None:
    assert cluster.startswith("127.0.0.1:")


@pytest.mark.thorough
def test_a_group_that_can_never_be_placed_fails_within_its_deadline(shared: RayRunner) -> None:
    failure = failure_of(
        one(shared, request(0, dp=8, measure=replace(PATIENT, start_timeout_s=3.0)))
    )
    assert failure.kind is FailureKind.INVALID
    assert "8 CPU" in failure.message
    assert "5 CPU" in failure.message
    assert one(shared, request(1, dp=2)).failure is None


@pytest.mark.slow
def test_a_runner_that_others_wait_for_gives_its_gang_back(
    cluster: str, free_cluster: None
) -> None:
    with RayRunner(trial=DOUBLE) as first, RayRunner(trial=DOUBLE) as second:
        told: list[RunnerEvent] = []
        rounds = 0
        end = time.monotonic() + 900
        while not any(isinstance(e, AttemptEnded) for e in told):
            # the first never stops wanting the gang that it has
            first.start(request(rounds, dp=3, trainer_options={"step_s": 0.5}))
            while not any(isinstance(e, AttemptEnded) for e in first.poll(0.1)):
                told += second.poll(0.1)
                assert time.monotonic() < end
            if rounds == 0:
                second.start(request(0, dp=3, measure=replace(PATIENT, start_timeout_s=600.0)))
            rounds += 1
        assert any(isinstance(e, AttemptQueued) for e in told)
        assert ended(told).failure is None
        assert rounds > 2


@pytest.mark.thorough
def test_actors_have_names_that_people_can_read_and_resources_come_back(shared: RayRunner) -> None:
    import ray

    before = free_cpus()
    with RayRunner(trial=DOUBLE) as runner:
        assert one(runner, request(0, dp=2)).failure is None
        names = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True)]
        assert any("gang-1-rank-1" in name for name in names), names
    until(lambda: free_cpus() >= before)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in SOME else pytest.mark.slow)
        if name != ALWAYS
        else name
        for name in ROWS
    ],
)
def test_each_fault_gets_its_verdict_and_the_next_trial_runs(native: RayRunner, name: str) -> None:
    play(native, name)


@pytest.mark.thorough
def test_an_actor_that_is_killed_is_a_lost_worker(shared: RayRunner, free_cluster: None) -> None:
    import ray

    asked = request(7, dp=2, trainer_options={"step_s": 2.0})
    shared.start(asked)
    until(lambda: shared.poll(0.2))
    host = shared._groups.handles("gang")[0]
    actor, rank = ray.get(host.actor.pids.remote(), timeout=300)
    os.kill(actor, signal.SIGKILL)
    failure = failure_of(ended(events_until_ended(shared, [asked.id])))
    assert failure.kind is FailureKind.WORKER_LOST
    until(lambda: not is_alive(rank))
    assert one(shared, request(8, dp=2)).failure is None


def all_free() -> None:
    """Waits until nobody uses the cluster."""
    until(lambda: free_cpus() == 5)


def rank_actors() -> list[dict[str, str]]:
    """All that there are."""
    import ray

    return [
        actor
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if "-rank-" in actor["name"]
    ]


def pids_of(actors: list[dict[str, str]]) -> list[int]:
    """Of the actors and of their ranks."""
    import ray

    return [
        pid
        for actor in actors
        for pid in ray.get(ray.get_actor(**actor).pids.remote(), timeout=300)
    ]


def until_all_gone(pids: list[int], deadline_s: float) -> float:
    """Seconds until no process lives, nothing is taken and no group has a place."""
    from ray.util.placement_group import placement_group_table

    took_s = until(lambda: free_cpus() == 5 and not any(map(is_alive, pids)), deadline_s)
    assert {g["state"] for g in placement_group_table().values()} == {"REMOVED"}
    return took_s


def heard(process: subprocess.Popen[str], beginning: str) -> str:
    """The next line that begins so."""
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line.strip())
        if told[-1].startswith(beginning):
            return told[-1]
    pytest.fail(f"never output {beginning}: {told}")


@pytest.mark.slow
def test_a_killed_driver_leaves_nothing_on_a_cluster_that_goes_on(
    cluster: str, free_cluster: None
) -> None:
    all_free()
    known = rank_actors()
    with played("study", cluster) as study:
        heard(study, "StepsReported")
        pids = pids_of([actor for actor in rank_actors() if actor not in known])
        assert len(pids) == 4
        assert free_cpus() == 3
        os.kill(study.pid, signal.SIGKILL)
        print(
            f"free {until_all_gone(pids, 60):.1f} s after the driver was killed; its gang waits 3 s for another"
        )


@pytest.mark.thorough
def test_the_next_driver_adopts_the_gang_with_its_trial(cluster: str, free_cluster: None) -> None:
    all_free()
    known = rank_actors()
    with played("study", cluster, "20", "30") as study:
        heard(study, "StepsReported 2")
        actors = [actor for actor in rank_actors() if actor not in known]
        pids = pids_of(actors)
        os.kill(study.pid, signal.SIGKILL)
        with played("study", cluster, "20", "30", "1") as heir:
            heard(heir, "adopted")
            assert heard(heir, "StepsReported").startswith("StepsReported 0 to "), (
                "all steps are told again"
            )
            assert pids_of(actors) == pids
            assert heard(heir, "AttemptEnded") == "AttemptEnded measured"
            heard(heir, "closed")
        until_all_gone(pids, 60)


@pytest.mark.slow
@pytest.mark.parametrize("heir", [False, True], ids=["nobody comes", "another comes"])
def test_a_placement_group_without_actors_is_removed(
    cluster: str, free_cluster: None, heir: bool
) -> None:
    """What a driver leaves that is killed between asking for the place and asking for the
    actors."""
    from ray.util.placement_group import placement_group, placement_group_table

    all_free()
    label = "-dead-gang-"
    name = f"autotune-s{label}1"
    group = placement_group([{"CPU": 1.0}] * 2, name=name, lifetime="detached")
    assert group.wait(300)
    if heir:
        with played("study", cluster, "3", "30", "1") as driver:
            assert heard(driver, "AttemptEnded") == "AttemptEnded measured"
            heard(driver, "closed")
    else:
        with played("janitor", cluster, label, "2") as driver:
            heard(driver, "started")
            time.sleep(8.0)
            assert placement_group_table(group)["state"] == "CREATED", (
                "its driver lives, however silent"
            )
    until(lambda: placement_group_table(group)["state"] == "REMOVED")
    until_all_gone([], 60)


@pytest.mark.slow
@pytest.mark.parametrize("heir", [False, True], ids=["nobody comes", "another comes"])
def test_a_gang_that_still_waits_for_its_placement_ends_with_its_driver(
    cluster: str, free_cluster: None, heir: bool
) -> None:
    """The driver is killed while others use what its gang needs; its successor waits in its turn
    and is not confused by it."""
    from ray.util.placement_group import (
        placement_group,
        placement_group_table,
        remove_placement_group,
    )

    all_free()
    others = placement_group([{"CPU": 1.0}] * 4, name="others")
    assert others.wait(300)
    known = rank_actors()
    with played("study", cluster, "3", "3", "1") as study:
        until(lambda: len(rank_actors()) >= len(known) + 2)
        os.kill(study.pid, signal.SIGKILL)
        if heir:
            with played("study", cluster, "3", "30", "1") as driver:
                heard(driver, "AttemptQueued")
                remove_placement_group(others)
                assert heard(driver, "AttemptEnded") == "AttemptEnded measured"
                heard(driver, "closed")
        else:
            until(lambda: rank_actors() == known)
            assert "PENDING" not in {g["state"] for g in placement_group_table().values()}
            remove_placement_group(others)
    until_all_gone([], 60)


@pytest.mark.slow
def test_a_driver_that_wakes_up_after_another_adopted_its_gang_lets_go(
    cluster: str, free_cluster: None
) -> None:
    all_free()
    known = rank_actors()
    with played("study", cluster, "40", "60", "1") as study:
        heard(study, "StepsReported 2")
        pids = pids_of([actor for actor in rank_actors() if actor not in known])
        os.kill(study.pid, signal.SIGSTOP)
        with played("study", cluster, "40", "60", "1") as heir:
            heard(heir, "adopted")
            os.kill(study.pid, signal.SIGCONT)
            lost = heard(study, "AttemptEnded")
            assert "WORKER_LOST" in lost
            assert "was adopted by another controller" in lost
            heard(study, "closed")
            assert heard(heir, "AttemptEnded") == "AttemptEnded measured"
            heard(heir, "closed")
        until_all_gone(pids, 60)


@pytest.mark.slow
def test_a_node_that_goes_away_takes_its_trial_as_a_lost_worker(
    cluster: str, free_cluster: None
) -> None:
    with RayRunner(trial=DOUBLE) as runner, played_node(cluster, num_cpus=4) as node:
        until(lambda: runner.capacity == 9, 900)
        endless = replace(PATIENT, min_steps=500, max_steps=500, trial_timeout_s=1500.0)
        asked = request(0, dp=6, trainer_options={"step_s": 0.5}, measure=endless)
        until_it_steps(runner, asked, deadline_s=600.0)
        go_away(node)
        failure = failure_of(ended(events_until_ended(runner, [asked.id], deadline_s=900.0)))
        assert failure.kind is FailureKind.WORKER_LOST
        assert "node 127.0.0.2" in failure.message
        assert one(runner, request(1, dp=2)).failure is None


@pytest.mark.slow
def test_a_head_that_goes_away_ends_the_study_with_a_clear_error() -> None:
    with played_head() as (head, address), played("study", address) as study:
        heard(study, "StepsReported")
        go_away(head)
        output, _ = study.communicate(timeout=900)
        assert "RunnerError runner: the Ray cluster's head does not answer" in output
        assert "closed" in output
        assert study.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("_", range(5))
def test_a_driver_exits_well_though_ray_reports_its_metrics_all_the_time(_: int) -> None:
    program = "from autotune_workers.runners.ray import RayRunner\nfor _ in range(2):\n    RayRunner(num_cpus=2).close()"
    environment = {**os.environ, **AUTH, "RAY_metrics_report_interval_ms": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_nobody_at_the_address_is_output_at_once() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        with pytest.raises(RunnerError, match="no Ray cluster answers"):
            answers_on_loopback(address)


def test_the_numbers_of_the_rows_are_those_of_their_faults() -> None:
    for name, row in ROWS.items():
        assert all(f.trial == NUMBERS[name] for f in row.faults), name


@pytest.mark.thorough
def test_a_study_of_gpus_does_not_train_on_a_cluster_without_any(shared: RayRunner) -> None:
    with pytest.raises(
        RunnerError, match=r"no GPU is visible in the Ray cluster.*gpus_per_rank: 0"
    ):
        shared.check_study(load_study(spec(runner="ray")))
    shared.check_study(load_study(spec(runner="ray", cluster={"gpu": "cpu", "gpus_per_node": 8})))
