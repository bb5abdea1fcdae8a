"""The level of trainers that were never fitted is pooled between the median of the files and none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.benchmarks.held_out import Judged
from tests.benchmarks.test_accuracy import made_up
from tests.benchmarks.unread_level import file_levels, unread_trainer

PRIOR_SIGMA = 0.12


def test_files_that_agree_give_their_median_and_scattered_files_give_almost_none() -> None:
    agreed = unread_trainer({"a": 0.14, "b": 0.16, "c": 0.15}, prior_sigma=PRIOR_SIGMA)
    assert math.log(agreed["level"]) == pytest.approx(0.15, abs=0.002)
    scattered = unread_trainer({"a": -0.25, "b": 0.5}, prior_sigma=PRIOR_SIGMA)
    assert 0.0 < math.log(scattered["level"]) < 0.02


def test_one_file_unlike_all_others_hardly_moves_the_level() -> None:
    alike = {"a": 0.11, "b": 0.13, "c": 0.14, "d": 0.15}
    with_one = unread_trainer({**alike, "e": 0.9}, prior_sigma=PRIOR_SIGMA)["level"]
    assert math.log(with_one) == pytest.approx(0.14, abs=0.005)


def test_one_file_says_nothing_about_others() -> None:
    assert unread_trainer({"a": 0.2}, prior_sigma=PRIOR_SIGMA) == {}


def test_rows_of_fitted_pairs_and_of_unknown_gpus_have_no_say() -> None:
    def of(source: str, level: float) -> Judged:
        rows = made_up(level)
        return replace(rows, source=np.full(len(rows), source, dtype=object))

    pooled = "pooled from other pairs"
    files = {
        "fitted": of("nanotron_h100.csv", 0.1),
        "unknown": of(f"datasheet and megatron software, {pooled}", 0.2),
        "unread": of(f"a100 hardware and any trainer, {pooled}", 0.3),
        "software": of(f"a100 hardware and megatron software, {pooled}", 0.4),
    }
    levels = file_levels(files)
    assert levels == pytest.approx({"unread": 0.3, "software": 0.4}, abs=0.02)
