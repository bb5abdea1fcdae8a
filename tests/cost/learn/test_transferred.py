"""What trials of one workload say about another: constants, own errors, and how much stays
unknown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import estimate
from autotune.cost.learn.correction import guarded_refit
from autotune.cost.learn.refit import Measured
from autotune.cost.learn.transferred import (
    transferred_difference,
    transferred_gain,
    transferred_mean,
    transferred_sigma,
)
from autotune.spec import ConfigTable
from tests.cost.examples import workload
from tests.cost.learn.test_guarded_refit import WRONG
from tests.cost.learn.test_refit import SHIPPED, TABLE, measured

THERE = workload(seq_len=2048, batch=512)
LARGER = ConfigTable({name: TABLE.column(name) * (2 if name == "dp" else 1) for name in ("tp", "dp", "micro_batch_size", "accumulation_steps")})  # fmt: skip


def step_s(constants: object = SHIPPED) -> np.ndarray:
    return np.asarray(estimate(THERE, LARGER, calibration=constants).step_time_s)  # type: ignore[arg-type]


def test_without_trials_it_is_the_estimate_with_the_width_of_the_constants() -> None:
    found = guarded_refit(SHIPPED, [])
    assert transferred_mean(THERE, LARGER, found) == pytest.approx(np.log(step_s()))
    assert (transferred_sigma(THERE, LARGER, found) > SHIPPED.time_sigma).all()


def test_trials_mend_wrong_constants_elsewhere_and_narrow_the_interval() -> None:
    found = guarded_refit(SHIPPED, [measured(WRONG)])
    left = np.abs(transferred_mean(THERE, LARGER, found) - np.log(step_s(WRONG)))
    before = np.abs(np.log(step_s() / step_s(WRONG)))
    assert left.mean() < 0.3 * before.mean()
    assert (
        transferred_sigma(THERE, LARGER, found)
        < transferred_sigma(THERE, LARGER, guarded_refit(SHIPPED, []))
    ).all()


def test_what_is_wrong_about_one_config_is_wrong_about_it_elsewhere() -> None:
    clean = measured(SHIPPED, at=workload(seq_len=2048))
    odd = int(np.flatnonzero((TABLE.tp == 2) & (TABLE.micro_batch_size == 4))[0])
    slow = replace(clean, step_time_s=clean.step_time_s * np.where(np.arange(8) == odd, 1.12, 1.0))
    moved = transferred_mean(THERE, LARGER, guarded_refit(SHIPPED, [slow])) - np.log(step_s())
    assert moved[odd] > 0.04
    assert moved[odd] > 2.0 * np.delete(moved, odd).max()


def test_what_all_configs_share_is_no_part_of_their_difference() -> None:
    found = guarded_refit(SHIPPED, [])
    alone, apart = (
        transferred_sigma(THERE, LARGER, found),
        transferred_difference(THERE, LARGER, found, 1),
    )
    assert apart[1] == 0.0
    assert (np.delete(apart, 1) > 0).all()
    nearest = int(np.argmin(np.where(np.arange(8) == 1, 9.0, apart)))
    assert apart[nearest] < np.hypot(alone[nearest], alone[1])


def test_the_weights_of_all_priors_add_up_to_one() -> None:
    some = [
        measured(WRONG, rows=slice(0, 3)),
        Measured(workload=THERE, table=LARGER.take([0]), step_time_s=step_s()[:1]),
    ]
    weights = [b.weight for b in guarded_refit(SHIPPED, some).posteriors]
    assert sum(weights) == pytest.approx(1.0)
    assert min(weights) >= 0.0


def test_a_measurement_tells_most_about_configs_that_do_the_same_work() -> None:
    found, small = guarded_refit(SHIPPED, []), workload(seq_len=2048)
    others = [(small, config) for config in TABLE]
    fallen = transferred_gain(THERE, LARGER, found, 1, others)
    assert fallen.shape == (8, 8)
    assert (fallen[1] == 0.0).all()
    variance = transferred_difference(THERE, LARGER, found, 1) ** 2
    assert (fallen >= 0.0).all()
    assert (fallen <= variance[:, None] + 1e-9).all()
    tp8 = int(np.flatnonzero(TABLE.tp == 8)[0])
    assert np.argmax(fallen[tp8]) in (tp8, 1)
    assert transferred_gain(THERE, LARGER, found, 1, others[tp8:]) == pytest.approx(fallen[:, tp8:])


def test_what_runs_and_what_is_asked_for_tell_the_same_in_either_order() -> None:
    found, small = (
        guarded_refit(SHIPPED, [measured(WRONG, rows=slice(0, 3))]),
        workload(seq_len=2048),
    )
    one, other = (small, TABLE[4]), (small, TABLE[6])
    both, again = (
        transferred_gain(THERE, LARGER, found, 1, [a], [b])[:, 0]
        for a, b in ((one, other), (other, one))
    )
    assert both == pytest.approx(again)
    alone = transferred_gain(THERE, LARGER, found, 1, [one, other])
    assert (both >= alone.max(axis=1) - 1e-12).all()
    assert both.sum() > 1.01 * alone.sum(axis=0).max()


def test_a_repeat_of_what_runs_tells_little_more() -> None:
    found, small = guarded_refit(SHIPPED, []), workload(seq_len=2048)
    others = [(small, TABLE[7]), (small, TABLE[3])]
    alone = transferred_gain(THERE, LARGER, found, 1, others)
    beside = transferred_gain(THERE, LARGER, found, 1, others, others[:1]) - alone[:, :1]
    assert beside[:, 0].sum() < 0.5 * alone[:, 0].sum()
    assert beside[:, 1].sum() > beside[:, 0].sum()


def test_neighbours_that_predict_each_other_do_not_speak_for_constants_that_are_far_off() -> None:
    """Each of these configs is predicted from the others, whatever the constants; all together they
    are improbable by the constants that were given."""
    near = ConfigTable({"dp": np.full(4, 8), "micro_batch_size": np.array([1, 1, 2, 2]), "accumulation_steps": np.array([16, 32, 8, 16])})  # fmt: skip
    step_s = 2.5 * np.asarray(estimate(workload(), near, calibration=SHIPPED).step_time_s)
    found = guarded_refit(SHIPPED, [Measured(workload=workload(), table=near, step_time_s=step_s)])
    weights = {b.kind: b.weight for b in found.posteriors}
    assert weights["known"] < 1e-3
