"""The live view of a running study, on stderr: in a terminal a table that is redrawn, elsewhere one line per event.

`LiveView` takes the loop's events (`autotune.study.progress`) of a study that runs in this process, or documents of one that runs elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autotune.cli.output import consoles
from autotune.cli.study_text import noisy_line, trial_line
from autotune.ports import StudyRecord
from autotune.report.table_layout import FittedTable
from autotune.report.terminal import (
    Palette,
    format_count,
    format_duration,
    trials_table,
)
from autotune.results.answers import result_from
from autotune.results.result import Result
from autotune.spec import Study, StudyStatus, Trial, TrialPurpose, TrialStatus, config_label
from autotune.study.controller.finals.finalists import expected_runs, least_runs, most_runs
from autotune.study.controller.finals.rounds import baseline_of
from autotune.study.controller.finals.too_noisy import too_noisy
from autotune.study.controller.trial_index import ASKED
from autotune.study.progress import LoopEvent

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


REDRAWS_PER_S = 4
JUDGING = 20.0
"""times as long as the figures took to work out, they are kept"""


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
        self._judged: tuple[int, Result] | None = None
        """what its trials come to, and how many had ended then"""
        self._judge_after_s = 0.0
        self.phase = "starting"
        self.message = ""
        self.began = time.monotonic()
        """when the study would have begun, had it been running without a break"""
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
                    + (f", continued after {len(past)} trials" if past else "")
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
                self.trials[number] = replace(self.trials[number], status=TrialStatus.RUNNING)
            case progress.TrialStepped(number=number, steps=steps):
                self.steps[number] = steps.first_step + len(steps.step_times_s)
            case progress.TrialRetried(number=number, attempt=attempt, failure=failure):
                self._line(
                    f"trial {number}: attempt {attempt} was lost ({failure.message}); retrying"
                )
            case progress.TrialEnded(trial=trial):
                self.trials[trial.number] = trial
                self._line(trial_line(trial, self.palette))
                self._look_for_noise(trial)
            case progress.BestChanged(trial=trial) if self._judged is None:
                self.best = trial.number
            case progress.Notice(message=message):
                self.message = message
                self._line(message)

    def show(self, document: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
        """Takes the state of a study that runs elsewhere, as documents of the public contract."""
        study, best = document["study"], document["best"]
        self.trials = {trial["number"]: Trial.from_dict(trial) for trial in trials}
        self.noisy = noisy_line(document["too_noisy"]) if document.get("too_noisy") else ""
        self.best = best["number"] if best and best["number"] in self.trials else None
        self.phase, self.message = study["status"].lower(), study["message"]
        self.began = time.monotonic() - study["elapsed_s"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The present view: summary, best config, message and title, then as many trials as there are lines left.

        It uses one line less than the terminal has, because a terminal can erase only what is still on its screen.
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
        """A table of the last trials; the best one is always among them."""
        figures = self._figures()
        trials = [figures.get(n, t) for n, t in sorted(self.trials.copy().items())]
        shown = trials[-rows:] if rows else []
        if self.best is not None and shown and all(t.number != self.best for t in shown):
            shown = [figures.get(self.best, self.trials[self.best]), *shown[1:]]
        running = [
            replace(t, reason=f"step {self.steps[t.number]}")
            if t.status is TrialStatus.RUNNING and t.number in self.steps
            else t
            for t in shown
        ]
        return trials_table(running, best=self.best, palette=self.palette, one_line=True)

    def _summary(self) -> str:
        budget = self.study.budget
        searched = sum(t.purpose in ASKED and t.status.is_terminal for t in self.trials.values())
        elapsed = time.monotonic() - self.began
        left = max(0.0, budget.max_wall_s - elapsed)
        ended = [t for t in self.trials.values() if t.status.is_terminal]
        if ended:
            # with late comers
            runs = 0 if self.study.at_hand is not None else 2 * most_runs(self.study)
            finals = runs - sum(t.purpose is TrialPurpose.FINAL for t in ended)
            ahead = max(0, budget.max_trials - searched) + finals
            left = min(left, elapsed / len(ended) * max(0, ahead))
        return (
            f"{self.phase}   {searched} of at most {budget.max_trials} trials{self._finals_done()}   {format_duration(elapsed)} elapsed, "
            f"at most {format_duration(left)} left"
        )

    def _finals_done(self) -> str:
        """` + 4 of 6 or more finals`, once they began."""
        done = sum(
            t.purpose is TrialPurpose.FINAL and t.status.is_terminal for t in self.trials.values()
        )
        return (
            f" + {done} of {max(done, least_runs(self.study))} finals"
            if self.phase == "finals"
            else ""
        )

    def _best_line(self) -> str:
        if self.best is None:
            return ""
        measured = self._figures().get(self.best, self.trials[self.best]).measurement
        if measured is None or self.noisy:
            return ""
        config = config_label(self.trials[self.best].config)
        return f"best {format_count(measured.tokens_per_s)} tokens/s: trial {self.best}, {config}"

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
        """Works out the figures of all configs and the best one where trials ended since; as often as takes a twentieth of the time."""
        ended = sum(t.status.is_terminal for t in self.trials.copy().values())
        began_s = time.monotonic()
        known = self._judged[0] if self._judged else 0
        if self._record is None or not ended or ended == known or began_s < self._judge_after_s:
            return
        result = result_from(self._record, self.trials.copy().values())
        self._judged = ended, result
        if result.best is not None:
            self.best = result.best.number
        self._judge_after_s = time.monotonic() + JUDGING * (time.monotonic() - began_s)

    def _figures(self) -> dict[int, Trial]:
        """Trials that were measured, with their configs' figures, by number."""
        return {t.number: t for t in self._judged[1].shown if t.is_measured} if self._judged else {}

    def _line(self, text: str) -> None:
        if self._live is None:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
