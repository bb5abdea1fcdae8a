"""Specs of small studies on the simulated runner, without noise: what is measured depends on the
config alone."""

from __future__ import annotations

from typing import Any

QUIET = {"kind": "simulated", "noise": 0.0, "outlier_every": 0}


def spec(**changes: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "model": "gpt2-medium",
        "cluster": "h100-sxm-1x8",
        "workload": {"seq_len": 1024, "global_batch_size": 64},
        "space": {
            "tp": [1, 2, 4],
            "pp": [1, 2],
            "micro_batch_size": [1, 2, 4, 8],
            "precision": ["fp32", "bf16"],
        },
        "budget": {"max_trials": 6, "min_gain": 0},
        "searcher": "cost_ranked",
        "trainer": "native",
        "runner": QUIET,
    } | changes


def configs(trials: Any) -> list[str]:
    return [f"{t.purpose} {t.config} {t.status}" for t in trials]
