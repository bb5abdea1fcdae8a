"""Runners and calibrators are found by name, and mistakes are answered with the law and a remedy."""

from __future__ import annotations

import pytest

from autotune.errors import CatalogError, SpecError
from autotune.registry import calibrator_names, make_runner, runner_names


def test_the_shipped_names_are_there() -> None:
    assert {"local", "ray", "simulated"} <= set(runner_names())
    assert "local" in calibrator_names()


def test_options_reach_the_runner() -> None:
    runner = make_runner("simulated", capacity=7)
    assert runner.capacity == 7
    runner.close()


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(CatalogError, match="did you mean simulated"):
        make_runner("simulate")


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean noise") as raised:
        make_runner("simulated", noize=0.1)
    assert raised.value.field == "runner.noize"
