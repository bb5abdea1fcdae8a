"""Templates: the segments of a micro-batch, read from the trace of one dry run.

Weights are kept apart from what depends on the data: their gradients, shards and gathered copies follow laws of their own (`profile_weights.py`), which
need only the shapes of the weights and the moments at which gradients are complete. So a template leaves out

    replicated weights   gradients that outlive the backward pass; their moments become marks
    sharded weights      everything whose size does not depend on the data, but what a layer keeps for its own backward pass; the gradients' moments become marks

Some storages outlive the layer that made them. What all layers share (masks, tables of positions) is made once before them and freed by whichever
layer's backward pass is the last: it is no part of a layer (`tables`). The 16-bit copies that autocast makes of a recomputed layer's weights are freed
together when the forward pass ends: each layer counts its own (`shed`).

The first backward pass of a step makes gradients, later ones add to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from autotune.cost.profile_segments import Event, Segment, SegmentBytes, aligned, size_read
from autotune.cost.profile_trace_reader import TraceReader
from autotune.errors import DryRunError
from autotune.spec import DryRun, MemoryTrace, TracedSegment

EDGES = ("pre", "head", "loss", "loss_backward", "head_backward", "end")
"""segments outside of the layers"""
_BESIDE = ("held", "released", "passed", "output", "message")
Sizes = tuple[tuple[float, ...], float, float]
"""micro-batches (U of them), positions of a sequence on this rank, tensor-parallel ranks"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Templates:
    """The segments of one kind of training: replicated or sharded weights, with or without tensor parallelism."""

    edges: Mapping[str, Segment]
    """by kind, of the first backward pass; those of later ones under `later KIND`, and those that go without freeing the model's output under `kept KIND`,
    and what is behind layers whose backward pass needs their input under `saved head`"""
    layers: Mapping[str, Mapping[str, Segment]]
    """by recompute mode: layer, layer_backward, later layer_backward; and what of a layer is freed elsewhere: `carried` its output, where the next
    layer's forward pass frees it; `entered` the same of the first layer's input, where the model holds it until the layers are through; `saved` that
    input, where the backward pass frees it; `shed` what the end of the forward pass frees; `tables` what all layers share until the last of
    their backward passes; `unsaved` what they share in the forward pass alone; `buffers` what the layer holds beside its weights"""
    held: Segment
    """what the rank holds beside weights, optimizer states and the buffers of its layers"""
    released: Segment
    """input of the last layer, which is freed behind the layers"""
    passed: Segment
    """gradient of a layer's output, which its backward pass frees"""
    output: Segment
    """the model's output, which a pipeline keeps until the next micro-batch has its own"""
    message: Segment
    """what a stage sends to another for a micro-batch; empty where no pipeline was run"""
    _at: dict[tuple[str, str, Sizes], SegmentBytes] = field(init=False, default_factory=dict, compare=False, repr=False)

    def at(self, kind: str, mode: str, sizes: Sizes) -> SegmentBytes:
        """A segment at these sizes, in bytes: of that recompute mode, or outside of the layers where it is empty. Many configs of a space ask for the same."""
        known = self._at.get((kind, mode, sizes))
        if known is None:
            segments = self.layers[mode] if mode else {**self.edges, **{n: getattr(self, n) for n in _BESIDE}}
            known = self._at[kind, mode, sizes] = segments[kind].at(*sizes)
        return known

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "edges": {kind: segment.to_dict() for kind, segment in self.edges.items()},
            "layers": {m: {k: segment.to_dict() for k, segment in kinds.items()} for m, kinds in self.layers.items()},
            **{name: getattr(self, name).to_dict() for name in _BESIDE},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Templates:
        """The templates of `to_dict`'s values."""
        return cls(
            edges={kind: Segment.from_dict(segment) for kind, segment in values["edges"].items()},
            layers={
                m: {k: Segment.from_dict(segment) for k, segment in kinds.items()}
                for m, kinds in values["layers"].items()
            },
            **{name: Segment.from_dict(values[name]) for name in _BESIDE},
        )


Sketch = dict[tuple[str, str], list[Event]]
"""Events by (recompute mode, or empty outside of the layers; kind of segment)."""


def sketch_of(
    trace: MemoryTrace, *, b: int, s: int, tp: int, sharded: bool, element_bytes: int, is_later: bool = False
) -> Sketch:
    """The events of every kind of segment. Raises `DryRunError` where the trace does not show a whole step of two micro-batches."""
    by_place: dict[tuple[str, int, int], TracedSegment] = {(x.kind, x.micro_batch, x.layer): x for x in trace.segments}
    passes = 1 + max((x.micro_batch for x in trace.segments), default=-1)
    if passes < 2:
        raise DryRunError("a profile is made from a step of at least two micro-batches")
    reader = TraceReader(trace, b, s, tp, sharded, element_bytes)
    # of what was made while building, weights have sizes that do not depend on the data, and so have most buffers
    held = [Event(*reader.sized(size)) for size in trace.held_bytes if any(reader.sized(size)[1])]
    buffers = [(layer, Event(*reader.sized(size))) for layer, size in trace.buffers if not any(reader.sized(size)[1])]
    found: Sketch = {("", "held"): [*held, *(event for layer, event in buffers if layer < 0)]}
    shown = {
        mode: place
        for place, mode in reversed(tuple(enumerate(trace.recompute)))
        if 0 < place < len(trace.recompute) - 1
    }
    if any(("layer", 1, layer) not in by_place for layer in range(len(trace.recompute))):
        raise DryRunError("a profile is read layer by layer, but the repeated layers of the model were not found")
    if not shown:
        raise DryRunError(
            f"a profile is read from layers between the first and the last, but {len(trace.recompute)} layers were run"
        )
    for later in (0, 1):
        word = "later " if later else ""
        for kind in EDGES:
            if (kind, later, -1) not in by_place:  # where nothing is made or freed there is none
                found["", word + kind] = []
                continue
            segment = by_place[kind, later, -1]
            found["", word + kind] = reader.events(segment)
            kept = reader.output(by_place["head", later, -1]) if ("head", later, -1) in by_place else -1
            if kept in segment.storages and kind != "head":
                found["", "kept " + word + kind] = reader.events(segment, without=(kept,))
                found["", "output"] = [Event(-e.coefficient, e.monomial) for e in reader.changes_of(segment, kept)]
        for mode, layer in shown.items():
            found[mode, "buffers"] = [event for owner, event in buffers if owner == layer]
            for kind in ("layer", "layer_backward"):
                if (kind, later, layer) in by_place:
                    found[mode, word + kind] = reader.events(by_place[kind, later, layer])
    inner = len(trace.recompute) - 2
    if ("head", 1, -1) in by_place:
        found["", "released"] = reader.between(by_place["layer", 1, inner], by_place["head", 1, -1])
    for mode, layer in shown.items():
        # the output of a layer, which the next one frees unless it is recomputed from it
        found[mode, "carried"] = reader.between(by_place["layer", 1, layer - 1], by_place["layer", 1, layer])
        found["", "passed"] = reader.between(
            by_place["layer_backward", 1, layer + 1], by_place["layer_backward", 1, layer]
        )
    _add_what_layers_share(found, reader, by_place, shown, is_later=is_later)
    return found


def _add_what_layers_share(
    found: Sketch,
    reader: TraceReader,
    by_place: Mapping[tuple[str, int, int], TracedSegment],
    shown: Mapping[str, int],
    *,
    is_later: bool,
) -> None:
    """Adds what is made in one kind of segment and freed in another, beyond the outputs of layers (`Templates`)."""
    nothing = TracedSegment(kind="pre", micro_batch=1, layer=-1, storages=(), changes_bytes=())
    pre, head, loss = (by_place.get((kind, 1, -1), nothing) for kind in ("pre", "head", "loss"))
    layers = {place: segment for place, segment in by_place.items() if place[1] == 1 and place[2] >= 0}
    saved = {m: reader.between(layers["layer", 1, i - 1], layers["layer_backward", 1, i]) for m, i in shown.items()}
    """inputs of layers that their backward pass frees"""
    of_first = reader.modes[0] if reader.modes[0] in shown else next(iter(shown))
    # where the first layer's backward pass frees its input, no other of that size is it
    held = [] if saved[of_first] else reader.between(pre, head)
    for mode, layer in shown.items():
        found[mode, "shed"] = reader.between(layers["layer", 1, layer], loss, of_weights=True)
        found[mode, "entered"] = [event for event in found[mode, "carried"] if event in held]
        found[mode, "saved"] = [event for event in saved[mode] if event in held]
    inputs = {event for mode in shown for event in found[mode, "saved"]}
    if inputs:
        found["", "saved head"] = reader.events(head, without=reader.storages_between(pre, head, inputs))
    # the first layer's input is no table: the templates of layers free it already; that of a later stage was received
    freed = saved[of_first] + ([] if found[of_first, "entered"] else found[of_first, "carried"])
    if is_later:
        freed = []
    for mode in shown:
        tables, unsaved = list[Event](), list[Event]()
        for (_, _, layer), segment in layers.items():
            # that an earlier layer of this mode did not keep it says that the mode does not need it
            needed = mode not in reader.modes[:layer]
            (tables if needed else unsaved).extend(reader.between(pre, segment))
        found[mode, "tables"] = [*tables, *(Event(-event.coefficient, event.monomial) for event in freed)]
        found[mode, "unsaved"] = unsaved


def message_of(run: DryRun, *, b: int, s: int) -> Event:
    """What a stage sent for a micro-batch. Raises `DryRunError` where stages send several things."""
    sent = {call.num_bytes for call in run.collectives if (call.kind, call.axis) == ("send", "pp")}
    if len(sent) != 1:
        raise DryRunError(f"a profile is read from stages that send one thing, but they sent {len(sent)}")
    return Event(*size_read(sent.pop(), b, s))


def templates_of(sketch: Sketch) -> Templates:
    """The templates of a sketch."""
    modes = {mode for mode, _ in sketch if mode}
    # a model without anything before its layers has no end, for example
    edges = {kind: Segment.of([]) for kind in EDGES}
    edges |= {k: Segment.of(events) for (mode, k), events in sketch.items() if not mode and k.split()[-1] in EDGES}
    return Templates(
        edges=edges,
        layers={
            mode: {k: Segment.of(events) for (m, k), events in sketch.items() if m == mode} for mode in sorted(modes)
        },
        **{name: Segment.of(sketch.get(("", name), [])) for name in _BESIDE},
    )


def aligned_sketch(at_few: Sketch, at_many: Sketch, degrees: tuple[int, int]) -> Sketch:
    """The sketch with the exponents of 1/t, from runs on so many tensor-parallel ranks. Raises `DryRunError` where the two do not correspond."""
    found: Sketch = {}
    for place, events in at_few.items():
        pair = aligned(events, at_many.get(place, []), degrees)
        if pair is None:
            name = " ".join(filter(None, place))
            raise DryRunError(f"{name} does other things on {degrees[1]} tensor-parallel ranks than on {degrees[0]}")
        found[place] = pair
    return found
