"""Rank pools: the ranks of one attempt as a runner sees them, and the protocol of what provides them.

`local` and `ray` provide pools of the same kind: rank processes that stay warm between attempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from autotune.trainers.torchrun import Placement
from autotune_workers.gang.attempt_runner import Source
from autotune_workers.gang.wire import Message


class RankHandle(Protocol):
    """A rank as the runner sees it. None of these raises when the rank is gone."""

    name: str
    ready: bool
    host: str
    """address of its node, known once it is ready"""
    node: str
    """hostname of its node; empty until it is ready"""
    gpus: tuple[str, ...]
    """its own, as CUDA_VISIBLE_DEVICES names them there"""

    def send(self, message: Message) -> None:
        """Sends a message."""
        ...

    def terminate(self) -> None:
        """SIGTERM."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...

    def begin(self) -> None:
        """A trial begins on it."""
        ...

    def log_tail(self) -> tuple[str, ...]:
        """Last lines of its log."""
        ...


@dataclass(slots=True, eq=False)
class RankPool:
    """The ranks that run one attempt together, in the order of their rank numbers."""

    handles: list[Any]
    """`RankHandle`s"""
    token: Any = None
    """by which its `RankPools` knows it"""


class RankPools(Source, Protocol):
    """Where rank pools come from, and where they go after an attempt; ranks that are not `healthy` are replaced. `gone` is a rank's last message."""

    def form(self, placement: Placement, study: str) -> RankPool | None:
        """A pool of ranks placed like this, warm where possible; its ranks may still be starting. None when there are not enough free ranks now.
        `study`: part of the name of a new one."""
