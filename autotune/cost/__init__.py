"""The analytical cost model: step time and peak memory of a config by part, with error bars, from formulas and a few fitted constants.

estimator.py     estimate(workload, configs): the entry point; how step times change with the constants
layout.py        where ranks sit, layers of each stage, weights per rank, FLOPs of the model
compute.py       kernel time of a micro-batch                 elementwise.py  memory-bound kernels of a layer
collectives.py   time of one collective                       experts.py      time of a layer with experts
traffic.py       communication of a step                      pipeline.py     bubbles, micro-batches in flight
recompute.py     what recomputation repeats                   step_time.py    the parts of a step put together: launches, update
memory.py        peak memory of the fullest rank              uncertainty.py  error bars
activations.py   what a layer keeps, by module, and what recomputation and offloading leave of it
model_states.py  weights, gradients, optimizer states         loss_memory.py  logits and loss, by how it is computed
memory_constants.py  constants of memory by trainer, fitted or assumed
refit.py         constants given trials, with a covariance, and errors of single configs, which neighbours share
correction.py    a study's estimates given its trials: how wide errors are, trials that stalled, how far trials may move the constants
stalls.py        sends that wait, and how often; the link to the host
transferred.py   what trials say about another workload
calibration.py   Calibration: constants of a GPU type and trainer, kept in constants.json; bounds, and constants of a network by its fabric
measured.py      constants fitted to measurements of a cluster
traits.py        facts about trainers that need no measurement, and in which of them two trainers differ
model_knobs.py   which knobs the formulas read
"""

from autotune.cost.calibration import Calibration, calibration_for
from autotune.cost.estimator import estimate
from autotune.cost.layout import model_flops_per_token, training_flops_per_token

__all__ = ["Calibration", "calibration_for", "estimate", "model_flops_per_token", "training_flops_per_token"]
