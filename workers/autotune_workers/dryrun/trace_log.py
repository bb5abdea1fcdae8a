"""The trace of a dry run: every change of the allocated memory, every operation and collective, by the part of the micro-batch in which it comes.

Hooks on the layers and on their outputs' gradients tell where one part ends and the next begins; the loss's backward pass begins with the first
operation of autograd after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autotune.spec import MemoryTrace, TracedCollective, TracedOperation, TracedSegment, TracedWeight
from autotune_workers.dryrun import torch_private
from autotune_workers.training.gradient_sync import Weight

Place = tuple[str, int, int]
"""kind of segment, micro-batch, layer of the rank"""


@final
class TraceLog:
    """Writes down the present step."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._changes: dict[Place, tuple[list[int], list[int], list[tuple[int, int]]]] = {}
        self._operations: dict[Place, list[TracedOperation]] = {}
        self._collectives: dict[Place, list[TracedCollective]] = {}
        self._passes: dict[nn.Module, int] = {}
        self._built_bytes: dict[int, int] = {}
        self._built = False
        self._input_bytes = 0

    def changed(self, storage: int, by_bytes: int) -> None:
        """A storage is made, freed or has another size."""
        if not self._built:
            self._built_bytes[storage] = self._built_bytes.get(storage, 0) + by_bytes
        elif self._built_bytes.get(storage):
            self._built_bytes[storage] += by_bytes
        if (place := self._settled()) is not None:
            storages, changes, _ = self._changes.setdefault(place, ([], [], []))
            storages.append(storage)
            changes.append(by_bytes)

    def worked(self, operation: TracedOperation) -> None:
        """An operation did arithmetic."""
        if (place := self._settled()) is not None:
            self._operations.setdefault(place, []).append(operation)

    def called(self, collective: TracedCollective) -> None:
        """A collective was called."""
        if (place := self._settled()) is not None:
            self._collectives.setdefault(place, []).append(collective)

    def _settled(self) -> Place | None:
        """The present part, some of which end without a hook."""
        if self._place is not None:
            if self._place[0] == "loss" and torch_private.backward_pass() != -1:
                self._place = ("loss_backward", *self._place[1:])
            elif self._place[0] == "end" and torch_private.backward_pass() == -1:  # the backward pass is over
                self._place = None
        return self._place

    def know_weights(self, weights: Sequence[Weight]) -> None:
        """The trained weights of the rank, which are not sharded."""

        def hook(number: int) -> Any:
            def arrive(_: Tensor) -> None:
                if self._place is not None:
                    _, changes, arrivals = self._changes.setdefault(self._place, ([], [], []))
                    arrivals.append((len(changes), number))

            return arrive

        for number, weight in enumerate(weights):
            weight.parameter.register_post_accumulate_grad_hook(hook(number))

    def begin_step(self, inputs: Iterable[Tensor]) -> None:
        """The micro-batches of a step are there."""
        self._built = True
        self._changes, self._operations, self._collectives = {}, {}, {}
        self._passes = dict.fromkeys(self._passes, 0)
        self._input_bytes = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in inputs}.values())

    def end_passes(self) -> None:
        """All backward passes of the step are done."""
        self._place = None

    def follow(self, stage: nn.Module, layers: Sequence[nn.Module]) -> None:
        """Puts hooks on a stage of the rank and on its repeated layers."""
        self._passes[stage] = 0
        stage.register_forward_pre_hook(self._entering, prepend=True)
        stage.register_forward_hook(self._left)
        blocks = _alike(layers)
        for number, block in enumerate(blocks):
            block.register_forward_pre_hook(self._entering_layer(stage, number), prepend=True)
            block.register_forward_hook(self._left_layer(stage, number, number == len(blocks) - 1))

    def _entering(self, stage: nn.Module, _: Any) -> None:
        self._place = ("pre", self._passes[stage], -1)
        self._passes[stage] += 1

    def _left(self, stage: nn.Module, _: Any, output: Any) -> None:
        number = self._passes[stage] - 1
        self._place = ("loss", number, -1)
        self._when_gradient_comes(output, ("head_backward", number, -1))

    def _entering_layer(self, stage: nn.Module, number: int) -> Any:
        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            if torch_private.backward_pass() != -1:  # it is run again
                return
            micro_batch = self._passes[stage] - 1
            self._place = ("layer", micro_batch, number)
            if number == 0 and inputs and isinstance(inputs[0], Tensor) and not inputs[0].is_leaf:
                self._when_gradient_comes(inputs[0], ("end", micro_batch, -1))

        return enter

    def _left_layer(self, stage: nn.Module, number: int, is_last: bool) -> Any:
        def leave(_: nn.Module, inputs: Any, output: Any) -> None:
            if torch_private.backward_pass() != -1:
                return
            micro_batch = self._passes[stage] - 1
            self._when_gradient_comes(output, ("layer_backward", micro_batch, number))
            if is_last:
                self._place = ("head", micro_batch, -1)

        return leave

    def _when_gradient_comes(self, value: Any, place: Place) -> None:
        values = value.values() if isinstance(value, Mapping) else value  # outputs of transformers are mappings
        tensor = value if isinstance(value, Tensor) else next((x for x in values if isinstance(x, Tensor)), None)

        def arrive(_: Tensor) -> None:
            self._place = place

        if tensor is not None and tensor.requires_grad:
            tensor.register_hook(arrive)

    def trace(
        self, weights: Sequence[Weight], layers: Sequence[Sequence[nn.Module]], recompute: Sequence[str]
    ) -> MemoryTrace:
        """The present step. `layers`: of each stage."""
        blocks = tuple(itertools.chain.from_iterable(map(_alike, layers)))
        owners = {parameter: number for number, block in enumerate(blocks) for parameter in block.parameters()}
        own = {part.untyped_storage()._cdata for w in weights for part in torch_private.parts_of(w.parameter)}
        return MemoryTrace(
            segments=tuple(
                TracedSegment(
                    kind=kind,  # type: ignore[arg-type]
                    micro_batch=m,
                    layer=layer,
                    storages=tuple(ids),
                    changes_bytes=tuple(changes),
                    arrivals=tuple(arrivals),
                    operations=tuple(self._operations.get((kind, m, layer), ())),
                    collectives=tuple(self._collectives.get((kind, m, layer), ())),
                )
                for (kind, m, layer), (ids, changes, arrivals) in self._changes.items()
            ),
            weights=tuple(
                TracedWeight(name=w.name, layer=owners.get(w.parameter, -1), shape=shape, is_cut=is_cut)
                for w in weights
                for shape, is_cut in (_shape(w.parameter),)
            ),
            recompute=tuple(recompute),
            held_bytes=tuple(size for storage, size in self._built_bytes.items() if size > 0 and storage not in own),
            input_bytes=self._input_bytes,
            buffers=tuple(_buffers(self._passes, blocks)),
        )


def _alike(layers: Sequence[nn.Module]) -> Sequence[nn.Module]:
    """The layers, or none where they are not of one class."""
    return layers if len({type(layer) for layer in layers}) == 1 else ()


def _buffers(stages: Iterable[nn.Module], blocks: Sequence[nn.Module]) -> Iterator[tuple[int, int]]:
    """Layer and bytes of each storage of a buffer, once."""
    seen = set[int]()
    owned = [(number, buffer) for number, block in enumerate(blocks) for buffer in block.buffers()]
    for layer, buffer in itertools.chain(owned, ((-1, buffer) for stage in stages for buffer in stage.buffers())):
        storage = buffer.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            yield layer, storage.nbytes()


def _shape(parameter: Tensor) -> tuple[tuple[int, ...], bool]:
    """Shape on this rank before data parallelism cuts it, and whether tensor parallelism has cut it."""
    shape, is_cut = list(parameter.shape), False
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        for axis, (placement, name) in enumerate(zip(parameter.placements, names, strict=True)):
            if name == "tp" and placement.is_shard():
                dim: int = placement.dim
                shape[dim], is_cut = -(-shape[dim] // parameter.device_mesh.size(axis)), True
    return tuple(shape), is_cut
