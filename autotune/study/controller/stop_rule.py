"""The stop rule: the search ends if the next trial is expected to take longer than it saves in the
training run.

    a trial pays if    T g / (1 + g) > c

`T`: duration of the training run with the best config so far, s; `g`: expected relative gain in
throughput from the next trial; `c`: mean duration of a trial so far, s. Trials and training are
assumed to occupy the same cluster, whatever part of it they use. This is sequential sampling with
economics (Chick & Frazier 2012, "Sequential sampling with economics of selection procedures"), one
trial ahead. Looking further ahead changes nothing: candidates are ordered by expected gain, so k
trials gain at most k times as much as the first.

`T` is computed from `Budget.train_tokens`; without it, a training run of `TRIALS_IN_A_TRAINING`
trials is assumed. Without tokens, a `Budget.min_gain` replaces the rule: the search ends if the next
`Searcher.LOOKAHEAD` trials together are expected to gain less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.reward import tokens_per_s
from autotune.spec import Budget, Trial
from autotune.spec.texts.as_text import format_duration
from autotune.study.controller.trial_index import TrialIndex

if TYPE_CHECKING:
    from autotune.search import Searcher

TRIALS_IN_A_TRAINING = 200
"""assumed duration of a training run without `train_tokens`, in trials: less than seven hours with
trials of two minutes. A search among thousands of nearly equal configs then ends after about eleven
trials (research/measurements.md)."""


def training_s(trial: Trial, tokens: float) -> float:
    """Duration of a training run of `tokens` tokens at the speed of this trial, s; nan without a
    measurement."""
    return tokens / tokens_per_s(trial)


def pays(gain: float, trials_in_a_training: float) -> bool:
    """Whether a trial with this expected relative gain saves more time than it takes.
    `trials_in_a_training`: T / c."""
    return trials_in_a_training * gain / (1.0 + gain) > 1.0


def not_worth_it(searcher: Searcher, index: TrialIndex, budget: Budget) -> str:
    """Why no further trial pays; empty if one does, or the searcher has no estimate."""
    if (
        index.best is None
        or index.asked == 0
        or (budget.min_gain == 0 and budget.train_tokens is None)
    ):
        return ""
    least_gain = budget.min_gain if budget.train_tokens is None else None
    gain = searcher.expected_gain(1 if least_gain is None else searcher.LOOKAHEAD)
    if gain is None:
        return ""
    if gain == 0 and not len(searcher.eligible()):
        return searcher.nothing_left()
    if least_gain is not None:
        return _gains_little(gain, least_gain, index.trial_s)
    if budget.train_tokens is None:
        training = TRIALS_IN_A_TRAINING * index.trial_s
        hint = f" ({TRIALS_IN_A_TRAINING} trials long; set budget.train_tokens for another length)"
    else:
        training, hint = training_s(index.best, budget.train_tokens), ""
    if pays(gain, training / index.trial_s):
        return ""
    return (
        f"a further trial takes about {format_duration(index.trial_s)} and would save {format_duration(training * gain / (1 + gain))} "
        f"of a training run of {format_duration(training)}{hint}"
    )


def _gains_little(gain: float, least: float, trial_s: float) -> str:
    """Why the search ends because of `min_gain`; empty if the gain is at least `least`."""
    if gain >= least:
        return ""
    return (
        f"the next trials, of about {format_duration(trial_s)} each, are expected to gain {gain:.2%}, "
        f"less than min_gain ({least:.2%})"
    )
