"""What the terminal shows of studies: labels, sizes, times, tables and bars.

Tables are rich renderables; a `Palette` says which signs and colors the terminal can show, so that
a log file, a dumb terminal or an ASCII locale gets the same facts in plain characters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TextIO

from autotune.report.notes import brief_note, gist_of, gists, notes_of
from autotune.report.table_layout import Column, FittedTable, Shortening
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
"""How people call the parts of a step and of the memory peak."""
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
"""heading of measured step times; slow steps lower tokens/s, which count all steps, but hardly
change the median"""
SPEEDS = (
    "Tokens/s count all steps and are corrected to the machine's speed at the start of the study, as measured by the baseline. "
    "Disturbed final runs are excluded."
)
"""under tables of trials: which figure a config has (`autotune.results.config_figures`)"""
AS_MEASURED = "Tokens/s count all steps and are as measured, because {why}; drift is not corrected, and no speedup is reported."
"""the same where the baseline could not be measured, and why"""
MIN_CONFIG = 24
"""columns that a config has at the least; three or four knobs to a line"""
RE_MEASURED = "~"
"""before figures of a config that the finals measure again"""
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


FULL = Palette()
LEAST_SHARE = 0.005
"""of a part that the legend of a bar names"""


def time_bar(
    parts: TimeParts | MemoryParts | Mapping[str, float],
    *,
    width: int = 40,
    palette: Palette = FULL,
) -> str:
    """A stacked bar of `width` characters with its legend: one letter (or block, in rich markup)
    per part, in proportion.

    With a plain palette a part is drawn by the first letter of its name and the text holds no
    markup.
    """
    values = _positive(parts)
    total = sum(values.values())
    if not total:
        return " " * width
    cells = _shares(values, width)
    if palette.unicode:
        bar = "".join(
            f"[{PART_COLORS.get(name, 'white')}]{'█' * cells[name]}[/]"
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
            f"[{PART_COLORS.get(name, 'white')}]█[/] " if palette.unicode else f"{_letter(name)}="
        )
        words.append(f"{mark}{PART_NAMES.get(name, name)} {share:.0%}")
    return "  ".join(words)


def speeds_line(trials: Iterable[Trial], unmeasured: Trial | None = None) -> str:
    """What the speeds in a table of these trials are. `unmeasured`: the baseline, where it could
    not be measured."""
    is_measured = any(t.purpose is TrialPurpose.BASELINE and t.is_measured for t in trials)
    return SPEEDS if is_measured else AS_MEASURED.format(why=why_unmeasured(unmeasured))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRuns:
    """All runs of a config in a study; each reference and each proxy is by itself."""

    trial: Trial
    """the first one that is no final: in `Result.shown` it has the figure of all runs. A later
    failure counts"""
    runs: tuple[Trial, ...]
    """by number, the finals last"""

    @property
    def spent_s(self) -> float:
        """Seconds that they took."""
        return sum(
            (t.ended_at - t.started_at).total_seconds()
            for t in self.runs
            if t.started_at and t.ended_at
        )


def by_config(trials: Iterable[Trial]) -> list[ConfigRuns]:
    """One row for each config, by the number of its trial."""
    groups: dict[object, list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: (t.purpose is TrialPurpose.FINAL, t.number)):
        alone = trial.purpose in (TrialPurpose.REFERENCE, TrialPurpose.PROXY)
        groups.setdefault((trial.config, trial.number if alone else None), []).append(trial)
    rows = []
    for group in groups.values():
        shown = next((t for t in group if t.is_measured), group[0])
        if (failed := next((t for t in group if t.failure is not None), None)) is not None:
            shown = replace(shown, status=failed.status, failure=failed.failure)
        rows.append(ConfigRuns(trial=shown, runs=tuple(group)))
    return sorted(rows, key=lambda row: row.trial.number)


def configs_of_study_table(
    rows: Sequence[ConfigRuns],
    *,
    best: ParallelConfig | None = None,
    unmeasured: Trial | None = None,
    palette: Palette = FULL,
    steps: Mapping[int, int] | None = None,
) -> FittedTable:
    """One row per config: its runs (n), status, predicted and measured tokens/s, step, memory,
    stability, time spent, and why it ended early.

    A narrow terminal has one column for status and note, sets columns closer, and leaves out
    predictions, then steps. Only then configs are shortened, and memory, time spent and stability
    left out.

    `unmeasured`: the baseline, where it could not be measured. `steps`: the study runs, and these
    of its trials have taken so many steps. Then rows have one line and nothing is written under the
    table, because the view counts lines. Figures are those of each config's first run, as measured,
    so that no later run moves them. Finals have `RE_MEASURED` before theirs.
    """
    is_live = steps is not None
    shown = [row.trial for row in rows]
    notes = notes_of([trial for trial in shown if trial.status is not TrialStatus.COMPLETED])
    table = FittedTable(
        empty=lambda: plain_table(palette),
        columns=(
            Column(key="#", right=True),
            Column(key="config", least=MIN_CONFIG, cut=is_live),
            Column(key="n", right=True),
            Column(key="status"),
            Column(key="ended", heading="status"),
            Column(key="predicted", right=True),
            Column(key="speed", heading="first run" if is_live else "tokens/s", right=True),
            Column(key="step", heading=MEDIAN_STEP, right=True),
            *(Column(key=n, right=True) for n in ("memory", "stable", "spent")),
            Column(key="note", most=MAX_NOTE, least=MIN_NOTE),
        ),
        stages=_STAGES,
        ellipsis=palette.unicode,
        caption=None
        if is_live
        else "\n".join(
            (speeds_line(shown, unmeasured), *(safe(line, palette) for line in notes.shared))
        ),
    )
    chosen = next((row.trial for row in rows if _wins(row.trial, best)), None)
    for row in rows:
        trial, wins = row.trial, _wins(row.trial, best)
        note = notes.cells.get(trial.number, "")
        running = [t for t in row.runs if not t.status.is_terminal]
        status = _status_now(running[0], steps) if running and is_live else _status(trial.status)
        is_final = is_live and any(t.purpose is TrialPurpose.FINAL for t in row.runs)
        table.add_row(
            f"{trial.number}{palette.best if wins else ''}",
            config_label(trial.config) + (f" ({trial.purpose})" if _is_named(trial) else ""),
            str(len(row.runs)),
            status,
            status if running and is_live else gist_of(trial) or status,
            *_marked(measured_cells(trial), RE_MEASURED if is_final else ""),
            f"{trial.reward.stability:.2f}" if trial.reward else UNKNOWN,
            format_span(row.spent_s or None),
            safe(_row_note(trial, note, chosen, is_brief=is_live), palette),
            style="bold" if wins else "",
        )
    return table


_STAGES = (
    Shortening(without=frozenset({"ended"}), shorten=("note",)),
    *(
        Shortening(
            without=frozenset({"status", "note", *without}), shorten=shorten, close=bool(without)
        )
        for without, shorten in (
            ((), ()),
            (("predicted",), ()),
            (("predicted", "step"), ("config",)),
            (("predicted", "step", "memory"), ("config",)),
            (("predicted", "step", "memory", "spent"), ("config",)),
            (("predicted", "step", "memory", "spent", "stable"), ("config",)),
        )
    ),
)


def _wins(trial: Trial, best: ParallelConfig | None) -> bool:
    return trial.config == best and trial.purpose is not TrialPurpose.REFERENCE


def _is_named(trial: Trial) -> bool:
    """Whether its row says what it was run for."""
    return trial.purpose in (TrialPurpose.BASELINE, TrialPurpose.REFERENCE, TrialPurpose.PROXY)


def _marked(cells: Sequence[str], mark: str) -> list[str]:
    """`measured_cells`, those of speed with a mark before them."""
    predicted, speed, step, memory = cells
    return [predicted, mark + speed, mark + step, memory]


def measured_cells(trial: Trial) -> list[str]:
    """Predicted and measured tokens per second, median step time and peak memory."""
    m, memory = trial.measured, trial.peak_memory_bytes
    return [
        count_cell(float(trial.estimate.tokens_per_s)) if trial.estimate else UNKNOWN,
        count_cell(m.tokens_per_s) if m else UNKNOWN,
        duration_cell(m.step_time_s) if m else UNKNOWN,
        bytes_cell(memory) if memory else UNKNOWN,
    ]


def _row_note(trial: Trial, note: str, best: Trial | None, *, is_brief: bool) -> str:
    """The note on a trial that did not run to its end. For a completed trial: why it is not the best
    although it has the higher figure (the first part of its reason), and what limits its
    figures."""
    if trial.status is not TrialStatus.COMPLETED:
        return brief_note(trial, most=MAX_NOTE) if is_brief else note
    is_above = (
        best is not None
        and trial.measured
        and best.measured
        and trial.measured.tokens_per_s > best.measured.tokens_per_s
    )
    above = trial.reason.partition("; ")[0] if is_above else ""
    limits = gists(trial.measurement.remarks) if trial.measurement else []
    told = list(filter(None, (above, *limits)))
    return "; ".join(told[:1] if is_brief else told)


def plan_table(plan: Any, *, top: int | None = None, palette: Palette = FULL) -> FittedTable:
    """The ranked rows of a plan: anything with `rows` of `rank`, `config` and `estimate`, or the
    rows themselves; last its baseline, if it has one.

    A narrow terminal shows no parts, then no step times; then configs are wrapped between their
    words. Gain, memory, risk and MFU stay.
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
    caption = Text()
    if shown:
        parts = time_legend(_shown_parts(shown[0].estimate), palette=palette)
        caption = Text.from_markup(f"step time of config {shown[0].rank}: {parts}")
    if baseline is not None and base is None:
        risk = float(baseline.estimate.oom_probability)
        caption.append(
            f"\nno gain is shown, because the baseline is not expected to fit (OOM risk {risk:.0%})"
        )
    caption.style = "table.caption"
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
        caption=caption if shown else None,
    )
    for row in (*shown, *((baseline,) if baseline is not None else ())):
        estimate = row.estimate
        table.add_row(
            str(row.rank) if row is not baseline else "",
            config_label(row.config) + (" (baseline)" if row is baseline else ""),
            count_cell(float(estimate.tokens_per_s)),
            f"{float(estimate.tokens_per_s / base):.2f}x" if base else UNKNOWN,
            duration_cell(float(estimate.step_time_s)),
            format_mfu(float(estimate.mfu)),
            bytes_cell(float(estimate.peak_memory_bytes)),
            f"{float(estimate.oom_probability):.0%}",
            Text.from_markup(time_bar(_shown_parts(estimate), width=24, palette=palette)),
        )
    return table


def _shown_parts(estimate: Any) -> Any:
    """What a bar shows of a step: its phases where it has some, else its causes."""
    return estimate.phases_s or estimate.time_parts_s


def plain_table(palette: Palette, title: str = "") -> Table:
    """An empty table in the manner of all of them; ASCII borders with a plain palette, tabs in a
    file or a pipe."""
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


def _status_now(trial: Trial, steps: Mapping[int, int] | None) -> Text:
    """The status of a run that has not ended, with the steps that it has taken."""
    status = _status(trial.status)
    if steps and trial.number in steps:
        status.plain = f"step {steps[trial.number]}"
    return status


def _status(status: TrialStatus) -> Text:
    from rich.text import Text

    return Text(status.lower(), style=STATUS_COLORS[status])


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
"""of parts whose first letter another part has: of a step, and of the phases of post-training (the
weights are sent, the responses judged)"""


def _letter(name: str) -> str:
    return _LETTERS.get(name, name[:1].upper() or "?")
