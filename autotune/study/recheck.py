"""Rechecks a stored study: re-measures its winner, runner-up and baseline alternately, in two
rounds, and tests whether they became slower.

    y_cr     ln tokens/s of config c in run r, from its median step     d_c = mean of the new y_c - mean of the old ones
    sigma    standard deviation between runs of one config, from all its runs and the prior of `autotune.reward.run_noise`

    change = mean_c d_c, with variance sigma^2 / C^2 * sum_c (1 / n_c,new + 1 / n_c,old) and Student's t

The study counts as slower than S if the 95% interval of the change excludes 0 and extends beyond S.
With sigma = 2%, three configs and two rounds, this detects a slowdown of 5% in 98 of 100 studies,
with 2 false alarms in 100 (tests/study/test_recheck.py). The order holds unless a config is
significantly ahead of one that was ranked above it, and was not so far ahead before.
If the runs' evidence (`autotune.diagnosis`) shows that other processes took a share of `BUSY` or
more of a step, a slowdown may be theirs, and the recheck is inconclusive.

`recheck_study` reads the configs from the store, measures them on the study's runner, and adds a
note with the result to the study.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from autotune import reward
from autotune.diagnosis import Evidence, diagnose
from autotune.errors import NotFoundError, SpecError, StoreError
from autotune.ports import (
    AttemptEnded,
    ServiceStore,
    StudyRecord,
    TrialRequest,
    TrialRunner,
)
from autotune.results.answers import result_of
from autotune.results.result import Result
from autotune.reward.run_noise import RunNoise
from autotune.spec import (
    Failure,
    Measurement,
    ParallelConfig,
    Study,
    Trial,
    config_label,
    number_of,
)
from autotune.spec.config import capitalized
from autotune.spec.runs.versions import conditions, differences
from autotune.study.assembly import assemble, make_runner_of
from autotune.trainers import trainer

ROUNDS, MOST_CONFIGS = 2, 3
ROLES = ("winner", "runner-up", "default")
SHOWN = {"default": "baseline"}
"""display names of roles that differ from the role itself"""
POLL_S = 0.2
BUSY = 0.1
"""share of a step taken by other processes from which a slowdown may be caused by them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rechecked:
    """One config with its runs in the study and in the recheck."""

    role: str
    """winner, runner-up or default"""
    config: ParallelConfig
    before: tuple[Measurement, ...]
    now: tuple[Measurement, ...] = ()
    failure: Failure | None = None
    """why its last run failed; None if it did not"""

    @property
    def change(self) -> float | None:
        """ln(speed now / speed before), from the mean of ln tokens/s; None without runs of both."""
        if not self.now or not self.before:
            return None
        return float(np.mean(_logs(self.now)) - np.mean(_logs(self.before)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """The result of a recheck."""

    name: str
    """name of the study"""
    configs: tuple[Rechecked, ...]
    max_slowdown: float = 0.03
    """S: relative slowdown that is tolerated"""

    @property
    def noise(self) -> RunNoise:
        """Noise between runs of one config, pooled over all configs, before and now."""
        squares, freedom = 0.0, 0
        for runs in (_logs(measured) for c in self.configs for measured in (c.before, c.now)):
            if len(runs) > 1:
                squares += float(((runs - runs.mean()) ** 2).sum())
                freedom += len(runs) - 1
        return RunNoise.of([m for c in self.configs for m in (*c.before, *c.now)], squares, freedom)

    def half_width(self, configs: Sequence[Rechecked]) -> float:
        """Half-width of the 95% interval of the mean change of these configs, in ln tokens/s."""
        weight = sum(1 / len(c.before) + 1 / len(c.now) for c in configs) / len(configs) ** 2
        return self.noise.half_width(2 / weight)

    @property
    def compared(self) -> list[Rechecked]:
        """The configs that were measured both before and now."""
        return [c for c in self.configs if c.change is not None]

    @property
    def change(self) -> tuple[float, float, float] | None:
        """Relative change of tokens/s over the configs that were measured both times: estimate, and
        low and high end of its 95% interval; None without such configs."""
        return self._change_of(self.compared) if self.compared else None

    def _change_of(self, configs: Sequence[Rechecked]) -> tuple[float, float, float]:
        middle = float(np.mean([c.change for c in configs]))
        half = self.half_width(configs)
        return math.expm1(middle), math.expm1(middle - half), math.expm1(middle + half)

    @property
    def is_slower(self) -> bool:
        """Whether the study is conclusively slower than `max_slowdown`, or a config now fails."""
        return (self._seems_slower and not self.is_inconclusive) or any(
            c.failure is not None for c in self.configs
        )

    @property
    def _seems_slower(self) -> bool:
        change = self.change
        return change is not None and change[1] < -self.max_slowdown and change[2] < 0

    @property
    def is_inconclusive(self) -> bool:
        """Whether other processes of the machine may have caused the measured change."""
        return self.busy >= BUSY and (self._seems_slower or not self.order_holds)

    @property
    def _leads(self) -> tuple[list[str], list[str]]:
        """Texts about configs that are significantly ahead of one ranked above them: those whose
        lead is new or significantly larger than before, and the others.

        Studies do not rank by speed alone, so a config may have been ahead from the beginning.
        """
        new, old, compared = list[str](), list[str](), self.compared
        for rank, better in enumerate(compared):
            for worse in compared[rank + 1 :]:
                now, half = self._lead(worse.now, better.now)
                before, half_before = self._lead(worse.before, better.before)
                if now <= half:
                    continue
                lead = f"{math.expm1(now):.1%} ahead of the {_shown(better.role)}"
                if before <= 0:
                    new.append(f"the {_shown(worse.role)} is now {lead}")
                elif now - before > math.hypot(half, half_before):
                    new.append(
                        f"the {_shown(worse.role)} is now {lead}, and was {math.expm1(before):.1%} ahead before"
                    )
                else:
                    old.append(f"the {_shown(worse.role)} was ahead before too, and is now {lead}")
        return new, old

    def _lead(
        self, ahead: Sequence[Measurement], behind: Sequence[Measurement]
    ) -> tuple[float, float]:
        """ln(speed of `ahead` / speed of `behind`), and the half-width of its 95% interval."""
        half = self.noise.half_width(2 / (1 / len(ahead) + 1 / len(behind)))
        return float(np.mean(_logs(ahead)) - np.mean(_logs(behind))), half

    @property
    def order(self) -> str:
        """Whether the ranking still holds, in a sentence."""
        new, old = self._leads
        if new:
            return "the ranking has changed: " + "; ".join(new)
        return (
            "; ".join(
                ["the ranking is unchanged; no config has overtaken one ranked above it", *old]
            )
            if len(self.compared) > 1
            else "there is no ranking to compare"
        )

    @property
    def order_holds(self) -> bool:
        """Whether no config is significantly further ahead of one ranked above it than before."""
        return not self._leads[0]

    @property
    def versions(self) -> list[tuple[str, str, str]]:
        """Versions and settings that differ: (name, before, now)."""
        before = _last_known(chain.from_iterable(c.before for c in self.configs))
        now = _last_known(chain.from_iterable(c.now for c in self.configs))
        known = [*before, *now]
        return differences(*conditions(known)) if len(known) == 2 else []

    @property
    def busy(self) -> float:
        """Largest share of a step that other processes took in a run of the recheck, 0 to 1."""
        shares = [0.0]
        for evidence in (m.evidence for c in self.configs for m in c.now):
            if evidence:
                findings = diagnose(Evidence.from_dict(evidence)).findings
                shares += [
                    f.share
                    for f in findings
                    if f.cause == "foreign_process" and f.share is not None
                ]
        return max(shares)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        failed = [
            f"the {_shown(c.role)} now fails ({c.failure})" for c in self.configs if c.failure
        ]
        change = self.change
        if change is None:
            return (
                "; ".join(failed)
                or "nothing could be compared, because no config was measured both before and now"
            )
        middle, low, high = change
        way = "slower" if middle < 0 else "faster"
        ends = sorted((abs(low), abs(high)))
        speed = f"{abs(middle):.1%} {way} than before (95% CI {ends[0]:.1%} to {ends[1]:.1%})"
        if low <= 0 <= high:
            speed = f"as fast as before ({number_of(sum(len(c.now) for c in self.configs), 'run')}; 95% CI of the change {low:+.1%} to {high:+.1%})"
        clauses = [f"{self.name} is {speed}", *failed]
        if self.busy >= BUSY:
            clauses.append(
                f"{'inconclusive: ' if self.is_inconclusive else ''}other processes took up to {self.busy:.0%} of a step; recheck on an idle machine"
            )
        return "; ".join(clauses)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "study": self.name,
            "verdict": self.verdict,
            "slower": self.is_slower,
            "inconclusive": self.is_inconclusive,
            "max_slowdown": self.max_slowdown,
            **_ends(self.change),
            "order_holds": self.order_holds,
            "order": self.order,
            "busy": self.busy,
            "versions": [
                {"name": name, "before": before, "now": now} for name, before, now in self.versions
            ],
            "configs": [self._row(c) for c in self.configs],
        }

    def _row(self, rechecked: Rechecked) -> dict[str, Any]:
        return {
            "role": rechecked.role,
            "config": rechecked.config.to_dict(),
            "label": config_label(rechecked.config),
            "before_tokens_per_s": _speed(rechecked.before),
            "now_tokens_per_s": _speed(rechecked.now),
            **_ends(None if rechecked.change is None else self._change_of([rechecked])),
            "runs": len(rechecked.now),
            "failure": rechecked.failure.to_dict() if rechecked.failure else None,
        }


def _ends(change: tuple[float, float, float] | None) -> dict[str, float | None]:
    return dict(zip(("change", "change_low", "change_high"), change or (None,) * 3, strict=True))


def _shown(role: str) -> str:
    return SHOWN.get(role, role)


def chosen(
    trials: Sequence[Trial], ranked: Sequence[ParallelConfig], default: ParallelConfig | None
) -> tuple[Rechecked, ...]:
    """The winner, runner-up and baseline of a study, with their runs in it. `ranked`: configs, best
    first. Raises `NotFoundError` if none of them was measured."""
    wanted = list(
        dict.fromkeys(
            [
                *ranked[:1],
                *[c for c in ranked[1:] if c != default][:1],
                *([default] if default else []),
            ]
        )
    )
    rechecked = []
    for config in wanted[:MOST_CONFIGS]:
        runs = tuple(
            t.measured
            for t in trials
            if t.config == config and t.measured is not None and t.stands_for is None
        )
        if runs:
            rechecked.append(
                Rechecked(role=_role(config, wanted[0], default), config=config, before=runs)
            )
    if not rechecked:
        raise NotFoundError(
            "the study has no measured config to re-measure", remedy="tune the study first"
        )
    return tuple(sorted(rechecked, key=lambda c: ROLES.index(c.role)))


def _role(config: ParallelConfig, winner: ParallelConfig, default: ParallelConfig | None) -> str:
    if config == winner:
        return "winner"
    return "default" if config == default else "runner-up"


def run_recheck(
    study: Study,
    study_id: str,
    runner: TrialRunner,
    configs: Sequence[Rechecked],
    *,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Rechecked, ...]:
    """Measure each config once per round and return the configs with these runs. Every second round
    is in reverse order, so that drift of the machine favors no config. A config that failed is not
    measured again."""
    results = list(configs)
    for turn in range(rounds):
        order = list(range(len(results))) if turn % 2 == 0 else list(reversed(range(len(results))))
        for index in order:
            one = results[index]
            if one.failure is not None:
                continue
            say(f"round {turn + 1} of {rounds}: {_shown(one.role)}, {config_label(one.config)}")
            end = _run(_request(study, study_id, one.config, turn * len(results) + index), runner)
            runs = () if end.measurement is None or end.failure is not None else (end.measurement,)
            results[index] = replace(one, now=(*one.now, *runs), failure=end.failure)
    return tuple(results)


def _request(study: Study, study_id: str, config: ParallelConfig, number: int) -> TrialRequest:
    steps = study.measure.warmup_steps + study.measure.max_steps
    return TrialRequest(
        study=f"{study_id}-recheck",
        number=number,
        attempt=0,
        workload=study.workload,
        config=config,
        measure=replace(study.measure, first_look=0),
        seed=study.seed,
        trainer=study.trainer,
        trainer_options=trainer(study.trainer).with_own(study.trainer_options, steps=steps),
        data=study.data,
        watched=not study.unwatched,
        keeps_outputs=study.keeps_outputs,
    )


def _run(request: TrialRequest, runner: TrialRunner) -> AttemptEnded:
    runner.start(request)
    while True:
        for event in runner.poll(POLL_S):
            if isinstance(event, AttemptEnded) and event.id == request.id:
                return event


def proposal(spec: Mapping[str, Any], found: Recheck) -> dict[str, Any]:
    """The spec of a new study: the old one's, with its best configs enqueued first."""
    first = [c.config.to_dict() for c in found.configs if c.role != "default" and c.failure is None]
    known = [config for config in spec.get("enqueue", ()) if config not in first]
    return {**spec, "name": f"{spec.get('name', found.name)}-again", "enqueue": [*first, *known]}


def markdown(found: Recheck) -> str:
    """The result as Markdown, for the summary of a CI job."""
    return "\n".join(_markdown(found)) + "\n"


def _markdown(found: Recheck) -> Iterator[str]:
    document = found.to_dict()
    yield f"## Recheck of {found.name}"
    yield ""
    order = found.order
    yield f"{found.verdict}. {capitalized(order)}."
    yield ""
    yield "| | config | tokens/s before | now | change |"
    yield "|---|---|---:|---:|---:|"
    for row in document["configs"]:
        change = (
            f"{row['change']:+.1%} ({row['change_low']:+.1%} to {row['change_high']:+.1%})"
            if row["change"] is not None
            else "failed"
        )
        now = f"{row['now_tokens_per_s']:,.0f}" if row["now_tokens_per_s"] else ""
        yield f"| {_shown(row['role'])} | `{row['label']}` | {row['before_tokens_per_s']:,.0f} | {now} | {change} |"
    if document["versions"]:
        yield ""
        yield "| version | then | now |"
        yield "|---|---|---|"
        yield from (f"| {v['name']} | {v['before']} | {v['now']} |" for v in document["versions"])


def junit(found: Recheck) -> str:
    """The result as JUnit XML: one test per config, and one for the slowdown of all."""
    from xml.sax.saxutils import escape, quoteattr

    rows = found.to_dict()["configs"]
    cases = []
    for row in rows:
        body = (
            f"<failure message={quoteattr(row['failure']['message'])}/>" if row["failure"] else ""
        )
        cases.append(
            f"<testcase classname={quoteattr(found.name)} name={quoteattr(_shown(row['role']))}>{body}</testcase>"
        )
    failed = f"<failure message={quoteattr(found.verdict)}/>" if found.is_slower else ""
    failed = (
        f"<skipped message={quoteattr(found.verdict)}/>"
        if found.is_inconclusive and not failed
        else failed
    )
    cases.append(
        f"<testcase classname={quoteattr(found.name)} name={quoteattr(f'not slower than {found.max_slowdown:.1%}')}>"
        f"{failed}<system-out>{escape(markdown(found))}</system-out></testcase>"
    )
    failures = sum("<failure" in case for case in cases)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuite name="autotune recheck" tests="{len(cases)}" failures="{failures}">{"".join(cases)}</testsuite>\n'


def _logs(runs: Sequence[Measurement]) -> Any:
    """ln tokens/s of each run, shape (runs,)."""
    return np.log([m.median_tokens_per_s for m in runs])


def _speed(runs: Sequence[Measurement]) -> float | None:
    return float(np.exp(np.mean(_logs(runs)))) if runs else None


def _last_known(runs: Iterable[Measurement]) -> list[Measurement]:
    """The last run with recorded versions, in a list; empty if there is none."""
    return [run for run in runs if run.versions][-1:]


SLOWER = 0.03
"""default of `max_slowdown`, relative"""


def recheck_study(
    store: ServiceStore,
    asked: str,
    *,
    rounds: int = ROUNDS,
    max_slowdown: float | None = None,
    say: Callable[[str], None] = lambda _: None,
    runner: TrialRunner | None = None,
) -> tuple[StudyRecord, Recheck]:
    """Recheck the stored study `asked` and add a note with the result to it. `runner`: the study's
    runner, if it was passed to `tune` as an object. Raises `NotFoundError` for a study without a
    measured config, `SpecError` for one whose trials are proxies of a target's configs, and
    `RunnerError` if it cannot run here."""
    studied = result_of(store, asked)
    record = studied.record
    if record.study.at_hand is not None:
        raise SpecError(
            f"the trials of {record.study.name} represent configs of its target, so those configs were not measured directly",
            remedy="recheck a study whose trials ran on the target itself",
            field="STUDY",
        )
    configs = chosen(
        studied.trials, _ranked(studied), studied.baseline.config if studied.baseline else None
    )
    with closing(make_runner_of(assemble(record.study, store), runner)) as opened:
        configs = run_recheck(record.study, record.id, opened, configs, rounds=rounds, say=say)
    result = Recheck(
        name=record.study.name,
        configs=configs,
        max_slowdown=SLOWER if max_slowdown is None else max_slowdown,
    )
    with suppress(StoreError):  # the result is returned even if its note cannot be stored
        store.annotations.add_note(record.id, f"recheck: {result.verdict}; {result.order}")
    return record, result


def _ranked(result: Result) -> list[ParallelConfig]:
    """The study's configs, best first: the winner, those re-measured in finals, then the others by
    reward."""
    best = [result.best.config] if result.best else []
    confirmed = [trial.config for trial in result.confirmed]
    others = [
        trial.config
        for trial in sorted((t for t in result.measured if t.reward), key=reward.by_reward)
    ]
    return list(dict.fromkeys([*best, *confirmed, *others]))
