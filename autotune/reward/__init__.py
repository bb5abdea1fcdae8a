"""Scores measurements: throughput (or goodput, or cost) relative to the baseline, and stability.

parts.py            parts of a reward with their limits          total.py         the reward of a trial, and the order of trials
stability.py        parts of stability, and hard gates           run_noise.py     noise between runs of one config
evidence.py         priors for statistics of few steps           price.py         cost of a token
equal_tokens.py     loss at the same number of tokens            goodput.py       gradient noise scale, efficiency of a batch
autocorrelation.py  effective number of independent steps        student_t.py     quantiles of Student's t
machine_level.py    changes of the machine's speed during a study
explanation.py      why a trial won or lost, in words            ranking.py       which trials compete, Pareto front, speeds across studies
"""

from autotune.reward.equal_tokens import LossCurve, compare_at_equal_tokens
from autotune.reward.explanation import Explanation, explain, loss_in_words
from autotune.reward.goodput import (
    NoiseScale,
    efficiency,
    known_noise_scale,
    learning_rate_factor,
    noise_scale,
    study_noise_scale,
    with_noise_scale,
)
from autotune.reward.machine_level import (
    LevelRange,
    MachineChange,
    MachineLevels,
    at_first_level,
    moved,
    prediction_error,
    slowed,
)
from autotune.reward.parts import STABILITY_PARTS, STABILITY_RULE, THROUGHPUT_TERMS
from autotune.reward.price import TokenCost, token_cost
from autotune.reward.ranking import (
    asked_again,
    competes,
    counted_once,
    merits,
    pareto,
    speeds_in_finals,
    standing,
)
from autotune.reward.run_noise import (
    RunNoise,
    squares_of_rounds,
    steady_rounds,
    undisturbed,
    within_run_variance,
)
from autotune.reward.stability import diverged, spikes, stability, stability_parts
from autotune.reward.total import (
    DIVERGED_CEILING,
    by_reward,
    first_measured,
    reference_of,
    rerank,
    reward,
    score,
    tokens_per_s,
)

__all__ = [
    "DIVERGED_CEILING",
    "STABILITY_PARTS",
    "STABILITY_RULE",
    "THROUGHPUT_TERMS",
    "Explanation",
    "LevelRange",
    "LossCurve",
    "MachineChange",
    "MachineLevels",
    "NoiseScale",
    "RunNoise",
    "TokenCost",
    "asked_again",
    "at_first_level",
    "by_reward",
    "compare_at_equal_tokens",
    "competes",
    "counted_once",
    "diverged",
    "efficiency",
    "explain",
    "first_measured",
    "known_noise_scale",
    "learning_rate_factor",
    "loss_in_words",
    "merits",
    "moved",
    "noise_scale",
    "pareto",
    "prediction_error",
    "reference_of",
    "rerank",
    "reward",
    "score",
    "slowed",
    "speeds_in_finals",
    "spikes",
    "squares_of_rounds",
    "stability",
    "stability_parts",
    "standing",
    "steady_rounds",
    "study_noise_scale",
    "token_cost",
    "tokens_per_s",
    "undisturbed",
    "with_noise_scale",
    "within_run_variance",
]
