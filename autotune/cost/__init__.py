"""The analytical cost model: step time and peak memory of a config by part, with error bars, from
formulas and a few fitted constants.

estimator.py     estimate(workload, configs): the entry point; how step times change with the constants
layout.py        where ranks sit, layers of each stage, weights per rank, FLOPs of the model
calibration.py   Calibration: constants of a GPU type and trainer, kept in constants.json; bounds, and constants of a network by its fabric
traits.py        facts about trainers that need no measurement, and in which of them two trainers differ
trainable.py     what fine-tuning trains                      model_knobs.py   which knobs the formulas read

time/            compute.py      kernel time of a micro-batch    elementwise.py  memory-bound kernels of a layer
                 attention.py    speed of attention's kernels    experts.py      time of a layer with experts
                 collectives.py  time of one collective          traffic.py      communication of a step
                 pipeline.py     bubbles, micro-batches in flight
                 recompute.py    what recomputation repeats
                 stalls.py       sends that wait, and how often; the link to the host
                 step.py         the parts of a step put together: launches, update
memory/          peak.py         peak memory of the fullest rank
                 activations.py  what a layer keeps, by module, and what recomputation and offloading leave of it
                 states.py       weights, gradients, optimizer states
                 loss.py         logits and loss, by how it is computed
                 constants.py    constants of memory by trainer, fitted or assumed
learn/           measured.py     constants fitted to measurements of a cluster
                 refit.py        constants given trials, with a covariance, and errors of single configs, which neighbors share
                 correction.py   a study's estimates given its trials: how wide errors are, trials that stalled, how far trials may move the constants
                 transferred.py  what trials say about another workload
                 from_dry_runs.py  formulas corrected by some configs that were run dry
                 uncertainty.py  error bars
rl/              a step of post-training
"""

from autotune.cost.calibration import Calibration, calibration_for
from autotune.cost.estimator import estimate
from autotune.cost.layout import model_flops_per_token, training_flops_per_token

__all__ = [
    "Calibration",
    "calibration_for",
    "estimate",
    "model_flops_per_token",
    "training_flops_per_token",
]
