"""Figures as HTML: texts, drawing, and data in a section that expands. All text is escaped.

Figures without data are listed with what they need. The steps of running trials are not listed,
because a study has that figure only while trials run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote

from autotune.report.page_frame import html_table
from autotune.results.figure import Figure

FIRST_FIGURES = ("best_so_far", "predicted_measured", "step_parts", "memory_parts")
"""figures that are visible without a click"""
MAX_ROWS = 20
"""maximum number of rows of data in the HTML; the CSV has all rows"""


def figures_html(figures: Sequence[Figure], *, is_open: bool, base_url: str = "") -> str:
    """Return a study's figures, and what missing figures need. `is_open`: whether the study
    continues. `at`: address below which the figures' files are; empty if the page contains the
    files."""
    drawn = {figure.name for figure in figures}
    missing = [name for name in MISSING if name not in drawn]
    plot_functions = {
        f.name: figure_html(
            f,
            csv=f"{base_url}/{f.name}.csv" if base_url else "",
            svg=f"{base_url}/{f.name}.svg" if base_url else "",
        )
        for f in figures
    }
    reasons = "".join(f"<li>{escape(why_missing(name))}</li>" for name in missing)
    heading = "Not drawn yet" if is_open else "Not drawn"
    absent = f'<div class="missing"><p>{heading}:</p><ul>{reasons}</ul></div>' if missing else ""
    first = "".join(plot_functions[name] for name in FIRST_FIGURES if name in plot_functions)
    rest = "".join(text for name, text in plot_functions.items() if name not in FIRST_FIGURES)
    if not first:
        return f'<div class="figures">{rest}</div>{absent}'
    more = f'<details class="more"><summary>More figures</summary><div class="figures">{rest}</div>{absent}</details>'
    return f'<div class="figures">{first}</div>{more if rest or absent else ""}'


def figure_html(figure: Figure, *, csv: str = "", svg: str = "") -> str:
    """Return a figure as HTML. `csv`, `svg`: addresses of the data and the drawing; if empty, the
    page contains them."""
    csv = csv or f"data:text/csv;charset=utf-8,{quote(figure.csv())}"
    svg = svg or f"data:image/svg+xml;charset=utf-8,{quote(figure.picture())}"
    table, name = figure.table, escape(figure.name)
    rows = len(table.rows)
    omission = f" The first {MAX_ROWS} of {rows:,} rows are shown." if rows > MAX_ROWS else ""
    data = html_table(
        [(column.head, column.is_number) for column in table.columns],
        [("", [escape(word) for word in words]) for words in table.shown_rows(MAX_ROWS)],
        label=f"{figure.title}: data",
    )
    return (
        f'<figure class="autotune-figure" id="{name}"><figcaption><h3>{escape(figure.title)}</h3><p>{escape(figure.shows)}</p></figcaption>{figure.svg}'
        f"<p>{escape(figure.how_to_read)}</p><details><summary>Data of this figure</summary>{data}"
        f'<p>{omission} <a href="{escape(csv)}" download="{name}.csv">All rows as CSV</a> · <a href="{escape(svg)}" download="{name}.svg">Drawing as SVG</a></p>'
        "</details></figure>"
    )


WITHOUT_PROXIES = " of the study's own job"
"""end of a condition that proxies do not meet"""

MISSING: Mapping[str, tuple[str, str]] = {
    "best_so_far": ("Best so far over trials", f"a measured trial{WITHOUT_PROXIES}"),
    "best_so_far_over_time": ("Best so far over time", f"a measured trial{WITHOUT_PROXIES}"),
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
        f"at least two varying knobs, and a trial{WITHOUT_PROXIES} that was measured or failed",
    ),
    "pareto_front": (
        "Pareto front",
        f"two measured trials{WITHOUT_PROXIES} whose trainer reports peak memory",
    ),
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
"""(title, what the figure needs), by the figure's name"""


def why_missing(name: str) -> str:
    """Return a missing figure's title and what it needs."""
    title, needs = MISSING[name]
    return f"{title} (needs {needs})"
