"""The page on accuracy: every published run beside the prediction of the constants that ship. The
site's build makes it (`docs/site_build/hooks.py`).

predictions.md              tables: held out, by file for the constants that ship, and the worst rows of each file
predictions.csv             every row
images/predictions.svg      predicted against measured

What is held out takes hours of fits: `python -m research.fit_cost_model --write` writes it into
`research/held_out.md`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

import autotune.cost
from research.held_out import Judged, folds_of, judged
from tests.benchmarks.accuracy_tables import Line, table, trials_table
from tests.benchmarks.figure import COLORS
from tests.benchmarks.published import FILES

CONSTANTS = Path(autotune.cost.__file__).with_name("constants.json")
HELD_OUT = Path(__file__).parents[2] / "research" / "held_out.md"
PAGE, ROWS, FIGURE = "predictions.md", "predictions.csv", "images/predictions.svg"
WORST = 8
"""rows of each file that the page itself shows"""
COLUMNS = (
    "file", "cluster and software", "model", "sequence", "GPUs", "config", "measured_s", "predicted_s", "error", "inside", "slower_than_best",
    "constants",
)  # fmt: skip


TRIALS = (
    "A study's trials narrow the intervals of its other configs. A study is one workload: one model on a fixed number of GPUs of a cluster, with one global batch. After some trials, each pair of columns shows the",
    "share of the study's other rows in the interval, and their median error:",
    "",
    "- *After 1, 3*: trials drawn from the rows that take at most twice as long as the best. *Studies*: those with more rows than trials.",
    "- *Fastest 1*: the config that is predicted fastest.",
    "- *Default 1*: the baseline (data parallelism alone) or the row closest to it. *Default and 1*: the same, plus the config that is then predicted fastest, as in a real study.",
    "- *Mixed*: trials with any GPU count and batch, and with other models on the cluster if a file has few rows for each. No study does this.",
    "",
    "These lines ignore that configs whose ranks run the same kernels share errors (q in [Error bars](mathematics/cost-model.md#error-bars)). With it, files whose pairs were not fitted",
    "have medians between 0.6 points lower and 0.1 points higher. After three trials 82% of BigScience are inside instead of 88%, and after one trial 89% of Alpa instead of 100%.",
)


def timed_files() -> list[str]:
    """The data files that print speeds."""
    return [
        name
        for name, read in FILES.items()
        if any(np.isfinite(block.step_time_s[~block.failed]).any() for block in read())
    ]


def shipped_rows(files: Sequence[str]) -> dict[str, Judged]:
    """Every row with a printed speed of these files, predicted by the constants that ship."""
    known = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    return {name: judged(folds_of(FILES[name](), known), with_sensitivity=False) for name in files}


def summary(rows: Mapping[str, Judged]) -> list[str]:
    """One line for each file: the rows of all kinds, and those within twice the best of their
    cell."""
    lines = [
        "| file | rows | median | p90 | inside | near the best | median | p90 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, every in rows.items():
        near = every.near()
        lines.append(
            f"| {name} | {_figures(every)} | {100 * np.mean(every.is_inside):.0f}% | {_figures(near)} |"
        )
    return lines


def pages(rows: Mapping[str, Judged]) -> dict[str, str]:
    """The page, its file of rows and its figure, by their paths on the site."""
    table_of_rows = io.StringIO(newline="")
    writer = csv.writer(table_of_rows, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, every in rows.items():
        writer.writerows(
            _cells(name, every, i) for i in np.argsort(-np.abs(every.error), kind="stable")
        )
    return {
        PAGE: "\n".join(_page(rows)) + "\n",
        ROWS: table_of_rows.getvalue(),
        FIGURE: scatter_svg(rows),
    }


def write_held_out(lines: Sequence[Line], *, keep_others: bool = False) -> None:
    """Writes the tables of what is held out. With `keep_others` the lines of other files stay as
    they are."""
    held = [*table(lines), "", *TRIALS, "", *trials_table(lines)]
    if keep_others:
        new = {_key(line): line for line in held if line.startswith("|")}
        held = [
            new.get(_key(line), line) for line in HELD_OUT.read_text(encoding="utf-8").splitlines()
        ]
    HELD_OUT.write_text("\n".join(held) + "\n", encoding="utf-8")


def _page(rows: Mapping[str, Judged]) -> list[str]:
    total = sum(map(len, rows.values()))
    text = [
        "# Every prediction",
        "",
        f"Step times of {total:,} published runs next to the cost model's predictions with the shipped constants. `python -m research.fit_cost_model --write` fits",
        "the constants and the held-out predictions. All runs were published by others; data and sources are in `tests/benchmarks/data`.",
        "",
        "![Predicted against measured step times](images/predictions.svg)",
        "",
        "## Held out",
        "",
        "What to expect for a run that was not used in a fit. Only rows that take at most twice as long as the best of their cell count.",
        "",
        "- *By model*, *by GPU count*: everything was refitted without the predicted rows, but with other rows from their cluster.",
        "- *By cluster and trainer*: the whole file was held out. *Nothing*: constants fitted to these same rows, for comparison.",
        "- *Inside*: share of rows in the 90% interval before any trial. *By own error*: the same, if the level of the cluster were known ([Error bars](mathematics/cost-model.md#error-bars)).",
        "",
        *HELD_OUT.read_text(encoding="utf-8").splitlines(),
        "",
        "## With the shipped constants",
        "",
        "Rows used in a fit are predicted better than new ones will be. The column *constants* in the [file with all rows](predictions.csv) shows which ones were. `datasheet`",
        "and `pooled`: no rows of that GPU type, or of that pair, were used in a fit. *Near the best*: at most twice the step time of the cell's fastest row.",
        "",
        *summary(rows),
        "",
        "## The worst rows",
        "",
        f"The {WORST} largest errors of each file. Rows far from their cell's best are predicted worst: some runs were disturbed, and some configs are slow for reasons",
        "that the model leaves out.",
    ]  # fmt: skip
    for name, every in rows.items():
        worst = np.argsort(-np.abs(every.error), kind="stable")[:WORST]
        text += [
            "",
            f"### {name}",
            "",
            "| " + " | ".join(COLUMNS[1:]) + " |",
            "|" + "---|" * (len(COLUMNS) - 1),
        ]
        text += ["| " + " | ".join(map(str, _cells(name, every, i)[1:])) + " |" for i in worst]
    return text


def _cells(name: str, rows: Judged, i: int) -> tuple[Any, ...]:
    measured, predicted = float(rows.measured_s[i]), float(rows.predicted_s[i])
    return (
        name, rows.where[i], rows.model[i], int(rows.seq_len[i]), int(rows.gpus[i]), rows.config[i], f"{measured:.4g}", f"{predicted:.4g}",
        f"{100 * (predicted / measured - 1):+.1f}%", "yes" if rows.is_inside[i] else "no", f"{float(rows.slowness[i]):.2f}", rows.source[i],
    )  # fmt: skip


def _figures(rows: Judged) -> str:
    size = np.abs(np.expm1(-rows.error))
    return f"{len(rows):,} | {100 * np.median(size):.1f}% | {100 * np.quantile(size, 0.9):.1f}%"


def _key(line: str) -> tuple[str, ...]:
    """What a line of either table is of: its first two cells, and the number of columns."""
    return (*line.split("|")[1:3], str(line.count("|")))


def scatter_svg(rows: Mapping[str, Judged]) -> str:
    """Predicted against measured step times on logarithmic axes, with lines at half and at twice
    the measured time."""
    size, left, top, legend = 520, 64, 40, 190
    every = np.concatenate([np.concatenate([r.measured_s, r.predicted_s]) for r in rows.values()])
    low, high = math.floor(math.log10(every.min())), math.ceil(math.log10(every.max()))

    def place(seconds: float) -> float:
        return (math.log10(seconds) - low) / (high - low) * size

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + size + legend} {top + size + 56}" font-family="sans-serif" font-size="13">',
        f'<rect width="{left + size + legend}" height="{top + size + 56}" fill="white"/>',
        f'<text x="{left}" y="24" font-size="16">{sum(map(len, rows.values())):,} published runs, predicted and measured</text>',
    ]
    for power in range(low, high + 1):
        at = place(10.0**power)
        parts.append(
            f'<path d="M{left + at:.0f} {top}v{size}M{left} {top + size - at:.0f}h{size}" stroke="#ddd"/>'
        )
        parts.append(
            f'<text x="{left + at:.0f}" y="{top + size + 20}" text-anchor="middle">{10.0**power:g}</text>'
        )
        parts.append(
            f'<text x="{left - 8}" y="{top + size - at + 4:.0f}" text-anchor="end">{10.0**power:g}</text>'
        )
    parts.append(
        f'<text x="{left + size / 2}" y="{top + size + 44}" text-anchor="middle">measured step time, s</text>'
    )
    parts.append(
        f'<text x="16" y="{top + size / 2}" text-anchor="middle" transform="rotate(-90 16 {top + size / 2})">predicted step time, s</text>'
    )
    for factor, dashes in ((0.5, "4 4"), (1.0, "none"), (2.0, "4 4")):
        shift = math.log10(factor) / (high - low) * size
        x0, x1 = max(0.0, -shift), min(size, size - shift)
        parts.append(
            f'<line x1="{left + x0:.0f}" y1="{top + size - x0 - shift:.0f}" x2="{left + x1:.0f}" y2="{top + size - x1 - shift:.0f}" stroke="#888" '
            f'stroke-dasharray="{dashes}"/>'
        )
    for number, (name, r) in enumerate(rows.items()):
        color = COLORS[number % len(COLORS)]
        dots = "".join(
            f"M{left + place(m):.1f} {top + size - place(p):.1f}h.01" for m, p in zip(r.measured_s, r.predicted_s, strict=True)
        )  # fmt: skip
        parts.append(
            f'<path d="{dots}" stroke="{color}" stroke-width="4" stroke-linecap="round" stroke-opacity="0.5"/>'
        )
        y = top + 10 + 22 * number
        parts.append(f'<circle cx="{left + size + 24}" cy="{y - 4}" r="5" fill="{color}"/>')
        parts.append(f'<text x="{left + size + 38}" y="{y}">{escape(name)} ({len(r):,})</text>')
    return "\n".join([*parts, "</svg>", ""])
