"""The page on accuracy is made from the constants that ship, and trials collapse a level."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration
from autotune.cost.calibration import ceiling
from autotune.cost.estimator import Sensitivity
from autotune.cost.learn.refit import uncertain
from autotune.spec import KNOBS, catalog
from research.held_out import FREE, Judged
from research.one_trial_bound import trends
from research.study_trials import after_trials, as_a_study, fastest, studies
from research.time_fit import BOUNDED_BY, FASTEST_ATTENTION
from tests.benchmarks.accuracy_page import (
    COLUMNS,
    CONSTANTS,
    FIGURE,
    HELD_OUT,
    PAGE,
    ROWS,
    pages,
    shipped_rows,
    summary,
    timed_files,
)

KNOWN = {
    "level_sigma": 0.25,
    "own_error": {"alone_sigma": 0.05, "length": 8.0, "between_workloads": 0.6, "same_work": 0.7},
    "spreads": dict.fromkeys(FREE, 0.1),
}


def test_the_page_has_every_published_run_and_what_is_held_out() -> None:
    """Made for the site from the constants that ship; the rest of its figures come from the same
    rows."""
    rows = shipped_rows(["mosaic", "vtrain"])
    assert set(rows) <= set(timed_files())
    made = pages(rows)
    page = made[PAGE].splitlines()
    assert set(summary(rows)) <= set(page)
    assert set(HELD_OUT.read_text(encoding="utf-8").splitlines()) <= set(page)
    table = list(csv.DictReader(io.StringIO(made[ROWS])))
    assert tuple(table[0]) == COLUMNS
    assert len(table) == sum(map(len, rows.values()))
    assert f">{len(table):,} published runs" in made[FIGURE]


def test_no_fitted_efficiency_is_above_what_was_ever_measured() -> None:
    known = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    for name, values in known["pairs"].items():
        family = name.partition("/")[0]
        gpu = catalog.gpu(BOUNDED_BY[family])
        slack = 1.001  # constants are rounded
        assert values["matmul_efficiency"] <= ceiling(gpu, "bf16") * slack, name
        assert values["attention_efficiency"] <= FASTEST_ATTENTION[family] * slack, name
        if "fp8" in gpu.measured_flops_per_s and "fp8" in values.get("source", "fp8"):
            assert (
                values["matmul_efficiency"] * values["fp8_factor"] <= ceiling(gpu, "fp8") * slack
            ), name


def made_up(level: float, rows: int = 60) -> Judged:
    """Rows of one cluster whose level is known."""
    own = 0.05 * np.random.default_rng(0).standard_normal(rows)
    text = {
        n: np.full(rows, n, dtype=object)
        for n in ("where", "model", "cell", "study", "config", "source")
    }
    jacobian = np.zeros((rows, len(FREE) + 1))
    jacobian[:, -1] = 1.0
    sensitivity = Sensitivity(
        log_step_s=np.zeros(rows), jacobian=jacobian, own_sigma=np.full(rows, 0.05), workloads=np.zeros(rows, dtype=np.intp),
        points=100.0 * np.arange(rows)[:, None] * np.ones(len(KNOBS)), layers=np.zeros(rows, dtype=np.int64),
        stall_probability=np.zeros(rows), stall_log=np.zeros(rows),
    )  # fmt: skip
    return Judged(
        **text, seq_len=np.full(rows, 4096), gpus=np.full(rows, 8), measured_s=np.exp(level + own), predicted_s=np.ones(rows),
        config_sigma=np.full(rows, 0.05), level_sigma=np.full(rows, 0.25), slowness=np.ones(rows),
        moving=np.zeros(rows), expert_sigma=np.zeros(rows), sensitivity=sensitivity, plainness=np.arange(6 * rows).reshape(rows, 6),
    )  # fmt: skip


def test_slopes_of_other_files_take_away_what_all_files_share() -> None:
    micro_batch = list(KNOBS).index("micro_batch_size")

    def file(slope: float, seed: int) -> Judged:
        rows = made_up(0.2)
        points = np.zeros_like(rows.derivatives.points)
        points[:, micro_batch] = np.random.default_rng(seed).integers(0, 5, len(rows))
        own = 0.01 * np.random.default_rng(seed).standard_normal(len(rows))
        return replace(
            rows, measured_s=np.exp(slope * points[:, micro_batch] + own), sensitivity=replace(rows.derivatives, points=points)
        )  # fmt: skip

    alike = trends({name: file(0.05, seed) for seed, name in enumerate("abc")})
    assert all(after < 0.4 * before for before, after in alike.values())
    before, after = trends({"a": file(0.05, 0), "b": file(0.05, 1), "c": file(-0.05, 2)})["c"]
    assert after >= before


@pytest.mark.parametrize("level", [0.0, 0.3, -0.4])
def test_trials_leave_a_configs_own_error(level: float) -> None:
    rows = made_up(level)
    for trials in (1, 3):
        left = after_trials(rows, trials, KNOWN)
        assert float(np.median(np.abs(left.error))) < 0.06
        assert 0.8 < float(np.mean(left.is_inside)) < 0.99


def test_a_study_is_one_workload_and_tries_what_is_predicted_fastest() -> None:
    rows = made_up(0.3, 8)
    slowness = np.array(
        [1.2, 2.0, 1.1, 1.5, 4.5, 5.0, 4.0, 9.0]
    )  # the second workload's best is four times slower than the cell's
    rows = replace(
        rows,
        study=np.repeat(np.array(["a", "b"], dtype=object), 4),
        slowness=slowness,
        predicted_s=rows.measured_s,
    )
    assert [list(study) for study in studies(rows, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [list(study) for study in studies(rows, 3)] == [[0, 1, 2, 3]], (
        "one row of b is not within twice its best"
    )
    prior = uncertain(Calibration(), KNOWN, names=FREE)
    assert [list(tried) for tried in fastest(rows.take(np.arange(4)), 2, prior)] == [[2, 0]]
    rows = replace(rows, plainness=np.flip(rows.plainness))  # the last row is the baseline
    assert [list(tried) for tried in as_a_study(rows.take(np.arange(4)), 2, prior)] == [[3, 2]]
