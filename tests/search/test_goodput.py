"""With goodput as the objective, the efficiency of a large batch counts before the batch is
tried."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autotune.reward import reward
from autotune.search import make_searcher
from autotune.search.objective_model import log_efficiency, offset_of
from autotune.space import SearchSpace
from autotune.spec import Measurement, Objective, ParallelConfig, Trial, TrialPurpose, TrialStatus
from tests.study.controller.world import workload

BATCHES = (8, 16, 32, 64)
WORKLOAD = replace(workload(), global_batch_size=BATCHES)
SPACE = SearchSpace.of(
    WORKLOAD,
    [
        ParallelConfig(
            dp=dp, micro_batch_size=m, accumulation_steps=b // (dp * m), precision="fp32"
        )
        for b in BATCHES
        for dp in (1, 2, 4)
        for m in (1, 2)
    ],
)
BASELINE = ParallelConfig(dp=4, accumulation_steps=2, precision="fp32")


def measured(
    config: ParallelConfig, objective: Objective, phi: float, baseline: Measurement | None = None
) -> Trial:
    """Large steps are a little more efficient, as they are on most machines."""
    step_time_s = 0.02 + 0.01 * config.global_batch_size / config.dp
    m = Measurement(
        step_times_s=(step_time_s,) * 8,
        tokens_per_step=config.global_batch_size * WORKLOAD.seq_len,
        num_ranks=config.world_size,
        gradient_noise_scale=phi,
    )
    rewarded = reward(m, baseline=baseline, objective=objective, workload=WORKLOAD, config=config)
    purpose = TrialPurpose.SEARCH if baseline else TrialPurpose.BASELINE
    return Trial(
        config=config, status=TrialStatus.COMPLETED, purpose=purpose, measurement=m, reward=rewarded
    )


def searched(name: str, objective: Objective, phi: float, trials: int) -> list[Trial]:
    searcher = make_searcher(name, SPACE, objective=objective)
    played = [measured(BASELINE, objective, phi)]
    searcher.tell(played)
    for _ in range(trials):
        (config,) = searcher.ask(1)
        played.append(measured(config, objective, phi, played[0].measurement))
        searcher.tell(played[-1:])
    return played


@pytest.mark.parametrize("name", ["bayesian", "cost_ranked", "reinforce"])
def test_the_first_config_after_the_baseline_depends_on_the_noise_scale(name: str) -> None:
    goodput, throughput = Objective(metric="goodput"), Objective(metric="throughput")
    little, much = (
        searched(name, goodput, phi, 1)[1].config.global_batch_size for phi in (1.0, 1e6)
    )
    plain = searched(name, throughput, 1.0, 1)[1].config.global_batch_size
    assert little < plain
    assert much == plain


@pytest.mark.parametrize("name", ["bayesian", "cost_ranked", "reinforce"])
def test_three_trials_find_the_best_goodput(name: str) -> None:
    objective = Objective(metric="goodput")
    baseline = measured(BASELINE, objective, 4.0).measurement
    everything = [measured(c, objective, 4.0, baseline) for c in SPACE]
    best = max(t.reward.total for t in everything if t.reward)
    found = max(t.reward.total for t in searched(name, objective, 4.0, 3) if t.reward)
    assert found == pytest.approx(best)


def test_the_offset_of_a_goodput_is_stability_and_the_constant_of_the_baseline() -> None:
    objective = Objective(metric="goodput", stability_weight=0.3)
    played = [measured(BASELINE, objective, 4.0)]
    played += [measured(c, objective, 4.0, played[0].measurement) for c in SPACE]
    offsets = [offset_of(t, objective, played) for t in played]
    assert max(offsets) - min(offsets) < 1e-9


def test_without_a_noise_scale_the_worst_case_is_assumed() -> None:
    objective = Objective(metric="goodput")
    found = log_efficiency(objective, np.array(BATCHES), [])
    assert np.allclose(found, [0.0, -math.log(2), -math.log(4), -math.log(8)])
    assert not log_efficiency(Objective(), np.array(BATCHES), []).any()
