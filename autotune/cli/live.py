"""The live view of a running study, on stderr: a redrawn table in a terminal, otherwise one line
per event.

For a study in this process, `LiveView` receives the loop's events (`autotune.study.progress`); for
a study elsewhere, it receives the result so far.

Printed figures never change: a config's row has the figures of its first run. Later final runs only
change the number of runs and mark the figures that they re-measure. Averages over all runs would
change with every final run and be mistaken for results; they are printed once, in the last table.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autotune.cli.output import consoles
from autotune.cli.study_text import noisy_line, state_of, trial_line
from autotune.ports import StudyRecord
from autotune.report.table_layout import FittedTable
from autotune.report.terminal import (
    RE_MEASURED,
    ConfigRuns,
    Palette,
    by_config,
    format_count,
    study_configs_table,
)
from autotune.results.answers import result_from
from autotune.results.result import Result
from autotune.spec import Study, StudyStatus, Trial, TrialPurpose, TrialStatus, config_label
from autotune.spec.texts.as_text import format_span, number_of
from autotune.study.controller.finals.finalists import (
    expected_runs,
    first_finalists,
    least_runs,
    longest_finals,
)
from autotune.study.controller.finals.rounds import baseline_of
from autotune.study.controller.finals.too_noisy import too_noisy
from autotune.study.controller.trial_index import ASKED
from autotune.study.progress import LoopEvent

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


_SEARCH_TRIAL = "search trial"
REDRAWS_PER_S = 4
"""redraws of the table per second"""
RESULT_PAUSE_RATIO = 20.0
"""least pause before the result is computed again, relative to the time that computing it took"""
IN_FINALS = f"{RE_MEASURED} is being re-measured; its final figures come at the end"


class LiveView:
    """Shows a study while it runs. Use it as a context manager and pass it as the loop's
    `on_event`."""

    def __init__(self, study: Study, *, console: Console | None = None) -> None:
        self.study = study
        self.console = console or consoles()[1]
        self.palette = Palette.of(sys.stderr)
        self.trials: dict[int, Trial] = {}
        self.steps: dict[int, int] = {}
        self.best: int | None = None
        self.noisy = ""
        """the warning that the machine is too noisy, with its remedy; empty if the machine is quiet"""
        self._has_warned = False
        self._record: StudyRecord | None = None
        self._result: Result | None = None
        """the result so far; only its best trial and the reasons for the other trials are shown"""
        self._num_ended = 0
        """number of ended trials in `_result`"""
        self._next_result_s = 0.0
        """monotonic time before which the result is not computed again, seconds"""
        self._least_finals = 0
        """the expected number of final runs, lowered if fewer configs can be re-measured"""
        self.phase = "starting"
        self.message = ""
        self.began: float | None = None
        """monotonic time at which an uninterrupted study would have begun, seconds; None during preparation, which does not count"""
        self._live: Any = None

    def __enter__(self) -> LiveView:
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(
                get_renderable=lambda: self,
                console=self.console,
                refresh_per_second=REDRAWS_PER_S,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_event(self, event: LoopEvent) -> None:
        """Process one event of the loop."""
        from autotune.study import progress

        match event:
            case progress.StudyOpened(record=record, past=past):
                self._record = replace(record, status=StudyStatus.RUNNING)
                self.trials = {trial.number: trial for trial in past}
                self.began = time.monotonic() - record.elapsed_s
                self._print_line(
                    f"study {record.id} ({record.study.name})"
                    + (f", continued after {number_of(len(past), 'run')}" if past else "")
                )
                if not past and (expected := expected_runs(record.study)):
                    # above the live table, so that it stays on screen
                    in_lines = self._live is None
                    self.console.print(expected, markup=False, highlight=False, soft_wrap=in_lines)
            case progress.PhaseEntered(phase=phase, message=message):
                self.phase, self.message = str(phase), message
                self._print_line(f"{phase}: {message}" if message else str(phase))
            case progress.TrialAsked(trial=trial):
                self.trials[trial.number] = trial
            case progress.TrialStarted(number=number):
                proposed = self.trials[number]
                began_at = proposed.started_at or datetime.now(UTC)
                self.trials[number] = replace(
                    proposed, status=TrialStatus.RUNNING, started_at=began_at
                )
            case progress.TrialStepped(number=number, steps=steps):
                self.steps[number] = steps.first_step + len(steps.step_times_s)
            case progress.TrialRetried(number=number, attempt=attempt, failure=failure):
                self._print_line(
                    f"trial {number}: attempt {attempt} was lost ({failure.message}); retrying"
                )
            case progress.TrialEnded(trial=trial):
                started_at = self.trials.get(trial.number, trial).started_at
                ended_at = trial.ended_at or datetime.now(UTC)
                self.trials[trial.number] = replace(trial, started_at=started_at, ended_at=ended_at)
                self._print_line(trial_line(trial, self.palette))
                self._check_noise(trial)
            case progress.BestChanged(trial=trial) if self._result is None:
                self.best = trial.number
            case progress.Notice(message=message):
                self.message = message
                self._print_line(message)

    def show(self, document: Mapping[str, Any], result: Result) -> None:
        """Update the view with the document and the result so far of a study that runs
        elsewhere."""
        study = document["study"]
        self.trials = {trial.number: trial for trial in result.trials}
        self.noisy = noisy_line(document["too_noisy"]) if document.get("too_noisy") else ""
        self._result, self.best = result, result.best.number if result.best is not None else None
        self.phase, self.message = state_of(study), study["message"]
        self.began = time.monotonic() - study["elapsed_s"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the current view: summary, best config, message and title, then as many configs as
        the remaining lines hold.

        The view has one line less than the terminal, because a terminal can only erase lines that
        are still on its screen.
        """
        from rich.console import Group
        from rich.segment import SegmentLines
        from rich.text import Text

        self._update_result()
        workload = self.study.workload
        overflow = "ellipsis" if self.palette.unicode else "crop"
        at_hand = self.study.at_hand
        cluster_text = (
            workload.cluster.name
            if at_hand is None
            else f"{at_hand.name} for {workload.cluster.name}"
        )
        method = self.study.searcher if at_hand is None else "proxies"
        title = f"{self.study.name}: {workload.model.name} on {cluster_text} ({method})"
        texts = (
            (self._summary(), ""),
            (self._best_line(), "bold"),
            (self.noisy, "yellow"),
            (self.message, "dim"),
            (IN_FINALS if self._finals_ended() is not None else "", "dim"),
            (title, "italic"),
        )
        head = Group(
            *(
                Text(
                    "".join(c if c.isprintable() else " " for c in text),
                    style=style,
                    no_wrap=True,
                    overflow=overflow,  # type: ignore[arg-type]
                )
                for text, style in texts
                if text
            )
        )
        room = max(1, options.size.height - 1)
        lines = console.render_lines(head, options, pad=False)
        frame = len(console.render_lines(self._table(0), options, pad=False))
        if (rows := room - len(lines) - frame) > 0 and self.trials:
            lines += console.render_lines(self._table(rows), options, pad=False)
        yield SegmentLines(lines[:room], new_lines=True)

    def _table(self, rows: int) -> FittedTable:
        """Return a table of the last `rows` configs, which always includes the best config and
        running configs."""
        below = self._result.below if self._result else {}
        trials = [
            replace(t, reason=below.get(n, "")) if t.status is TrialStatus.COMPLETED else t
            for n, t in self.trials.copy().items()
        ]
        best = self.trials[self.best].config if self.best is not None else None

        def priority(row: ConfigRuns) -> tuple[bool, int]:
            runs = any(not t.status.is_terminal for t in row.runs)
            return runs or row.trial.config == best, row.trial.number

        shown = sorted(by_config(trials), key=priority)[-rows:] if rows else []
        return study_configs_table(
            sorted(shown, key=lambda row: row.trial.number),
            best=best,
            palette=self.palette,
            steps=self.steps,
        )

    def _summary(self) -> str:
        budget = self.study.budget
        searched = sum(t.purpose in ASKED and t.status.is_terminal for t in self.trials.values())
        finals = self._finals_ended()
        progress_text = f"{searched} of at most {number_of(budget.max_trials, _SEARCH_TRIAL)}"
        if finals is not None:
            least, longest = self._least_finals, longest_finals(self.study)
            total = f"{least} to {longest}" if finals <= least else f"up to {max(finals, longest)}"
            progress_text = f"{number_of(searched, _SEARCH_TRIAL)} + {finals} of {total} finals"
        if self.began is None:
            return f"{self.phase}   {progress_text}"
        elapsed = time.monotonic() - self.began
        left = max(0.0, budget.max_wall_s - elapsed)
        ended = sum(t.status.is_terminal for t in self.trials.values())
        if ended:
            runs_left = max(0, budget.max_trials - searched) if finals is None else 0
            if self.study.at_hand is None:
                runs_left += max(0, longest_finals(self.study) - (finals or 0))
            left = min(left, elapsed / ended * runs_left)
        spent, rest = (format_span(s) for s in (elapsed, left))
        return f"{self.phase}   {progress_text}   {spent} elapsed, at most {rest} left"

    def _finals_ended(self) -> int | None:
        """Return the number of ended final runs; None before the first final run began."""
        finals = [t for t in self.trials.values() if t.purpose is TrialPurpose.FINAL]
        if not finals:
            return None
        if not self._least_finals:
            listed = [trial for _, trial in sorted(self.trials.items())]
            expected = least_runs(self.study, first_finalists(listed, self.study))
            self._least_finals = min(expected, least_runs(self.study))
        return sum(t.status.is_terminal for t in finals)

    def _best_line(self) -> str:
        best = None if self.best is None else self.trials[self.best]
        if best is None or best.measured is None or self.noisy:
            return ""
        is_final = any(
            t.purpose is TrialPurpose.FINAL and t.config == best.config
            for t in self.trials.values()
        )
        speed = (RE_MEASURED if is_final else "") + format_count(best.measured.tokens_per_s)
        return f"best so far: trial {best.number} ({speed} tokens/s), {config_label(best.config)}"

    def _check_noise(self, ended: Trial) -> None:
        """Warn once if a run of the baseline shows that the machine is too noisy."""
        trials = list(self.trials.values())
        baseline = baseline_of(sorted(trials, key=lambda t: t.number))
        if baseline is None or ended.config != baseline.config:
            return
        noise = too_noisy(trials, baseline)
        self.noisy = noisy_line(noise.to_dict()) if noise is not None else ""
        if self.noisy and not self._has_warned:
            self._has_warned = True
            self._print_line(self.noisy)

    def _update_result(self) -> None:
        """Compute the best config again if trials ended since. This takes at most a twentieth of
        the time."""
        ended = sum(t.status.is_terminal for t in self.trials.copy().values())
        began_s = time.monotonic()
        if self._record is None or ended == self._num_ended or began_s < self._next_result_s:
            return
        self._result, self._num_ended = (
            result_from(self._record, self.trials.copy().values()),
            ended,
        )
        if self._result.best is not None:
            self.best = self._result.best.number
        self._next_result_s = time.monotonic() + RESULT_PAUSE_RATIO * (time.monotonic() - began_s)

    def _print_line(self, text: str) -> None:
        if self._live is None:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
