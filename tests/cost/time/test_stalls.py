"""Stalled sends: whose step they may lengthen, by how much, and what that does to an interval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from autotune.cost import estimate
from autotune.cost.learn.correction import moved
from autotune.cost.learn.uncertainty import Z90, config_sigma, upper_end
from autotune.cost.time.stalls import known_stalls
from autotune.spec import ClusterSpec, ParallelConfig, Workload, catalog

TARGET = Workload(
    model=catalog.model("llama-8b"), cluster=ClusterSpec.of("h100-sxm", num_nodes=16, gpus_per_node=8), seq_len=4096, global_batch_size=256, trainer="nanotron"
)  # fmt: skip
OVER = ParallelConfig(tp=4, pp=4, dp=8, micro_batch_size=1, accumulation_steps=32)


def test_pipelines_over_nodes_alone_may_stall_and_more_nodes_make_it_likelier() -> None:
    inside = ParallelConfig(tp=2, pp=4, dp=1, micro_batch_size=1, accumulation_steps=256)
    flat = ParallelConfig(tp=8, pp=1, dp=16, micro_batch_size=1, accumulation_steps=16)
    two_nodes = ParallelConfig(tp=4, pp=4, dp=1, micro_batch_size=1, accumulation_steps=256)
    found = estimate(TARGET, [inside, flat, two_nodes, OVER])
    chance = np.asarray(found.stall_probability)
    assert chance[:2].tolist() == [0.0, 0.0]
    assert 0.0 < chance[2] < chance[3] < 0.5
    step, stalled = np.asarray(found.step_time_s), np.asarray(found.stalled_step_time_s)
    assert stalled[:2].tolist() == step[:2].tolist()
    # a middle stage sends and receives in both passes of each of 32 micro-batches
    assert stalled[3] - step[3] == pytest.approx(known_stalls().send_s * 4 * 32)


def test_the_published_sweep_is_what_was_fitted() -> None:
    """nanotron_h100.csv, 8B, tp=4, pp=4, dp=8 of that batch on 128 GPUs: 39.3 s, where neighbours
    take 3."""
    found = estimate(TARGET, OVER)
    assert found.step_time_s < 5.0
    assert found.stalled_step_time_s == pytest.approx(39.3, rel=0.1)
    assert found.step_time_high_s > 30.0


@pytest.mark.parametrize("chance", [0.01, 0.05, 0.12, 0.4])
@pytest.mark.parametrize("stalled", [1.2, 3.0, 20.0])
def test_the_upper_end_is_exceeded_by_a_twentieth_of_the_mixture(
    chance: float, stalled: float
) -> None:
    sigma = 0.15
    high = upper_end(np.ones(1), np.full(1, sigma), np.full(1, stalled), np.full(1, chance))
    above = (1 - chance) * norm.sf(np.log(high) / sigma) + chance * norm.sf(
        np.log(high / stalled) / sigma
    )
    assert float(above[0]) == pytest.approx(0.05, abs=0.002)


def test_trials_move_the_step_and_leave_the_seconds_of_a_stall() -> None:
    before = estimate(TARGET, OVER)
    after = moved(before, np.log(np.full(1, 1.5)), np.full(1, 0.05), np.full(1, 0.03))
    waits = before.stalled_step_time_s - before.step_time_s
    assert after.stalled_step_time_s == pytest.approx(1.5 * before.step_time_s + waits)
    assert after.stall_probability == before.stall_probability
    assert after.step_time_high_s > 30.0
    assert np.log(after.step_time_s / after.step_time_low_s) == pytest.approx(Z90 * 0.05)


def test_a_stall_does_not_count_as_an_error_of_the_config() -> None:
    plain = replace(OVER, tp=8, pp=1, dp=16, accumulation_steps=16)
    found = estimate(TARGET, [plain, OVER])
    assert config_sigma(found)[1] < 1.5 * config_sigma(found)[0]
