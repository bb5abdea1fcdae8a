"""The trials of a study as they stood at each step of its history, and what people wanted then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autotune.errors import StoreCorruptError
from autotune.ports import HistoryEvent
from autotune.spec import Trial, TrialStatus, Wanted
from autotune.study.controller import CUT_OFF


class Known:
    """What a controller finds in the store when it begins; changed by each line of the history."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        """`trials`: all of the study as they are now, by number."""
        self.final = trials
        self.wanted = Wanted.RUN
        self.wishes: set[Wanted] = {Wanted.RUN}
        """what people wanted since the last decision"""
        self.has_waited: set[int] = set()
        """trials with an attempt that waited for ranks"""
        self.num_late = 0
        """reports of controllers that had been replaced"""
        self.closed: set[tuple[int, int]] = set()
        """attempts (trial, attempt) that were closed; closing one again leaves no line"""
        self._trials: dict[int, Trial] = {}
        self._ended: list[int] = []
        self._reasons: dict[int, str] = {}
        self._lost: Counter[int] = Counter()

    def take(self, line: HistoryEvent) -> None:
        """Takes in one line."""
        data = line.data
        match line.kind:
            case "trial.asked":
                self._reasons[data["number"]] = data["reason"]
                self._trials[data["number"]] = replace(
                    self.trial(data["number"]),
                    status=TrialStatus.PENDING,
                    attempts=0,
                    measurement=None,
                    reward=None,
                    failure=None,
                    reason=data["reason"],
                )
            case "trial.started":
                started = {"status": TrialStatus.RUNNING, "attempts": data["attempt"]}
                self._trials[data["number"]] = replace(self.asked(data["number"]), **started)
            case "attempt.ended":
                failure = data["failure"]
                self.closed.add((data["number"], data["attempt"]))
                self._lost[data["number"]] += (
                    bool(failure) and failure["message"] != CUT_OFF.message
                )
            case "trial.ended":
                self._trials[data["number"]] = self.trial(data["number"])
                self._ended.append(data["number"])
            case "attempt.queued":
                self.has_waited.add(data["number"])
            case "trial.late" if data["why"] == "the lease was taken over":
                self.num_late += 1
            case "study.wanted":
                self.wanted = Wanted(data["wanted"])
                self.wishes.add(self.wanted)

    def trial(self, number: int) -> Trial:
        """The trial as it is now. Raises `StoreCorruptError` where there is none."""
        if not 0 <= number < len(self.final):
            raise StoreCorruptError(
                f"the history names trial {number}, but the study has {len(self.final)} trials"
            )
        return self.final[number]

    def asked(self, number: int) -> Trial:
        """The trial as it stood. Raises `StoreCorruptError` where it was not asked for by then."""
        if number not in self._trials:
            raise StoreCorruptError(f"trial {number} was not asked for by then")
        return self._trials[number]

    def reason_of(self, number: int) -> str:
        """Why the trial was asked for, in words."""
        return self._reasons.get(number, "")

    def told_in_order(self) -> list[Trial]:
        """The trials by then: the terminal ones in the order in which they ended, then the others
        by number."""
        ended = dict.fromkeys(self._ended)
        return [self._trials[n] for n in ended] + [
            t for n, t in sorted(self._trials.items()) if n not in ended
        ]

    @property
    def lost(self) -> dict[int, int]:
        """By trial, the attempts that were lost."""
        return {number: count for number, count in self._lost.items() if count}
