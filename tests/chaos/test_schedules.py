"""Studies that are disturbed in every way, on both databases: afterwards nothing is lost, doubled,
or different from the undisturbed run.

The short run is part of the tests. The long one, `make chaos`, plays 200 schedules on each database
and prints what they met.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.arena import Played, Replicated, SmallDisk, play_all, small_disk
from tests.chaos.conftest import Place
from tests.chaos.schedule import ANYWHERE, SUPERVISED, Disturbance, Schedule, seeded, study_spec
from tests.postgresql import postgres_server

pytestmark = pytest.mark.alone

MANY = int(os.environ.get("CHAOS_SCHEDULES", "200"))
FIRST_SEED = int(os.environ.get("CHAOS_SEED", "1000"))
AT_ONCE = 6
SIMPLE = ("random", "grid", "cost_ranked")


def wrong(played: list[Played]) -> list[str]:
    return [sentence for one in played for sentence in one.wrong]


def tell(name: str, played: list[Played]) -> str:
    met = Counter(kind for one in played for kind in one.met)
    return (
        f"{name}: {len(played)} schedules from seed {FIRST_SEED}, {sum(p.schedule.is_supervised for p in played)} of them supervised, "
        f"{sum(met.values())} disturbances ({dict(sorted(met.items()))}), "
        f"{sum(p.supervisors for p in played)} supervisors, {sum(p.controllers for p in played)} controllers, {sum(p.terms for p in played)} terms, {sum(p.fenced for p in played)} fenced, "
        f"{sum(p.took_s for p in played):.0f} s in all, {len(wrong(played))} violations"
    )


def test_seeds_decide_and_differ() -> None:
    assert seeded(3) == seeded(3)
    drawn = [seeded(seed) for seed in range(60)]
    for is_supervised, kinds in ((False, ANYWHERE), (True, SUPERVISED)):
        assert {
            d.kind for one in drawn if one.is_supervised is is_supervised for d in one.disturbances
        } == set(kinds)


@pytest.mark.thorough
def test_eight_schedules_on_sqlite(tmp_path: Path, files: Callable[[int], list[Place]]) -> None:
    each = [one_of(seed, kind) for seed, kind in enumerate((*ANYWHERE, "supervisor", "freeze"))]
    played = play_all(each, files(4), tmp_path)
    assert wrong(played) == []
    assert len([p for p in played if p.met]) == 8
    assert sum(p.terms for p in played) > 8


@pytest.mark.thorough
def test_three_schedules_on_postgresql(
    tmp_path: Path, servers: Callable[[int], list[Place]]
) -> None:
    each = [
        one_of(20 + seed, kind) for seed, kind in enumerate(("kill_and_race", "freeze", "database"))
    ]
    played = play_all(each, servers(2), tmp_path)
    assert wrong(played) == []
    assert len([p for p in played if p.met]) == 3


def one_of(seed: int, kind: str) -> Schedule:
    """A schedule that begins with this kind and goes on with another."""
    drawn = seeded(seed, searchers=SIMPLE, supervised=float(kind == "supervisor"))
    first = Disturbance(kind=kind, after=3, for_s=0.5, jump_s=-3600.0 if seed % 2 else 3600.0)
    return replace(drawn, disturbances=(first, drawn.disturbances[-1]))


@pytest.mark.thorough
def test_a_disk_that_fills_up_again_and_again(tmp_path: Path) -> None:
    full = Disturbance(kind="database", after=3, for_s=0.3)
    schedule = Schedule(
        seed=0,
        spec=study_spec(searcher="cost_ranked", seed=0),
        disturbances=(full, full, Disturbance(kind="kill", after=2), full),
    )
    with small_disk(tmp_path / "disk") as disk:
        (played,) = play_all(
            [schedule], [lambda _: SmallDisk(disk / "store.db")], tmp_path / "play"
        )
    assert played.wrong == ()
    assert "database" in played.met


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "servers", "locked_servers"])
def test_a_database_that_is_locked_or_gone_for_a_minute(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """The one controller waits for it and goes on: no other is needed."""
    places: Callable[[int], list[Place]] = request.getfixturevalue(kind)
    gone = Disturbance(kind="database", after=8, for_s=61.0)
    schedule = replace(seeded(7, supervised=0.0), disturbances=(gone,), lease_s=10.0)
    (played,) = play_all([schedule], places(1), tmp_path / "play")
    assert played.wrong == ()
    assert (played.met, played.controllers) == (("database",), 1)
    assert played.waited == 1, "it says so once"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_server_whose_standby_takes_its_place(tmp_path: Path, seed: int) -> None:
    """Under synchronous replication: without it a server that dies may take along what it
    acknowledged last."""
    fails = Disturbance(kind="database", after=4, for_s=1.0)
    schedule = replace(
        one_of(seed, "kill"), disturbances=(Disturbance(kind="kill", after=2), fails)
    )
    with (
        postgres_server(fsync=True) as primary,
        postgres_server(fsync=True, standby_of=primary) as standby,
    ):
        primary.wait_for_standby()
        place = Replicated(primary, standby, primary.new_database().rpartition("/")[2])
        (played,) = play_all([schedule], [lambda _: place], tmp_path / "play")
    assert played.wrong == ()
    assert played.met == ("kill", "database")


@pytest.mark.chaos
@pytest.mark.timeout(6 * 3600)
def test_many_schedules_on_sqlite(tmp_path: Path, files: Callable[[int], list[Place]]) -> None:
    played = play_all(map(seeded, range(FIRST_SEED, FIRST_SEED + MANY)), files(AT_ONCE), tmp_path)
    print(tell("SQLite", played))
    assert wrong(played) == []


@pytest.mark.chaos
@pytest.mark.timeout(6 * 3600)
def test_many_schedules_on_postgresql(
    tmp_path: Path, servers: Callable[[int], list[Place]]
) -> None:
    played = play_all(map(seeded, range(FIRST_SEED, FIRST_SEED + MANY)), servers(AT_ONCE), tmp_path)
    print(tell("PostgreSQL", played))
    assert wrong(played) == []
