"""The finals: the best configs and the baseline are measured again, in turn, before a winner is named.

The best of many noisy measurements is on average too good (the winner's curse), and a machine drifts while a study runs. So the
claim does not rest on the search's own numbers: finalists and baseline alternate, every other round in the opposite order, which
cancels a linear drift, and medians over the rounds decide. Rounds that not everyone finished do not count; a config that fails when it
is measured again cannot win.

All of this is a function of the trials, so a study that is interrupted in its finals goes on with the next measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from autotune.spec import ParallelConfig, Trial, TrialPurpose, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Who won, and by what."""

    winner: Trial | None
    """the trial in which the winning config was first measured"""
    speedup: float | None
    """winner against baseline in tokens per second; None without a measured baseline"""
    rounds: int = 0
    """final rounds that count"""
    tokens_per_s: Mapping[ParallelConfig, float] = field(default_factory=dict)
    """median over those rounds by config"""
    notes: tuple[str, ...] = ()
    """what else must be said, in words"""


def contenders(trials: Sequence[Trial]) -> list[Trial]:
    """First measurements, best reward first. Trials that were stopped early count only where nothing completed."""
    measured = [t for t in trials if t.is_measured and t.reward is not None and t.purpose is not TrialPurpose.FINAL]
    completed = [t for t in measured if t.status is TrialStatus.COMPLETED]
    return sorted(completed or measured, key=lambda t: (-_worth(t), t.number))


def participants(trials: Sequence[Trial], baseline: Trial | None, finalists: int) -> tuple[ParallelConfig, ...]:
    """Who is measured again: the baseline, where it was measured, and the best `finalists` other configs; empty when that is under two."""
    first = [baseline.config] if baseline is not None else []
    others = list(dict.fromkeys(t.config for t in contenders(trials) if t.config not in first))[:finalists]
    return tuple(first + others) if others and len(first + others) > 1 else ()


def next_final(
    who: Sequence[ParallelConfig], finals: Sequence[Trial], rounds: int
) -> tuple[int, ParallelConfig] | None:
    """The round (from 0) and config to measure next, given the terminal final trials; None when all rounds are done."""
    alive = [c for c in who if c not in _dead(finals)]
    if len(alive) < 2:
        return None
    done = {c: _measured(c, finals) for c in alive}
    for r in range(rounds):
        for config in alive if r % 2 == 0 else alive[::-1]:
            if len(done[config]) <= r:
                return r, config
    return None


def decide(trials: Sequence[Trial], baseline: Trial | None, finalists: int) -> Verdict:
    """The winner by the final rounds that count, else by the first measurements."""
    finals = [t for t in trials if t.purpose is TrialPurpose.FINAL and t.status.is_terminal]
    dead = _dead(finals)
    notes = [f"{c} failed when it was measured again" for c in dead]
    ranked = [t for t in contenders(trials) if t.config not in dead]
    alive = [c for c in participants(trials, baseline, finalists) if c not in dead]
    rounds = min((len(_measured(c, finals)) for c in alive), default=0) if len(alive) > 1 else 0
    if not ranked:
        return Verdict(winner=None, speedup=None, notes=tuple(notes))
    if rounds:
        counted = {c: _measured(c, finals)[:rounds] for c in alive}
        speeds = {c: median(_speed(t) for t in ts) for c, ts in counted.items()}
        first = {t.config: t for t in reversed(ranked)}
        winner = first[
            max(
                (c for c in alive if c in first),
                key=lambda c: (median(_worth(t) for t in counted[c]), -first[c].number),
            )
        ]
    else:
        speeds, winner = {}, ranked[0]
        notes.append("no final round was finished: the speedup rests on one measurement each")
    speedup = None
    if baseline is not None:
        paired = rounds and baseline.config in speeds
        if rounds and not paired:
            notes.append("the baseline was not measured again: the speedup rests on one measurement each")
        top, base = (speeds[winner.config], speeds[baseline.config]) if paired else (_speed(winner), _speed(baseline))
        speedup = top / base
    return Verdict(winner=winner, speedup=speedup, rounds=rounds, tokens_per_s=speeds, notes=tuple(notes))


def _measured(config: ParallelConfig, finals: Sequence[Trial]) -> list[Trial]:
    return [t for t in finals if t.config == config and t.is_measured and t.reward is not None]


def _dead(finals: Sequence[Trial]) -> list[ParallelConfig]:
    return list(dict.fromkeys(t.config for t in finals if t.status is TrialStatus.FAILED))


def _worth(trial: Trial) -> float:
    return trial.reward.total if trial.reward is not None else float("-inf")


def _speed(trial: Trial) -> float:
    return trial.measurement.tokens_per_s if trial.measurement is not None else float("nan")
