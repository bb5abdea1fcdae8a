"""The live view of a running study, on stderr: in a terminal a table that is redrawn, elsewhere one
line per event.

`LiveView` takes the loop's events (`autotune.study.progress`) of a study that runs in this process,
or the result so far of one that runs elsewhere.

A figure that was shown stays: a config's row has the figures of its first run. What finals add
shows in the number of runs, and figures that they measure again are marked. Pooled figures would
move with every final run, and be read as results each time. They come once, in the table at the
end.
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
    configs_of_study_table,
    format_count,
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


_SEARCHED = "search trial"
REDRAWS_PER_S = 4
JUDGING = 20.0
"""times as long as the result so far took to work out, it is kept"""
IN_FINALS = f"{RE_MEASURED} is being re-measured; its final figures come at the end"


class LiveView:
    """Shows a study while it runs. A context manager; the loop calls `on_event`."""

    def __init__(self, study: Study, *, console: Console | None = None) -> None:
        self.study = study
        self.console = console or consoles()[1]
        self.palette = Palette.of(sys.stderr)
        self.trials: dict[int, Trial] = {}
        self.steps: dict[int, int] = {}
        self.best: int | None = None
        self.noisy = ""
        """that the machine is too noisy to tell so far, and what to do; empty while it is not"""
        self._has_warned = False
        self._record: StudyRecord | None = None
        self._found: Result | None = None
        """what its trials come to, of which only the best one and the reasons are shown"""
        self._ended = 0
        """trials that had ended then"""
        self._judge_after_s = 0.0
        self._least_finals = 0
        """as announced, or fewer where fewer configs can be re-measured"""
        self.phase = "starting"
        self.message = ""
        self.began: float | None = None
        """when the study would have begun, had it been running without a break; None while it is
        being prepared, which its time does not include"""
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
        """Takes one event of the loop."""
        from autotune.study import progress

        match event:
            case progress.StudyOpened(record=record, past=past):
                self._record = replace(record, status=StudyStatus.RUNNING)
                self.trials = {trial.number: trial for trial in past}
                self.began = time.monotonic() - record.elapsed_s
                self._line(
                    f"study {record.id} ({record.study.name})"
                    + (f", continued after {number_of(len(past), 'run')}" if past else "")
                )
                if not past and (expected := expected_runs(record.study)):
                    # above the live table, where it stays
                    in_lines = self._live is None
                    self.console.print(expected, markup=False, highlight=False, soft_wrap=in_lines)
            case progress.PhaseEntered(phase=phase, message=message):
                self.phase, self.message = str(phase), message
                self._line(f"{phase}: {message}" if message else str(phase))
            case progress.TrialAsked(trial=trial):
                self.trials[trial.number] = trial
            case progress.TrialStarted(number=number):
                asked = self.trials[number]
                began_at = asked.started_at or datetime.now(UTC)
                self.trials[number] = replace(
                    asked, status=TrialStatus.RUNNING, started_at=began_at
                )
            case progress.TrialStepped(number=number, steps=steps):
                self.steps[number] = steps.first_step + len(steps.step_times_s)
            case progress.TrialRetried(number=number, attempt=attempt, failure=failure):
                self._line(
                    f"trial {number}: attempt {attempt} was lost ({failure.message}); retrying"
                )
            case progress.TrialEnded(trial=trial):
                started_at = self.trials.get(trial.number, trial).started_at
                ended_at = trial.ended_at or datetime.now(UTC)
                self.trials[trial.number] = replace(trial, started_at=started_at, ended_at=ended_at)
                self._line(trial_line(trial, self.palette))
                self._look_for_noise(trial)
            case progress.BestChanged(trial=trial) if self._found is None:
                self.best = trial.number
            case progress.Notice(message=message):
                self.message = message
                self._line(message)

    def show(self, document: Mapping[str, Any], found: Result) -> None:
        """Takes the state of a study that runs elsewhere: its document, and what its trials come
        to."""
        study = document["study"]
        self.trials = {trial.number: trial for trial in found.trials}
        self.noisy = noisy_line(document["too_noisy"]) if document.get("too_noisy") else ""
        self._found, self.best = found, found.best.number if found.best is not None else None
        self.phase, self.message = state_of(study), study["message"]
        self.began = time.monotonic() - study["elapsed_s"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The present view: summary, best config, message and title, then as many trials as there
        are lines left.

        It uses one line less than the terminal has, because a terminal can erase only what is still
        on its screen.
        """
        from rich.console import Group
        from rich.segment import SegmentLines
        from rich.text import Text

        self._judge()
        workload = self.study.workload
        overflow = "ellipsis" if self.palette.unicode else "crop"
        at_hand = self.study.at_hand
        place = (
            workload.cluster.name
            if at_hand is None
            else f"{at_hand.name} for {workload.cluster.name}"
        )
        how = self.study.searcher if at_hand is None else "proxies"
        title = f"{self.study.name}: {workload.model.name} on {place} ({how})"
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
        """A table of the last configs; the best one and those that run are always among them."""
        below = self._found.below if self._found else {}
        trials = [
            replace(t, reason=below.get(n, "")) if t.status is TrialStatus.COMPLETED else t
            for n, t in self.trials.copy().items()
        ]
        best = self.trials[self.best].config if self.best is not None else None

        def last(row: ConfigRuns) -> tuple[bool, int]:
            runs = any(not t.status.is_terminal for t in row.runs)
            return runs or row.trial.config == best, row.trial.number

        shown = sorted(by_config(trials), key=last)[-rows:] if rows else []
        return configs_of_study_table(
            sorted(shown, key=lambda row: row.trial.number),
            best=best,
            palette=self.palette,
            steps=self.steps,
        )

    def _summary(self) -> str:
        budget = self.study.budget
        searched = sum(t.purpose in ASKED and t.status.is_terminal for t in self.trials.values())
        finals = self._finals_ended()
        most = f"{searched} of at most {number_of(budget.max_trials, _SEARCHED)}"
        if finals is not None:
            least, longest = self._least_finals, longest_finals(self.study)
            of = f"{least} to {longest}" if finals <= least else f"up to {max(finals, longest)}"
            most = f"{number_of(searched, _SEARCHED)} + {finals} of {of} finals"
        if self.began is None:
            return f"{self.phase}   {most}"
        elapsed = time.monotonic() - self.began
        left = max(0.0, budget.max_wall_s - elapsed)
        ended = sum(t.status.is_terminal for t in self.trials.values())
        if ended:
            ahead = max(0, budget.max_trials - searched) if finals is None else 0
            if self.study.at_hand is None:
                ahead += max(0, longest_finals(self.study) - (finals or 0))
            left = min(left, elapsed / ended * ahead)
        spent, rest = (format_span(s) for s in (elapsed, left))
        return f"{self.phase}   {most}   {spent} elapsed, at most {rest} left"

    def _finals_ended(self) -> int | None:
        """Final runs that ended; None before the first one began."""
        finals = [t for t in self.trials.values() if t.purpose is TrialPurpose.FINAL]
        if not finals:
            return None
        if not self._least_finals:
            listed = [trial for _, trial in sorted(self.trials.items())]
            known = least_runs(self.study, first_finalists(listed, self.study))
            self._least_finals = min(known, least_runs(self.study))
        return sum(t.status.is_terminal for t in finals)

    def _best_line(self) -> str:
        best = None if self.best is None else self.trials[self.best]
        if best is None or best.measured is None or self.noisy:
            return ""
        again = any(
            t.purpose is TrialPurpose.FINAL and t.config == best.config
            for t in self.trials.values()
        )
        speed = (RE_MEASURED if again else "") + format_count(best.measured.tokens_per_s)
        return f"best so far: trial {best.number} ({speed} tokens/s), {config_label(best.config)}"

    def _look_for_noise(self, ended: Trial) -> None:
        """Says that the machine is too noisy once a run of the baseline shows it."""
        trials = list(self.trials.values())
        default = baseline_of(sorted(trials, key=lambda t: t.number))
        if default is None or ended.config != default.config:
            return
        found = too_noisy(trials, default)
        self.noisy = noisy_line(found.to_dict()) if found is not None else ""
        if self.noisy and not self._has_warned:
            self._has_warned = True
            self._line(self.noisy)

    def _judge(self) -> None:
        """Works out the best config where trials ended since; as often as takes a twentieth of the
        time."""
        ended = sum(t.status.is_terminal for t in self.trials.copy().values())
        began_s = time.monotonic()
        if self._record is None or ended == self._ended or began_s < self._judge_after_s:
            return
        self._found, self._ended = result_from(self._record, self.trials.copy().values()), ended
        if self._found.best is not None:
            self.best = self._found.best.number
        self._judge_after_s = time.monotonic() + JUDGING * (time.monotonic() - began_s)

    def _line(self, text: str) -> None:
        if self._live is None:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
