"""The packages for OptunaHub: they load from their folder as its loader loads them, and do what
their README says."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import optuna
import optunahub
import pytest
import yaml

from tests.benchmarks.optunahub_cells import TARGET, table

ROOT = Path(__file__).parents[2] / "examples" / "optunahub" / "package"
PACKAGES = ("samplers/autotune", "benchmarks/parallel_training")
SPEC = {
    "model": "gpt2-medium",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 64},
    "space": {"tp": [1, 2], "micro_batch_size": [1, 2, 4], "precision": ["bf16"]},
}


def loaded(package: str) -> ModuleType:
    return optunahub.load_local_module(package, registry_root=str(ROOT))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_the_files_and_the_header_of_the_registry(package: str) -> None:
    folder = ROOT / package
    assert {"__init__.py", "README.md", "LICENSE", "example.py"} <= {
        path.name for path in folder.iterdir()
    }
    _, header, _ = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    said = yaml.safe_load(header)
    assert set(said) == {"author", "title", "description", "tags", "optuna_versions", "license"}
    assert optuna.__version__ in said["optuna_versions"]
    assert ("sampler" if package.startswith("samplers") else "benchmarks") in said["tags"]


def test_the_sampler_suggests_legal_configs_and_none_twice() -> None:
    module = loaded("samplers/autotune")
    space = module.space_of(SPEC)
    study = optuna.create_study(
        direction="maximize", sampler=module.AutotuneSampler(space, "cost_ranked")
    )
    asked = [module.suggest_config(study.ask(), space) for _ in range(3)]
    assert all(config in space for config in asked)
    assert len(set(asked)) == 3


def test_the_table_of_the_benchmark_is_that_of_the_replay_cells() -> None:
    assert (TARGET / "cells.csv").read_text(encoding="utf-8") == table()


def test_every_cell_is_a_problem_with_a_best_config_and_failures() -> None:
    module = loaded("benchmarks/parallel_training")
    assert len(module.cell_names()) == 8
    for cell in module.cell_names():
        problem = module.Problem(cell)
        names, points = list(problem.search_space), list(problem._rows)
        params = [dict(zip(names, point, strict=True)) for point in points]
        runs = [max(problem.evaluate_constraints(p).values()) <= 0 for p in params]
        assert [problem.evaluate(p) > 0 for p in params] == runs
        assert min(map(problem.regret, params)) == 0.0
        assert 0 < sum(runs) < len(runs)
    with pytest.raises(ValueError, match="llama-8B, 32 GPUs"):
        module.Problem("none")


@pytest.mark.thorough
def test_a_study_of_the_problem_counts_only_configs_that_run() -> None:
    problem = loaded("benchmarks/parallel_training").Problem()
    names, rows = list(problem.search_space), problem._rows
    runs = next(point for point, row in rows.items() if not row["failure"])
    fails = next(point for point, row in rows.items() if row["failure"])
    outside = {knob: values.choices[-1] for knob, values in problem.search_space.items()}
    study = optuna.create_study(
        directions=problem.directions, sampler=optuna.samplers.TPESampler(seed=1)
    )
    for params in (
        dict(zip(names, fails, strict=True)),
        dict(zip(names, runs, strict=True)),
        outside,
    ):
        study.enqueue_trial(params)
    study.optimize(problem, n_trials=5)
    assert [t.constraints["runs"] for t in study.trials[:2]] == [1.0, -1.0]
    assert study.trials[2].constraints["measured"] == 1.0
    assert max(study.best_trial.constraints.values()) <= 0
    assert problem.regret(study.best_params) < 1.0
