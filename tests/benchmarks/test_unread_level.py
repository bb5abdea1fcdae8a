"""The level of trainers that were never fitted is pooled between the median of the files and
none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from research.held_out import Judged
from research.unread_level import UNFITTED, file_levels, middle, unread_trainer, without
from tests.benchmarks.test_accuracy import made_up

PRIOR_SIGMA = 0.12
SIGMAS = {"prior_sigma": PRIOR_SIGMA, "shared_sigma": 0.2}


def test_files_that_agree_give_their_median_and_scattered_files_give_almost_none() -> None:
    assert math.log(middle([0.14, 0.16, 0.15], prior_sigma=PRIOR_SIGMA)) == pytest.approx(
        0.15, abs=0.002
    )
    assert 0.0 < math.log(middle([-0.25, 0.5], prior_sigma=PRIOR_SIGMA)) < 0.02


def test_one_file_unlike_all_others_hardly_moves_the_level() -> None:
    with_one = middle([0.11, 0.13, 0.14, 0.15, 0.9], prior_sigma=PRIOR_SIGMA)
    assert math.log(with_one) == pytest.approx(0.14, abs=0.005)


def test_each_kind_of_program_has_the_level_of_its_files_and_one_file_says_nothing_about_others() -> (
    None
):
    levels = {"cut": {"a": 0.15, "b": 0.15}, "sharded": {"c": 0.05}}
    assert unread_trainer(levels, **SIGMAS)["programs"] == {
        "cut": pytest.approx(math.exp(0.15), rel=1e-3)
    }
    assert unread_trainer({"sharded": {"c": 0.05}}, **SIGMAS)["programs"] == {}


def test_a_file_that_is_judged_has_the_level_of_the_others() -> None:
    levels = {"cut": {"a": 0.1, "b": 0.2, "c": 0.2}, "sharded": {"a": 0.3, "d": 0.0, "e": 0.0}}
    found = without(levels, "a", **SIGMAS)["programs"]
    assert found == {"cut": pytest.approx(math.exp(0.2), rel=1e-3), "sharded": 1.0}


def test_the_width_of_unfitted_gpus_is_between_that_of_fitted_ones_and_what_their_files_show() -> (
    None
):
    assert unread_trainer({}, **SIGMAS)["unfitted_gpu_sigma"] == 0.2
    levels = {UNFITTED: {"a": 0.5, "b": -0.5, "c": 0.5, "d": 0.5}}
    assert unread_trainer(levels, **SIGMAS)["unfitted_gpu_sigma"] == pytest.approx(
        math.sqrt((0.04 + 0.25) / 2), rel=1e-3
    )
    one = without({UNFITTED: {"a": 1.0, "b": 0.2}}, "a", **SIGMAS)
    assert one["unfitted_gpu_sigma"] == 0.2


def test_rows_of_fitted_pairs_and_of_unknown_gpus_have_no_say() -> None:
    def of(source: str, level: float) -> Judged:
        rows = made_up(level)
        return replace(rows, source=np.full(len(rows), source, dtype=object))

    overheads = "megatron overheads from other GPUs"
    files = {
        "fitted": of("nanotron_h100.csv", 0.1),
        "unknown": of(f"not fitted to this GPU (datasheet peaks, {overheads})", 0.2),
        "unread": of(
            "not fitted to this trainer (a100 rates from other trainers, overheads from other GPUs and trainers)",
            0.3,
        ),
        "software": of(
            f"not fitted to this GPU with this trainer (a100 rates from other trainers, {overheads})",
            0.4,
        ),
    }
    levels = file_levels(files)
    assert levels == pytest.approx({"unread": 0.3, "software": 0.4}, abs=0.02)
    assert file_levels(files, ("datasheet",)) == pytest.approx({"unknown": 0.2}, abs=0.02)
