"""An old study's configs re-measured: the winner, the runner-up and the baseline, in turn, in two
rounds. Are they as fast as they were?

    y_cr     ln tokens/s of config c in run r, by its median step       d_c = mean of the new y_c - mean of the old ones
    sigma    standard deviation between runs of one config, from all its runs and the prior of `autotune.reward.run_noise`

    change = mean_c d_c, with variance sigma^2 / C^2 * sum_c (1 / n_c,new + 1 / n_c,old) and Student's t

The change is called slower than S when its 95% interval does not hold 0 and reaches beyond S: with
2% between runs, three configs and two rounds, a slowdown of 5% is found in 98 of 100 studies, and
one is invented in 2 (tests/study/test_recheck.py). The order holds where no config is ahead of a
better one of then by more than its interval, or was ahead of it then already and is not by more.
Machines that are busy with other work are told apart from releases by the evidence of the runs
(`autotune.diagnosis`): where others took `BUSY` of a step or more, a change says nothing, and the
recheck is inconclusive.

The recheck of a stored study: its configs out of the store, measured on its own runner, and a note
of what came of it back into the store.
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
"""roles as people read them, where that is another word"""
POLL_S = 0.2
BUSY = 0.1
"""share of a step that foreign processes take, from which a run says little about a release"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rechecked:
    """One config, then and now."""

    role: str
    """winner, runner-up or default"""
    config: ParallelConfig
    before: tuple[Measurement, ...]
    now: tuple[Measurement, ...] = ()
    failure: Failure | None = None
    """why it does not run any more"""

    @property
    def change(self) -> float | None:
        """ln of its speed now over then."""
        if not self.now or not self.before:
            return None
        return float(np.mean(_logs(self.now)) - np.mean(_logs(self.before)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recheck:
    """What became of the study's configs."""

    name: str
    """of the study"""
    configs: tuple[Rechecked, ...]
    max_slowdown: float = 0.03

    @property
    def noise(self) -> RunNoise:
        """Between runs of one config."""
        squares, freedom = 0.0, 0
        for runs in (_logs(measured) for c in self.configs for measured in (c.before, c.now)):
            if len(runs) > 1:
                squares += float(((runs - runs.mean()) ** 2).sum())
                freedom += len(runs) - 1
        return RunNoise.of([m for c in self.configs for m in (*c.before, *c.now)], squares, freedom)

    def half_width(self, configs: Sequence[Rechecked]) -> float:
        """Of the 95% interval of the mean change of these."""
        weight = sum(1 / len(c.before) + 1 / len(c.now) for c in configs) / len(configs) ** 2
        return self.noise.half_width(2 / weight)

    @property
    def compared(self) -> list[Rechecked]:
        """Those that were measured then and now."""
        return [c for c in self.configs if c.change is not None]

    @property
    def change(self) -> tuple[float, float, float] | None:
        """How much more tokens per second there are now, as shares: middle, low and high end of the
        95% interval, over the configs that were measured both times; None without any."""
        return self._change_of(self.compared) if self.compared else None

    def _change_of(self, configs: Sequence[Rechecked]) -> tuple[float, float, float]:
        middle = float(np.mean([c.change for c in configs]))
        half = self.half_width(configs)
        return math.expm1(middle), math.expm1(middle - half), math.expm1(middle + half)

    @property
    def is_slower(self) -> bool:
        """Beyond chance, by an interval that reaches beyond what was allowed; also where a config
        does not run any more."""
        return (self._seems_slower and not self.is_inconclusive) or any(
            c.failure is not None for c in self.configs
        )

    @property
    def _seems_slower(self) -> bool:
        found = self.change
        return found is not None and found[1] < -self.max_slowdown and found[2] < 0

    @property
    def is_inconclusive(self) -> bool:
        """Whether a change was measured that the other processes of the machine may have caused."""
        return self.busy >= BUSY and (self._seems_slower or not self.order_holds)

    @property
    def _leads(self) -> tuple[list[str], list[str]]:
        """Which config is significantly ahead of one ranked above it, in words: newly, and as
        before.

        A study ranks by more than speed, so a config may have been ahead all along: then only a
        significantly larger lead is a change.
        """
        new, old, found = list[str](), list[str](), self.compared
        for at, better in enumerate(found):
            for worse in found[at + 1 :]:
                now, half = self._lead(worse.now, better.now)
                before, of_before = self._lead(worse.before, better.before)
                if now <= half:
                    continue
                lead = f"{math.expm1(now):.1%} ahead of the {_shown(better.role)}"
                if before <= 0:
                    new.append(f"the {_shown(worse.role)} is now {lead}")
                elif now - before > math.hypot(half, of_before):
                    new.append(
                        f"the {_shown(worse.role)} is now {lead}, and was {math.expm1(before):.1%} ahead before"
                    )
                else:
                    old.append(f"the {_shown(worse.role)} was ahead before too, and is now {lead}")
        return new, old

    def _lead(
        self, ahead: Sequence[Measurement], behind: Sequence[Measurement]
    ) -> tuple[float, float]:
        """ln of the speed of some runs over that of others, and half its 95% interval."""
        half = self.noise.half_width(2 / (1 / len(ahead) + 1 / len(behind)))
        return float(np.mean(_logs(ahead)) - np.mean(_logs(behind))), half

    @property
    def order(self) -> str:
        """Whether the order of then still holds, in a sentence."""
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
        """What differs between then and now: name, then, now."""
        before = _last_known(chain.from_iterable(c.before for c in self.configs))
        now = _last_known(chain.from_iterable(c.now for c in self.configs))
        known = [*before, *now]
        return differences(*conditions(known)) if len(known) == 2 else []

    @property
    def busy(self) -> float:
        """The share of the steps of now that processes of others took, of the run that lost
        most."""
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
        """In a sentence."""
        failed = [
            f"the {_shown(c.role)} now fails ({c.failure})" for c in self.configs if c.failure
        ]
        found = self.change
        if found is None:
            return (
                "; ".join(failed)
                or "nothing could be compared, because no config was measured both before and now"
            )
        middle, low, high = found
        way = "slower" if middle < 0 else "faster"
        ends = sorted((abs(low), abs(high)))
        between = f"{abs(middle):.1%} {way} than before (95% CI {ends[0]:.1%} to {ends[1]:.1%})"
        if low <= 0 <= high:
            between = f"as fast as before ({number_of(sum(len(c.now) for c in self.configs), 'run')}; 95% CI of the change {low:+.1%} to {high:+.1%})"
        told = [f"{self.name} is {between}", *failed]
        if self.busy >= BUSY:
            told.append(
                f"{'inconclusive: ' if self.is_inconclusive else ''}other processes took up to {self.busy:.0%} of a step; recheck on an idle machine"
            )
        return "; ".join(told)

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
                {"name": name, "before": then, "now": now} for name, then, now in self.versions
            ],
            "configs": [self._row(c) for c in self.configs],
        }

    def _row(self, one: Rechecked) -> dict[str, Any]:
        return {
            "role": one.role,
            "config": one.config.to_dict(),
            "label": config_label(one.config),
            "before_tokens_per_s": _speed(one.before),
            "now_tokens_per_s": _speed(one.now),
            **_ends(None if one.change is None else self._change_of([one])),
            "runs": len(one.now),
            "failure": one.failure.to_dict() if one.failure else None,
        }


def _ends(change: tuple[float, float, float] | None) -> dict[str, float | None]:
    return dict(zip(("change", "change_low", "change_high"), change or (None,) * 3, strict=True))


def _shown(role: str) -> str:
    return SHOWN.get(role, role)


def chosen(
    trials: Sequence[Trial], ranked: Sequence[ParallelConfig], default: ParallelConfig | None
) -> tuple[Rechecked, ...]:
    """Winner, runner-up and baseline of a study, with what was measured of them; `ranked`: best
    first. Raises `NotFoundError` for a study that has measured none."""
    wanted = list(
        dict.fromkeys(
            [
                *ranked[:1],
                *[c for c in ranked[1:] if c != default][:1],
                *([default] if default else []),
            ]
        )
    )
    found = []
    for config in wanted[:MOST_CONFIGS]:
        seen = tuple(
            t.measured
            for t in trials
            if t.config == config and t.measured is not None and t.stands_for is None
        )
        if seen:
            found.append(
                Rechecked(role=_role(config, wanted[0], default), config=config, before=seen)
            )
    if not found:
        raise NotFoundError(
            "the study has no measured config to re-measure", remedy="tune the study first"
        )
    return tuple(sorted(found, key=lambda c: ROLES.index(c.role)))


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
    """Measures them in turn, each `rounds` times; every second round backwards, so that a machine
    that drifts does not favor one."""
    found = list(configs)
    for turn in range(rounds):
        order = list(range(len(found))) if turn % 2 == 0 else list(reversed(range(len(found))))
        for at in order:
            one = found[at]
            if one.failure is not None:
                continue
            say(f"round {turn + 1} of {rounds}: {_shown(one.role)}, {config_label(one.config)}")
            end = _run(_request(study, study_id, one.config, turn * len(found) + at), runner)
            seen = () if end.measurement is None or end.failure is not None else (end.measurement,)
            found[at] = replace(one, now=(*one.now, *seen), failure=end.failure)
    return tuple(found)


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
    """A new study begun from the old one: its spec, with what was the best to be tried first."""
    first = [c.config.to_dict() for c in found.configs if c.role != "default" and c.failure is None]
    known = [config for config in spec.get("enqueue", ()) if config not in first]
    return {**spec, "name": f"{spec.get('name', found.name)}-again", "enqueue": [*first, *known]}


def markdown(found: Recheck) -> str:
    """A summary, as a job of somebody's CI shows it."""
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
    """The same as a JUnit file: a test for each config, and one for all."""
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
    return np.log([m.median_tokens_per_s for m in runs])


def _speed(runs: Sequence[Measurement]) -> float | None:
    return float(np.exp(np.mean(_logs(runs)))) if runs else None


def _last_known(runs: Iterable[Measurement]) -> list[Measurement]:
    """The last run that knows its versions; empty without one."""
    return [seen for seen in runs if seen.versions][-1:]


SLOWER = 0.03
"""relative slowdown that is spoken of where none was named"""


def recheck_study(
    store: ServiceStore,
    asked: str,
    *,
    rounds: int = ROUNDS,
    max_slowdown: float | None = None,
    say: Callable[[str], None] = lambda _: None,
    runner: TrialRunner | None = None,
) -> tuple[StudyRecord, Recheck]:
    """Runs it. `runner`: the study's own where that was passed as an object. Raises `NotFoundError`
    for a study without a measured config, `SpecError` for one whose trials stand for others, and
    `RunnerError` for what cannot run here."""
    found = result_of(store, asked)
    record = found.record
    if record.study.at_hand is not None:
        raise SpecError(
            f"the trials of {record.study.name} represent configs of its target, so those configs were not measured directly",
            remedy="recheck a study whose trials ran on the target itself",
            field="STUDY",
        )
    configs = chosen(
        found.trials, _ranked(found), found.baseline.config if found.baseline else None
    )
    with closing(make_runner_of(assemble(record.study, store), runner)) as opened:
        seen = run_recheck(record.study, record.id, opened, configs, rounds=rounds, say=say)
    result = Recheck(
        name=record.study.name,
        configs=seen,
        max_slowdown=SLOWER if max_slowdown is None else max_slowdown,
    )
    with suppress(StoreError):  # the answer is worth more than its note
        store.annotations.add_note(record.id, f"recheck: {result.verdict}; {result.order}")
    return record, result


def _ranked(found: Result) -> list[ParallelConfig]:
    """Its configs, best first."""
    best = [found.best.config] if found.best else []
    confirmed = [trial.config for trial in found.confirmed]
    others = [
        trial.config
        for trial in sorted((t for t in found.measured if t.reward), key=reward.by_reward)
    ]
    return list(dict.fromkeys([*best, *confirmed, *others]))
