"""What a rank on Ray says reaches its runner once, however often Ray fails to answer, and its next owner once more. No cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from autotune_workers.gang.wire import Message
from autotune_workers.ray.message_log import MessageLog
from autotune_workers.ray.rank_handle import RayRank
from autotune_workers.ray.rank_host import RankHost
from autotune_workers.ray.rank_pools import RayRankPools


class Talker:
    """A rank process that has said some things already."""

    def __init__(self, *says: str) -> None:
        self._says = list(says)
        self._readable, end = os.pipe()
        os.close(end)  # always ready to be read

    def fileno(self) -> int:
        return self._readable if self._says else -1

    def receive(self) -> list[Message]:
        """Two at a time."""
        said, self._says = self._says[:2], self._says[2:]
        return [{"say": word} for word in said]

    def close(self) -> None:
        os.close(self._readable)


def test_what_was_said_is_told_until_it_is_confirmed() -> None:
    said = MessageLog()
    for word in ("a", "b", "c"):
        said.add({"say": word})
    assert [m["say"] for m in said.after(0)] == ["a", "b", "c"]
    assert [(m["number"], m["say"]) for m in said.after(1)] == [(2, "b"), (3, "c")]
    assert said.after(3) == []
    said.add({"say": "d"})
    assert [m["number"] for m in said.after(3)] == [4]


def test_what_the_last_trial_said_is_kept_for_a_later_owner() -> None:
    said = MessageLog()
    said.add({"say": "old"})
    said.begin()
    said.add({"say": "step"})
    said.add({"say": "done"})
    assert said.after(3) == []
    assert [m["say"] for m in said.after(0)] == ["step", "done"]
    said.begin()
    assert [m["say"] for m in said.after(0)] == []


def a_host(process: Talker) -> Any:
    host: Any = object.__new__(RankHost)
    host._size = 1
    host._prepare("first")
    host._rank = process
    host._read(process, 0)
    return host


def test_who_comes_later_learns_what_the_rank_was_told() -> None:
    process = Talker()
    host = a_host(process)
    orders: list[str] = []
    process.send = lambda message: orders.append(message["do"])  # type: ignore[attr-defined]
    process.begin = lambda: orders.append("begin")  # type: ignore[attr-defined]
    try:
        host.send("first", {"do": "run", "rank": 1, "run": 3})
        state = host.adopt("second")
        assert (state.trial["run"], state.knows_store, state.is_ending, state.is_idle) == (3, False, False, False)
        host.send("second", {"do": "store"})
        host._note({"say": "idle", "run": 2}, 0)
        assert not host.adopt("second").is_idle, "that was the trial before"
        host.send("second", {"do": "stop"})
        host._note({"say": "idle", "run": 3}, 0)
        state = host.adopt("third")
        assert (state.knows_store, state.is_ending, state.is_idle) == (True, True, True)
        host.send("third", {"do": "run", "rank": 0, "run": 4})
        state = host.adopt("third")
        assert (state.knows_store, state.is_ending, state.is_idle) == (True, False, False)
        assert orders == ["begin", "run", "store", "stop", "begin", "run"]
    finally:
        process.close()


def test_an_actor_obeys_one_owner_at_a_time() -> None:
    process = Talker("step", "step")
    host = a_host(process)
    try:
        assert [m["say"] for m in host.listen("first")] == ["step", "step"]
        assert host.adopt("second").size == 1
        assert [m["say"] for m in host.listen("first", 2)] == ["taken"]
        host.send("first", {"do": "run", "rank": 0})
        host.terminate("first")
        host.kill("first")
        host.replace("first", 1)
        assert (host._trial, host._generation) == (None, 0)
        assert not host.leave("first")
        assert [m["say"] for m in host.listen("second")] == ["step", "step"], "all is said again"
        assert host.leave("second")
        assert host.adopt("third") is None, "what is given up ends"
    finally:
        process.close()


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}, {2, 3}, set()])
def test_an_answer_that_ray_loses_is_given_again(monkeypatch: pytest.MonkeyPatch, lost: set[int]) -> None:
    import ray

    process = Talker("store", "step", "step", "done", "idle")
    host = a_host(process)
    asked: list[Callable[[], list[Message]]] = []

    def remote(owner: str, heard: int) -> Callable[[], list[Message]]:
        asked.append(lambda: host.listen(owner, heard))
        return asked[-1]

    def get(ear: Callable[[], list[Message]], **_: Any) -> list[Message]:
        answer = ear()  # the host has spoken, whether or not its answer comes through
        if asked.index(ear) in lost:
            raise ray.exceptions.GetTimeoutError("the network is away")
        return answer

    monkeypatch.setattr(ray, "get", get)
    rank = RayRank("rank-0", SimpleNamespace(listen=SimpleNamespace(remote=remote)), "first")
    heard: list[str] = []
    try:
        for _ in range(8):
            if rank.ear is None:
                rank.listen()
            heard += [m["say"] for m in RayRankPools._hear(object.__new__(RayRankPools), rank)]
    finally:
        process.close()
    assert heard == ["store", "step", "step", "done", "idle"]
    assert not rank.dead
