"""The analytical cost model: step time and peak memory of a config by part, with error bars, from formulas and a few fitted constants.

estimator.py     estimate(workload, configs): the entry point
layout.py        where the ranks of each group sit            stages.py       layers of each pipeline stage
flops.py         FLOPs of the model                           parameters.py   weights per rank
compute.py       kernel time of a micro-batch                 elementwise.py  memory-bound kernels of a layer
collectives.py   time of one collective                       launches.py      how often the host launches for a layer
traffic.py       communication of a step                      pipeline.py     bubbles, micro-batches in flight
recompute.py     what recomputation repeats and keeps         step_time.py    the parts of a step put together
memory.py        peak memory of the fullest rank              uncertainty.py  error bars
activations.py   what a layer keeps, by module                kept.py         what recomputation and offloading leave of it
model_states.py  weights, gradients, optimizer states         loss_memory.py  logits and loss, by how it is computed
memory_constants.py  constants of memory by trainer, fitted or assumed
bounds.py        no efficiency above what was ever measured
sensitivity.py   how step times change with the constants     own_error.py     errors of single configs, and how neighbours share them
refit.py         constants given trials, with a covariance    correction.py    a study's estimates given its trials
error_scale.py   how wide the errors of a study are
stalls.py        sends that wait, and how often               stalled_trials.py  trials that ran so
guarded_refit.py which trials may move the constants, and how far              transferred.py   what they say about another workload
calibration.py   Calibration: constants of a GPU type and trainer, kept in constants.json
measured.py      constants fitted to measurements of a cluster
traits.py        facts about trainers that need no measurement
model_knobs.py   which knobs the formulas read
"""

from autotune.cost.calibration import Calibration, calibration_for
from autotune.cost.estimator import estimate
from autotune.cost.flops import model_flops_per_token, training_flops_per_token

__all__ = ["Calibration", "calibration_for", "estimate", "model_flops_per_token", "training_flops_per_token"]
