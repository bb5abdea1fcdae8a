"""The status, message and result of a study that ends or pauses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.reward import tokens_per_s
from autotune.space.enumeration import in_words
from autotune.spec import Study, StudyStatus, Trial, number_of
from autotune.spec.plain import to_plain
from autotune.study.controller.commands import STOPPED_ON_REQUEST, EndStudy, StudyPhase
from autotune.study.controller.finals.finalists import failed_in_finals, first_finalists
from autotune.study.controller.finals.rounds import at_start, ended_finals, measured_finals
from autotune.study.controller.finals.winner import Winner, decide
from autotune.study.controller.infeasible import InfeasibleConfigs
from autotune.study.controller.repeated_failure import repeated_failure
from autotune.study.controller.scoring import Scorer
from autotune.study.controller.trial_index import TrialIndex


class Ending:
    """Makes the `EndStudy` command of one study from its trials."""

    def __init__(
        self, study: Study, index: TrialIndex, scorer: Scorer, infeasible: InfeasibleConfigs
    ) -> None:
        self._study, self._index, self._scorer, self._infeasible = study, index, scorer, infeasible

    @property
    def has_final_rounds(self) -> bool:
        """Whether every first finalist that did not fail has the minimum number of final rounds."""
        trials = self._index.listed()
        finals = ended_finals(trials)
        who = set(first_finalists(trials, self._study)) - set(failed_in_finals(finals))
        least = self._study.measure.final_rounds
        return all(len(measured_finals(config, finals)) >= least for config in who)

    def paused(self, phase: StudyPhase, stop_reason: str, why: str) -> EndStudy:
        """The pause of a study. `why`: its message."""
        outcome = _outcome(self._index, self._study, phase, stop_reason)
        return EndStudy(status=StudyStatus.PAUSED, message=why, **outcome)

    def ended(self, phase: StudyPhase, stop_reason: str, why: str, *, cancelled: bool) -> EndStudy:
        """The end of a study. `why`: reason of an early end, else empty."""
        trials = self._index.listed()
        outcome = _outcome(self._index, self._study, phase, stop_reason)
        if cancelled:
            status, message = StudyStatus.CANCELLED, why
        elif has_found(outcome["best"], trials):
            status, message = StudyStatus.COMPLETED, stop_reason
        elif why == STOPPED_ON_REQUEST:
            status, message = StudyStatus.CANCELLED, why
        else:
            cause = (
                repeated_failure(trials)
                or f"{self._scorer.tally()}{_refusals(self._infeasible.counts)}"
            )
            status, message = StudyStatus.FAILED, f"no config could be measured: {cause}"
        return EndStudy(status=status, message=message, **outcome)


def has_found(best: int | None, trials: Iterable[Trial]) -> bool:
    """Whether a study has a result: a winner (`best`: its number), or a measured proxy for a study
    with a target."""
    return best is not None or any(t.stands_for is not None and t.is_measured for t in trials)


def _refusals(infeasible: Mapping[str, int]) -> str:
    """Text with the number of configs that cannot run here and the most frequent reason; empty
    without such configs."""
    if not infeasible:
        return ""
    reason, count = next(iter(in_words(infeasible).items()))
    return f"; {number_of(sum(infeasible.values()), 'config')} cannot run here, {count:,} of them for this reason: {reason}"


def _outcome(
    index: TrialIndex, study: Study, phase: StudyPhase, stop_reason: str
) -> dict[str, Any]:
    """The result as fields of `EndStudy`: baseline, best, speedup, result."""
    trials = index.listed()
    winner = decide(trials, study)
    finals = [
        {"number": t.number, "config": t.config.to_dict(), "tokens_per_s": speed}
        for t, speed in _figures(winner, trials)
    ]
    return {
        "baseline": winner.baseline.number if winner.baseline else None,
        "best": winner.best.number if winner.best else None,
        "speedup": winner.speedup,
        "result": {
            "phase": str(phase),
            "stop_reason": stop_reason,
            "final_rounds": winner.rounds,
            "speedup_low": winner.speedup_low,
            "speedup_high": winner.speedup_high,
            "tied_with": list(winner.tied_with),
            "finals": finals,
            "notes": list(winner.notes),
            "too_noisy": to_plain(winner.too_noisy),
            "refused_baseline": to_plain(index.refused_baseline),
        },
    }


def _figures(winner: Winner, trials: Sequence[Trial]) -> Iterator[tuple[Trial, float]]:
    """(trial, tokens/s) of each config measured in the finals, as in all tables
    (`autotune.results.config_figures`): its ratio to the baseline in common rounds, times the
    baseline's speed corrected to the machine's first level."""
    measured = [t for t in winner.confirmed if t.measurement is not None]
    numbers = {t.number: t for t in measured}
    default = numbers.get(winner.baseline.number) if winner.baseline is not None else None
    start = at_start(default, trials) if default is not None else None
    for t in measured:
        speed = tokens_per_s(t)
        if default is not None and start is not None:
            ratio = t.reward.parts.get("tokens_per_s_ratio") if t.reward is not None else None
            speed = tokens_per_s(start) * (ratio or speed / tokens_per_s(default))
        yield t, speed
