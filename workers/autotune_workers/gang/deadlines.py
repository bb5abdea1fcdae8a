"""The deadlines of one attempt: first step, gap between steps, whole trial. All times in seconds on
the runner's clock."""

from __future__ import annotations

from autotune.spec import FailureKind, MeasureSpec


class Deadlines:
    """When an attempt began, when it last made progress, and which deadline it has missed."""

    def __init__(self, measure: MeasureSpec, now_s: float, *, compiles: bool = False) -> None:
        """`compiles`: whether the first step compiles the model."""
        self._measure, self._compiles = measure, compiles
        self._launched_s = now_s
        self._progress_s = now_s
        self.setup_s: float | None = None
        """time from the launch to the beginning of the first step; None before that step was
        reported"""

    def restart(self, now_s: float) -> None:
        """The time until now does not count: the ranks had no place yet."""
        self._launched_s = self._progress_s = now_s

    def progress(self, now_s: float) -> None:
        """Something was achieved."""
        self._progress_s = now_s

    def count_step(self, now_s: float, time_s: float) -> None:
        """A step that took `time_s` was reported."""
        if self.setup_s is None:
            self.setup_s = max(0.0, now_s - self._launched_s - time_s)

    def since_progress_s(self, now_s: float) -> float:
        """Time since the last progress."""
        return now_s - self._progress_s

    @property
    def next_s(self) -> float:
        """When the next deadline is missed, unless there is progress."""
        measure = self._measure
        gap_s = measure.start_timeout_s if self.setup_s is None else measure.step_timeout_s
        return min(self._progress_s + gap_s, self._launched_s + measure.trial_timeout_s)

    def missed(self, now_s: float, steps: int) -> tuple[FailureKind, str] | None:
        """Failure and law of a missed deadline; None while the attempt is in time. `steps`:
        reported so far."""
        measure = self._measure
        if now_s - self._launched_s >= measure.trial_timeout_s:
            return (
                FailureKind.TIMEOUT,
                f"the trial took longer than trial_timeout_s={measure.trial_timeout_s:g}",
            )
        if self.setup_s is None:
            if now_s - self._launched_s >= measure.start_timeout_s:
                law = f"no first step within start_timeout_s={measure.start_timeout_s:g}"
                if self._compiles:
                    why = "the program may still be compiling; raise measure.start_timeout_s"
                    return FailureKind.TIMEOUT, f"{law}; {why}"
                return FailureKind.HANG, law
        elif now_s - self._progress_s >= measure.step_timeout_s:
            return (
                FailureKind.HANG,
                f"no step after step {steps - 1} within step_timeout_s={measure.step_timeout_s:g}",
            )
        return None
