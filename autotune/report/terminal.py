"""Studies in the terminal: labels, sizes, times, tables and bars.

Tables are rich renderables. A `Palette` says which characters and colors the terminal can show, so
that a log file, a dumb terminal or an ASCII locale gets the same facts in plain characters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from autotune.report.notes import brief_note, notes_of, observations, short_note
from autotune.report.table_layout import Column, FittedTable, TableLayout
from autotune.results.without_baseline import why_unmeasured
from autotune.spec import ParallelConfig, Trial, TrialPurpose, TrialStatus, config_label
from autotune.spec.estimate import MemoryParts, TimeParts
from autotune.spec.texts.as_text import (
    UNKNOWN,
    bytes_cell,
    count_cell,
    duration_cell,
    format_mfu,
    format_span,
)
from autotune.spec.texts.as_text import format_bytes as format_bytes
from autotune.spec.texts.as_text import format_count as format_count
from autotune.spec.texts.as_text import format_duration as format_duration

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

PART_NAMES: Mapping[str, str] = {
    "compute": "compute",
    "tp_comm": "tp comm",
    "pp_comm": "pp comm",
    "dp_comm": "dp comm",
    "cp_comm": "cp comm",
    "ep_comm": "ep comm",
    "bubble": "bubble",
    "optimizer": "optimizer",
    "other": "other",
    "communication": "communication",
    "host": "host",
    "weights": "weights",
    "gradients": "gradients",
    "activations": "activations",
    "logits": "logits",
    "framework": "framework",
}
"""Display names of the parts of a step and of the memory peak."""
PART_COLORS: Mapping[str, str] = {
    "compute": "#4c78a8",
    "tp_comm": "#f58518",
    "pp_comm": "#eeca3b",
    "dp_comm": "#e45756",
    "cp_comm": "#b279a2",
    "ep_comm": "#ff9da6",
    "bubble": "#9d9da1",
    "optimizer": "#54a24b",
    "other": "#d2c4a5",
    "communication": "#b279a2",
    "host": "#9c755f",
    "weights": "#4c78a8",
    "gradients": "#e45756",
    "activations": "#f58518",
    "logits": "#eeca3b",
    "framework": "#9d9da1",
}
"""One color per part, the same in terminals and in the HTML report."""
STATUS_COLORS: Mapping[str, str] = {
    "COMPLETED": "green",
    "STOPPED": "cyan",
    "RUNNING": "yellow",
    "PENDING": "dim",
    "FAILED": "red",
    "CANCELLED": "dim",
    "INFEASIBLE": "magenta",
}

MEDIAN_STEP = "median step"
"""heading of measured step times. Slow steps lower tokens/s, which count all steps, but hardly
change the median"""
SPEEDS = (
    "Tokens/s count all steps and are corrected to the machine's speed at the start of the study, as measured by the baseline. "
    "Disturbed final runs are excluded."
)
"""caption of tables of trials with a measured baseline (`autotune.results.config_figures`)"""
AS_MEASURED = "Tokens/s count all steps and are as measured, because {why}; drift is not corrected, and no speedup is reported."
"""caption of tables of trials without a measured baseline; {why}: the reason"""
MIN_CONFIG = 24
"""minimum width of a config's column, characters: three or four knobs per line"""
RE_MEASURED = "~"
"""prefix of figures that final runs re-measure"""
MAX_NOTE, MIN_NOTE = 48, 24
"""largest and least width of a note, characters; in narrower terminals, a short form of the note is
in the status column"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """The characters that the terminal can show."""

    unicode: bool = True
    """whether block and arrow characters can be written"""

    @classmethod
    def of(cls, stream: TextIO) -> Palette:
        """Return the palette for a stream's encoding."""
        encoding = getattr(stream, "encoding", None) or "ascii"
        try:
            "█▏×→…".encode(encoding)
        except (UnicodeEncodeError, LookupError):
            return cls(unicode=False)
        return cls(unicode=True)

    @property
    def times(self) -> str:
        """Multiplication sign."""
        return "×" if self.unicode else "x"

    @property
    def best(self) -> str:
        """Mark of the best trial."""
        return "★" if self.unicode else "*"


UNICODE_PALETTE = Palette()
MIN_LEGEND_SHARE = 0.005
"""smallest share of a bar that its legend lists"""


def time_bar(
    parts: TimeParts | MemoryParts | Mapping[str, float],
    *,
    width: int = 40,
    palette: Palette = UNICODE_PALETTE,
) -> str:
    """Return a stacked bar of `width` characters, in which each part's length is proportional to
    its value.

    With Unicode, parts are blocks in rich markup; otherwise each part is drawn with its letter,
    without markup.
    """
    values = _positive_parts(parts)
    total = sum(values.values())
    if not total:
        return " " * width
    cells = _cells_by_part(values, width)
    if palette.unicode:
        return "".join(
            f"[{PART_COLORS.get(name, 'white')}]{'█' * cells[name]}[/]"
            for name in values
            if cells[name]
        )
    return "".join(_letter(name) * cells[name] for name in values)


def time_legend(
    parts: TimeParts | MemoryParts | Mapping[str, float], *, palette: Palette = UNICODE_PALETTE
) -> str:
    """Return a bar's legend, such as `compute 71%  bubble 12%  dp comm 9%`: the parts of at least
    `MIN_LEGEND_SHARE`, largest first."""
    values = _positive_parts(parts)
    total = sum(values.values())
    shown = sorted(
        ((v / total, n) for n, v in values.items() if v >= MIN_LEGEND_SHARE * total), reverse=True
    )
    words = []
    for share, name in shown:
        mark = (
            f"[{PART_COLORS.get(name, 'white')}]█[/] " if palette.unicode else f"{_letter(name)}="
        )
        words.append(f"{mark}{PART_NAMES.get(name, name)} {share:.0%}")
    return "  ".join(words)


def speeds_line(trials: Iterable[Trial], unmeasured: Trial | None = None) -> str:
    """Return the explanation of the speeds in a table of these trials. `unmeasured`: the baseline,
    if it could not be measured."""
    is_measured = any(t.purpose is TrialPurpose.BASELINE and t.is_measured for t in trials)
    return SPEEDS if is_measured else AS_MEASURED.format(why=why_unmeasured(unmeasured))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRuns:
    """All runs of one config in a study. Each reference and each proxy is a row of its own."""

    trial: Trial
    """the config's first run that is not a final run, which in `Result.shown` has the figures of
    all runs; with the failure of a later run, if any"""
    runs: tuple[Trial, ...]
    """ordered by number, with final runs last"""

    @property
    def spent_s(self) -> float:
        """Total duration of the runs, seconds."""
        return sum(
            (t.ended_at - t.started_at).total_seconds()
            for t in self.runs
            if t.started_at and t.ended_at
        )


def by_config(trials: Iterable[Trial]) -> list[ConfigRuns]:
    """Return one row per config, ordered by the number of its trial."""
    groups: dict[object, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: (t.purpose is TrialPurpose.FINAL, t.number)):
        is_separate = trial.purpose in (TrialPurpose.REFERENCE, TrialPurpose.PROXY)
        groups.setdefault((trial.config, trial.number if is_separate else None), []).append(trial)
    rows = []
    for group in groups.values():
        shown = next((t for t in group if t.is_measured), group[0])
        if (failed := next((t for t in group if t.failure is not None), None)) is not None:
            shown = replace(shown, status=failed.status, failure=failed.failure)
        rows.append(ConfigRuns(trial=shown, runs=tuple(group)))
    return sorted(rows, key=lambda row: row.trial.number)


def study_configs_table(
    rows: Sequence[ConfigRuns],
    *,
    best: ParallelConfig | None = None,
    unmeasured: Trial | None = None,
    palette: Palette = UNICODE_PALETTE,
    steps: Mapping[int, int] | None = None,
) -> FittedTable:
    """Return a table with one row per config: number of runs (n), status, predicted and measured
    tokens/s, step, memory, stability, time spent, and why it ended early.

    A narrow terminal merges status and note into one column, reduces spacing, and omits first
    predictions and then steps. Only then are configs shortened, and memory, time spent and
    stability omitted.

    `unmeasured`: the baseline, if it could not be measured. `steps`: for the live view of a running
    study, the number of steps so far by trial number. Rows then have one line and the table has no
    caption, because the view counts lines. Figures are those of each config's first run as
    measured, so that later runs do not change them; `RE_MEASURED` marks configs with final runs.
    """
    is_live = steps is not None
    shown = [row.trial for row in rows]
    notes = notes_of([trial for trial in shown if trial.status is not TrialStatus.COMPLETED])
    table = FittedTable(
        empty=lambda: plain_table(palette),
        columns=(
            Column(key="#", right=True),
            Column(key="config", min_width=MIN_CONFIG, cut=is_live),
            Column(key="n", right=True),
            Column(key="status"),
            Column(key="ended", heading="status"),
            Column(key="predicted", right=True),
            Column(key="speed", heading="first run" if is_live else "tokens/s", right=True),
            Column(key="step", heading=MEDIAN_STEP, right=True),
            *(Column(key=n, right=True) for n in ("memory", "stable", "spent")),
            Column(key="note", max_width=MAX_NOTE, min_width=MIN_NOTE),
        ),
        layouts=_LAYOUTS,
        ellipsis=palette.unicode,
        caption=None
        if is_live
        else "\n".join(
            (speeds_line(shown, unmeasured), *(safe(line, palette) for line in notes.shared))
        ),
    )
    chosen = next((row.trial for row in rows if _is_best(row.trial, best)), None)
    for row in rows:
        trial, wins = row.trial, _is_best(row.trial, best)
        note = notes.cells.get(trial.number, "")
        running = [t for t in row.runs if not t.status.is_terminal]
        status = _live_status(running[0], steps) if running and is_live else _status(trial.status)
        is_final = is_live and any(t.purpose is TrialPurpose.FINAL for t in row.runs)
        table.add_row(
            f"{trial.number}{palette.best if wins else ''}",
            config_label(trial.config) + (f" ({trial.purpose})" if _shows_purpose(trial) else ""),
            str(len(row.runs)),
            status,
            status if running and is_live else short_note(trial) or status,
            *_marked(measured_cells(trial), RE_MEASURED if is_final else ""),
            f"{trial.reward.stability:.2f}" if trial.reward else UNKNOWN,
            format_span(row.spent_s or None),
            safe(_row_note(trial, note, chosen, is_brief=is_live), palette),
            style="bold" if wins else "",
        )
    return table


_LAYOUTS = (
    TableLayout(hidden=frozenset({"ended"}), shorten=("note",)),
    *(
        TableLayout(
            hidden=frozenset({"status", "note", *hidden}), shorten=shorten, compact=bool(hidden)
        )
        for hidden, shorten in (
            ((), ()),
            (("predicted",), ()),
            (("predicted", "step"), ("config",)),
            (("predicted", "step", "memory"), ("config",)),
            (("predicted", "step", "memory", "spent"), ("config",)),
            (("predicted", "step", "memory", "spent", "stable"), ("config",)),
        )
    ),
)


def _is_best(trial: Trial, best: ParallelConfig | None) -> bool:
    return trial.config == best and trial.purpose is not TrialPurpose.REFERENCE


def _shows_purpose(trial: Trial) -> bool:
    """Return whether the trial's row states its purpose."""
    return trial.purpose in (TrialPurpose.BASELINE, TrialPurpose.REFERENCE, TrialPurpose.PROXY)


def _marked(cells: Sequence[str], mark: str) -> list[str]:
    """Return `measured_cells` with a mark before the speed and the step time."""
    predicted, speed, step, memory = cells
    return [predicted, mark + speed, mark + step, memory]


def measured_cells(trial: Trial) -> list[str]:
    """Return a trial's predicted and measured tokens/s, median step time and peak memory."""
    m, memory = trial.measured, trial.peak_memory_bytes
    return [
        count_cell(float(trial.estimate.tokens_per_s)) if trial.estimate else UNKNOWN,
        count_cell(m.tokens_per_s) if m else UNKNOWN,
        duration_cell(m.step_time_s) if m else UNKNOWN,
        bytes_cell(memory) if memory else UNKNOWN,
    ]


def _row_note(trial: Trial, note: str, best: Trial | None, *, is_brief: bool) -> str:
    """Return the note on a trial that ended early. For a completed trial, return why it is not the
    best despite its higher speed (the first part of its reason), and what limits its figures."""
    if trial.status is not TrialStatus.COMPLETED:
        return brief_note(trial, most=MAX_NOTE) if is_brief else note
    is_above = (
        best is not None
        and trial.measured
        and best.measured
        and trial.measured.tokens_per_s > best.measured.tokens_per_s
    )
    why_not_best = trial.reason.partition("; ")[0] if is_above else ""
    limits = observations(trial.measurement.remarks) if trial.measurement else []
    remarks = list(filter(None, (why_not_best, *limits)))
    return "; ".join(remarks[:1] if is_brief else remarks)


def plan_table(plan: Any, *, palette: Palette = UNICODE_PALETTE) -> FittedTable:
    """Return a table of ranked predictions, followed by the baseline if there is one. `plan`: a
    plan, whose `rows` have `rank`, `config` and `estimate`, or the rows themselves.

    A narrow terminal omits first the parts and then the step times, and then wraps configs between
    knobs. Gain, memory, risk and MFU always stay.
    """
    from rich.text import Text

    rows = getattr(plan, "rows", plan)
    baseline = getattr(plan, "baseline", None)
    shown = list(rows)
    baseline_tokens_per_s = (
        None
        if baseline is None or float(baseline.estimate.oom_probability) > 0.5
        else baseline.estimate.tokens_per_s
    )
    hidden = frozenset() if baseline_tokens_per_s else frozenset({"gain"})
    caption = Text()
    if shown:
        parts = time_legend(_shown_parts(shown[0].estimate), palette=palette)
        caption = Text.from_markup(f"step time of config {shown[0].rank}: {parts}")
    if baseline is not None and baseline_tokens_per_s is None:
        risk = float(baseline.estimate.oom_probability)
        caption.append(
            f"\nno gain is shown, because the baseline is not expected to fit (OOM risk {risk:.0%})"
        )
    caption.style = "table.caption"
    table = FittedTable(
        empty=lambda: plain_table(palette),
        columns=(
            Column(key="rank", right=True),
            Column(key="config", min_width=MIN_CONFIG, cut=False),
            *(
                Column(key=name, right=True)
                for name in ("tokens/s", "gain", "step", "MFU", "memory", "OOM risk")
            ),
            Column(key="step by parts"),
        ),
        layouts=(
            TableLayout(hidden=hidden),
            TableLayout(hidden=hidden | {"step by parts"}),
            TableLayout(hidden=hidden | {"step by parts", "step"}),
            TableLayout(hidden=hidden | {"step by parts", "step"}, shorten=("config",)),
        ),
        ellipsis=palette.unicode,
        caption=caption if shown else None,
    )
    for row in (*shown, *((baseline,) if baseline is not None else ())):
        estimate = row.estimate
        table.add_row(
            str(row.rank) if row is not baseline else "",
            config_label(row.config) + (" (baseline)" if row is baseline else ""),
            count_cell(float(estimate.tokens_per_s)),
            f"{float(estimate.tokens_per_s / baseline_tokens_per_s):.2f}x"
            if baseline_tokens_per_s
            else UNKNOWN,
            duration_cell(float(estimate.step_time_s)),
            format_mfu(float(estimate.mfu)),
            bytes_cell(float(estimate.peak_memory_bytes)),
            f"{float(estimate.oom_probability):.0%}",
            Text.from_markup(time_bar(_shown_parts(estimate), width=24, palette=palette)),
        )
    return table


def _shown_parts(estimate: Any) -> Any:
    """Return the parts that a step's bar shows: its phases if there are any, otherwise its
    causes."""
    return estimate.phases_s or estimate.time_parts_s


def plain_table(palette: Palette, title: str = "") -> Table:
    """Return an empty table in the common style: ASCII borders without Unicode, and tabs in a file
    or a pipe."""
    from rich import box  # rich takes a while to import, and most commands print no table

    from autotune.report.table_layout import TabTable

    return TabTable(
        title=title or None,
        box=box.SIMPLE_HEAD if palette.unicode else box.ASCII,
        caption_justify="left",
        title_justify="left",
        highlight=False,
        padding=(0, 1, 0, 0) if palette.unicode else (0, 1),
    )


def _live_status(trial: Trial, steps: Mapping[int, int] | None) -> Text:
    """Return the status of an unfinished run, with its number of steps so far."""
    status = _status(trial.status)
    if steps and trial.number in steps:
        status.plain = f"step {steps[trial.number]}"
    return status


def _status(status: TrialStatus) -> Text:
    from rich.text import Text

    return Text(status.lower(), style=STATUS_COLORS[status])


def safe(text: str, palette: Palette = UNICODE_PALETTE) -> str:
    """Return foreign text for a terminal: without control characters, and in ASCII if the palette
    lacks Unicode."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if palette.unicode else shown.encode("ascii", "replace").decode()


def _positive_parts(parts: TimeParts | MemoryParts | Mapping[str, float]) -> dict[str, float]:
    values = parts if isinstance(parts, Mapping) else parts.to_dict()
    return {n: float(v) for n, v in values.items() if math.isfinite(float(v)) and float(v) > 0}


def _cells_by_part(values: Mapping[str, float], width: int) -> dict[str, int]:
    """Return whole cells per part in proportion to the values. They add up to `width` (largest
    remainder method)."""
    total = sum(values.values())
    exact = {name: width * value / total for name, value in values.items()}
    cells = {name: int(value) for name, value in exact.items()}
    left = width - sum(cells.values())
    for name in sorted(exact, key=lambda n: exact[n] - cells[n], reverse=True)[:left]:
        cells[name] += 1
    return cells


_LETTERS = {
    "tp_comm": "T",
    "pp_comm": "P",
    "dp_comm": "D",
    "cp_comm": "X",
    "ep_comm": "E",
    "optimizer": "O",
    "other": ".",
    "refit": "S",
    "reward": "J",
}
"""letters of parts whose first letter is taken, for steps and for the phases of post-training (S:
sending weights, J: judging responses)"""


def _letter(name: str) -> str:
    return _LETTERS.get(name, name[:1].upper() or "?")
