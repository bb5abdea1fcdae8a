"""Which warm places of actors are used again, on a cluster whose head knows more than was heard
from the actors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from autotune_workers.ray import actor_groups as module
from autotune_workers.ray.actor_groups import ActorGroups, Shape

pytestmark = pytest.mark.thorough

PAIR = Shape(kind="gang", nodes=2, ranks_per_node=2)


class Cluster:
    """Nodes with two processors each, which live or are dead by the head's word."""

    outlives_us = False
    is_silent = False

    def __init__(self, *living: str) -> None:
        self.living = set(living)

    def nodes(self) -> list[dict[str, float]]:
        return [{"CPU": 2.0} for _ in self.living]

    def addresses(self) -> set[str]:
        return self.living

    def ask(self, question: Callable[[], Any]) -> Any:
        return question()


class Handle:
    """Of an actor that says nothing."""

    dead = False

    def __init__(self, address: str) -> None:
        self.address = address

    def lose(self, why: str) -> list[Any]:
        self.dead = True
        return []

    def close(self) -> None:
        self.dead = True


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the placement groups that were removed."""
    names: list[str] = []
    monkeypatch.setattr(module, "remove_group", names.append)
    return names


def place(*addresses: str) -> Callable[[str], Any]:
    return lambda name: SimpleNamespace(
        handles=[Handle(address) for address in addresses], token=name
    )


def groups_on(cluster: Any) -> ActorGroups:
    return ActorGroups(cluster, bundle={"CPU": 1.0}, abandoned_s=30.0)


def test_an_idle_place_on_living_nodes_is_used_again(removed: list[str]) -> None:
    groups = groups_on(Cluster("a", "b"))
    first = groups.form(PAIR, "", place("a", "b"))
    assert groups.disband(first, is_usable=True)
    assert groups.form(PAIR, "", place("a", "b")) is first
    assert not removed


def test_an_idle_place_with_a_node_that_died_while_nobody_listened_is_removed(
    removed: list[str],
) -> None:
    cluster = Cluster("a", "b", "c")
    groups = groups_on(cluster)
    first = groups.form(PAIR, "", place("a", "b"))
    assert groups.disband(first, is_usable=True)
    cluster.living = {"a", "c"}
    second = groups.form(PAIR, "", place("a", "c"))
    assert second is not first
    assert removed == [first.token]


def test_an_actor_whose_node_is_not_known_yet_is_not_taken_for_lost(removed: list[str]) -> None:
    groups = groups_on(Cluster("a", "b"))
    first = groups.form(PAIR, "", place("", ""))
    assert groups.disband(first, is_usable=True)
    assert groups.form(PAIR, "", place("a", "b")) is first
    assert not removed


class BeatingHandle(Handle):
    """Whose heartbeats take a while."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.began, self.is_inside = threading.Event(), False

    def heartbeat(self) -> None:
        self.is_inside = True
        self.began.set()
        time.sleep(0.1)
        self.is_inside = False


def test_no_heartbeat_is_on_its_way_once_they_are_closed(
    removed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(Cluster, "outlives_us", True)
    groups = groups_on(Cluster("a"))
    handle = BeatingHandle("a")
    groups.form(
        Shape(kind="gang", nodes=1, ranks_per_node=1),
        "",
        lambda name: SimpleNamespace(handles=[handle], token=name),
    )
    assert handle.began.wait(300.0)
    groups.close()
    assert not handle.is_inside
    assert "autotune-ray-heartbeat" not in [thread.name for thread in threading.enumerate()]
