"""The analytical cost model: step time and peak memory of a config by part, with error bars, from
formulas and a few fitted constants.

estimator.py     estimate(workload, configs): the entry point; how step times change with the constants
layout.py        where ranks sit, layers of each stage, weights per rank, FLOPs of the model
calibration.py   Calibration: constants of a GPU type and trainer, kept in constants.json; bounds, and network constants by fabric
traits.py        facts about trainers that need no measurement, and differences between two trainers
trainable.py     trained weights and adapters                 model_knobs.py   which knobs the formulas read

time/            compute.py      kernel time of a micro-batch    elementwise.py  memory-bound kernels of a layer
                 attention.py    speed of attention's kernels    experts.py      time of a layer with experts
                 collectives.py  time of one collective          traffic.py      communication of a step
                 pipeline.py     bubbles, micro-batches in flight
                 recompute.py    work repeated by recomputation
                 stalls.py       sends that wait, and how often; the link to the host
                 step.py         one optimizer step from its parts
memory/          peak.py         peak memory of the rank with the highest peak
                 activations.py  activations that a layer keeps, by module, also with recomputation and offloading
                 states.py       weights, gradients, optimizer states
                 loss.py         logits and loss, by how it is computed
                 constants.py    memory constants by trainer, fitted or assumed
learn/           measured.py     constants fitted to measurements of a cluster
                 refit.py        posterior of the constants given trials, and correlated errors of single configs
                 correction.py   a study's estimates given its trials: size of errors, stalled trials, choice of the prior
                 transferred.py  step times of a workload from trials of others
                 from_dry_runs.py  memory formulas corrected by dry runs
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
