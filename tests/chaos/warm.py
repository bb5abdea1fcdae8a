"""Imports what controllers need, before they are forked."""

from __future__ import annotations

import contextlib

import numpy
import optuna
import scipy.stats

import autotune.cost
import autotune.search.bayesian
import autotune.search.optuna
import autotune_workers.runners.simulated
import tests.chaos.controller
import tests.chaos.supervisor

with contextlib.suppress(ImportError):  # only where PostgreSQL is used
    import psycopg

__all__ = ["autotune", "autotune_workers", "numpy", "optuna", "psycopg", "scipy", "tests"]
