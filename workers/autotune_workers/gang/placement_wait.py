"""The wait of one attempt for its place on a cluster that others use, or that has lost nodes. All times in seconds on the runner's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from autotune.ports import AttemptQueued, TrialRequest
from autotune.spec import Failure, FailureKind

QUEUED_EVERY_S = 5.0
"""time between two `AttemptQueued` of an attempt that waits for its placement"""

OCCUPIED = "others use it, or a lost node has not been given up yet"
"""why there is no room on a cluster that is large enough: what ran on a lost node keeps its resources until Ray calls that node dead"""


@final
class PlacementWait:
    """Ends with a failure when the cluster never was large enough, or when others use it, or nodes are away, for too long."""

    def __init__(self, request: TrialRequest, what: str, now_s: float) -> None:
        """`what`: is to be placed, in words, such as "4 ranks", which may stand after "its"."""
        self._request, self._what = request, what
        self._began_s = self._said_s = now_s

    def look(
        self, now_s: float, *, placement_s: float, shortage: Callable[[], str], absence: Callable[[], str]
    ) -> Failure | AttemptQueued | None:
        """What there is to say of an attempt that has no place yet. `placement_s`: longest wait; `shortage`: why it can never be placed; `absence`:
        what is missing of nodes that were there."""
        waited_s = now_s - self._began_s
        if waited_s >= self._request.measure.start_timeout_s and (why := shortage()):
            return Failure(kind=FailureKind.INVALID, message=why)
        if waited_s >= placement_s:
            message = (
                f"{self._what} must be placed within {placement_s:g} s, but {absence() or 'others use the cluster'}; "
                "use fewer ranks, or a larger cluster"
            )
            return Failure(kind=FailureKind.WORKER_LOST, message=message)
        if now_s - self._said_s < QUEUED_EVERY_S:
            return None
        self._said_s = now_s
        reason = f"the cluster has no room for its {self._what} now: {absence() or OCCUPIED}"
        return AttemptQueued(id=self._request.id, reason=reason)
