"""The memory of one rank: every storage that lives, what it is for and which module made it, and
the fullest moments.

A storage counts once, however many tensors look at it, from the operation that returns it until
nobody holds it (`weakref` tells). FSDP gives memory back and takes it again by
`UntypedStorage.resize_`, which counts like a new storage each time.

A local peak is written down when the first storage after a rise is freed, so that rises cost
nothing.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from autotune.spec import MEMORY_CATEGORIES, MemorySample, Moment
from autotune_workers.dryrun.position import Position
from autotune_workers.dryrun.torch_private import has_memory, parts_of, storage_id

INDEX = {name: index for index, name in enumerate(MEMORY_CATEGORIES)}
KEPT = frozenset(
    INDEX[name] for name in ("parameters", "buffers", "gradients", "optimizer", "inputs")
)
"""categories that tell what a storage is for good; the others say how it came about"""


class Allocation:
    """One storage that lives."""

    __slots__ = ("category", "module", "reference", "size_bytes")

    def __init__(self, size_bytes: int, category: int, module: str) -> None:
        self.size_bytes, self.category, self.module = size_bytes, category, module
        self.reference: weakref.ref[Any] | None = None


class MemoryLedger:
    """What one rank holds, at any moment."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._live: dict[int, Allocation] = {}
        self.parts_bytes = [0] * len(MEMORY_CATEGORIES)
        """by category, now"""
        self.total_bytes = 0
        """of all categories, now"""
        self.module_bytes: dict[str, int] = {}
        """of the storages that a module made, now"""
        self._made: list[list[int]] = [[]]
        """the storages made since each running module began, innermost last"""
        self._is_rising = False
        self._risen: Moment | None = None
        self.timeline: list[MemorySample] = []
        """local peaks and troughs of the present step"""
        self.phase_peaks: dict[tuple[int, str], MemorySample] = {}
        """the fullest moment of each phase of each step"""
        self.step_peak_modules: dict[str, int] = {}
        """`module_bytes` at the fullest moment of the present step"""
        self._step_peak_bytes = -1

    # storages

    def note(self, tensor: Tensor, category: str = "temporaries") -> None:
        """An operation has returned this plain tensor."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._live and has_memory(tensor):
            self._add(key, storage, INDEX[category])

    def resized(self, storage: Any) -> None:
        """The storage has another size now."""
        known = self._live.get(storage._cdata)
        if known is None:
            self._add(storage._cdata, storage, INDEX["communication"])
            return
        self._change(known, -known.size_bytes)
        known.size_bytes = storage.nbytes()
        self._change(known, known.size_bytes)

    def mark(self, tensor: Tensor | None, category: str, module: str | None = None) -> None:
        """Says what the memory behind a tensor, of whatever class, is for, and whose it is."""
        if tensor is None:
            return
        for part in parts_of(tensor):
            self.note(part, category)
            known = self._live.get(storage_id(part))
            if known is None:  # on the meta device
                continue
            self._retype(known, INDEX[category], known.module if module is None else module)

    def mark_passing(self, tensor: Tensor, category: str) -> None:
        """Says what the memory is for now, where nothing says what it is for good."""
        known = self._live.get(storage_id(tensor))
        if known is not None and known.category not in KEPT:
            self.mark(tensor, category)

    def mark_rest(self, category: str) -> None:
        """Gives all temporaries of now this category."""
        for known in self._live.values():
            if known.category == INDEX["temporaries"]:
                self._retype(known, INDEX[category], known.module)

    def _add(self, key: int, storage: Any, category: int) -> None:
        made = Allocation(storage.nbytes(), category, self._position.module)
        live = self._live

        def gone(_: Any) -> None:
            if live.get(key) is made:
                del live[key]
                self._change(made, -made.size_bytes)

        made.reference = weakref.ref(storage, gone)
        live[key] = made
        self._made[-1].append(key)
        self._change(made, made.size_bytes)

    def _change(self, which: Allocation, by_bytes: int) -> None:
        if by_bytes == 0:
            return
        if by_bytes < 0:
            if self._is_rising:
                self._write_down(self._risen)
                self._is_rising = False
        elif not self._is_rising:
            self._is_rising = True
            if self._position.phase != "build":
                self.timeline.append(self._sample(self._position.moment))
        self._move(which, by_bytes)
        if by_bytes > 0:
            self._risen = self._position.moment

    def _move(self, which: Allocation, by_bytes: int) -> None:
        self.total_bytes += by_bytes
        self.parts_bytes[which.category] += by_bytes
        self.module_bytes[which.module] = self.module_bytes.get(which.module, 0) + by_bytes

    def _retype(self, which: Allocation, category: int, module: str) -> None:
        self._move(which, -which.size_bytes)
        which.category, which.module = category, module
        self._move(which, which.size_bytes)

    # modules

    def module_begins(self, _: str) -> None:
        """Storages are this module's from now on."""
        if len(self._made) == 1:
            self._made[0].clear()
        self._made.append([])

    def module_ends(self, _: str) -> None:
        """What its forward pass made and is alive now are activations."""
        made = self._made.pop() if len(self._made) > 1 else self._made[0]
        self._keep(made)

    def forward_ends(self) -> None:
        """What was made outside of modules, such as the loss, is kept for the backward pass too."""
        self._keep(self._made[0])
        self._made[0].clear()

    def _keep(self, keys: list[int]) -> None:
        for key in keys:
            known = self._live.get(key)
            if known is not None and known.category == INDEX["temporaries"]:
                self._retype(known, INDEX["activations"], known.module)

    def activations_by_module(self) -> dict[str, int]:
        """Bytes of activations that are alive, by the module that made them."""
        found: dict[str, int] = {}
        for known in self._live.values():
            if known.category == INDEX["activations"]:
                found[known.module] = found.get(known.module, 0) + known.size_bytes
        return found

    # moments

    def begin_step(self) -> None:
        """A step begins: its timeline and its peak are new."""
        self.settle()
        self._made = [[]]
        self.timeline, self._step_peak_bytes = [], -1
        self.look()

    def look(self) -> None:
        """Writes down what is there now, as a phase begins in which nothing may be made."""
        self.settle()
        self._write_down(self._position.moment)

    def settle(self) -> None:
        """Writes down a rise that nothing has ended."""
        if self._is_rising:
            self._write_down(self._risen)
            self._is_rising = False

    def _write_down(self, moment: Moment | None) -> None:
        if moment is None:
            return
        place = (moment.step, moment.phase)
        known = self.phase_peaks.get(place)
        in_step = moment.phase != "build"
        sample = self._sample(moment)
        if known is None or self.total_bytes > known.total_bytes:
            self.phase_peaks[place] = sample
        if in_step:
            self.timeline.append(sample)
            if self.total_bytes > self._step_peak_bytes:
                self._step_peak_bytes = self.total_bytes
                self.step_peak_modules = dict(self.module_bytes)

    def _sample(self, moment: Moment) -> MemorySample:
        return MemorySample(
            moment=moment, parts_bytes=dict(zip(MEMORY_CATEGORIES, self.parts_bytes, strict=True))
        )
