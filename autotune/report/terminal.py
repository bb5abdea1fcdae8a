"""What the terminal shows of studies: labels, sizes, times, tables and bars.

Tables are rich renderables; a `Palette` says which signs and colours the terminal can show, so that a log file, a dumb terminal or an
ASCII locale gets the same facts in plain characters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from autotune.report.notes import brief_note, gist_of, notes_of
from autotune.report.table_layout import Column, FittedTable, Shortening
from autotune.spec import ParallelConfig, Trial, TrialPurpose, TrialStatus, config_label
from autotune.spec.estimate import MemoryParts, TimeParts
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
"""How people call the parts of a step and of the memory peak."""
PART_COLOURS: Mapping[str, str] = {
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
"""One colour per part, the same in terminals and in the HTML report."""
STATUS_COLOURS: Mapping[str, str] = {
    "COMPLETED": "green",
    "STOPPED": "cyan",
    "RUNNING": "yellow",
    "PENDING": "dim",
    "FAILED": "red",
    "CANCELLED": "dim",
    "INFEASIBLE": "magenta",
}

SPEEDS = (
    "Tokens/s are corrected for machine drift with the baseline and exclude disturbed final runs "
    "(lines of a running study show each run as measured). "
    "Step is the median step time."
)
"""under tables of trials: which figure a config has (`autotune.results.config_figures`)"""
AS_MEASURED = "Tokens/s are as measured: the baseline was not measured, so drift is not corrected. Step is the median step time."
"""the same where the baseline could not be measured"""
MIN_CONFIG = 24
"""columns that a config has at the least; three or four knobs to a line"""
MAX_NOTE, MIN_NOTE = 48, 24
"""columns of a note; with less room only its gist is shown"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Signs that the terminal can show."""

    unicode: bool = True
    """whether block and arrow characters can be written"""

    @classmethod
    def of(cls, stream: TextIO) -> Palette:
        """The palette of a stream, by its encoding."""
        encoding = getattr(stream, "encoding", None) or "ascii"
        try:
            "█▏×→…".encode(encoding)
        except (UnicodeEncodeError, LookupError):
            return cls(unicode=False)
        return cls(unicode=True)

    @property
    def times(self) -> str:
        """The sign of a factor."""
        return "×" if self.unicode else "x"

    @property
    def best(self) -> str:
        """The mark of the best trial."""
        return "★" if self.unicode else "*"

    @property
    def nothing(self) -> str:
        """What stands for a missing value."""
        return "–" if self.unicode else "-"


FULL = Palette()
LEAST_SHARE = 0.005
"""of a part that the legend of a bar names"""


def time_bar(
    parts: TimeParts | MemoryParts | Mapping[str, float],
    *,
    width: int = 40,
    palette: Palette = FULL,
) -> str:
    """A stacked bar of `width` characters with its legend: one letter (or block, in rich markup) per part, in proportion.

    With a plain palette a part is drawn by the first letter of its name and the text holds no markup.
    """
    values = _positive(parts)
    total = sum(values.values())
    if not total:
        return " " * width
    cells = _shares(values, width)
    if palette.unicode:
        bar = "".join(
            f"[{PART_COLOURS.get(name, 'white')}]{'█' * cells[name]}[/]"
            for name in values
            if cells[name]
        )
    else:
        bar = "".join(_letter(name) * cells[name] for name in values)
    return bar


def time_legend(
    parts: TimeParts | MemoryParts | Mapping[str, float], *, palette: Palette = FULL
) -> str:
    """`compute 71%  bubble 12%  dp comm 9%`: the parts of at least `LEAST_SHARE`, largest first."""
    values = _positive(parts)
    total = sum(values.values())
    shown = (
        sorted(
            ((v / total, n) for n, v in values.items() if v >= LEAST_SHARE * total), reverse=True
        )
        if total
        else []
    )
    words = []
    for share, name in shown:
        mark = (
            f"[{PART_COLOURS.get(name, 'white')}]█[/] " if palette.unicode else f"{_letter(name)}="
        )
        words.append(f"{mark}{PART_NAMES.get(name, name)} {share:.0%}")
    return "  ".join(words)


def speeds_line(trials: Sequence[Trial]) -> str:
    """What the speeds in a table of these trials are."""
    return (
        SPEEDS
        if any(t.purpose is TrialPurpose.BASELINE and t.is_measured for t in trials)
        else AS_MEASURED
    )


def by_config(trials: Iterable[Trial]) -> list[tuple[Trial, int, float]]:
    """One trial for each config, how often the config ran, and the seconds that took.

    The trial is the first one that is no final: in `Result.shown` it has the figure of all runs of its config. A later failure counts.
    """
    groups: dict[object, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: (t.purpose is TrialPurpose.FINAL, t.number)):
        alone = trial.purpose in (TrialPurpose.REFERENCE, TrialPurpose.PROXY)
        groups.setdefault((trial.config, trial.number if alone else None), []).append(trial)
    rows = []
    for group in groups.values():
        shown = next((t for t in group if t.is_measured), group[0])
        if (failed := next((t for t in group if t.failure is not None), None)) is not None:
            shown = replace(shown, status=failed.status, failure=failed.failure)
        rows.append((shown, len(group), spent_s(group)))
    return sorted(rows, key=lambda row: row[0].number)


def configs_of_study_table(
    trials: Iterable[Trial], *, best: ParallelConfig | None = None, palette: Palette = FULL
) -> FittedTable:
    """One row per config: runs, status, predicted and measured tokens/s, step, memory, stability, time spent, and why it ended early.

    A narrow terminal leaves out notes first, then predictions, times spent, steps, and stability last.
    """
    rows = by_config(trials)
    notes = notes_of([trial for trial, _, _ in rows if trial.status is not TrialStatus.COMPLETED])
    dropped = ("note", "predicted", "spent", "gist", "step", "stability")
    table = FittedTable(
        empty=lambda: plain_table(palette),
        columns=(
            Column(key="#", right=True),
            Column(key="config", least=MIN_CONFIG, cut=False),
            Column(key="runs", right=True),
            Column(key="status"),
            *(
                Column(key=n, right=True)
                for n in ("predicted", "measured", "step", "memory", "stability", "spent")
            ),
            Column(key="note", most=MAX_NOTE, least=MIN_NOTE),
            Column(key="gist", heading="note"),
        ),
        stages=(
            Shortening(without=frozenset({"gist"}), shorten=("note",)),
            *(Shortening(without=frozenset(dropped[:n])) for n in range(1, len(dropped))),
            Shortening(without=frozenset(dropped), shorten=("config",)),
        ),
        ellipsis=palette.unicode,
        caption="\n".join(
            (speeds_line([t for t, _, _ in rows]), *(safe(line, palette) for line in notes.shared))
        ),
    )
    chosen = next(
        (t for t, _, _ in rows if t.config == best and t.purpose is not TrialPurpose.REFERENCE),
        None,
    )
    for trial, runs, spent in rows:
        wins = (
            best is not None
            and trial.config == best
            and trial.purpose is not TrialPurpose.REFERENCE
        )
        named = trial.purpose in (TrialPurpose.BASELINE, TrialPurpose.REFERENCE, TrialPurpose.PROXY)
        table.add_row(
            f"{trial.number}{palette.best if wins else ''}",
            config_label(trial.config) + (f" ({trial.purpose})" if named else ""),
            str(runs),
            _status(trial.status),
            *measured_cells(trial, palette.nothing),
            f"{trial.reward.stability:.2f}" if trial.reward else palette.nothing,
            format_duration(spent) if spent else palette.nothing,
            safe(_row_note(trial, notes.cells.get(trial.number, ""), chosen), palette),
            safe(gist_of(trial), palette),
            style="bold" if wins else "",
        )
    return table


def measured_cells(trial: Trial, nothing: str) -> list[str]:
    """Predicted and measured tokens per second, step time and peak memory; `nothing` where one is not known."""
    m, memory = trial.measured, trial.peak_memory_bytes
    return [
        format_count(float(trial.estimate.tokens_per_s)) if trial.estimate else nothing,
        format_count(m.tokens_per_s) if m else nothing,
        format_duration(m.step_time_s) if m else nothing,
        format_bytes(memory) if memory else nothing,
    ]


def spent_s(trials: Iterable[Trial]) -> float:
    """Seconds that these trials took."""
    return sum(
        (t.ended_at - t.started_at).total_seconds() for t in trials if t.started_at and t.ended_at
    )


def _row_note(trial: Trial, note: str, best: Trial | None) -> str:
    """The note of a trial that did not run to its end; of one that did, why it is not the best where it has the higher figure, which its reason says first."""
    if trial.status is not TrialStatus.COMPLETED:
        return note
    is_above = (
        best is not None
        and trial.measured
        and best.measured
        and trial.measured.tokens_per_s > best.measured.tokens_per_s
    )
    return trial.reason.partition("; ")[0] if is_above else ""


def trials_table(
    trials: Iterable[Trial],
    *,
    best: int | None = None,
    palette: Palette = FULL,
    one_line: bool = False,
) -> FittedTable:
    """One row per trial: config, status, predicted and measured tokens per second, step time, memory, why.

    A narrow terminal shows the first words of the notes, or none, then no predictions, then no step times. Notes that many rows share are written
    once, under the table. With `one_line` a long config is cut short rather than wrapped, notes are brief, and nothing is written under the table: the
    view of a running study counts lines.
    """
    shown = list(trials)
    notes = notes_of(shown)
    cells = {t.number: brief_note(t, most=MAX_NOTE) for t in shown} if one_line else notes.cells
    table = FittedTable(
        empty=lambda: plain_table(palette),
        columns=(
            Column(key="#", right=True),
            Column(key="config", least=MIN_CONFIG, cut=one_line),
            Column(key="status"),
            *(Column(key=name, right=True) for name in ("predicted", "measured", "step", "memory")),
            Column(key="note", most=MAX_NOTE, least=MIN_NOTE),
            Column(key="gist", heading="note"),
        ),
        stages=(
            Shortening(without=frozenset({"gist"}), shorten=("note",)),
            Shortening(without=frozenset({"note"})),
            Shortening(without=frozenset({"note", "predicted"})),
            Shortening(
                without=frozenset({"note", "predicted", "step"}),
                shorten=() if one_line else ("config",),
            ),
            Shortening(
                without=frozenset({"note", "predicted", "step", "gist"}), shorten=("config",)
            ),
        ),
        ellipsis=palette.unicode,
        caption=None
        if one_line
        else "\n".join((speeds_line(shown), *(safe(line, palette) for line in notes.shared))),
    )
    for trial in shown:
        number = f"{trial.number}{palette.best if trial.number == best else ''}"
        label = config_label(trial.config)
        if trial.purpose is not TrialPurpose.SEARCH:
            label += f" ({trial.purpose})"
        table.add_row(
            number,
            label,
            _status(trial.status),
            *measured_cells(trial, palette.nothing),
            safe(cells[trial.number], palette),
            safe(gist_of(trial), palette),
            style="bold" if trial.number == best else "",
        )
    return table


def plan_table(plan: Any, *, top: int | None = None, palette: Palette = FULL) -> FittedTable:
    """The ranked rows of a plan: anything with `rows` of `rank`, `config` and `estimate`, or the rows themselves; last its baseline, if it has one.

    A narrow terminal shows no parts, then no step times; then configs are wrapped between their words. Gain, memory, risk and MFU stay.
    """
    from rich.text import Text

    rows = getattr(plan, "rows", plan)
    baseline = getattr(plan, "baseline", None)
    shown = list(rows)[:top]
    base = (
        None
        if baseline is None or float(baseline.estimate.oom_probability) > 0.5
        else baseline.estimate.tokens_per_s
    )
    without = frozenset() if base else frozenset({"gain"})
    table = FittedTable(
        empty=lambda: plain_table(palette),
        columns=(
            Column(key="rank", right=True),
            Column(key="config", least=MIN_CONFIG, cut=False),
            *(
                Column(key=name, right=True)
                for name in ("tokens/s", "gain", "step", "MFU", "memory", "OOM risk")
            ),
            Column(key="step by parts"),
        ),
        stages=(
            Shortening(without=without),
            Shortening(without=without | {"step by parts"}),
            Shortening(without=without | {"step by parts", "step"}),
            Shortening(without=without | {"step by parts", "step"}, shorten=("config",)),
        ),
        ellipsis=palette.unicode,
        caption=Text.from_markup(
            time_legend(_shown_parts(shown[0].estimate), palette=palette), style="table.caption"
        )
        if shown
        else None,
    )
    for row in (*shown, *((baseline,) if baseline is not None else ())):
        estimate = row.estimate
        table.add_row(
            str(row.rank) if row is not baseline else "",
            config_label(row.config) + (" (baseline)" if row is baseline else ""),
            format_count(float(estimate.tokens_per_s)),
            f"{float(estimate.tokens_per_s / base):.2f}x" if base else palette.nothing,
            format_duration(float(estimate.step_time_s)),
            f"{float(estimate.mfu):.1%}",
            format_bytes(float(estimate.peak_memory_bytes)),
            f"{float(estimate.oom_probability):.0%}",
            Text.from_markup(time_bar(_shown_parts(estimate), width=24, palette=palette)),
        )
    return table


def _shown_parts(estimate: Any) -> Any:
    """What a bar shows of a step: its phases where it has some, else its causes."""
    return estimate.phases_s or estimate.time_parts_s


def plain_table(palette: Palette, title: str = "") -> Table:
    """An empty table in the manner of all of them; ASCII borders with a plain palette, tabs in a file or a pipe."""
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


def _status(status: TrialStatus) -> Text:
    from rich.text import Text

    return Text(status.lower(), style=STATUS_COLOURS[status])


def safe(text: str, palette: Palette = FULL) -> str:
    """Foreign text for a terminal: no control characters, and ASCII with a plain palette."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if palette.unicode else shown.encode("ascii", "replace").decode()


def _positive(parts: TimeParts | MemoryParts | Mapping[str, float]) -> dict[str, float]:
    values = parts if isinstance(parts, Mapping) else parts.to_dict()
    return {n: float(v) for n, v in values.items() if math.isfinite(float(v)) and float(v) > 0}


def _shares(values: Mapping[str, float], width: int) -> dict[str, int]:
    """Whole cells in proportion that add up to `width` (largest remainder)."""
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
"""of parts whose first letter another part has: of a step, and of the phases of post-training (the weights are sent, the responses judged)"""


def _letter(name: str) -> str:
    return _LETTERS.get(name, name[:1].upper() or "?")
