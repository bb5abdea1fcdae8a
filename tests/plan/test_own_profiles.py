"""Plans, estimates and searches make the dry runs of a model that code builds; the formulas answer
where none can be made."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autotune import api, cli
from autotune.cost import calibration_for
from autotune.cost.learn.dry_runs import DryRuns
from autotune.errors import DryRunError
from autotune.plan.dry_runs import MOST_RUNS, TOP, ensure_profile, leave_one_out, profile_study
from autotune.plan.plan import plan
from autotune.ports import DryRunLimits
from autotune.results.calibrations import find_profile, profile_fingerprint, stored_calibration
from autotune.space import SearchSpace
from autotune.spec import DryRun, ModelCode, ModelSpec, ParallelConfig, Study, Workload, catalog
from autotune.store.in_memory import MemoryStore
from tests.dry_run_fake import FakeDryRunner

OWN = replace(
    catalog.model("gpt2-small"),
    name="mine",
    code=ModelCode(module="mine:build", num_parameters=124_439_808),
)
FAILS = DryRunError("the model looks at a value\nat model.py:7", remedy="leave the branch out")


def study(model: ModelSpec = OWN, **changes: Any) -> Study:
    asked = api.load_study(
        {
            "name": "s",
            "model": "gpt2-small",
            "cluster": "h100-sxm-1x8",
            "workload": {"seq_len": 512, "global_batch_size": 64},
            "space": {
                "dp": [8],
                "micro_batch_size": [1, 2, 4],
                "zero_stage": [0, 3],
                "precision": ["bf16"],
            },
            **changes,
        }
    )
    return replace(asked, workload=replace(asked.workload, model=model))


@dataclass
class FailsOn(FakeDryRunner):
    """Fails on configs with that ZeRO stage."""

    stage: int = -1

    def run(
        self, workload: Workload, config: ParallelConfig, *, pp_rank: int, limits: DryRunLimits
    ) -> DryRun:
        if config.zero_stage == self.stage:
            raise FAILS
        return super().run(workload, config, pp_rank=pp_rank, limits=limits)


def test_a_model_that_cannot_be_run_dry_is_tried_once_and_the_reason_is_one_line() -> None:
    runner, heard = FakeDryRunner(error=FAILS), []
    problem = ensure_profile(
        study(), MemoryStore(), runner=runner, on_run=lambda *run: heard.append(run)
    )
    assert problem == "the model looks at a value at model.py:7"
    assert len(runner.asked) == 1
    assert [(number, count) for number, count, _ in heard] == [(1, MOST_RUNS)]


@pytest.mark.parametrize(
    "asked",
    [study(replace(OWN, code=None)), study(trainer="torchtitan")],
    ids=["a shape of the catalog", "a trainer whose code is not run"],
)
def test_nothing_is_run_where_the_formulas_answer(asked: Study) -> None:
    runner = FakeDryRunner(error=FAILS)
    assert ensure_profile(asked, MemoryStore(), runner=runner) == ""
    assert runner.asked == []


def test_the_best_of_the_plan_are_run_once_and_found_again() -> None:
    store, runner, own = MemoryStore(), FakeDryRunner(), study()
    assert ensure_profile(own, store, runner=runner) == ""
    assert TOP <= len(runner.asked) <= MOST_RUNS
    constants = stored_calibration(own.workload, store)
    found = find_profile(own.workload, store)
    assert constants is not None
    assert found is not None
    assert all(
        found.is_known(row.config)
        for row in plan(SearchSpace.of_study(own), calibration=constants, top=TOP).rows
    )
    again = FakeDryRunner(error=FAILS)
    assert ensure_profile(own, store, runner=again) == ""
    assert again.asked == []
    # the next answer would have to make it again
    assert ensure_profile(own, None, runner=again) == ""
    assert DryRuns.from_dict(found.to_dict()) == found


def test_configs_that_cannot_be_run_dry_are_named_and_not_tried_again() -> None:
    store, own = MemoryStore(), study()
    assert ensure_profile(own, store, runner=FailsOn(stage=3)) == ""
    found = find_profile(own.workload, store)
    assert found is not None
    assert found.points
    assert {"zero_stage=3" in config for config in found.failed} == {True}
    again = FakeDryRunner(error=FAILS)
    assert ensure_profile(own, store, runner=again) == ""
    assert again.asked == []
    assert "cannot be dry-run: the model looks at a value" in api.plan_of(own, store=store).source


def test_dry_runs_of_another_format_are_made_anew() -> None:
    store, own = MemoryStore(), study()
    store.save_profile(profile_fingerprint(own.workload), {"version": 8, "templates": {}})
    assert find_profile(own.workload, store) is None
    runner = FakeDryRunner()
    assert ensure_profile(own, store, runner=runner) == ""
    assert runner.asked


def test_a_plan_says_where_its_memory_comes_from_and_an_estimate_runs_its_own_config() -> None:
    own, store = study(), MemoryStore()
    ensure_profile(own, store, runner=FakeDryRunner())
    assert "memory from dry runs of" in api.plan_of(own, store=store).source
    assert "memory" not in api.plan_of(own, store=MemoryStore(), profile=False).source
    runner, config = FakeDryRunner(), api.plan_of(own, profile=False).rows[-1].config
    alone = MemoryStore()
    assert ensure_profile(own, alone, runner=runner, configs=[config]) == ""
    assert len(runner.asked) == 1
    estimate, source = api.estimate_of(own, config, store=alone, profile=False)
    run = FakeDryRunner().run(own.workload, config, pp_rank=0, limits=DryRunLimits())
    constants = stored_calibration(own.workload, alone)
    assert constants is not None
    expected = run.peak.total_bytes * (1 + constants.fragmentation) + constants.framework_bytes
    assert float(estimate.peak_memory_bytes) == pytest.approx(expected, rel=0.01)
    assert "memory from dry runs of 1 config;" in source


def test_each_dry_run_is_held_against_what_the_others_say() -> None:
    own = study()
    found = profile_study(own, runner=FakeDryRunner())
    checks = leave_one_out(found, own.workload, calibration_for(own.workload))
    assert len(checks) == len(found.points)
    assert all(abs(check.error) < 0.5 for check in checks)


MODULE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Network(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 128)
    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def build(fails=False):
    model = Network(48, 4)
    if fails:
        plain = model.head.forward
        model.head.forward = lambda x: plain(x) if x.max() > 0 else x
    return model
"""


@pytest.mark.slow
def test_plan_makes_the_profile_once_and_estimate_and_tune_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOTUNE_STORE", str(tmp_path / "results.db"))
    (tmp_path / "mine.py").write_text(MODULE)
    spec = tmp_path / "spec.json"
    document = {
        "name": "s",
        "model": {"module": "mine:build"},
        "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 2},
        "workload": {"seq_len": 64, "global_batch_size": 8},
        "space": {
            "dp": [2],
            "micro_batch_size": [1, 2],
            "precision": ["fp32"],
            "zero_stage": [0, 3],
        },
        "budget": {"max_trials": 2},
        "runner": "simulated",
    }
    spec.write_text(json.dumps(document))

    def said(*words: str) -> str:
        assert cli.run([words[0], str(spec), *words[1:]]) == 0
        return " ".join(capsys.readouterr().err.split())

    assert "memory" not in said("plan", "--no-profile")
    first = said("plan")
    assert (
        f"up to {MOST_RUNS} configs are dry-run once, which may take minutes; use --no-profile to skip"
        in first
    )
    assert f"dry run 1 of at most {MOST_RUNS}: " in first
    assert "memory from dry runs of 4 configs" in first
    again = said("estimate", "--config", "dp=2,precision=fp32,zero_stage=3")
    assert "dry run 1" not in again
    assert "memory from dry runs of 4 configs" in again
    assert "dry run 1" not in said("tune", "--json")
    spec.write_text(
        json.dumps({**document, "model": {"module": "mine:build", "args": {"fails": True}}})
    )
    failed = said("tune", "--json")
    assert "dry run 1 of at most" in failed
    assert "because the dry run failed" in failed
    assert "dry run 1" not in said("tune", "--no-profile", "--json")
