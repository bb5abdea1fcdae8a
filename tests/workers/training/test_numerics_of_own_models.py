"""Models that code builds train under every kind of parallelism that they bring: each config's
losses are those of one fp32 rank on the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.spec.hugging_face.families import FAMILIES
from autotune.spec.hugging_face.shapes import PIPELINE_SPLITS, TENSOR_PLANS
from autotune_workers.own_model.built_model import is_supported
from tests.workers.trial_ranks import run_jobs

pytestmark = [pytest.mark.thorough, pytest.mark.alone]

TOLERANCES = {"fp32": 2e-5, "bf16": 1e-2}
WHOLE, HALF = "micro_batch_size=4", "micro_batch_size=2,accumulation_steps=2"
PP = "pp=2,micro_batch_size=1,accumulation_steps=4"
CHUNKED = (("fp32", 0), ("fp32", 3), ("bf16", 2))
"""precision and ZeRO stage"""
LORA = {"workload": {"peft": {"method": "lora", "rank": 4}}}
Job = tuple[str, str, dict[str, Any]]

FAILING = ("no_module", "raises", "failing_forward")
SAMPLE: dict[int, list[Job]] = {
    1: [
        (model, f"{WHOLE},precision=fp32", {})
        for model in ("hf_tied", "plain", "recommender", *FAILING)
    ],
    2: [
        ("hf_tied", f"tp=2,{WHOLE},precision=fp32", {}),
        ("hf_tied", f"{PP},precision=fp32,loss=chunked", {}),
        ("plain", f"{PP},precision=fp32,zero_stage=0", {}),
        ("plain", "dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32,zero_stage=3", {}),
        ("recommender", "dp=2,micro_batch_size=2,precision=fp32,zero_stage=1", {}),
    ],
}
"""what every run of the tests tries"""
ALL: dict[int, list[Job]] = {
    1: [
        *(
            (m, f"{WHOLE},precision=fp32", {})
            for m in ("hf", "hf_tied", "plain", "plain_tied", "recommender")
        ),
        ("split_by_function", f"{WHOLE},precision=fp32", {}),
        *((m, f"{WHOLE},precision=fp32", LORA) for m in ("hf", "plain")),
        ("convolutional", f"{WHOLE},precision=fp32", {}),
        ("convolutional", f"{HALF},precision=fp32", {}),
        ("hf", f"{HALF},precision=fp32,recompute=full", {}),
        ("plain", f"{WHOLE},precision=fp32,recompute=selective", {}),
        ("hf", f"{WHOLE},precision=bf16", {}),
        ("hf", f"{WHOLE},precision=bf16,loss=chunked", {}),
    ],
    2: [
        ("hf", "dp=2,micro_batch_size=2,precision=fp32", {}),
        ("hf", "dp=2,micro_batch_size=2,precision=bf16,zero_stage=3,recompute=full", {}),
        ("hf", "dp=2,micro_batch_size=2,precision=fp32,zero_stage=3", LORA),
        ("hf", f"tp=2,{WHOLE},precision=fp32", {}),
        ("hf", f"tp=2,{WHOLE},precision=fp32", LORA),
        ("plain", f"tp=2,{WHOLE},precision=fp32", LORA),
        ("hf", f"{PP},precision=bf16", {}),
        ("hf", f"{PP},precision=fp32,loss=chunked", {}),
        *(
            ("hf_tied", f"dp=2,micro_batch_size=2,precision={p},zero_stage={z},loss=chunked", {})
            for p, z in CHUNKED
        ),
        ("plain", "dp=2,micro_batch_size=2,precision=bf16,zero_stage=2", {}),
        ("plain_tied", f"tp=2,{HALF},precision=fp32,recompute=full", {}),
        ("plain_tied", f"{PP},precision=fp32,zero_stage=0", {}),
        ("plain", f"{PP},precision=fp32", LORA),
        ("plain", f"{PP},precision=fp32,pp_schedule=interleaved_1f1b,virtual_stages=2", {}),
        ("split_by_function", f"{PP},precision=fp32", {}),
        ("hf_tied", f"{PP},precision=fp32,zero_stage=0,recompute=full", {}),
        ("recommender", "dp=2,micro_batch_size=2,precision=bf16,zero_stage=3", {}),
    ],
    4: [
        ("hf_tied", "tp=2,pp=2,micro_batch_size=1,accumulation_steps=4,precision=fp32", {}),
        ("plain_tied", "tp=2,dp=2,micro_batch_size=2,precision=fp32,zero_stage=3", {}),
        ("hf", "pp=2,dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32,zero_stage=1", {}),
        ("hf", "tp=2,dp=2,micro_batch_size=2,precision=fp32,zero_stage=3", LORA),
        *(
            (
                m,
                f"pp=2,dp=2,micro_batch_size=1,accumulation_steps=2,precision={p},zero_stage={z}",
                {},
            )
            for m in ("hf", "hf_tied", "plain")
            for p, z in (("fp32", 2), ("fp32", 3), ("bf16", 3))
        ),
        ("hf", "dp=4,dp_replicas=2,micro_batch_size=1,precision=fp32,zero_stage=3", {}),
    ],
}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of the sample, and of the failing models behind those of one rank."""
    return results_of(SAMPLE, tmp_path_factory.mktemp("sample"))


def test_a_sample_of_configs_gives_the_losses_of_one_rank(sample: list[dict[str, Any]]) -> None:
    check([result for result in sample if result["model"] not in FAILING])


def test_what_the_users_code_raises_names_its_line(sample: list[dict[str, Any]]) -> None:
    no_module, raises, failing = (result for result in sample if result["model"] in FAILING)
    assert no_module["failure"]["kind"] == raises["failure"]["kind"] == "INVALID"
    assert "must return an nn.Module" in no_module["failure"]["message"]
    assert "no model is 1 wide" in raises["failure"]["message"]
    assert "own_models.py:" in raises["failure"]["message"]
    assert "own_models.py:" in failing["error"].splitlines()[-1]


@pytest.mark.slow
def test_every_kind_of_parallelism_gives_the_losses_of_one_rank(tmp_path: Path) -> None:
    check(results_of(ALL, tmp_path))


@pytest.mark.slow
def test_every_class_of_transformers_with_a_plan_gives_the_losses_of_one_rank(
    tmp_path: Path,
) -> None:
    families = sorted(TENSOR_PLANS | PIPELINE_SPLITS)
    jobs: dict[int, list[Job]] = {
        1: [(f"hf_{family}", f"{WHOLE},precision=fp32", {}) for family in families],
        2: [
            *(
                (f"hf_{family}", f"tp=2,{WHOLE},precision=fp32", {})
                for family in sorted(TENSOR_PLANS)
            ),
            *((f"hf_{family}", f"{PP},precision=fp32", {}) for family in sorted(PIPELINE_SPLITS)),
        ],
    }
    check(results_of(jobs, tmp_path))


@pytest.mark.slow
def test_the_table_of_plans_is_what_the_classes_bring() -> None:
    import transformers

    known = {
        family: transformers.CONFIG_MAPPING[family]
        for family in FAMILIES
        if family in transformers.CONFIG_MAPPING
    }
    tensor = {
        f
        for f, kind in known.items()
        if kind.base_model_tp_plan and is_supported(kind.base_model_tp_plan)
    }
    assert tensor - {"apertus"} == TENSOR_PLANS
    assert {family for family, kind in known.items() if kind.base_model_pp_plan} == PIPELINE_SPLITS


def results_of(jobs: dict[int, list[Job]], directory: Path) -> list[dict[str, Any]]:
    """What the jobs gave, in their order."""
    asked = {
        n: [{"model": m, "config": c, "changes": w} for m, c, w in group]
        for n, group in jobs.items()
    }
    results = run_jobs(asked, directory)
    assert len(results) == sum(map(len, jobs.values())), (directory / "log").read_text()[-4000:]
    return results


def check(results: list[dict[str, Any]]) -> None:
    """Compares each result with its model's on one fp32 rank: the first one of that model with
    these changes."""
    alone: dict[tuple[str, str], dict[str, Any]] = {}
    for result in results:
        where = f"{result['model']} {result['config']}"
        assert "measurement" in result, f"{where}: {result.get('failure') or result.get('error')}"
        assert result["groups_left"] == 0, where
        found = result["measurement"]
        truth = alone.setdefault((result["model"], str(result["changes"])), found)
        tolerance = TOLERANCES["bf16" if "bf16" in result["config"] else "fp32"]
        assert found["losses"] == pytest.approx(truth["losses"], rel=tolerance), where
        assert found["grad_norms"] == pytest.approx(truth["grad_norms"], rel=10 * tolerance), where
