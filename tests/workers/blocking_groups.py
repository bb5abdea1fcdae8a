"""A backend of torch.distributed that behaves as NCCL does when a peer has failed: whoever waits
for that peer waits for ever.

Registered as `blocking` when this module is imported; collectives run over gloo on CPU tensors.
What differs from gloo:

    collectives              of a failed peer block, where gloo raises as soon as a connection closes
    destroy_process_group    blocks until every rank of the group destroys it, as ncclCommFinalize does
    abort                    wakes this rank alone, from any thread: what it waits for raises, and peers learn nothing
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

NAME = "blocking"
COLLECTIVES = f"{__name__}:{NAME}"
"""as the runner's option names it"""
_POLL_S = 0.01
_ABORTED = "NCCL communicator was aborted on this rank"


class _Blocked(dist._Work):
    """The work of one collective. `wait` ends when it is done or the group is aborted; an error of
    gloo's ends nothing."""

    def __init__(self, group: BlockingGroup, work: dist.Work) -> None:
        super().__init__()
        self._group, self._work = group, work
        self._woken = group.waker()
        self._done = False
        threading.Thread(target=self._run, name="blocking-collective", daemon=True).start()

    def _run(self) -> None:
        try:
            self._work.wait()
        except RuntimeError:
            return  # a peer is gone: a kernel of NCCL's would go on waiting
        self._done = True
        self._woken.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks until it is done. Raises `RuntimeError` once the group is aborted."""
        self._woken.wait()
        if not self._done:
            raise RuntimeError(_ABORTED)
        return True

    def is_completed(self) -> bool:
        """Whether it is done."""
        return self._done

    def get_future(self) -> Any:
        """Of the collective below."""
        return self._work.get_future()


class BlockingGroup(dist.ProcessGroup):
    """A process group over one of gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store, self._members = store, size
        self._gloo = _gloo_group(dist.PrefixStore("gloo", store), rank, size, timeout)
        self._aborted = threading.Event()
        self._wakers: weakref.WeakSet[threading.Event] = weakref.WeakSet()
        self._sequence = 0
        self._name = ""

    # torch's names of what a group of Python's has to answer

    def getBackendName(self) -> str:  # noqa: N802
        """The name that it is registered by."""
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        """The name that torch gave it."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Torch names it."""
        self._name = name

    @property
    def group_name(self) -> str:
        """The name that torch gave it."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def waker(self) -> threading.Event:
        """An event that is set when the group is aborted."""
        event = threading.Event()
        self._wakers.add(event)
        if self._aborted.is_set():
            event.set()
        return event

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _begin(self, call: Callable[..., dist.Work], *arguments: Any) -> _Blocked:
        if self._aborted.is_set():
            raise RuntimeError(_ABORTED)
        self._sequence += 1
        try:
            return _Blocked(self, call(*arguments))
        except RuntimeError:  # gloo refuses at once where it supports that the peer is gone
            self._aborted.wait()
            raise RuntimeError(_ABORTED) from None

    def shutdown(self) -> None:
        """Waits for every rank of the group, or for ever."""
        try:
            self._store.add("finalized", 1)
            while self._store.add("finalized", 0) < self._members and not self._aborted.wait(
                _POLL_S
            ):
                pass
        except RuntimeError:  # the rank that holds the store is gone
            self._aborted.wait()

    def abort(self) -> None:
        """Wakes whatever waits on this rank."""
        self._aborted.set()
        for event in list(self._wakers):
            event.set()


def _forward(name: str) -> Callable[..., _Blocked]:
    def call(self: BlockingGroup, *arguments: Any) -> _Blocked:
        return self._begin(getattr(self._gloo, name), *arguments)

    return call


for _name in (
    *(
        "allreduce",
        "allreduce_coalesced",
        "reduce",
        "broadcast",
        "barrier",
        "send",
        "recv",
        "gather",
        "scatter",
    ),
    *(
        "allgather",
        "allgather_coalesced",
        "all_gather_single",
        "all_gather_single_coalesced",
        "reduce_scatter",
    ),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced", "alltoall", "all_to_all_single"),
):
    setattr(BlockingGroup, _name, _forward(_name))


def _gloo_group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    group, kind = dist.ProcessGroup(store, rank, size), dist.ProcessGroup.BackendType.GLOO
    group._register_backend(
        torch.device("cpu"), kind, dist.ProcessGroupGloo(store, rank, size, timeout)
    )
    group._set_default_backend(kind)
    group._set_group_name(f"below-{id(group)}")
    return group


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> BlockingGroup:
    return BlockingGroup(store, rank, size, timeout)


dist.Backend.register_backend(NAME, _make, devices=["cpu"])
