"""Which edits make a launch faster: the best config of its space that surely fits, taken apart into changes that each gain by themselves.

A change is proposed where the 90% interval of its gain, alone or with the others, has no loss in it. Where no change is that sure, the one that most likely
fits and gains is named as worth a trial. Batch and number of ranks stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.cost import Calibration, estimate
from autotune.errors import AutotuneError
from autotune.planning import FITS
from autotune.reviews.answer import Edit, Gain, Together
from autotune.reviews.gains import Gains, gain_between, gains_of
from autotune.space import Launchable, SearchSpace, why_not
from autotune.spec import KNOBS, ConfigTable, Estimate, ParallelConfig, SpaceSpec, Study

SURE = 0.1
"""largest P(OOM) of what is proposed"""
LEAST = 1.03
"""gain below which nothing is proposed"""
SURELY = 1.005
"""lower end of the interval of a gain that is no loss"""
LIKELY, LEAST_LIKELY = 0.7, 1.05
"""chance that it gains, as that it fits, and gain, from which a change that is not sure is worth a trial"""
LITTLE = 0.02
"""share of the speed that one change must add"""
MOST_CONFIGS = 60_000
"""configs that are looked at; knobs that matter least stay as they are where there are more"""
LARGEST_MICRO = 128
LOOKED_AT, FOLLOWED = 48, 3
"""of the fastest configs: whose intervals are computed, and that are taken apart"""
LOOKED_AT_RISKY = 16
"""of those that may be worth a trial but do not surely fit: whose intervals are computed"""
GROUPS: tuple[tuple[str, ...], ...] = (
    ("tp", "pp", "dp", "cp", "ep", "sequence_parallel", "virtual_stages", "pp_schedule", "micro_batch_size", "accumulation_steps"),
    ("micro_batch_size", "accumulation_steps"),
    ("pp_schedule", "virtual_stages"),
    ("recompute",),
    ("precision",),
    ("zero_stage",),
    ("compile",),
    ("sequence_parallel",),
)  # fmt: skip
"""knobs that change together; any other knob is a group of its own"""
_DISPENSABLE = (
    "pp_split",
    "dispatcher",
    "cp_style",
    "async_tp",
    "dp_replicas",
    "offload",
    "pp_schedule",
    "virtual_stages",
    "sequence_parallel",
    "compile",
)
_NUMERICS = "changes the arithmetic: check the loss again"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to change."""

    edits: tuple[Edit, ...]
    together: Together | None
    best_gain: float
    """the most that is predicted of any config that surely fits"""
    worth_a_trial: Edit | None = None
    """the change that most likely gains, where none is sure to"""


def proposal(space: SearchSpace, config: ParallelConfig, constants: Calibration, measured_s: float | None) -> Proposal:
    """The edits of a launch that trains with this config, among the configs of a space."""
    workload = space.workload
    predicted = estimate(workload, space.table, calibration=constants)
    risk, speed = np.asarray(predicted.oom_probability), np.asarray(predicted.tokens_per_s)
    fastest = _first(space, speed * (risk <= SURE), LOOKED_AT)
    risky = _first(space, speed * (1.0 - risk) * ((risk > SURE) & (risk <= 1.0 - LIKELY)), LOOKED_AT_RISKY)
    weighed = _Weighed(space, config, constants, measured_s)
    weighed.look_at((*fastest, *risky))
    leading = weighed.leading(fastest)
    target = weighed.surely_faster(leading)
    most = max(1.0, weighed.gain(fastest[0]).gain) if fastest else 1.0
    if target is None:
        return Proposal((), None, most, weighed.worth_a_trial())
    edits = tuple(sorted((weighed.edit(group, target) for group in _groups(config, target)), key=_order))
    return Proposal(edits, Together(config=target, estimate=weighed.estimate(target), gain=weighed.gain(target)), most)


def _first(space: SearchSpace, value: NDArray[np.float64], count: int) -> list[ParallelConfig]:
    """The configs with the highest values, without those of zero."""
    return [space[int(row)] for row in np.argsort(-value, kind="stable")[:count] if value[row] > 0]


def _order(edit: Edit) -> tuple[bool, float]:
    return edit.alone is None, -edit.alone.gain if edit.alone else 0.0


class _Weighed:
    """Configs against the launch as it is."""

    def __init__(
        self, space: SearchSpace, config: ParallelConfig, constants: Calibration, measured_s: float | None
    ) -> None:
        self._workload, self._config, self._constants, self._measured_s = space.workload, config, constants, measured_s
        self._launchable = space.launchable
        self._known: dict[ParallelConfig, tuple[Estimate, Gain, Gains]] = {}

    def gain(self, config: ParallelConfig) -> Gain:
        return self._look(config)[1]

    def estimate(self, config: ParallelConfig) -> Estimate:
        return self._look(config)[0]

    def risk(self, config: ParallelConfig) -> float:
        return float(self._look(config)[0].oom_probability)

    def surely_fits(self, config: ParallelConfig) -> bool:
        return self.risk(config) <= SURE

    def is_legal(self, config: ParallelConfig) -> bool:
        can = self._launchable is None or self._launchable.why_not(self._workload, config) is None
        return can and why_not(self._workload, config) is None

    def leading(self, fastest: Sequence[ParallelConfig]) -> ParallelConfig | None:
        """The config with the highest lower end of its gain, among the fastest and what takes them apart, with as few changes as say the same; None where no
        other surely fits."""
        lead = sorted(fastest, key=lambda each: -self.gain(each).low)[:FOLLOWED]
        parts = {part for each in lead for part in _parts(self._config, each) if self.is_legal(part)}
        self.look_at(parts)
        sure = [each for each in (*lead, *parts) if self.surely_fits(each) and each != self._config]
        if not sure:
            return None
        best = max(sure, key=lambda each: (self.gain(each).low, self.gain(each).gain))
        return self._plainest(best, self.surely_fits, lambda each: self.gain(each).low)

    def _plainest(
        self,
        best: ParallelConfig,
        is_good: Callable[[ParallelConfig], bool],
        gain: Callable[[ParallelConfig], float],
    ) -> ParallelConfig:
        """The config with as few changes as say the same."""
        while True:
            groups = _groups(self._config, best)
            fewer = [_with(self._config, best, [each for each in groups if each != group]) for group in groups]
            new = [each for each in fewer if each is not None and each not in (self._config, best)]
            legal = [each for each in new if self.is_legal(each)]
            self.look_at(legal)
            plainer = max(filter(is_good, legal), key=gain, default=None)
            if plainer is None or gain(plainer) < (1.0 - LITTLE) * gain(best):
                return best
            best = plainer

    def surely_faster(self, leading: ParallelConfig | None) -> ParallelConfig | None:
        """The leading config without changes that are sure to gain neither alone nor together; None where nothing is left. A launch that does not fit takes
        any that does."""
        if leading is None:
            return None
        best = self._of_sure_parts(leading)
        if gain_between(self._look(best)[2], self._look(leading)[2]).low > SURELY:
            best = leading
        gain = self.gain(best)
        return None if self.risk(self._config) <= FITS and (gain.low <= SURELY or gain.gain < LEAST) else best

    def worth_a_trial(self) -> Edit | None:
        """All changes of the config whose expected gain is highest as one, of those that surely fit where there are some; None where none is likely to."""
        likely = list(filter(self._is_likely, self._known))
        likely = list(filter(self.surely_fits, likely)) or likely
        if not likely:
            return None
        best = max(likely, key=self._expected)
        best = self._plainest(best, self._is_likely, lambda each: self.gain(each).gain)
        knobs = tuple(name for name in best.values() if self._config.value(name) != best.value(name))
        return replace(self.edit(knobs, best), alone=self.gain(best), beside=None)

    def _expected(self, config: ParallelConfig) -> float:
        """Log gain, by the chance that the config fits and gains."""
        gain = self.gain(config)
        return gain.chance * (1.0 - self.risk(config)) * math.log(gain.gain)

    def _is_likely(self, config: ParallelConfig) -> bool:
        gain = self.gain(config)
        return gain.gain >= LEAST_LIKELY and min(gain.chance, 1.0 - self.risk(config)) >= LIKELY

    def _of_sure_parts(self, best: ParallelConfig) -> ParallelConfig:
        """The config without each change that surely gains neither alone nor with the others."""
        for group in _groups(self._config, best):
            alone, beside = self._alone(group, best), self._beside(group, best)
            if alone is not None and alone.low > SURELY:
                continue
            rest = self._rest(group, best)
            if beside is not None and beside.low <= SURELY and rest is not None and rest != best:
                return self._of_sure_parts(rest) if rest != self._config else self._config
        return best

    def _alone(self, group: tuple[str, ...], best: ParallelConfig) -> Gain | None:
        """By the change without the others; None where that is illegal, or may not fit."""
        alone = _with(self._config, best, [group])
        return self.gain(alone) if alone is not None and self.is_legal(alone) and self.surely_fits(alone) else None

    def _rest(self, group: tuple[str, ...], best: ParallelConfig) -> ParallelConfig | None:
        """The others without the change; None where that is illegal, or may not fit."""
        rest = _with(self._config, best, [each for each in _groups(self._config, best) if each != group])
        return rest if rest is not None and self.is_legal(rest) and self.surely_fits(rest) else None

    def _beside(self, group: tuple[str, ...], best: ParallelConfig) -> Gain | None:
        """By the change when the others are made; None where the others need it."""
        rest = self._rest(group, best)
        if rest is None:
            return None
        return gain_between(self._look(rest)[2], self._look(best)[2])

    def edit(self, group: tuple[str, ...], best: ParallelConfig) -> Edit:
        changes = {
            name: (self._config.value(name), best.value(name))
            for name in group
            if self._config.value(name) != best.value(name)
        }
        alone = _with(self._config, best, [group])
        gain = self._alone(group, best)
        if alone is not None and gain is not None and self._config.accumulation_steps != alone.accumulation_steps:
            changes["accumulation_steps"] = (self._config.accumulation_steps, alone.accumulation_steps)
        after = self.estimate(alone if alone is not None and self.is_legal(alone) else best)
        is_sure = gain is not None and gain.low > SURELY
        return Edit(
            changes=changes,
            alone=gain if is_sure else None,
            beside=None if is_sure or len(_groups(self._config, best)) == 1 else self._beside(group, best),
            memory_bytes=float(after.peak_memory_bytes) - float(self.estimate(self._config).peak_memory_bytes),
            oom_probability=float(after.oom_probability),
            remark=_NUMERICS if "precision" in changes else "",
        )

    def _look(self, config: ParallelConfig) -> tuple[Estimate, Gain, Gains]:
        if config not in self._known:
            self.look_at([config])
        return self._known[config]

    def look_at(self, configs: Iterable[ParallelConfig]) -> None:
        """Weighs those that are not known yet all at once, which takes as long as one."""
        unknown = [each for each in dict.fromkeys(configs) if each not in self._known]
        if not unknown:
            return
        table = ConfigTable.of([self._config, *unknown])
        gains = gains_of(self._workload, table, self._constants, self._measured_s)
        found = estimate(self._workload, table, calibration=self._constants)
        each = enumerate(gains.all())
        self._known |= {table[row]: (found.row(row), gain, gains.only(row)) for row, gain in each}


def _groups(before: ParallelConfig, after: ParallelConfig) -> list[tuple[str, ...]]:
    """The groups of knobs in which two configs differ, each knob in the first group that has it."""
    left = {name for name in after.values() if before.value(name) != after.value(name)}
    found = []
    degrees = left & {"tp", "pp", "cp", "ep", "dp"}
    for group in (*(GROUPS if degrees else GROUPS[1:]), *((name,) for name in sorted(left))):
        mine = tuple(name for name in group if name in left)
        if mine:
            found.append(mine)
            left -= set(mine)
    return found


def _parts(before: ParallelConfig, after: ParallelConfig) -> Iterator[ParallelConfig]:
    """The first config with each group of the second, the second without each, and the second."""
    groups = _groups(before, after)
    for group in groups:
        for some in ([group], [each for each in groups if each != group]):
            if (config := _with(before, after, some)) is not None:
                yield config
    yield after


def _with(before: ParallelConfig, after: ParallelConfig, groups: list[tuple[str, ...]]) -> ParallelConfig | None:
    """The first config with these groups of the second, its batch kept by the accumulation; None where it cannot be kept."""
    config = before.with_values({name: after.value(name) for group in groups for name in group})
    per_step = config.micro_batch_size * config.dp
    if before.global_batch_size % per_step:
        return None
    return replace(config, accumulation_steps=before.global_batch_size // per_step)


def space_around(study: Study, config: ParallelConfig) -> SearchSpace | None:
    """The configs of the study's space on the ranks and with the batch of a launch, with more micro-batches than it names; None where none is legal."""
    workload = replace(study.workload, global_batch_size=config.global_batch_size)
    knobs = dict(study.space.knobs)
    knobs.pop("accumulation_steps", None)
    if len(knobs.get("micro_batch_size", ())) > 1 or "micro_batch_size" not in knobs:
        most = min(max(LARGEST_MICRO, config.micro_batch_size), config.global_batch_size)
        powers = {1 << n for n in range(most.bit_length()) if 1 << n <= most}
        knobs["micro_batch_size"] = tuple(sorted({*powers, config.micro_batch_size}))
    for name in KNOBS:
        if name in knobs and getattr(config, name) not in knobs[name] and name not in ("dp", "accumulation_steps"):
            knobs[name] = (*knobs[name], getattr(config, name))
        elif name not in knobs and name not in ("dp", "accumulation_steps"):
            knobs[name] = (getattr(config, name),)
    if len(study.space.knobs.get("accumulation_steps", ())) == 1:
        knobs["accumulation_steps"] = study.space.knobs["accumulation_steps"]
    # the cost model knows own knobs of post-training alone; others stay as they are
    own = study.space.extra if workload.rl else {name: (value,) for name, value in config.extra.items()}
    for name in _narrowed({**knobs, **own}):
        knobs[name] = (getattr(config, name),)
    spec = SpaceSpec(knobs=knobs, world_sizes=(config.world_size,), extra=own)
    try:
        return SearchSpace.build(workload, spec, launchable=Launchable.of(study))
    except AutotuneError:
        return None


def _narrowed(knobs: dict[str, tuple[object, ...]]) -> Iterator[str]:
    """Knobs that stay as they are, so that there are not too many configs."""
    count = 1
    for values in knobs.values():
        count *= max(1, len(values))
    for name in _DISPENSABLE:
        if count <= MOST_CONFIGS:
            return
        count //= max(1, len(knobs.get(name, ())))
        yield name
