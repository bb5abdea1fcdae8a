"""Tracks the memory of one rank: live storages with their category and module, and peaks.

A storage counts once, however many tensors share it, from the operation that returns it until it is
garbage-collected (seen by a `weakref`). FSDP frees and reallocates memory with
`UntypedStorage.resize_`, which changes the counted size.

A local peak is recorded when the first storage after a rise is freed, so that allocations alone
cost little.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from autotune.spec import MEMORY_CATEGORIES, MemorySample, Moment
from autotune_workers.dryrun.position import Position
from autotune_workers.dryrun.torch_private import has_memory, parts_of, storage_id

INDEX = {name: index for index, name in enumerate(MEMORY_CATEGORIES)}
PERMANENT = frozenset(
    INDEX[name] for name in ("parameters", "buffers", "gradients", "optimizer", "inputs")
)
"""categories that a storage keeps once it has them; others may change"""


class Allocation:
    """One live storage."""

    __slots__ = ("category", "module", "reference", "size_bytes")

    def __init__(self, size_bytes: int, category: int, module: str) -> None:
        self.size_bytes, self.category, self.module = size_bytes, category, module
        self.reference: weakref.ref[Any] | None = None


class MemoryLedger:
    """The live storages of one rank, and their total size over time."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._live: dict[int, Allocation] = {}
        self.parts_bytes = [0] * len(MEMORY_CATEGORIES)
        """current bytes by category, in the order of `MEMORY_CATEGORIES`"""
        self.total_bytes = 0
        """current bytes of all categories"""
        self.module_bytes: dict[str, int] = {}
        """current bytes by the module that made the storage"""
        self._made: list[list[int]] = [[]]
        """for each running module, innermost last: ids of the storages made since it began; first:
        those made outside of modules"""
        self._is_rising = False
        self._risen: Moment | None = None
        self.timeline: list[MemorySample] = []
        """local peaks and troughs of the current step"""
        self.phase_peaks: dict[tuple[int, str], MemorySample] = {}
        """peak of each (step, phase)"""
        self.step_peak_modules: dict[str, int] = {}
        """`module_bytes` at the peak of the current step"""
        self._step_peak_bytes = -1

    # storages

    def note(self, tensor: Tensor, category: str = "temporaries") -> None:
        """Adds the storage of a plain tensor that an operation returned."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._live and has_memory(tensor):
            self._add(key, storage, INDEX[category])

    def resized(self, storage: Any) -> None:
        """Updates the size of a storage that was resized."""
        known = self._live.get(storage._cdata)
        if known is None:
            self._add(storage._cdata, storage, INDEX["communication"])
            return
        self._change(known, -known.size_bytes)
        known.size_bytes = storage.nbytes()
        self._change(known, known.size_bytes)

    def mark(self, tensor: Tensor | None, category: str, module: str | None = None) -> None:
        """Sets the category, and optionally the module, of the storages of a tensor of any
        class."""
        if tensor is None:
            return
        for part in parts_of(tensor):
            self.note(part, category)
            known = self._live.get(storage_id(part))
            if known is None:  # on the meta device
                continue
            self._retype(known, INDEX[category], known.module if module is None else module)

    def mark_passing(self, tensor: Tensor, category: str) -> None:
        """Sets the category of a tensor's storage, unless it has a permanent one."""
        known = self._live.get(storage_id(tensor))
        if known is not None and known.category not in PERMANENT:
            self.mark(tensor, category)

    def mark_rest(self, category: str) -> None:
        """Sets the category of all current temporaries."""
        for known in self._live.values():
            if known.category == INDEX["temporaries"]:
                self._retype(known, INDEX[category], known.module)

    def _add(self, key: int, storage: Any, category: int) -> None:
        allocation = Allocation(storage.nbytes(), category, self._position.module)
        live = self._live

        def remove(_: Any) -> None:
            if live.get(key) is allocation:
                del live[key]
                self._change(allocation, -allocation.size_bytes)

        allocation.reference = weakref.ref(storage, remove)
        live[key] = allocation
        self._made[-1].append(key)
        self._change(allocation, allocation.size_bytes)

    def _change(self, allocation: Allocation, by_bytes: int) -> None:
        """Counts a change of memory in use, and records the local peak or trough that it ends."""
        if by_bytes == 0:
            return
        if by_bytes < 0:
            self.settle()
        elif not self._is_rising:
            self._is_rising = True
            if self._position.phase != "build":
                self.timeline.append(self._sample(self._position.moment))
        self._count(allocation, by_bytes)
        if by_bytes > 0:
            self._risen = self._position.moment

    def _count(self, allocation: Allocation, by_bytes: int) -> None:
        module = allocation.module
        self.total_bytes += by_bytes
        self.parts_bytes[allocation.category] += by_bytes
        self.module_bytes[module] = self.module_bytes.get(module, 0) + by_bytes

    def _retype(self, allocation: Allocation, category: int, module: str) -> None:
        self._count(allocation, -allocation.size_bytes)
        allocation.category, allocation.module = category, module
        self._count(allocation, allocation.size_bytes)

    # modules

    def module_begins(self, _: str) -> None:
        """A module's forward pass begins: new storages belong to it."""
        if len(self._made) == 1:
            self._made[0].clear()
        self._made.append([])

    def module_ends(self, _: str) -> None:
        """A module's forward pass ends: its temporaries that are still alive are activations."""
        made = self._made.pop() if len(self._made) > 1 else self._made[0]
        self._keep(made)

    def forward_ends(self) -> None:
        """The forward pass ends: live temporaries made outside of modules, such as the loss, are
        activations too."""
        self._keep(self._made[0])
        self._made[0].clear()

    def _keep(self, keys: list[int]) -> None:
        for key in keys:
            known = self._live.get(key)
            if known is not None and known.category == INDEX["temporaries"]:
                self._retype(known, INDEX["activations"], known.module)

    def activations_by_module(self) -> dict[str, int]:
        """Bytes of live activations, by the module that made them."""
        sizes: dict[str, int] = {}
        for known in self._live.values():
            if known.category == INDEX["activations"]:
                sizes[known.module] = sizes.get(known.module, 0) + known.size_bytes
        return sizes

    # moments

    def begin_step(self) -> None:
        """A step begins: resets timeline and step peak."""
        self.settle()
        self._made = [[]]
        self.timeline, self._step_peak_bytes = [], -1
        self.look()

    def look(self) -> None:
        """Records the current memory, for a phase in which nothing may be allocated."""
        self.settle()
        self._record(self._position.moment)

    def settle(self) -> None:
        """Records the local peak if memory was rising."""
        if self._is_rising:
            self._record(self._risen)
            self._is_rising = False

    def _record(self, moment: Moment | None) -> None:
        """Adds the current memory to the timeline and the peaks, as that of the given moment."""
        if moment is None:
            return
        key = (moment.step, moment.phase)
        peak = self.phase_peaks.get(key)
        sample = self._sample(moment)
        if peak is None or self.total_bytes > peak.total_bytes:
            self.phase_peaks[key] = sample
        if moment.phase != "build":
            self.timeline.append(sample)
            if self.total_bytes > self._step_peak_bytes:
                self._step_peak_bytes = self.total_bytes
                self.step_peak_modules = dict(self.module_bytes)

    def _sample(self, moment: Moment) -> MemorySample:
        return MemorySample(
            moment=moment, parts_bytes=dict(zip(MEMORY_CATEGORIES, self.parts_bytes, strict=True))
        )
