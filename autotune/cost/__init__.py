"""The analytical cost model: step time and peak memory of a config by part, with error bars, from formulas and a few fitted constants.

estimator.py     estimate(workload, configs): the entry point
layout.py        where the ranks of each group sit            stages.py       layers of each pipeline stage
flops.py         FLOPs of the model                           parameters.py   weights per rank
compute.py       kernel time of a micro-batch                 collectives.py  time of one collective
traffic.py       communication of a step                      pipeline.py     bubbles, micro-batches in flight
recompute.py     what recomputation repeats and keeps         step_time.py    the parts of a step put together
memory.py        peak memory of the fullest rank              uncertainty.py  error bars
calibration.py   Calibration: constants of a GPU type and trainer, kept in constants.json
measured.py      constants fitted to measurements of a cluster
traits.py        facts about trainers that need no measurement
model_knobs.py   which knobs the formulas read
"""

from autotune.cost.calibration import Calibration, calibration_for
from autotune.cost.estimator import estimate
from autotune.cost.flops import model_flops_per_token

__all__ = ["Calibration", "calibration_for", "estimate", "model_flops_per_token"]
