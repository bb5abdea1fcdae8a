"""Run ten trials for one node of 8 H100s, without a GPU.

The objective is the analytical model times a factor that the sampler does not know.
"""

from __future__ import annotations

from pathlib import Path

import optuna
import optunahub

from autotune import estimate

module = optunahub.load_local_module(
    "samplers/autotune", registry_root=str(Path(__file__).resolve().parents[2])
)
space = module.space_of(
    {
        "model": "gpt2-medium",
        "cluster": "h100-sxm-1x8",
        "workload": {"seq_len": 1024, "global_batch_size": 64},
        "space": {
            "tp": [1, 2, 4],
            "pp": [1, 2],
            "micro_batch_size": [1, 2, 4, 8],
            "precision": ["bf16"],
        },
    }
)


def objective(trial: optuna.Trial) -> float:
    """Tokens per second, where tensor parallelism is slower than predicted."""
    config = module.suggest_config(trial, space)
    predicted = estimate(space.workload, config)
    trial.set_user_attr("peak_memory_bytes", float(predicted.peak_memory_bytes))
    return float(predicted.tokens_per_s) / config.tp**0.3


if __name__ == "__main__":
    study = optuna.create_study(direction="maximize", sampler=module.AutotuneSampler(space))
    study.optimize(objective, n_trials=10)
    print(study.best_params, f"{study.best_value:,.0f} tokens/s")
