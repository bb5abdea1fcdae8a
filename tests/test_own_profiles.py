"""Plans, estimates and searches make the profile of a model that code builds; the formulas answer where it cannot be made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import api, cli
from autotune.errors import DryRunError
from autotune.profiling import ensure_profile, profile_fingerprint
from autotune.spec import ModelCode, ModelSpec, Study
from autotune.store.in_memory import MemoryStore
from tests.cost.test_profile import DOCUMENT, MODEL
from tests.dry_run_fake import FakeDryRunner

OWN = replace(MODEL, name="mine", code=ModelCode(module="mine:build", num_parameters=10_000_000))
FAILS = DryRunError("the model looks at a value\nat model.py:7", remedy="leave the branch out")


def study(model: ModelSpec = OWN, **changes: Any) -> Study:
    asked = api.load_study(
        {
            "name": "s",
            "model": "gpt2-small",
            "cluster": "h100-sxm-1x8",
            "workload": {"seq_len": 512, "global_batch_size": 64},
            "space": {"dp": [8], "micro_batch_size": [1, 2, 4], "zero_stage": [0, 3], "precision": ["bf16"]},
            **changes,
        }
    )
    return replace(asked, workload=replace(asked.workload, model=model))


def stored(asked: Study, **changes: Any) -> MemoryStore:
    """A store with a profile of the study's model."""
    store = MemoryStore()
    store.save_profile(profile_fingerprint(asked.workload), {**DOCUMENT["profile"], **changes})
    return store


def test_a_model_that_cannot_be_run_dry_is_tried_once_and_the_reason_is_one_line() -> None:
    runner, heard = FakeDryRunner(error=FAILS), []
    problem = ensure_profile(study(), MemoryStore(), runner=runner, on_run=lambda *run: heard.append(run))
    assert problem == "the model looks at a value at model.py:7"
    assert len(runner.asked) == 1
    assert [(number, count) for number, count, _ in heard] == [(1, 4)]


@pytest.mark.parametrize(
    "asked",
    [study(replace(OWN, code=None)), study(trainer="torchtitan")],
    ids=["a shape of the catalog", "a trainer whose code is not run"],
)
def test_nothing_is_run_where_the_formulas_answer(asked: Study) -> None:
    runner = FakeDryRunner(error=FAILS)
    assert ensure_profile(asked, MemoryStore(), runner=runner) == ""
    assert runner.asked == []


def test_nothing_is_run_without_a_store_or_where_it_holds_the_profile() -> None:
    runner = FakeDryRunner(error=FAILS)
    assert ensure_profile(study(), None, runner=runner) == ""
    assert ensure_profile(study(), stored(study()), runner=runner) == ""
    assert runner.asked == []


def test_kinds_of_training_that_could_not_be_read_are_not_run_again() -> None:
    kept = {kind: t for kind, t in DOCUMENT["profile"]["templates"].items() if kind != "sharded"}
    store = stored(study(), templates=kept, unread={"sharded": "two layers differ"})
    runner = FakeDryRunner(error=FAILS)
    assert ensure_profile(study(), store, runner=runner) == ""
    assert runner.asked == []
    plan = api.plan_of(study(), store=store)
    assert "memory of 3 of 6 configs from a profile" in plan.source
    assert "two layers differ" in plan.source


def test_a_plan_says_where_its_memory_comes_from() -> None:
    own = study()
    assert "memory from a profile of" in api.plan_of(own, store=stored(own)).source
    assert "memory" not in api.plan_of(own, store=MemoryStore(), profile=False).source
    config = api.plan_of(own, profile=False).rows[0].config
    profiled, source = api.estimate_of(own, config, store=stored(own))
    assert "memory from a profile of" in source
    by_formulas, source = api.estimate_of(own, replace(config, precision="fp32"), store=stored(own))
    assert "memory by the formulas, because" in source
    assert float(profiled.peak_memory_bytes) != float(by_formulas.peak_memory_bytes)


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
        "space": {"dp": [2], "micro_batch_size": [1, 2], "precision": ["fp32"], "zero_stage": [0, 3]},
        "budget": {"max_trials": 2},
        "runner": "simulated",
    }
    spec.write_text(json.dumps(document))

    def said(*words: str) -> str:
        assert cli.run([words[0], str(spec), *words[1:]]) == 0
        return " ".join(capsys.readouterr().err.split())

    assert "memory" not in said("plan", "--no-profile")
    first = said("plan")
    assert "up to 4 dry runs make one, once, which may take minutes; --no-profile answers at once" in first
    assert "profile: dry run 1 of 4: replicated weights" in first
    assert "memory from a profile of 4 dry runs" in first
    again = said("estimate", "--config", "dp=2,precision=fp32,zero_stage=3")
    assert "dry run 1" not in again
    assert "memory from a profile of 4 dry runs" in again
    assert "dry run 1" not in said("tune", "--json")
    spec.write_text(json.dumps({**document, "model": {"module": "mine:build", "args": {"fails": True}}}))
    failed = said("tune", "--json")
    assert "profile: dry run 1 of 4" in failed
    assert "no profile could be made" in failed
    assert "dry run 1" not in said("tune", "--no-profile", "--json")
