"""Finds the edits that make a launch faster: takes the best config of its space that surely fits,
and splits it into changes that each gain by themselves.

A change is proposed if the 90% interval of its gain, alone or with the others, includes no loss. If
no change is certain, changes are suggested for a trial, ordered by the average gain if the faster
config is kept after the trial. Batch and number of ranks stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from autotune.cost import Calibration, estimate
from autotune.errors import AutotuneError
from autotune.plan.plan import FITS
from autotune.reviews.answer import Edit, Gain, Together
from autotune.reviews.gains import Gains, gain_between, gains_of, given_that_it_ran
from autotune.space import Launchable, SearchSpace, legal
from autotune.spec import KNOBS, ConfigTable, Estimate, ParallelConfig, SpaceSpec, Study, Workload
from autotune.spec.estimate import AT_THE_LIMIT

SURE = 0.1
"""maximum P(OOM) of proposed configs"""
LEAST = 1.03
"""minimum gain of proposals"""
SURELY = 1.005
"""minimum lower end of a gain's interval that counts as no loss"""
RISKY = 0.3
"""maximum P(OOM) of a suggested trial, unless the launch itself has a higher one"""
TRIALS, LEAST_CHANCE = 3, 1.0 / 3.0
"""maximum number of suggested trials, and the minimum chance of a gain for each, in addition to
`LITTLE` on average"""
LITTLE = 0.02
"""minimum gain on average that one change must add, as a share"""
MOST_CONFIGS = 60_000
"""maximum number of configs in the space; if there are more, the knobs that matter least are
fixed"""
LARGEST_MICRO = 128
"""largest micro-batch in the space"""
LOOKED_AT, FOLLOWED = 48, 3
"""numbers of fastest configs: with computed intervals, and split into changes"""
LOOKED_AT_RISKY, LOOKED_AT_ALIKE = 16, 4
"""numbers of configs with computed intervals that may be suggested for a trial: of those that may
not fit, and of those that change one group of knobs, per group"""
OF_PACKED = 4
"""factor by which fewer configs are considered for steps with packed sequences, because each
packing needs an estimate of its own"""
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
"""knobs to fix first if the space is too large"""
_NUMERICS = "changes the arithmetic, so check the loss again"
"""remark on edits of the precision"""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed changes of a launch."""

    edits: tuple[Edit, ...]
    together: Together | None
    best: Together | None
    """the highest prediction of all configs that surely fit, whose interval may include losses"""
    trials: tuple[Edit, ...] = ()
    """changes that are worth a trial, the most promising first, if none is certain to gain"""
    if_out_of_memory: Edit | None = None
    """a change that makes a launch fit that may not, if no edit surely does; it may cost speed"""


def proposal(
    space: SearchSpace,
    config: ParallelConfig,
    constants: Calibration,
    measured_s: float | None,
    launchable: Launchable | None = None,
) -> Proposal:
    """The edits of a launch with this config, among the configs of a space that the trainer can
    launch. The trainer checks only the configs that are considered. `measured_s`: measured seconds
    per step of the launch, if any."""
    workload = space.workload
    can_launch = _any if launchable is None else launchable.asked_by_row(workload, space.table)
    predicted = estimate(workload, space.table, calibration=constants)
    if measured_s is not None:
        predicted = given_that_it_ran(predicted, estimate(workload, config, calibration=constants))
    risk, speed = np.asarray(predicted.oom_probability), np.asarray(predicted.tokens_per_s)
    share = OF_PACKED if workload.rl is not None else 1
    launch = estimate(workload, config, calibration=constants)
    is_safe = float(launch.oom_probability) < AT_THE_LIMIT[0]
    # a lower precision is proposed for speed, never only to save memory
    same_precision = space.table.column("precision") == space.table.knobs["precision"].encode(
        config.precision
    )
    speed = np.where(same_precision | (speed >= LEAST * float(launch.tokens_per_s)), speed, 0.0)
    fastest = _first(space, speed * (risk <= SURE), LOOKED_AT // share, can_launch)
    may_fit = speed * (1.0 - risk) * (risk <= (RISKY if is_safe else FITS))
    risky = _first(space, may_fit * (risk > SURE), LOOKED_AT_RISKY // share, can_launch)
    one_group_apart = [
        each
        for rows in _one_group_apart(space.table, config)
        for each in _first(space, may_fit * rows, LOOKED_AT_ALIKE // share, can_launch)
    ]
    evaluated = _Evaluated(workload, config, constants, measured_s, launchable)
    evaluated.look_at((*fastest, *risky, *one_group_apart))
    leading = evaluated.leading(fastest)
    target = evaluated.surely_faster(leading)
    best = evaluated.together(fastest[0]) if fastest and fastest[0] != config else None
    if target is None:
        return Proposal(
            (),
            None,
            best,
            tuple(evaluated.trials()),
            None if is_safe else evaluated.rescue(leading),
        )
    edits = tuple(
        sorted((evaluated.edit(group, target) for group in _groups(config, target)), key=_order)
    )
    return Proposal(
        edits,
        evaluated.together(target),
        best,
    )


def _any(row: int) -> bool:
    """Accepts every config, for a space without a trainer."""
    return True


def _first(
    space: SearchSpace, value: NDArray[np.float64], count: int, can_launch: Callable[[int], bool]
) -> list[ParallelConfig]:
    """The configs with the highest values that can be launched; none with a value of zero."""
    falling = (int(row) for row in np.argsort(-value, kind="stable") if value[row] > 0)
    return [space[row] for row in islice(filter(can_launch, falling), count)]


def _order(edit: Edit) -> tuple[bool, float]:
    """Sort key: edits that gain alone first, by their gain."""
    return edit.alone is None, -edit.alone.gain if edit.alone else 0.0


class _Evaluated:
    """Configs compared with the launch. Estimates and gains are cached."""

    def __init__(
        self,
        workload: Workload,
        config: ParallelConfig,
        constants: Calibration,
        measured_s: float | None,
        launchable: Launchable | None,
    ) -> None:
        self._workload, self._config, self._constants, self._measured_s = (
            workload,
            config,
            constants,
            measured_s,
        )
        self._launchable = launchable
        self._known: dict[ParallelConfig, tuple[Estimate, Gain, Gains]] = {}
        self._legal: dict[ParallelConfig, bool] = {}

    def gain(self, config: ParallelConfig) -> Gain:
        """Gain of a config over the launch."""
        return self._look(config)[1]

    def estimate(self, config: ParallelConfig) -> Estimate:
        return self._look(config)[0]

    def risk(self, config: ParallelConfig) -> float:
        """P(OOM) of a config."""
        return float(self._look(config)[0].oom_probability)

    def surely_fits(self, config: ParallelConfig) -> bool:
        return self.risk(config) <= SURE

    def rescue(self, leading: ParallelConfig | None) -> Edit | None:
        """The change that makes a launch fit that may not: to the leading config, which surely
        fits, or else to the one with the highest speed times probability to fit."""
        if leading is not None:
            return self.whole(leading)
        may_fit = [
            each
            for each in self._known
            if self.risk(each) <= min(FITS, self.risk(self._config) - SURE)
        ]
        best = max(
            may_fit, key=lambda each: self.gain(each).gain * (1.0 - self.risk(each)), default=None
        )
        return None if best is None else self.whole(best)

    def is_legal(self, config: ParallelConfig) -> bool:
        return bool(self.legal_among([config]))

    def legal_among(self, configs: Iterable[ParallelConfig]) -> list[ParallelConfig]:
        """The configs that are valid and can be launched, without duplicates. Rules are checked for
        all at once, the trainer only for valid ones."""
        listed = list(dict.fromkeys(configs))
        if unknown := [each for each in listed if each not in self._legal]:
            valid = legal(self._workload, ConfigTable.of(unknown))
            for config, is_valid in zip(unknown, valid, strict=True):
                self._legal[config] = bool(is_valid) and self._can_launch(config)
        return [each for each in listed if self._legal[each]]

    def _can_launch(self, config: ParallelConfig) -> bool:
        return self._launchable is None or self._launchable.why_not(self._workload, config) is None

    def leading(self, fastest: Sequence[ParallelConfig]) -> ParallelConfig | None:
        """The config with the highest lower end of its gain, among the fastest ones and their
        parts, reduced to the changes that matter; None if no other config surely fits."""
        lead = sorted(fastest, key=lambda each: -self.gain(each).low)[:FOLLOWED]
        parts = self.legal_among(part for each in lead for part in _parts(self._config, each))
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
        """The config reduced to the changes that matter: each change is dropped that adds less than
        `LITTLE`."""
        while True:
            groups = _groups(self._config, best)
            fewer = [
                _with(self._config, best, [each for each in groups if each != group])
                for group in groups
            ]
            new = [each for each in fewer if each is not None and each not in (self._config, best)]
            allowed = self.legal_among(new)
            self.look_at(allowed)
            plainer = max(filter(is_good, allowed), key=gain, default=None)
            if plainer is None or gain(plainer) < (1.0 - LITTLE) * gain(best):
                return best
            best = plainer

    def surely_faster(self, leading: ParallelConfig | None) -> ParallelConfig | None:
        """The leading config without changes that are not certain to gain, neither alone nor
        together; None if nothing is left. For a launch that does not fit, any config that does; one
        at the memory limit may run as it is."""
        if leading is None:
            return None
        best = self._of_sure_parts(leading)
        if gain_between(self._look(best)[2], self._look(leading)[2]).low > SURELY:
            best = leading
        gain = self.gain(best)
        return (
            None
            if self.risk(self._config) <= AT_THE_LIMIT[1]
            and (gain.low <= SURELY or gain.gain < LEAST)
            else best
        )

    def trials(self) -> Iterator[Edit]:
        """Changes that are worth a trial, each as one edit, the most promising first; none is a
        subset or superset of another."""
        named: list[set[tuple[str, object]]] = []
        for config in sorted(filter(self._may_run, self._known), key=self._expected, reverse=True):
            if len(named) == TRIALS or self._expected(config) < 1.0 + LITTLE:
                return
            best = self._plainest(config, self._may_run, self._expected)
            moves = _moves(self._config, best)
            if self.gain(best).chance >= LEAST_CHANCE and not any(
                earlier <= moves or moves <= earlier for earlier in named
            ):
                named.append(moves)
                yield self.whole(best)

    def together(self, config: ParallelConfig) -> Together:
        """All changes of a config, with estimate and gain."""
        return Together(config=config, estimate=self.estimate(config), gain=self.gain(config))

    def whole(self, config: ParallelConfig) -> Edit:
        """All changes of a config as one edit."""
        knobs = tuple(
            name for name in config.values() if self._config.value(name) != config.value(name)
        )
        return replace(self.edit(knobs, config), alone=self.gain(config), beside=None)

    def _expected(self, config: ParallelConfig) -> float:
        """Expected gain of a trial, which is 1 if the config does not fit."""
        return 1.0 + (self.gain(config).expected - 1.0) * (1.0 - self.risk(config))

    def _may_run(self, config: ParallelConfig) -> bool:
        """Whether a trial of the config may run and be conclusive. A trial with another precision
        does not show whether the model learns as well, so its predicted gain must be large enough
        to be worth it."""
        has_same_precision = config.precision == self._config.precision
        return (
            config != self._config
            and self.risk(config) <= max(RISKY, self.risk(self._config))
            and (has_same_precision or self.gain(config).gain >= LEAST)
        )

    def _of_sure_parts(self, best: ParallelConfig) -> ParallelConfig:
        """The config without each change that is not certain to gain, neither alone nor with the
        others."""
        for group in _groups(self._config, best):
            alone, with_others = self._alone(group, best), self._beside(group, best)
            if alone is not None and alone.low > SURELY:
                continue
            rest = self._rest(group, best)
            if (
                with_others is not None
                and with_others.low <= SURELY
                and rest is not None
                and rest != best
            ):
                return self._of_sure_parts(rest) if rest != self._config else self._config
        return best

    def _alone(self, group: tuple[str, ...], best: ParallelConfig) -> Gain | None:
        """Gain of a change without the others; None if that is invalid or may not fit."""
        alone = _with(self._config, best, [group])
        return (
            self.gain(alone)
            if alone is not None and self.is_legal(alone) and self.surely_fits(alone)
            else None
        )

    def _rest(self, group: tuple[str, ...], best: ParallelConfig) -> ParallelConfig | None:
        """The config without a change; None if that is invalid or may not fit."""
        rest = _with(
            self._config, best, [each for each in _groups(self._config, best) if each != group]
        )
        return rest if rest is not None and self.is_legal(rest) and self.surely_fits(rest) else None

    def _beside(self, group: tuple[str, ...], best: ParallelConfig) -> Gain | None:
        """Gain of a change when the others are made; None if the others need it."""
        rest = self._rest(group, best)
        if rest is None:
            return None
        return gain_between(self._look(rest)[2], self._look(best)[2])

    def edit(self, group: tuple[str, ...], best: ParallelConfig) -> Edit:
        """The edit for one group of knobs of the config `best`."""
        changes = {
            name: (self._config.value(name), best.value(name))
            for name in group
            if self._config.value(name) != best.value(name)
        }
        alone = _with(self._config, best, [group])
        gain = self._alone(group, best)
        if (
            alone is not None
            and gain is not None
            and self._config.accumulation_steps != alone.accumulation_steps
        ):
            changes["accumulation_steps"] = (
                self._config.accumulation_steps,
                alone.accumulation_steps,
            )
        after = self.estimate(alone if alone is not None and self.is_legal(alone) else best)
        is_sure = gain is not None and gain.low > SURELY
        return Edit(
            changes=changes,
            alone=gain if is_sure else None,
            beside=None
            if is_sure or len(_groups(self._config, best)) == 1
            else self._beside(group, best),
            memory_bytes=float(after.peak_memory_bytes)
            - float(self.estimate(self._config).peak_memory_bytes),
            oom_probability=float(after.oom_probability),
            remark=_NUMERICS if "precision" in changes else "",
        )

    def _look(self, config: ParallelConfig) -> tuple[Estimate, Gain, Gains]:
        if config not in self._known:
            self.look_at([config])
        return self._known[config]

    def look_at(self, configs: Iterable[ParallelConfig]) -> None:
        """Estimates all configs that are not cached at once, which takes as long as one."""
        unknown = [each for each in dict.fromkeys(configs) if each not in self._known]
        if not unknown:
            return
        table = ConfigTable.of([self._config, *unknown])
        gains = gains_of(self._workload, table, self._constants, self._measured_s)
        found = estimate(self._workload, table, calibration=self._constants)
        if self._measured_s is not None:
            found = given_that_it_ran(found, found.row(0))
        each = enumerate(gains.all())
        self._known |= {table[row]: (found.row(row), gain, gains.only(row)) for row, gain in each}


def _groups(before: ParallelConfig, after: ParallelConfig) -> list[tuple[str, ...]]:
    """The groups of knobs in which two configs differ, each knob in the first group that has it."""
    changed = {name for name in after.values() if before.value(name) != after.value(name)}
    found = []
    degrees = changed & {"tp", "pp", "cp", "ep", "dp"}
    for group in (*(GROUPS if degrees else GROUPS[1:]), *((name,) for name in sorted(changed))):
        members = tuple(name for name in group if name in changed)
        if members:
            found.append(members)
            changed -= set(members)
    return found


def _moves(before: ParallelConfig, after: ParallelConfig) -> set[tuple[str, object]]:
    """(knob, new value) of each changed knob; for numbers, whether they rise. Without knobs that
    keep the batch."""
    found: set[tuple[str, object]] = set()
    for name, new in after.values().items():
        old = before.value(name)
        if new != old and name not in ("dp", "accumulation_steps"):
            is_count = isinstance(new, int) and not isinstance(new, bool)
            found.add((name, new > old if is_count else new))
    return found


def _one_group_apart(table: ConfigTable, config: ParallelConfig) -> Iterator[NDArray[np.bool_]]:
    """For each group of knobs, a mask of the table's rows that differ from the config only in this
    group, and in what keeps the batch."""
    differs = {
        name: table.column(name) != knob.encode(config.value(name))
        for name, knob in table.knobs.items()
        if name not in ("dp", "accumulation_steps")
    }
    count = np.sum(list(differs.values()), axis=0)
    grouped = {name for group in GROUPS for name in group}
    for group in (*GROUPS, *((name,) for name in differs if name not in grouped)):
        inside = np.sum([differs[name] for name in group if name in differs], axis=0)
        yield (inside > 0) & (inside == count)


def _parts(before: ParallelConfig, after: ParallelConfig) -> Iterator[ParallelConfig]:
    """The first config with each single group of the second, the second without each group, and the
    second."""
    groups = _groups(before, after)
    for group in groups:
        for chosen in ([group], [each for each in groups if each != group]):
            if (config := _with(before, after, chosen)) is not None:
                yield config
    yield after


def _with(
    before: ParallelConfig, after: ParallelConfig, groups: list[tuple[str, ...]]
) -> ParallelConfig | None:
    """The first config with these groups of the second, with the accumulation that keeps its batch;
    None if the batch cannot be kept."""
    config = before.with_values({name: after.value(name) for group in groups for name in group})
    per_step = config.micro_batch_size * config.dp
    if before.global_batch_size % per_step:
        return None
    return replace(config, accumulation_steps=before.global_batch_size // per_step)


def space_around(study: Study, config: ParallelConfig) -> SearchSpace | None:
    """The valid configs of the study's space with the ranks and batch of a launch, including more
    micro-batches and configs that its trainer cannot launch; None if none is valid."""
    workload = replace(study.workload, global_batch_size=config.global_batch_size)
    knobs = dict(study.space.knobs)
    knobs.pop("accumulation_steps", None)
    if len(knobs.get("micro_batch_size", ())) > 1 or "micro_batch_size" not in knobs:
        most = min(max(LARGEST_MICRO, config.micro_batch_size), config.global_batch_size)
        powers = {1 << n for n in range(most.bit_length()) if 1 << n <= most}
        knobs["micro_batch_size"] = tuple(sorted({*powers, config.micro_batch_size}))
    for name in KNOBS:
        if (
            name in knobs
            and getattr(config, name) not in knobs[name]
            and name not in ("dp", "accumulation_steps")
        ):
            knobs[name] = (*knobs[name], getattr(config, name))
        elif name not in knobs and name not in ("dp", "accumulation_steps"):
            knobs[name] = (getattr(config, name),)
    if len(study.space.knobs.get("accumulation_steps", ())) == 1:
        knobs["accumulation_steps"] = study.space.knobs["accumulation_steps"]
    # the cost model covers custom knobs only in post-training; others keep their value
    own = (
        study.space.extra
        if workload.rl
        else {name: (value,) for name, value in config.extra.items()}
    )
    for name in _narrowed({**knobs, **own}):
        knobs[name] = (getattr(config, name),)
    spec = SpaceSpec(knobs=knobs, world_sizes=(config.world_size,), extra=own)
    try:
        return SearchSpace.build(workload, spec)
    except AutotuneError:
        return None


def _narrowed(knobs: dict[str, tuple[object, ...]]) -> Iterator[str]:
    """Knobs to fix so that the space has at most `MOST_CONFIGS` configs."""
    count = 1
    for values in knobs.values():
        count *= max(1, len(values))
    for name in _DISPENSABLE:
        if count <= MOST_CONFIGS:
            return
        count //= max(1, len(knobs.get(name, ())))
        yield name
