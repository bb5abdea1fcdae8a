"""What a measurement is worth: throughput (or goodput, or cost) relative to the baseline, and stability by parts.

total.py      reward           stability.py   parts, hard gates
goodput.py    noise scale      price.py       cost of a token
ranking.py    other objectives, Pareto front  explanation.py  why a trial won or lost, in words
"""

from autotune.reward.explanation import Explanation, explain
from autotune.reward.goodput import (
    NoiseScale,
    efficiency,
    known_noise_scale,
    learning_rate_factor,
    noise_scale,
    study_noise_scale,
    with_noise_scale,
)
from autotune.reward.price import TokenCost, token_cost
from autotune.reward.ranking import competes, first_measured, merits, pareto, rerank
from autotune.reward.stability import diverged, formulas, spikes, stability, stability_parts
from autotune.reward.total import DIVERGED_CEILING, reward

__all__ = [
    "DIVERGED_CEILING",
    "Explanation",
    "NoiseScale",
    "TokenCost",
    "competes",
    "diverged",
    "efficiency",
    "explain",
    "first_measured",
    "formulas",
    "known_noise_scale",
    "learning_rate_factor",
    "merits",
    "noise_scale",
    "pareto",
    "rerank",
    "reward",
    "spikes",
    "stability",
    "stability_parts",
    "study_noise_scale",
    "token_cost",
    "with_noise_scale",
]
