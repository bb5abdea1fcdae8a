"""The formulas of FLOPs, saved activations, weights and traffic are those of dry runs of the native
trainer, over the catalog."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.spec import catalog
from tests.benchmarks.formulas_against_dry_runs import (
    RECORDED,
    WITHIN,
    differences,
    is_plain,
    recorded,
)

RUNS: list[dict[str, Any]] = [
    json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()
]


def test_formulas_are_within_three_percent_of_dry_runs_of_the_catalog() -> None:
    rows = [row for run in RUNS for row in differences(run)]
    assert {row.model for row in rows} == {
        name for name in catalog.model_names() if is_plain(catalog.model(name))
    }
    assert not [row for row in rows if abs(row.relative) > WITHIN]


@pytest.mark.thorough
def test_recorded_dry_runs_are_those_of_today() -> None:
    (kept,) = (run for run in RUNS if run["model"] == "nano-llama" and not run["config"])
    found = recorded(catalog.model("nano-llama"), "")["figures"]
    assert found == pytest.approx({name: kept["figures"][name] for name in found})
