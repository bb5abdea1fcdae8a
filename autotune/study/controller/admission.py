"""Makes the trials that are requested, with their predictions, and rejects those that cannot run
here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autotune.spec import Estimate, ParallelConfig, Study, Trial
from autotune.study.controller.phases import Ask
from autotune.study.controller.scoring import Scorer
from autotune.study.controller.trial_index import TrialIndex

Predict = Callable[[ParallelConfig], Estimate | None]
"""the prediction for a config; None if there is none"""
Correct = Callable[[ParallelConfig, Estimate, Iterable[Trial]], Estimate]
"""a config's prediction, corrected by the trials so far"""
Refuse = Callable[[ParallelConfig], str]
"""why the trainer cannot run a config; empty if it can"""


class Admission:
    """Makes the trials of one study, and decides which cannot be run."""

    def __init__(
        self,
        study_id: str,
        study: Study,
        index: TrialIndex,
        scorer: Scorer,
        capacity: int,
        *,
        predict: Predict,
        correct: Correct,
        refuse: Refuse,
    ) -> None:
        """`capacity`: ranks of the runner."""
        self._study_id, self._study, self._index, self._scorer = study_id, study, index, scorer
        self._capacity = capacity
        self._predict, self._correct, self._refuse = predict, correct, refuse

    def trial_of(self, ask: Ask) -> Trial:
        """The requested trial, under the next number."""
        predicted = ask.estimate or self._predict(ask.config)
        if predicted is not None and ask.stands_for is None:
            predicted = self._correct(ask.config, predicted, self._index.all_seen())
        return ask.trial(self._study_id, self._study, len(self._index.trials), predicted)

    def refusal(self, trial: Trial) -> str:
        """Why the trial cannot be run; empty if it can. The trainer is not asked about a proxy,
        because that was checked before the proxy was proposed."""
        reason = "" if trial.stands_for else self._refuse(trial.config)
        return reason or self._scorer.refusal(trial, self._capacity)
