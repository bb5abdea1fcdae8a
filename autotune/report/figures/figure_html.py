"""A figure as HTML: its words, the drawing, and its data in a part that opens. All text is escaped.

What each figure of a study needs: said in its place while there is nothing to draw. The steps of
the running trials need no reason: a study has that figure only while trials run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from autotune.report.page_frame import html_table
from autotune.results.figure import Figure

FOREMOST = ("best_so_far", "predicted_measured", "step_parts", "memory_parts")
"""figures that are shown open: speed over trials, predicted against measured, parts of the step and
of the memory"""
MOST_ROWS = 20
"""rows of data that the HTML shows; the CSV holds all"""


def figures_html(figures: Sequence[Figure], *, is_open: bool, at: str = "") -> str:
    """All figures of a study, and what those that cannot be drawn need. `is_open`: the study goes
    on; `at`: the address below which their files are."""
    drawn = {figure.name for figure in figures}
    missing = [name for name in MISSING if name not in drawn]
    drawings = {
        f.name: figure_html(
            f, csv=f"{at}/{f.name}.csv" if at else "", svg=f"{at}/{f.name}.svg" if at else ""
        )
        for f in figures
    }
    reasons = "".join(f"<li>{escape(why_missing(name))}</li>" for name in missing)
    said = "Not drawn yet" if is_open else "Not drawn"
    absent = f'<div class="missing"><p>{said}:</p><ul>{reasons}</ul></div>' if missing else ""
    first = "".join(drawings[name] for name in FOREMOST if name in drawings)
    rest = "".join(text for name, text in drawings.items() if name not in FOREMOST)
    if not first:
        return f'<div class="figures">{rest}</div>{absent}'
    more = f'<details class="more"><summary>More figures</summary><div class="figures">{rest}</div>{absent}</details>'
    return f'<div class="figures">{first}</div>{more if rest or absent else ""}'


def figure_html(figure: Figure, *, csv: str = "", svg: str = "") -> str:
    """`csv`, `svg`: the addresses of the data and of the drawing; empty: they are inside of the
    page."""
    csv = csv or f"data:text/csv;charset=utf-8,{quote(figure.csv())}"
    svg = svg or f"data:image/svg+xml;charset=utf-8,{quote(figure.picture())}"
    table, name = figure.table, escape(figure.name)
    rows = len(table.rows)
    cut = f" The first {MOST_ROWS} of {rows:,} rows are shown." if rows > MOST_ROWS else ""
    data = html_table(
        [(column.head, column.is_number) for column in table.columns],
        [("", [escape(word) for word in words]) for words in table.shown_rows(MOST_ROWS)],
        label=f"{figure.title}: data",
    )
    return (
        f'<figure class="autotune-figure" id="{name}"><figcaption><h3>{escape(figure.title)}</h3><p>{escape(figure.shows)}</p></figcaption>{figure.svg}'
        f"<p>{escape(figure.how_to_read)}</p><details><summary>Data of this figure</summary>{data}"
        f'<p>{cut} <a href="{escape(csv)}" download="{name}.csv">All rows as CSV</a> · <a href="{escape(svg)}" download="{name}.svg">Drawing as SVG</a></p>'
        "</details></figure>"
    )


OWN = " of the study's own job"
"""which proxies are not"""

MISSING: Mapping[str, tuple[str, str]] = {
    "best_so_far": ("Best so far over trials", f"a measured trial{OWN}"),
    "best_so_far_over_time": ("Best so far over time", f"a measured trial{OWN}"),
    "budget": ("Budget spent and left", "a budget limit"),
    "feasible_map": (
        "Map of the feasible set",
        "a knob with two or more values, and a space small enough to list",
    ),
    "rank_parts": ("Where each rank's time goes", "observed ranks of the best trial"),
    "step_parts": ("Where step time goes", "a profile or a prediction of the best trial"),
    "memory_parts": ("Where the memory goes", "a prediction of the best trial"),
    "knob_importance": ("Importance of each knob", "a knob with two or more values"),
    "parallel_coordinates": (
        "Trials across the knobs",
        f"at least two varying knobs, and a trial{OWN} that was measured or failed",
    ),
    "pareto_front": ("Pareto front", f"two measured trials{OWN} whose trainer reports peak memory"),
    "predicted_measured": (
        "Predicted against measured: speed",
        "a measured trial that has a prediction",
    ),
    "predicted_measured_memory": (
        "Predicted against measured: memory",
        "a predicted trial whose trainer reports peak memory",
    ),
    "timeline": ("Trials on ranks", "a trial that has started"),
    "loss_reference": (
        "Loss against the reference",
        "at least one measured trial whose trainer reports losses",
    ),
}
"""(title, what it needs) by the figure's name"""


def why_missing(name: str) -> str:
    """Why the figure of that name is not drawn, in a sentence."""
    title, needs = MISSING[name]
    return f"{title} (needs {needs})"
