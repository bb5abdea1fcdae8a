"""Which part of the program has forgotten which knob, and what the laws about knobs are checked
over.

    python -m autotune.testing.knobs     one line for each knob that a part neither reads nor declares neutral or impossible; exit code 1 when there is any

The parts are all trainers (the native loop asks its own), the cost model and the simulated runner.
A forgotten knob is refused by name there, so nothing is dropped in silence, but nobody can use it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

from autotune.space import legal
from autotune.spec import FIELDS, KNOBS, ConfigTable, Knob, KnobUse, ParallelConfig, Workload
from autotune.trainers import trainer, trainer_names

PARTS = (
    "autotune.cost.model_knobs:COST_MODEL",
    "autotune_workers.runners.simulated:SIMULATED_RUNNER",
)
"""Where the parts beside the trainers say what they do with each knob."""
EXPERT_KNOBS = ("ep", "dispatcher", "ep_overlap")
"""knobs that only a model with experts can vary"""
COUNTS = (1, 2, 4)
"""degrees and counts that the laws try"""


def knob_uses() -> tuple[KnobUse, ...]:
    """What each part of the program does with each knob."""
    return (
        *(trainer(name).knob_use for name in trainer_names()),
        *(resolve_name(part) for part in PARTS),
    )


def complaints_of(use: KnobUse) -> tuple[str, ...]:
    """One sentence for each knob that the part has forgotten, and for each wrong declaration."""
    return (
        *(
            f"the {use.part} neither reads {knob.name} nor declares it neutral or impossible"
            for knob in use.forgotten()
        ),
        *use.mistakes(),
    )


def base_configs(workload: Workload) -> Iterator[ParallelConfig]:
    """Legal configs of 2 to 8 ranks in which every knob has an effect somewhere: each axis of the
    mesh beside each ZeRO stage."""
    plain = ParallelConfig(dp=2, micro_batch_size=2, accumulation_steps=4)
    alone = replace(plain, dp=1, precision="fp32")
    pipeline = replace(alone, pp=2)
    shapes = (
        plain,
        replace(plain, dp=4, precision="fp32"),
        replace(plain, compile=True),
        replace(plain, ep=2),
        replace(plain, tp=2),
        replace(plain, tp=2, sequence_parallel=True),
        replace(plain, pp=2),
        replace(plain, cp=2),
        alone,
        replace(alone, tp=2),
        pipeline,
        replace(pipeline, pp=4),
        replace(pipeline, pp_schedule="interleaved_1f1b", virtual_stages=2),
        replace(pipeline, pp_schedule="interleaved_1f1b", virtual_stages=4),
    )
    asked = [
        replace(shape, zero_stage=stage) for shape in shapes for stage in KNOBS["zero_stage"].values
    ]
    yield from itertools.compress(asked, _legal(workload, asked))


def variations(
    workload: Workload, base: ParallelConfig, knobs: Iterable[str] = FIELDS
) -> Iterator[tuple[Knob, Any, ParallelConfig]]:
    """(knob, value, legal config that differs from `base` in it) for each of these knobs, and each
    value that is neither its default nor that of `base`.

    Interleaved 1F1B is chosen together with stages per rank, without which it is 1F1B; everything
    else is changed alone.
    """
    asked = list[tuple[Knob, Any, ParallelConfig]]()
    for name in knobs:
        knob = KNOBS[name]
        for value in knob.values or COUNTS:
            if value in (knob.default, getattr(base, name)):
                continue
            changes = {name: value}
            if value == "interleaved_1f1b" and base.virtual_stages == 1:
                changes["virtual_stages"] = 2
            asked.append((knob, value, replace(base, **changes)))
    yield from itertools.compress(asked, _legal(workload, [config for _, _, config in asked]))


def varied_configs(workload: Workload, knobs: Iterable[str] = FIELDS) -> Iterator[ParallelConfig]:
    """Legal configs in which one of these knobs has another value than in a base config."""
    asked = (repr(workload), tuple(knobs))
    if asked not in _VARIED:
        found = (variations(workload, base, asked[1]) for base in base_configs(workload))
        _VARIED[asked] = [config for _, _, config in itertools.chain.from_iterable(found)]
    yield from _VARIED[asked]


_VARIED: dict[tuple[str, tuple[str, ...]], list[ParallelConfig]] = {}
"""what `varied_configs` found by workload and knobs: the laws of each trainer ask for the same"""


def _legal(workload: Workload, configs: Sequence[ParallelConfig]) -> Sequence[bool]:
    """Which of them are legal, each with its own batch."""
    if not configs:
        return ()
    batches = tuple(sorted({config.global_batch_size for config in configs}))
    mask: list[bool] = legal(
        replace(workload, global_batch_size=batches), ConfigTable.of(configs)
    ).tolist()
    return mask


def main() -> int:
    """Prints what is forgotten."""
    uses = knob_uses()
    found = [sentence for use in uses for sentence in complaints_of(use)]
    for sentence in found:
        print(sentence)
    if not found:
        print(
            f"{len(KNOBS)} knobs: read, or declared neutral or impossible, by each of {len(uses)} parts"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
