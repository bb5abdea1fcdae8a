"""Every commit point: a process that dies just before or just after any write of a study loses
nothing, decides nothing by halves and changes nothing.

A sample is part of the tests, with processes that are killed for real. `make chaos` plays every
write of every story on both databases, and kills processes at every fifth.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.store import MemoryStore, SqlStore, open_store
from tests.chaos.arena import forkserver, see
from tests.chaos.checker import Seen
from tests.chaos.commit_points import (
    Story,
    begin,
    count_writes,
    die_at,
    run_and_die,
    stories,
    tell,
    wrong,
)
from tests.postgresql import PostgresServer, postgres_server

Fresh = Callable[[], SqlStore]
STORIES = {story.name: story for story in stories()}


def undisturbed(story: Story, fresh: Fresh) -> tuple[int, Seen]:
    with contextlib.closing(fresh()) as store:
        return count_writes(store, story)


def faults_of(
    story: Story, fresh: Fresh, points: list[tuple[int, bool]], expected: Seen
) -> list[str]:
    """What is wrong after a death at each point, with the point."""
    found = []
    for at, after in points:
        with contextlib.closing(fresh()) as store:
            seen = die_at(store, story, at, after=after)
            faults = wrong(story, seen, expected, store)
        found += [
            f"{story.name}, death {'after' if after else 'before'} write {at}: {fault}"
            for fault in faults
        ]
    return found


def all_points(writes: int) -> list[tuple[int, bool]]:
    return [(at, after) for at in range(1, writes + 1) for after in (False, True)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "every"), [("paused", 29), ("target", 13)])
def test_a_death_at_some_of_the_writes_changes_nothing(name: str, every: int) -> None:
    story = STORIES[name]
    writes, expected = undisturbed(story, MemoryStore)
    points = all_points(writes)[5::every]
    assert len(points) >= 2
    assert faults_of(story, MemoryStore, points, expected) == []


@pytest.mark.chaos
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_death_at_any_write_changes_nothing(
    tmp_path: Path, kind: str, name: str, request: pytest.FixtureRequest
) -> None:
    fresh = _fresh_of(kind, tmp_path, request)
    story = STORIES[name]
    writes, expected = undisturbed(story, fresh)
    points = all_points(writes)
    found = faults_of(story, fresh, points, expected)
    print(f"{kind}, {name}: {writes} writes, {len(points)} deaths, {len(found)} faults")
    assert found == []


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        ("sqlite", 60),
        pytest.param("sqlite", 27, marks=pytest.mark.thorough),
        pytest.param("postgresql", 60, marks=pytest.mark.thorough),
        pytest.param("sqlite", 5, marks=pytest.mark.chaos),
        pytest.param("postgresql", 5, marks=pytest.mark.chaos),
    ],
)
def test_a_process_that_is_killed_at_a_write_is_replaced(
    tmp_path: Path, kind: str, every: int, request: pytest.FixtureRequest
) -> None:
    """SIGKILL at the same points; the next process finds its lease and sees that it is gone."""
    assert faults_of_killed(_fresh_of(kind, tmp_path, request), every) == []


def faults_of_killed(fresh: Fresh, every: int) -> list[str]:
    """What is wrong after SIGKILL at one point of so many."""
    number, story = 1, stories()[1]
    writes, expected = undisturbed(story, fresh)
    # how many writes it takes differs by a few, with how the steps of its trials arrive together:
    # each point is one that every process comes to
    points, found = all_points(writes - writes // 10)[every // 2 :: every], list[str]()
    assert points
    for at, after in points:
        with contextlib.closing(fresh()) as store:
            study_id = begin(store, story)
            address = store.database.location.url.render_as_string(hide_password=False).replace(
                "+pysqlite", ""
            )
            process = forkserver().Process(
                target=run_and_die, args=(address, study_id, number, at, after)
            )
            process.start()
            process.join(600)
            assert process.exitcode == -9
            tell(store, study_id, story, set())
            faults = wrong(story, see(store, study_id, []), expected, store)
            found += [
                f"killed {'after' if after else 'before'} write {at}: {fault}" for fault in faults
            ]
    return found


def _fresh_of(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Fresh:
    """What makes an empty store of that kind."""
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("server")
        template = server.new_database()
        open_store(template).close()
        return lambda: open_store(server.new_database(template.rpartition("/")[2]))
    template_file, made = tmp_path / "template.db", iter(range(10**6))
    open_store(template_file).close()
    return lambda: open_store(shutil.copy(template_file, tmp_path / f"{next(made)}.db"))
