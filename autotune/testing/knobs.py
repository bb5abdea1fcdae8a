"""Finds knobs that a part of the program does not handle, and provides configs for the contract
tests of knobs.

    python -m autotune.testing.knobs     prints each knob that a part neither reads nor declares neutral or impossible; exit code 1 if there is any

The parts are all trainers (including the native loop), the cost model and the simulated runner. A
part rejects a knob that it does not handle by name, so nothing is silently ignored, but nobody can
use the knob there.
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
"""the `KnobUse` of the parts other than trainers"""
EXPERT_KNOBS = ("ep", "dispatcher", "ep_overlap")
"""knobs that only a model with experts can vary"""
COUNTS = (1, 2, 4)
"""degrees and counts to try"""


def knob_uses() -> tuple[KnobUse, ...]:
    """How each part of the program handles each knob."""
    return (
        *(trainer(name).knob_use for name in trainer_names()),
        *(resolve_name(part) for part in PARTS),
    )


def complaints_of(use: KnobUse) -> tuple[str, ...]:
    """A sentence for each knob that the part does not handle, and for each wrong declaration."""
    return (
        *(
            f"the {use.part} neither reads {knob.name} nor declares it neutral or impossible"
            for knob in use.forgotten()
        ),
        *use.mistakes(),
    )


def base_configs(workload: Workload) -> Iterator[ParallelConfig]:
    """Valid configs of 2 to 8 ranks in which every knob has an effect somewhere: each axis of the
    mesh with each ZeRO stage."""
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
    configs = [
        replace(shape, zero_stage=stage) for shape in shapes for stage in KNOBS["zero_stage"].values
    ]
    yield from itertools.compress(configs, _valid(workload, configs))


def variations(
    workload: Workload, base: ParallelConfig, knobs: Iterable[str] = FIELDS
) -> Iterator[tuple[Knob, Any, ParallelConfig]]:
    """Yield (knob, value, valid config with that value) for each of these knobs and each value that
    is neither the default nor that of `base`.

    Only one knob is changed at a time, except that interleaved 1F1B is combined with two stages per
    rank, without which it would be 1F1B.
    """
    changed = list[tuple[Knob, Any, ParallelConfig]]()
    for name in knobs:
        knob = KNOBS[name]
        for value in knob.values or COUNTS:
            if value in (knob.default, getattr(base, name)):
                continue
            changes = {name: value}
            if value == "interleaved_1f1b" and base.virtual_stages == 1:
                changes["virtual_stages"] = 2
            changed.append((knob, value, replace(base, **changes)))
    yield from itertools.compress(changed, _valid(workload, [config for _, _, config in changed]))


def varied_configs(workload: Workload, knobs: Iterable[str] = FIELDS) -> Iterator[ParallelConfig]:
    """Valid configs in which one of these knobs differs from a base config."""
    key = (repr(workload), tuple(knobs))
    if key not in _VARIED:
        changed = (variations(workload, base, key[1]) for base in base_configs(workload))
        _VARIED[key] = [config for _, _, config in itertools.chain.from_iterable(changed)]
    yield from _VARIED[key]


_VARIED: dict[tuple[str, tuple[str, ...]], list[ParallelConfig]] = {}
"""cache of `varied_configs` by workload and knobs, because all trainers' tests use the same ones"""


def _valid(workload: Workload, configs: Sequence[ParallelConfig]) -> Sequence[bool]:
    """Whether each config is valid, with its own batch size allowed."""
    if not configs:
        return ()
    batches = tuple(sorted({config.global_batch_size for config in configs}))
    mask: list[bool] = legal(
        replace(workload, global_batch_size=batches), ConfigTable.of(configs)
    ).tolist()
    return mask


def main() -> int:
    """Print the knobs that parts do not handle."""
    uses = knob_uses()
    complaints = [sentence for use in uses for sentence in complaints_of(use)]
    for sentence in complaints:
        print(sentence)
    if not complaints:
        print(
            f"{len(KNOBS)} knobs: read, or declared neutral or impossible, by each of {len(uses)} parts"
        )
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
