"""Progress of a rank in a trial. If a gang hangs, it shows which rank the others wait for.

    micro_batch    number of forward passes of micro-batches begun, through each of its pipeline stages
    collectives    number of collectives begun in each process group, by the group's name

Counts of the same group are comparable between ranks, because all ranks of a group begin the same
collectives in the same order: a rank with a lower count has not reached the collective in which the
others wait. Pipeline groups are excluded, because their ranks send and receive differently. The
training thread counts; the heartbeat's thread reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final


@final
class Progress:
    """The progress of one rank in one trial."""

    def __init__(self) -> None:
        self._micro_batch = 0
        self._groups: list[Any] = []

    def watch(self, groups: Iterable[Any]) -> None:
        """Set the process groups whose collectives are counted."""
        self._groups = list(groups)

    def begin_micro_batch(self, *_: object) -> None:
        """Count a forward pass. Accepts the arguments of a forward hook."""
        self._micro_batch += 1

    def told(self) -> dict[str, Any]:
        """Counts of micro-batches and of collectives by group, as part of a message."""
        if not self._groups:
            return {"micro_batch": self._micro_batch, "collectives": {}}
        from autotune_workers.training.torch_internals import collectives_begun  # imports torch

        counts = {group.group_name: collectives_begun(group) for group in self._groups}
        return {
            "micro_batch": self._micro_batch,
            "collectives": {k: v for k, v in counts.items() if v is not None},
        }
