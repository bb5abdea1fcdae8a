"""What a measurement is worth: throughput (or goodput, or cost) relative to the baseline, and stability by parts.

parts.py         the parts of a reward: names, what is scored, limits    total.py         reward of a measurement
stability.py     the parts of stability, hard gates                      trial_score.py  score of a trial, and the order it gives
equal_tokens.py  loss at equal tokens, where the data differ
goodput.py       gradient noise scale, efficiency of a batch             price.py         cost of a token
explanation.py   why a trial won or lost, in words                       ranking.py       who competes, Pareto front
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
from autotune.reward.parts import STABILITY_PARTS, STABILITY_RULE, THROUGHPUT_TERMS
from autotune.reward.price import TokenCost, token_cost
from autotune.reward.ranking import competes, merits, pareto
from autotune.reward.stability import diverged, spikes, stability, stability_parts
from autotune.reward.total import DIVERGED_CEILING, reward
from autotune.reward.trial_score import by_reward, first_measured, reference_of, rerank, score, tokens_per_s

__all__ = [
    "DIVERGED_CEILING",
    "STABILITY_PARTS",
    "STABILITY_RULE",
    "THROUGHPUT_TERMS",
    "Explanation",
    "LossCurve",
    "NoiseScale",
    "TokenCost",
    "by_reward",
    "compare_at_equal_tokens",
    "competes",
    "diverged",
    "efficiency",
    "explain",
    "first_measured",
    "known_noise_scale",
    "learning_rate_factor",
    "loss_in_words",
    "merits",
    "noise_scale",
    "pareto",
    "reference_of",
    "rerank",
    "reward",
    "score",
    "spikes",
    "stability",
    "stability_parts",
    "study_noise_scale",
    "token_cost",
    "tokens_per_s",
    "with_noise_scale",
]
