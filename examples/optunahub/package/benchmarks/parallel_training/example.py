"""Run TPE on every cell. How far below the best throughput is it after 30 trials?"""

from __future__ import annotations

from pathlib import Path

import optuna
import optunahub

module = optunahub.load_local_module(
    "benchmarks/parallel_training", registry_root=str(Path(__file__).resolve().parents[2])
)

if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for cell in module.cell_names():
        problem = module.Problem(cell)
        study = optuna.create_study(
            directions=problem.directions, sampler=optuna.samplers.TPESampler(seed=0)
        )
        study.optimize(problem, n_trials=30)
        print(f"{cell}: regret {problem.regret(study.best_params):.1%} with {study.best_params}")
