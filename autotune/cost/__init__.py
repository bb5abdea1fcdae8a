"""What a config should cost: step time and peak memory by part, with error bars, from formulas and a few fitted constants.

estimate(workload, configs)   Calibration, calibration_for(workload)   model_flops_per_token(model, seq_len)
"""

from autotune.cost.calibration import Calibration, calibration_for
from autotune.cost.estimator import estimate
from autotune.cost.flops import model_flops_per_token

__all__ = ["Calibration", "calibration_for", "estimate", "model_flops_per_token"]
