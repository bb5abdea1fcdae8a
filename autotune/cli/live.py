"""The view of a running study: a table that redraws itself in a terminal, one line per event elsewhere. Both go to stderr.

`LiveView` hears the loop's events (`autotune.study.progress`), or is shown a study that runs elsewhere; `print_study`, `configs_table` and `history_line` show the same facts from documents, so
that a study looks the same whether it runs here, ran yesterday, or runs on a service.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autotune.cli.output import consoles
from autotune.report.table_layout import Column, FittedTable, Shortening
from autotune.report.terminal import (
    MIN_CONFIG,
    Palette,
    config_label,
    format_bytes,
    format_count,
    format_duration,
    note_of,
    safe,
    trials_table,
)
from autotune.spec import ParallelConfig, Study, StudyStatus, Trial, TrialPurpose, TrialStatus

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

    from autotune.study.progress import LoopEvent

REDRAWS_PER_S = 4
CONFIGS_GIVE = ("stability", "step", "memory", "reward")
"""columns that a narrow terminal does not show of measured configs, in that order"""


class LiveView:
    """Shows a study while it runs. A context manager; `on_event` is what the loop calls."""

    def __init__(self, study: Study, *, console: Console | None = None) -> None:
        self.study = study
        self.console = console or consoles()[1]
        self.palette = Palette.of(sys.stderr)
        self.trials: dict[int, Trial] = {}
        self.steps: dict[int, int] = {}
        self.best: int | None = None
        self.phase = "starting"
        self.message = ""
        self.began = time.monotonic()
        self._live: Any = None

    def __enter__(self) -> LiveView:
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(
                get_renderable=lambda: self, console=self.console, refresh_per_second=REDRAWS_PER_S, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_event(self, event: LoopEvent) -> None:
        """Takes one event of the loop."""
        from autotune.study import progress

        match event:
            case progress.StudyOpened(record=record, past=past):
                self.trials = {trial.number: trial for trial in past}
                self._line(
                    f"study {record.id} ({record.study.name})"
                    + (f", going on after {len(past)} trials" if past else "")
                )
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
                self._line(f"trial {number}: attempt {attempt} was lost ({failure.message}); trying again")
            case progress.TrialEnded(trial=trial):
                self.trials[trial.number] = trial
                self._line(trial_line(trial, self.palette))
            case progress.BestChanged(trial=trial):
                self.best = trial.number
            case progress.Notice(message=message):
                self.message = message
                self._line(message)

    def show(self, document: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
        """Takes the state of a study that runs elsewhere, as documents."""
        study, best = document["study"], document["best"]
        self.trials = {trial["number"]: Trial.from_dict(trial) for trial in trials}
        self.best = best["number"] if best and best["number"] in self.trials else None
        self.phase, self.message = study["status"].lower(), study["message"]
        self.began = time.monotonic() - study["elapsed_s"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What the terminal shows now: what matters first, then as many trials as there are lines for.

        A terminal can only erase what is still on its screen, so one line fewer than it has is used.
        """
        from rich.console import Group
        from rich.segment import SegmentLines
        from rich.text import Text

        workload = self.study.workload
        overflow = "ellipsis" if self.palette.unicode else "crop"
        title = f"{self.study.name}: {workload.model.name} on {workload.cluster.name} ({self.study.searcher})"
        texts = ((self._summary(), ""), (self._best_line(), "bold"), (self.message, "dim"), (title, "italic"))
        head = Group(
            *(
                Text("".join(c if c.isprintable() else " " for c in text), style=style, no_wrap=True, overflow=overflow)  # type: ignore[arg-type]
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
        """The last trials, of which the best is always one."""
        trials = sorted(self.trials.values(), key=lambda t: t.number)
        shown = trials[-rows:] if rows else []
        if self.best is not None and shown and all(t.number != self.best for t in shown):
            shown = [self.trials[self.best], *shown[1:]]
        running = [
            replace(t, reason=f"step {self.steps[t.number]}")
            if t.status is TrialStatus.RUNNING and t.number in self.steps
            else t
            for t in shown
        ]
        return trials_table(running, best=self.best, palette=self.palette, one_line=True)

    def _summary(self) -> str:
        budget = self.study.budget
        searched = sum(t.purpose is TrialPurpose.SEARCH and t.status.is_terminal for t in self.trials.values())
        elapsed = time.monotonic() - self.began
        left = max(0.0, budget.max_wall_s - elapsed)
        ended = [t for t in self.trials.values() if t.status.is_terminal]
        if ended:
            finals = (self.study.measure.finalists + 1) * self.study.measure.final_rounds
            ahead = max(0, budget.max_trials - searched) + finals - sum(t.purpose is TrialPurpose.FINAL for t in ended)
            left = min(left, elapsed / len(ended) * max(0, ahead))
        return (
            f"{self.phase}   {searched} of at most {budget.max_trials} trials   {format_duration(elapsed)} gone, "
            f"at most {format_duration(left)} left"
        )

    def _best_line(self) -> str:
        if self.best is None or (measured := self.trials[self.best].measurement) is None:
            return ""
        config = config_label(self.trials[self.best].config)
        return f"best {format_count(measured.tokens_per_s)} tokens/s: trial {self.best}, {config}"

    def _line(self, text: str) -> None:
        if self._live is None:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def trial_line(trial: Trial, palette: Palette) -> str:
    """A trial that ended, in one line."""
    label = f"trial {trial.number} {config_label(trial.config)}: {trial.status.lower()}"
    if trial.is_measured and trial.measurement is not None:
        m = trial.measurement
        predicted = f" (predicted {format_count(float(trial.estimate.tokens_per_s))})" if trial.estimate else ""
        label += f", {format_count(m.tokens_per_s)} tokens/s{predicted}, {format_bytes(m.peak_memory_bytes)}"
    remark = note_of(trial)
    return f"{label}; {remark}" if remark else label


def print_study(document: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], *, why: Sequence[str] = ()) -> None:
    """A study with its trials, its winner and `why` it won, and the next commands, on stdout."""
    out, err = consoles()
    palette = Palette.of(sys.stdout)
    study, best = document["study"], document["best"]
    rows = [Trial.from_dict(dict(t)) for t in trials]
    if rows:
        out.print(trials_table(rows, best=best["number"] if best else None, palette=palette))
    out.print(
        f"study {study['id']} ({study['name']}): {study['status']}"
        + (f", {study['message']}" if study["message"] else ""),
        markup=False,
    )
    out.print(trials_line(rows) if rows else f"trials: {sum(study['trials'].values()) or 'none'}")
    failures = [t for t in rows if t.status is TrialStatus.FAILED]
    if failures:
        kinds: dict[str, int] = {}
        for t in failures:
            kinds[str(t.failure.kind) if t.failure else "ERROR"] = (
                kinds.get(str(t.failure.kind) if t.failure else "ERROR", 0) + 1
            )
        out.print(
            "failed: " + ", ".join(f"{n} {kind}" for kind, n in kinds.items()) + f" (autotune logs {study['id']} TRIAL)"
        )
    if best:
        config = ParallelConfig.from_dict(best["config"])
        out.print(f"best: {config}", soft_wrap=True)
        if line := speedup_line(document):
            out.print(line)
        for sentence in (*why, *(document.get("notes") or ())):
            out.print(f"  {sentence}", markup=False)
        err.print(
            f"next: autotune explain {study['id']}\n      autotune report {study['id']} -o report.html\n"
            f"      {export_command(study['id'], document.get('exports') or ())}",
            soft_wrap=True,
        )


def export_command(study_id: str, trainers: Sequence[str]) -> str:
    """The command that hands the best config to the first of the trainers that can express it."""
    return f"autotune export {study_id} --to {trainers[0] if trainers else 'native'} -o launch/"


_PURPOSES: Mapping[TrialPurpose, tuple[str, str]] = {
    TrialPurpose.SEARCH: ("{} searched", "{} searched"),
    TrialPurpose.BASELINE: ("the default config", "{} runs of the default config"),
    TrialPurpose.REFERENCE: ("an fp32 reference", "{} fp32 references"),
    TrialPurpose.FINAL: ("{} final measurement", "{} final measurements"),
}
"""what the trials of a purpose are called: one of them, several"""
_STATUSES: Mapping[TrialStatus, str] = {
    TrialStatus.COMPLETED: "completed",
    TrialStatus.STOPPED: "ended early because they could not win",
    TrialStatus.FAILED: "failed",
    TrialStatus.CANCELLED: "cancelled",
    TrialStatus.INFEASIBLE: "infeasible",
    TrialStatus.RUNNING: "running",
    TrialStatus.PENDING: "waiting",
}


def trials_line(trials: Sequence[Trial]) -> str:
    """`trials: 14 searched, the default config, 6 final measurements (19 completed, 2 failed)`: only searched ones count in the budget."""
    purposes = Counter(t.purpose for t in trials)
    statuses = Counter(t.status for t in trials)
    kinds = [words[n > 1].format(n) for purpose, words in _PURPOSES.items() if (n := purposes[purpose])]
    ends = [f"{n} {words}" for status, words in _STATUSES.items() if (n := statuses[status])]
    return f"trials: {', '.join(kinds)} ({', '.join(ends)})"


def speedup_line(document: Mapping[str, Any]) -> str:
    """How the best config of a study compares with the default one, and how surely; empty where there is nothing to compare.

    `document` is the JSON contract {study, best, baseline, speedup, final_rounds, ...}.
    """
    study, best, baseline = document.get("study"), document.get("best"), document.get("baseline")
    if not study or not best or not baseline:
        return ""
    ended = StudyStatus(study["status"]).is_terminal
    if best["config"] == baseline["config"]:
        return "nothing beats the default config" + ("" if ended else " so far")
    if not document.get("speedup"):
        return ""
    if document.get("final_rounds"):
        how = ", both measured again in turn"
    else:
        how = " (each measured once)" if ended else " (not yet measured again)"
    return f"{document['speedup']:.2f}x the tokens/s of the default config{how}"


def configs_table(configs: Sequence[Mapping[str, Any]], *, study: Mapping[str, Any] | None) -> FittedTable:
    """Measured configs, best first. Rows are trials, or {study, best} across history."""
    across = bool(configs) and "best" in configs[0]
    palette = Palette.of(sys.stdout)
    table = FittedTable(
        empty=bare_table,
        columns=(
            Column(key="rank", heading="#" if across else "rank", right=True),
            Column(key="config", least=MIN_CONFIG, cut=False),
            *(Column(key=n, right=True) for n in ("GPUs", "tokens/s", "step", "memory", "stability", "reward")),
            *(Column(key=n) for n in (("model", "cluster", "runner", "study") if across else ())),
        ),
        stages=(
            *(Shortening(without=frozenset(CONFIGS_GIVE[:n])) for n in range(len(CONFIGS_GIVE))),
            Shortening(without=frozenset(CONFIGS_GIVE), shorten=("config",)),
        ),
        ellipsis=palette.unicode,
    )
    for rank, row in enumerate(configs, start=1):
        trial = row["best"] if across else row
        m, r = trial["measurement"] or {}, trial["reward"] or {}
        config = ParallelConfig.from_dict(trial["config"])
        of = row["study"] if across else {}
        table.add_row(
            str(rank),
            config_label(config),
            f"{config.world_size:,}",
            format_count(m.get("tokens_per_s")),
            format_duration(m.get("step_time_s")),
            format_bytes(m.get("peak_memory_bytes")),
            f"{r['stability']:.2f}" if r else "-",
            f"{r['total']:+.3f}" if r else "-",
            *(safe(str(of[name]), palette) for name in (("model", "cluster", "runner", "id") if across else ())),
        )
    return table


def bare_table() -> Table:
    """An empty table without lines."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def history_line(event: Mapping[str, Any]) -> str:
    """An event of a study's history in one line; nothing for those that only machines need."""
    kind, data = event["kind"], event["data"]
    if kind.startswith("trial."):
        number = data.get("number")
        words = [f"trial {number} {kind.removeprefix('trial.')}"]
        if config := data.get("config"):
            words.append(str(config) if isinstance(config, str) else config_label(ParallelConfig.from_dict(config)))
        words += [str(data[name]) for name in ("status", "kind", "message", "reason") if data.get(name)]
        return ": ".join([words[0], ", ".join(words[1:])]) if len(words) > 1 else words[0]
    if kind == "attempt.ended":
        failure = data.get("failure") or {}
        why = ": ".join(str(failure[name]) for name in ("kind", "message") if failure.get(name))
        return f"trial {data.get('number')}: attempt {data.get('attempt')} ended" + (f": {why}" if why else "")
    if kind.startswith("study."):
        message = data.get("message") or data.get("status") or ""
        return f"study {kind.removeprefix('study.')}" + (f": {message}" if message else "")
    return ""
