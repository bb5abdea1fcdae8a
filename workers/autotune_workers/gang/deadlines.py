"""The deadlines of one attempt: first step, gap between steps, whole trial. All times are seconds
on the runner's clock."""

from __future__ import annotations

from autotune.spec import FailureKind, MeasureSpec


class Deadlines:
    """Tracks the progress of an attempt and decides which deadline it has missed."""

    def __init__(self, measure: MeasureSpec, now_s: float, *, compiles: bool = False) -> None:
        """`compiles`: whether the first step compiles the model."""
        self._measure, self._compiles = measure, compiles
        self._launched_s = now_s
        self._progress_s = now_s
        self.setup_s: float | None = None
        """time from launch to the beginning of the first step; None until that step is reported"""

    def restart(self, now_s: float) -> None:
        """Restarts all deadlines, because the ranks have not been placed yet."""
        self._launched_s = self._progress_s = now_s

    def progress(self, now_s: float) -> None:
        """Restarts the deadline for the next step."""
        self._progress_s = now_s

    def count_step(self, now_s: float, time_s: float) -> None:
        """Notes a reported step that took `time_s`."""
        if self.setup_s is None:
            self.setup_s = max(0.0, now_s - self._launched_s - time_s)

    def since_progress_s(self, now_s: float) -> float:
        """Time since the last progress."""
        return now_s - self._progress_s

    @property
    def next_s(self) -> float:
        """When the next deadline passes, unless there is progress."""
        measure = self._measure
        gap_s = measure.start_timeout_s if self.setup_s is None else measure.step_timeout_s
        return min(self._progress_s + gap_s, self._launched_s + measure.trial_timeout_s)

    def missed(self, now_s: float, steps: int) -> tuple[FailureKind, str] | None:
        """Failure kind and message of a missed deadline; None if none is missed. `steps`: number of
        reported steps."""
        measure = self._measure
        if now_s - self._launched_s >= measure.trial_timeout_s:
            return (
                FailureKind.TIMEOUT,
                f"the trial took longer than trial_timeout_s={measure.trial_timeout_s:g}",
            )
        if self.setup_s is None:
            if now_s - self._launched_s >= measure.start_timeout_s:
                message = f"no first step within start_timeout_s={measure.start_timeout_s:g}"
                if self._compiles:
                    hint = "the program may still be compiling; raise measure.start_timeout_s"
                    return FailureKind.TIMEOUT, f"{message}; {hint}"
                return FailureKind.HANG, message
        elif now_s - self._progress_s >= measure.step_timeout_s:
            return (
                FailureKind.HANG,
                f"no step after step {steps - 1} within step_timeout_s={measure.step_timeout_s:g}",
            )
        return None
