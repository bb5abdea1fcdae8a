"""How far a rank has come in a trial: what tells, when a gang hangs, which rank keeps the others
waiting.

    micro_batch    forward passes of micro-batches that it has begun, through each of its pipeline stages
    collectives    collectives that it has begun in each process group, by the group's name

Counts of one group are comparable between its ranks, because every rank of a group begins the same
collectives in the same order: a rank with a lower count has not come to the collective in which the
others wait. Pipeline groups are left out: their ranks send and receive as their stage demands. The
training thread counts; the heartbeat's thread reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final


@final
class Progress:
    """Of one rank in one trial."""

    def __init__(self) -> None:
        self._micro_batch = 0
        self._groups: list[Any] = []

    def watch(self, groups: Iterable[Any]) -> None:
        """The process groups of this rank whose collectives count."""
        self._groups = list(groups)

    def begin_micro_batch(self, *_: object) -> None:
        """A forward pass begins. Takes what a forward hook is given."""
        self._micro_batch += 1

    def told(self) -> dict[str, Any]:
        """As part of a message."""
        if not self._groups:
            return {"micro_batch": self._micro_batch, "collectives": {}}
        from autotune_workers.training.torch_internals import collectives_begun  # imports torch

        counts = {group.group_name: collectives_begun(group) for group in self._groups}
        return {
            "micro_batch": self._micro_batch,
            "collectives": {k: v for k, v in counts.items() if v is not None},
        }
