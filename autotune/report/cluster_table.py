"""Clusters side by side in a terminal: one row for each, and below it which is fastest, cheapest
and needs the least energy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.plan.clusters import ClusterChoice
from autotune.report.table_layout import Column, FittedTable, Shortening
from autotune.report.terminal import FULL, MIN_CONFIG, Palette, plain_table
from autotune.spec import config_label
from autotune.spec.texts.as_text import UNKNOWN, count_cell, format_mfu, in_column, two_digits


def cluster_table(choices: Sequence[ClusterChoice], *, palette: Palette = FULL) -> FittedTable:
    """The table; with a bill also days, cost and energy. A narrow terminal shows no intervals, then
    no MFU and no risk."""
    billed = any(choice.bill is not None for choice in choices)
    bill = ("days", "cost", "energy") if billed else ()
    left_out = frozenset({"90%"})
    table = FittedTable(
        empty=lambda: plain_table(palette),
        columns=(
            Column(key="cluster"),
            Column(key="config", least=MIN_CONFIG, cut=False),
            *(
                Column(key=name, right=True)
                for name in ("tokens/s", "90%", "per GPU", "MFU", "OOM risk", *bill)
            ),
        ),
        stages=(
            Shortening(),
            Shortening(without=left_out),
            Shortening(without=left_out | {"MFU", "OOM risk"}),
            Shortening(without=left_out | {"MFU", "OOM risk", "per GPU"}, shorten=("config",)),
        ),
        ellipsis=palette.unicode,
    )
    for choice in choices:
        table.add_row(
            choice.cluster.name,
            *(_cells(choice, billed) if choice.config else _nothing(choice, len(bill))),
        )
    return table


def _cells(choice: ClusterChoice, billed: bool) -> list[str]:
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
    if billed and choice.bill:
        cost, energy = choice.bill.cost_usd, choice.bill.energy_kwh
        cells.append(two_digits(choice.bill.days))
        cells.append(format_usd(cost))
        cells.append(UNKNOWN if energy is None else f"{two_digits(energy / 1e3)} MWh")
    return cells


def format_usd(cost: float | None) -> str:
    """Two digits, as a prediction deserves: `$95`, `$1,200`, `$45k`, `$2.3M`; `-` where the price
    is not known."""
    if cost is None:
        return UNKNOWN
    rounded = float(f"{cost:.2g}")
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if rounded >= (size if unit != "k" else 1e4):
            return f"${in_column(f'{rounded / size:g}{unit}', digits=2)}"
    return f"${rounded:,.0f}" if rounded >= 10 else f"${rounded:.2f}"


def _nothing(choice: ClusterChoice, billed: int) -> list[str]:
    return [
        "nothing fits" if choice.nearest_miss else "nothing is valid",
        *[UNKNOWN] * (5 + billed),
    ]


def cluster_notes(choices: Sequence[ClusterChoice]) -> list[str]:
    """What the table does not say: why a cluster has no config, what a GPU lacks, what is assumed,
    and which cluster is ahead in what."""
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
    found = [choice for choice in choices if choice.estimate is not None]
    lacking = _by(found, lambda choice: ", ".join(choice.lacking))
    lines += [
        f"compared without {formats}, which the GPU does not support: {', '.join(on)}"
        for formats, on in lacking.items()
        if formats
    ]
    if len(found) > 1:
        fastest = max(found, key=lambda choice: float(choice.estimate.tokens_per_s))  # type: ignore[union-attr]
        ahead = [f"fastest: {fastest.cluster.name}"]
        ahead += _least("cheapest", found, lambda choice: choice.bill and choice.bill.cost_usd)
        ahead += _least(
            "least energy", found, lambda choice: choice.bill and choice.bill.energy_kwh
        )
        lines.append("; ".join(ahead))
    sources = _by(found, lambda choice: choice.source)
    if len(sources) > 1:
        lines += [
            f"cost-model constants on {', '.join(on)}: {source_words(source)}"
            for source, on in sources.items()
        ]
    if any(choice.bill for choice in found):
        lines.append(
            "cost and energy cover all GPUs in a cluster; prices are public list prices; energy is for GPU boards under load"
        )
    return lines


def _by(
    choices: Sequence[ClusterChoice], of: Callable[[ClusterChoice], str]
) -> dict[str, list[str]]:
    """Names of the clusters by what is the same of them."""
    groups: dict[str, list[str]] = {}
    for choice in choices:
        groups.setdefault(of(choice), []).append(choice.cluster.name)
    return groups


def source_words(source: str) -> str:
    """Where the constants of the cost model come from, in words."""
    return ("fitted to published measurements, " if source.endswith(".csv") else "") + source


def _least(
    word: str, found: Sequence[ClusterChoice], of: Callable[[ClusterChoice], float | None]
) -> list[str]:
    """The cluster with the least of something, of those for which it is known."""
    known = [
        (amount, choice.cluster.name) for choice in found if (amount := of(choice)) is not None
    ]
    if len(known) < 2:
        return []
    unknown = len(found) - len(known)
    return [f"{word}: {min(known)[1]}" + (f" ({unknown} unknown)" if unknown else "")]
