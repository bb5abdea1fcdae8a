"""Clusters side by side in a terminal: one row per cluster, then the fastest, the cheapest and the
one that needs the least energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.plan.clusters import ClusterChoice
from autotune.report.table_layout import Column, FittedTable, TableLayout
from autotune.report.terminal import MIN_CONFIG, UNICODE_PALETTE, Palette, plain_table
from autotune.spec import config_label
from autotune.spec.texts.as_text import UNKNOWN, count_cell, format_mfu, in_column, two_digits


def cluster_table(
    choices: Sequence[ClusterChoice], *, palette: Palette = UNICODE_PALETTE
) -> FittedTable:
    """Return the table; with bills, it has days, cost and energy. A narrow terminal first omits
    intervals, then MFU and risk."""
    has_bills = any(choice.bill is not None for choice in choices)
    bill_columns = ("days", "cost", "energy") if has_bills else ()
    hidden = frozenset({"90%"})
    table = FittedTable(
        empty=lambda: plain_table(palette),
        columns=(
            Column(key="cluster"),
            Column(key="config", min_width=MIN_CONFIG, cut=False),
            *(
                Column(key=name, right=True)
                for name in ("tokens/s", "90%", "per GPU", "MFU", "OOM risk", *bill_columns)
            ),
        ),
        layouts=(
            TableLayout(),
            TableLayout(hidden=hidden),
            TableLayout(hidden=hidden | {"MFU", "OOM risk"}),
            TableLayout(hidden=hidden | {"MFU", "OOM risk", "per GPU"}, shorten=("config",)),
        ),
        ellipsis=palette.unicode,
    )
    for choice in choices:
        table.add_row(
            choice.cluster.name,
            *(
                _cells(choice, has_bills)
                if choice.config
                else _cells_without_config(choice, len(bill_columns))
            ),
        )
    return table


def _cells(choice: ClusterChoice, has_bill: bool) -> list[str]:
    assert choice.config is not None
    assert choice.estimate is not None
    estimate, (low, high) = choice.estimate, choice.tokens_per_s_90 or (0.0, 0.0)
    cells = [
        config_label(choice.config),
        count_cell(float(estimate.tokens_per_s)),
        f"{count_cell(low)} to {count_cell(high)}",
        count_cell(float(estimate.tokens_per_s_per_gpu)),
        format_mfu(float(estimate.mfu)),
        f"{float(estimate.oom_probability):.0%}",
    ]
    if has_bill and choice.bill:
        cost, energy = choice.bill.cost_usd, choice.bill.energy_kwh
        cells.append(two_digits(choice.bill.days))
        cells.append(format_usd(cost))
        cells.append(UNKNOWN if energy is None else f"{two_digits(energy / 1e3)} MWh")
    return cells


def format_usd(cost: float | None) -> str:
    """Return US dollars in two digits: `$95`, `$1,200`, `$45k`, `$2.3M`; `-` if the price is
    unknown."""
    if cost is None:
        return UNKNOWN
    rounded = float(f"{cost:.2g}")
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if rounded >= (size if unit != "k" else 1e4):
            return f"${in_column(f'{rounded / size:g}{unit}', digits=2)}"
    return f"${rounded:,.0f}" if rounded >= 10 else f"${rounded:.2f}"


def _cells_without_config(choice: ClusterChoice, num_bill_columns: int) -> list[str]:
    return [
        "nothing fits" if choice.nearest_miss else "nothing is valid",
        *[UNKNOWN] * (5 + num_bill_columns),
    ]


def cluster_notes(choices: Sequence[ClusterChoice]) -> list[str]:
    """Return notes on the table: why a cluster has no config, what a GPU lacks, and which clusters
    are the fastest and the cheapest."""
    lines = []
    for choice in choices:
        if choice.nearest_miss is not None:
            miss = choice.nearest_miss
            remedy = f": {miss.remedies[0]}" if miss.remedies else ""
            lines.append(
                f"{choice.cluster.name}: the nearest miss, {config_label(miss.config)}, would need {miss.need}{remedy}"
            )
        elif choice.config is None:
            lines.append(f"{choice.cluster.name}: {choice.reason}")
    valid = [choice for choice in choices if choice.estimate is not None]
    lacking = _group_names(valid, lambda choice: ", ".join(choice.lacking))
    lines += [
        f"compared without {formats}, which the GPU does not support: {', '.join(names)}"
        for formats, names in lacking.items()
        if formats
    ]
    if len(valid) > 1:
        fastest = max(valid, key=lambda choice: float(choice.estimate.tokens_per_s))  # type: ignore[union-attr]
        leaders = [f"fastest: {fastest.cluster.name}"]
        leaders += _lowest("cheapest", valid, lambda choice: choice.bill and choice.bill.cost_usd)
        leaders += _lowest(
            "least energy", valid, lambda choice: choice.bill and choice.bill.energy_kwh
        )
        lines.append("; ".join(leaders))
    sources = _group_names(valid, lambda choice: choice.source)
    if len(sources) > 1:
        lines += [
            f"cost-model constants on {', '.join(names)}: {source_words(source)}"
            for source, names in sources.items()
        ]
    if any(choice.bill for choice in valid):
        lines.append(
            "cost and energy cover all GPUs in a cluster; prices are public list prices; energy is for GPU boards under load"
        )
    return lines


def _group_names(
    choices: Sequence[ClusterChoice], key_of: Callable[[ClusterChoice], str]
) -> dict[str, list[str]]:
    """Return the names of the clusters with equal values of `key_of`, by that value."""
    groups: dict[str, list[str]] = {}
    for choice in choices:
        groups.setdefault(key_of(choice), []).append(choice.cluster.name)
    return groups


def source_words(source: str) -> str:
    """Return the origin of the cost model's constants as text."""
    return ("fitted to published measurements, " if source.endswith(".csv") else "") + source


def _lowest(
    label: str,
    choices: Sequence[ClusterChoice],
    amount_of: Callable[[ClusterChoice], float | None],
) -> list[str]:
    """Return the text for the cluster with the lowest amount; no text if fewer than two are
    known."""
    known = [
        (amount, choice.cluster.name)
        for choice in choices
        if (amount := amount_of(choice)) is not None
    ]
    if len(known) < 2:
        return []
    unknown = len(choices) - len(known)
    return [f"{label}: {min(known)[1]}" + (f" ({unknown} unknown)" if unknown else "")]
