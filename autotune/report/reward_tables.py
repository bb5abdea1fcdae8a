"""Rewards as rows of text: their parts, and the Pareto front.

Rows are made from plain documents (an explanation, trials with their merits), so that the terminal
and the page show the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.report.notes import ranked_note
from autotune.reward import STABILITY_PARTS, THROUGHPUT_TERMS
from autotune.spec import ParallelConfig, config_label
from autotune.spec.texts.as_text import UNKNOWN, bytes_cell, count_cell, in_column

UNITS: Mapping[str, str] = {"USD": "$", "J": " J", "rank_s": " rank-s"}
"""text of each cost unit before or after an amount"""


def reward_rows(explanation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of an explanation's document: the reward's terms and parts for this
    trial, the baseline and the runner-up. Empty without a measurement; `-` is an unknown value."""
    reward = explanation.get("reward")
    if not reward:
        return [], []
    columns = {
        f"trial {explanation['trial']['number']}": reward,
        **{
            f"{name} ({other['number']})": other["reward"]
            for name, other in explanation["against"].items()
        },
    }
    rewards, objective = list(columns.values()), explanation["objective"]
    w = objective["stability_weight"]

    def row(
        label: str, values: Sequence[float | None], digits: int = 2, *, sign: str = ""
    ) -> list[str]:
        return [label, *(UNKNOWN if v is None else f"{v:{sign}.{digits}f}" for v in values)]

    def part_rows(names: Mapping[str, str]) -> list[list[str]]:
        return [
            row(
                "  " + label.format(whose=explanation["relative_to"]),
                [r["parts"].get(name) for r in rewards],
            )
            for name, label in names.items()
            if any(name in r["parts"] for r in rewards)
        ]

    rows = [
        *part_rows(THROUGHPUT_TERMS),
        row(f"{objective['metric']} (ln)", [r["throughput"] for r in rewards], 3, sign="+"),
        *part_rows({name: part.label for name, part in STABILITY_PARTS.items()}),
        row("stability", [r["stability"] for r in rewards]),
        row(
            f"reward = {1 - w:g} x {objective['metric']} + {w:g} x stability",
            [r["total"] for r in rewards],
            3,
            sign="+",
        ),
    ]
    return ["", *columns], rows


def formula_rows(explanation: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows with the scoring formulas of the parts of stability; no rows without a
    measurement."""
    formulas = explanation.get("formulas") if explanation.get("reward") else None
    return ["part of stability", "score at these values, linear in between"], [
        [_label(part), text] for part, text in (formulas or {}).items()
    ]


def front_rows(configs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the Pareto front. `configs`: trials with `merits`."""
    rows, has_notes = [], any(map(ranked_note, configs))
    for trial in configs:
        merits, m = trial["merits"], trial["measurement"]
        headroom = merits["memory_headroom"]
        rows.append(
            [
                str(trial["number"]),
                config_label(ParallelConfig.from_dict(trial["config"])),
                count_cell(merits["tokens_per_s"]),
                f"{merits['stability']:.2f}",
                f"{headroom:.0%} ({bytes_cell(m['peak_memory_bytes'])} used)"
                if headroom is not None
                else UNKNOWN,
                cost_label(merits["cost_of_million_tokens"], merits["cost_unit"]),
                *([ranked_note(trial)] if has_notes else []),
            ]
        )
    heads = ["trial", "config", "tokens/s", "stability", "memory free", "per million tokens"]
    return heads + ["note"] * has_notes, rows


def _label(part: str) -> str:
    """Return the label of a part of stability; the name itself for parts from other releases."""
    return STABILITY_PARTS[part].label if part in STABILITY_PARTS else part


def cost_label(value: float, unit: str) -> str:
    """Return a cost as text, such as `$0.12`, `3.4k J` or `52 rank-s`."""
    unit_text = UNITS.get(unit, f" {unit}")
    return (
        f"{unit_text}{in_column(f'{value:.3g}')}"
        if unit == "USD"
        else f"{count_cell(value)}{unit_text}"
    )
