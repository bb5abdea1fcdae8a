"""Reads the work and traffic of a profile from the traces of dry runs.

The exponents of micro-batch and sequence show in the numbers of one run (`profile_segments.py`), that of tensor parallelism in two runs of the same segment on two
numbers of ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autotune.cost.profile_segments import handed_on
from autotune.cost.profile_work import NOTHING, ProfiledCollective, ProfiledOperation, SegmentWork, Size, Work
from autotune.errors import DryRunError
from autotune.spec import DryRun, TracedCollective, TracedOperation, TracedSegment

DATA_AXES = ("dp_cp", "expert_data")
"""mesh axes over which gradients are summed, and how the names of their parts begin"""
FIRST = ("pre", "end")
"""segments of the first stage alone; all others outside of the layers are those of the last"""
LAYER = ("layer", "layer_backward")
MESSAGE = "message"


def work_of(runs: Sequence[tuple[int, int, int, DryRun]]) -> Work:
    """The work that one run, or runs on two numbers of tensor-parallel ranks, say: (tp, b, s, run) of each. Raises `DryRunError` where they differ otherwise."""
    sketches = [_sketch(run, b, s) for _, b, s, run in runs]
    found = sketches[0]
    if len(sketches) > 1:
        degrees = (runs[0][0], runs[1][0])
        found = {p: _aligned(p, listed, sketches[1].get(p, []), degrees) for p, listed in found.items()}
    whole = {place: _counted(listed) for place, listed in found.items()}

    def joined(kinds: Iterable[str]) -> SegmentWork:
        return sum((whole["", kind] for kind in kinds if ("", kind) in whole), NOTHING)

    return Work(
        first=joined(FIRST),
        last=joined(kind for mode, kind in whole if not mode and kind not in (*FIRST, MESSAGE, *_ONCE.values())),
        layers={
            mode: sum((whole[mode, kind] for kind in LAYER if (mode, kind) in whole), NOTHING)
            for mode in sorted({mode for mode, _ in whole if mode})
        },
        message=joined([MESSAGE]),
        once={place: whole.get(("", word), NOTHING) for place, word in _ONCE.items()},
    )


_Listed = list[ProfiledOperation | ProfiledCollective]
_ONCE = {"first": "once first", "layer": "once layer", "last": "once last"}


def _sketch(run: DryRun, b: int, s: int) -> dict[tuple[str, str], _Listed]:
    """By (recompute mode, or empty outside of the layers; kind of segment), in order, of the first micro-batch."""
    trace = run.trace
    if trace is None:
        raise DryRunError("the work of a profile needs dry runs with their traces")
    first: dict[tuple[str, int], TracedSegment] = {(x.kind, x.layer): x for x in trace.segments if x.micro_batch == 0}
    shown = {mode: layer for layer, mode in reversed(tuple(enumerate(trace.recompute)))}
    shown |= {mode: layer for layer, mode in enumerate(trace.recompute) if 0 < layer < len(trace.recompute) - 1}
    found: dict[tuple[str, str], _Listed] = {
        ("", kind): _listed(x, b, s) for (kind, layer), x in first.items() if layer < 0
    }
    for mode, layer in shown.items():
        found |= {(mode, kind): _listed(first[kind, layer], b, s) for kind in LAYER if (kind, layer) in first}
    found["", MESSAGE] = _message(first, b, s)
    found |= {("", word): listed for word, listed in _once(run, first.values(), b, s).items()}
    return found


def _message(first: Mapping[tuple[str, int], TracedSegment], b: int, s: int) -> _Listed:
    """What goes from one layer to the next: the gradient that the backward pass of a layer makes and that of the layer before it frees."""
    one, other = first.get(("layer_backward", 1)), first.get(("layer_backward", 0))
    if one is None or other is None:
        return []
    sizes = [Size.read(change, b, s) for _, change in handed_on(one, other)]
    return [ProfiledCollective("send", "pp", size) for size in sizes if any(size.monomial)]


def _listed(segment: TracedSegment, b: int, s: int) -> _Listed:
    return [
        *(_operation(one, b, s) for one in segment.operations),
        *(_collective(one, b, s) for one in segment.collectives if not one.axis.startswith(DATA_AXES)),
    ]


def _operation(traced: TracedOperation, b: int, s: int) -> ProfiledOperation:
    m, n, k, count = traced.sizes
    flops = Size.read(traced.flops, b, s)
    sizes = [Size.read(size, b, s) for size in (m, n, k, count)]
    if count and 2 * m * n * k * count != traced.flops:  # groups of unequal size: one number is rounded
        place = next(
            (p for p in range(3) if 2 * m * n * k * count // traced.sizes[p] * (traced.sizes[p] + 1) > traced.flops), 0
        )
        others = [size for p, size in enumerate(sizes) if p != place]
        i, j = (flops.monomial[x] - sum(size.monomial[x] for size in others) for x in (0, 1))
        sizes[place] = Size(flops.coefficient / 2.0 / float(np.prod([x.coefficient for x in others])), (i, j, 0))
    return ProfiledOperation(
        flops, (sizes[0], sizes[1], sizes[2], sizes[3]), traced.dtype, traced.hidden, traced.is_again
    )


def _collective(traced: TracedCollective, b: int, s: int) -> ProfiledCollective:
    return ProfiledCollective(traced.kind, traced.axis, Size.read(traced.num_bytes, b, s))


def _once(run: DryRun, first: Iterable[TracedSegment], b: int, s: int) -> dict[str, _Listed]:
    """Collectives over tensor-parallel ranks beyond those of the micro-batches, by `_ONCE`."""
    assert run.trace is not None
    passes = 1 + max(x.micro_batch for x in run.trace.segments)
    layers = len(run.trace.recompute)
    left = Counter({(c.kind, c.num_bytes): 0 for c in run.collectives})
    for call in run.collectives:
        if call.axis == "tp" and call.num_bytes != VERDICT_BYTES:
            left[call.kind, call.num_bytes] += call.count
    for segment in first:
        for one in segment.collectives:
            if one.axis == "tp":
                left[one.kind, one.num_bytes] -= passes
    before = next((place for place, w in enumerate(run.trace.weights) if w.layer >= 0), 0)
    of_first = {int(np.prod(w.shape)) for place, w in enumerate(run.trace.weights) if w.layer < 0 and place < before}
    found: dict[str, _Listed] = {word: [] for word in _ONCE.values()}
    for (kind, num_bytes), count in left.items():
        if count < 0:
            raise DryRunError("micro-batches of a dry run differ in their collectives")
        each, rest = divmod(count, layers) if layers else (0, count)
        shown = _collective(TracedCollective(kind=kind, axis="tp", num_bytes=num_bytes), b, s)
        found[_ONCE["layer"]] += [shown] * each
        found[_ONCE["first" if num_bytes // 4 in of_first else "last"]] += [shown] * rest
    return found


VERDICT_BYTES = 24
"""of the all-reduce by which all ranks agree on loss and gradient, once per step (`autotune_workers.training.step`)"""


def _aligned(place: tuple[str, str], at_few: _Listed, at_many: _Listed, degrees: tuple[int, int]) -> _Listed:
    found: _Listed = []
    if len(at_few) == len(at_many):
        for few, many in zip(at_few, at_many, strict=True):
            if isinstance(few, ProfiledOperation) and isinstance(many, ProfiledOperation):
                pairs = [(few.flops, many.flops), *zip(few.sizes, many.sizes, strict=True)]
                cut = [size for a, b in pairs if (size := a.cut_as(b, degrees)) is not None]
                if len(cut) == len(pairs) and few.dtype == many.dtype:
                    sizes = (cut[1], cut[2], cut[3], cut[4])
                    found.append(ProfiledOperation(cut[0], sizes, few.dtype, few.hidden, few.is_again))
            elif isinstance(few, ProfiledCollective) and isinstance(many, ProfiledCollective):
                size = few.num_bytes.cut_as(many.num_bytes, degrees)
                if size is not None and (few.kind, few.axis) == (many.kind, many.axis):
                    found.append(ProfiledCollective(few.kind, few.axis, size))
    if len(found) != len(at_few) or len(at_few) != len(at_many):
        name = " ".join(filter(None, place))
        raise DryRunError(f"{name} does other work on {degrees[1]} tensor-parallel ranks than on {degrees[0]}")
    return found


def _counted(listed: _Listed) -> SegmentWork:
    return SegmentWork(
        Counter(one for one in listed if isinstance(one, ProfiledOperation)),
        Counter(one for one in listed if isinstance(one, ProfiledCollective)),
    )
