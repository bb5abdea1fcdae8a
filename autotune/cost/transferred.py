"""What trials of other workloads leave unknown about the step times of a workload of which nothing was measured.

    var log t = J C J' + s^2        J: derivatives of log t by constants and level        C: their covariance given the trials (`refit`)        s: own error

A constant that the trials do not depend on keeps its prior width in C. So the interval of a config on many nodes stays wide, however often one node was measured.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.refit import Array, UncertainConstants
from autotune.cost.sensitivity import sensitivity
from autotune.spec import ConfigTable, Workload


def transferred_sigma(workload: Workload, table: ConfigTable, known: UncertainConstants) -> Array:
    """Standard deviation of the log step time of each config, shape (N,). `known`: the constants given the trials (`Refitted.elsewhere`)."""
    rows = sensitivity(workload, table, known.constants, known.names)
    shared = np.einsum("nk,kl,nl->n", rows.jacobian, known.covariance, rows.jacobian)
    return np.asarray(np.sqrt(np.maximum(shared, 0.0) + rows.own_sigma**2))
