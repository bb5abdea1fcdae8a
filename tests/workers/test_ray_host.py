"""What a rank on Ray says reaches its runner once, however often Ray fails to answer. No cluster."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from autotune_workers._ray_host import RankHost, Unheard
from autotune_workers._ray_rank import RayRank
from autotune_workers.ray import RayCrews
from autotune_workers.wire import Message


class Talker:
    """A rank process that has said some things already."""

    def __init__(self, *says: str) -> None:
        self._says = list(says)
        self._readable, end = os.pipe()
        os.close(end)  # always ready to be read

    def fileno(self) -> int:
        return self._readable

    def receive(self) -> list[Message]:
        """Two at a time."""
        said, self._says = self._says[:2], self._says[2:]
        return [{"say": word} for word in said]

    def close(self) -> None:
        os.close(self._readable)


def test_what_was_said_is_told_until_it_is_confirmed() -> None:
    unheard = Unheard()
    for word in ("a", "b", "c"):
        unheard.add({"say": word})
    assert [m["say"] for m in unheard.after(0)] == ["a", "b", "c"]
    assert [(m["number"], m["say"]) for m in unheard.after(1)] == [(2, "b"), (3, "c")]
    assert unheard.after(3) == []
    unheard.add({"say": "d"})
    assert [m["number"] for m in unheard.after(3)] == [4]


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}, {2, 3}, set()])
def test_an_answer_that_ray_loses_is_given_again(monkeypatch: pytest.MonkeyPatch, lost: set[int]) -> None:
    import ray

    process = Talker("store", "step", "step", "done", "idle")
    host: Any = object.__new__(RankHost)
    host._lock, host._generation, host._unheard, host._rank = threading.Lock(), 0, Unheard(), process
    asked: list[Callable[[], list[Message]]] = []

    def remote(heard: int) -> Callable[[], list[Message]]:
        asked.append(lambda: host.listen(heard))
        return asked[-1]

    def get(ear: Callable[[], list[Message]], **_: Any) -> list[Message]:
        answer = ear()  # the host has spoken, whether or not its answer comes through
        if asked.index(ear) in lost:
            raise ray.exceptions.GetTimeoutError("the network is away")
        return answer

    monkeypatch.setattr(ray, "get", get)
    rank = RayRank("rank-0", SimpleNamespace(listen=SimpleNamespace(remote=remote)))
    heard: list[str] = []
    try:
        for _ in range(8):
            if rank.ear is None:
                rank.listen()
            heard += [m["say"] for m in RayCrews._hear(object.__new__(RayCrews), rank)]
    finally:
        process.close()
    assert heard == ["store", "step", "step", "done", "idle"]
    assert not rank.dead
