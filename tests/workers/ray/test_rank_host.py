"""A message of a rank on Ray reaches its runner once, however often Ray fails to answer, and its
next owner once more. No cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from autotune_workers.gang.wire import Message
from autotune_workers.ray import owned_actor
from autotune_workers.ray.owned_actor import MessageLog
from autotune_workers.ray.ranks.handle import RayRank
from autotune_workers.ray.ranks.host import RankHost
from autotune_workers.ray.sent_folders import SentFolders


class Talker:
    """A rank process with messages to be read."""

    node = ""
    gpus: tuple[str, ...] = ()

    def __init__(self, *says: str) -> None:
        self._says = list(says)
        self._readable, end = os.pipe()
        os.close(end)  # always ready to be read

    def fileno(self) -> int:
        return self._readable if self._says else -1

    def receive(self) -> list[Message]:
        """Two at a time."""
        words, self._says = self._says[:2], self._says[2:]
        return [{"event": word} for word in words]

    def close(self) -> None:
        os.close(self._readable)


def test_messages_are_given_until_they_are_confirmed() -> None:
    log = MessageLog()
    for word in ("a", "b", "c"):
        log.add({"event": word})
    assert [m["event"] for m in log.after(0)] == ["a", "b", "c"]
    assert [(m["number"], m["event"]) for m in log.after(1)] == [(2, "b"), (3, "c")]
    assert log.after(3) == []
    log.add({"event": "d"})
    assert [m["number"] for m in log.after(3)] == [4]


def test_what_the_last_trial_log_is_kept_for_a_later_owner() -> None:
    log = MessageLog()
    log.add({"event": "old"})
    log.begin()
    log.add({"event": "step"})
    log.add({"event": "done"})
    assert log.after(3) == []
    assert [m["event"] for m in log.after(0)] == ["step", "done"]
    log.begin()
    assert [m["event"] for m in log.after(0)] == []


@contextlib.contextmanager
def a_host(*says: str) -> Iterator[Any]:
    host: Any = object.__new__(RankHost)
    host._size = host._nodes = 1
    host._prepare("first")
    host._rank = process = Talker(*says)
    host._read(process, 0)
    try:
        yield host
    finally:
        process.close()


def test_a_new_owner_learns_the_state_of_the_rank() -> None:
    orders: list[str] = []
    with a_host() as host:
        host._rank.send = lambda message: orders.append(message["command"])
        host._rank.begin = lambda: orders.append("begin")
        host.send("first", {"command": "run", "rank": 1, "run": 3})
        state = host.adopt("second")
        assert (state.trial["run"], state.knows_store, state.is_ending, state.is_idle) == (
            3,
            False,
            False,
            False,
        )
        host.send("second", {"command": "store"})
        host._note({"event": "idle", "run": 2}, 0)
        assert not host.adopt("second").is_idle, "that was the trial before"
        host.send("second", {"command": "stop"})
        host._note({"event": "idle", "run": 3}, 0)
        state = host.adopt("third")
        assert (state.knows_store, state.is_ending, state.is_idle) == (True, True, True)
        host.send("third", {"command": "run", "rank": 0, "run": 4})
        state = host.adopt("third")
        assert (state.knows_store, state.is_ending, state.is_idle) == (True, False, False)
        assert orders == ["begin", "run", "store", "stop", "begin", "run"]


def test_an_actor_obeys_one_owner_at_a_time() -> None:
    with a_host("step", "step") as host:
        assert [m["event"] for m in host.listen("first")] == ["step", "step"]
        assert host.adopt("second").size == 1
        assert [m["event"] for m in host.listen("first", 2)] == ["superseded"]
        host.send("first", {"command": "run", "rank": 0})
        host.terminate("first")
        host.kill("first")
        host.replace("first", 1)
        assert (host._trial, host._generation) == (None, 0)
        assert not host.release("first")
        assert [m["event"] for m in host.listen("second")] == ["step", "step"], (
            "the new owner gets all messages again"
        )
        assert host.release("second")
        assert host.adopt("third") is None, "an actor that was released cannot be adopted"


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}, {2, 3}, set()])
def test_an_answer_that_ray_loses_is_given_again(
    monkeypatch: pytest.MonkeyPatch, lost: set[int]
) -> None:
    import ray

    asked: list[Callable[[], list[Message]]] = []

    def remote(owner: str, heard: int) -> Callable[[], list[Message]]:
        asked.append(lambda: host.listen(owner, heard))
        return asked[-1]

    def get(call: Callable[[], list[Message]], **_: Any) -> list[Message]:
        answer = call()  # the actor has answered, whether or not its answer comes through
        if asked.index(call) in lost:
            raise ray.exceptions.GetTimeoutError("the network is away")
        return answer

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(owned_actor, "LISTEN_S", 0.1)
    rank = RayRank(
        "rank-0",
        SimpleNamespace(listen=SimpleNamespace(remote=remote)),
        "first",
        SentFolders(limit_bytes=0),
    )
    heard: list[str] = []
    with a_host("store", "step", "step", "done", "idle") as host:
        for _ in range(8):
            if rank.listen_call is None:
                rank.listen()
            heard += [m["event"] for m in rank.receive(0.0)]
    assert heard == ["store", "step", "step", "done", "idle"]
    assert not rank.dead
