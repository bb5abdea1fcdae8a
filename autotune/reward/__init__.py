"""What a measurement is worth: throughput (or goodput, or cost) relative to the baseline, and
stability by parts.

parts.py         the parts of a reward: names, what is scored, limits    total.py         reward of a measurement, score of a trial, and the order it gives
stability.py     the parts of stability, hard gates
evidence.py      priors for what few steps tell                          run_noise.py     noise between runs of one config
equal_tokens.py  loss at the same number of tokens, where the data differ             autocorrelation.py  what steps that resemble their neighbours tell
goodput.py       gradient noise scale, efficiency of a batch             price.py         cost of a token
machine_level.py by which factor the machine was faster or slower in each trial
explanation.py   why a trial won or lost, in words                       ranking.py       who competes, Pareto front; where a config stands among all studies
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
