"""When the search stops by itself: when the next trial is expected to take longer than it saves the
training.

    a trial pays when    T g / (1 + g) > c

`T`: seconds of the training with the best config so far; `g`: expected relative gain of the
throughput by the next trial; `c`: seconds of a trial, the mean so far. Trials and training occupy
the same cluster, whatever part of it they use. That is sampling with its economics (Chick & Frazier
2012, "Sequential sampling with economics of selection procedures"), one trial ahead. Looking
further ahead changes nothing: candidates are ordered by their expected gain, so k trials gain at
most k times as much as the first of them.

`T` follows from `Budget.train_tokens`. A study that does not say how long its training is counts as
if it took `TRIALS_IN_A_TRAINING` trials. A `Budget.min_gain` replaces the rule where no tokens are
given: the search stops when the next `Searcher.LOOKAHEAD` trials together are expected to gain
less.
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
"""length of a training about which nothing was said, in trials: with trials of two minutes, under
seven hours. Among thousands of near equals a search ends after about eleven trials then
(research/measurements.md)."""


def training_s(trial: Trial, tokens: float) -> float:
    """Seconds of a training on so many tokens, as fast as this trial was. nan when nothing was
    measured."""
    return tokens / tokens_per_s(trial)


def pays(gain: float, trials_in_a_training: float) -> bool:
    """Whether a trial of this expected relative gain saves a training more than it takes;
    `trials_in_a_training`: T / c."""
    return trials_in_a_training * gain / (1.0 + gain) > 1.0


def not_worth_it(searcher: Searcher, index: TrialIndex, budget: Budget) -> str:
    """Why no further trial is worth asking for, in words; empty while one is, or the searcher
    cannot say."""
    if (
        index.best is None
        or index.asked == 0
        or (budget.min_gain == 0 and budget.train_tokens is None)
    ):
        return ""
    by_share = budget.min_gain if budget.train_tokens is None else None
    gain = searcher.expected_gain(1 if by_share is None else searcher.LOOKAHEAD)
    if gain is None:
        return ""
    if gain == 0 and not len(searcher.eligible()):
        return searcher.nothing_left()
    if by_share is not None:
        return _gains_little(gain, by_share, index.trial_s)
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
    if gain >= least:
        return ""
    return (
        f"the next trials, of about {format_duration(trial_s)} each, are expected to gain {gain:.2%}, "
        f"less than min_gain ({least:.2%})"
    )
