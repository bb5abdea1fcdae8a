"""Packed sequences, adapters and optimizers train the same under every config: losses and gradient
norms are those of one fp32 rank with the same workload."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotune.spec import Measurement
from tests.workers.training.test_numerics import BATCH, HALF, PP, TOLERANCES
from tests.workers.trial_ranks import run_jobs

pytestmark = pytest.mark.thorough

DOCUMENTS: dict[str, Any] = {"document_len": 12}
"""two whole documents in each of the 32 tokens, and a part of a third"""
ADAPTERS: dict[str, Any] = {"peft": {"method": "lora", "rank": 4, "targets": "all"}}
MUON: dict[str, Any] = {"optimizer": "muon"}
ADAFACTOR: dict[str, Any] = {"optimizer": "adafactor"}
ONE_RANK = f"{BATCH},precision=fp32"
Row = tuple[str, dict[str, Any], str]
"""Model, further fields of the workload, config."""

SOME: dict[int, list[Row]] = {
    1: [
        ("gpt", DOCUMENTS, f"{BATCH},precision=fp32,loss=chunked"),
        ("llama", ADAPTERS, f"{HALF},precision=bf16"),
        ("llama", MUON, f"{HALF},precision=fp32"),
    ],
    2: [
        ("gpt", DOCUMENTS, f"tp=2,{BATCH},precision=fp32"),
        ("gpt", DOCUMENTS, f"cp=2,{BATCH},precision=fp32,cp_style=gather"),
        ("gpt", ADAPTERS, f"tp=2,{BATCH},precision=fp32,sequence_parallel=true"),
        ("gpt", ADAPTERS, "dp=2,micro_batch_size=2,precision=fp32,zero_stage=3"),
        ("llama", MUON, "dp=2,micro_batch_size=2,precision=fp32"),
        ("gpt", ADAFACTOR, PP),
    ],
}
MORE: dict[int, list[Row]] = {
    1: [
        ("llama", DOCUMENTS, f"{HALF},precision=bf16"),
        ("gpt", ADAPTERS, f"{BATCH},precision=fp32,recompute=full"),
        ("llama", ADAFACTOR, f"{HALF},precision=fp32"),
    ],
    2: [
        ("llama", DOCUMENTS, PP),
        ("llama", DOCUMENTS, f"cp=2,{BATCH},precision=fp32,cp_style=heads"),
        ("llama", DOCUMENTS, "dp=2,micro_batch_size=2,precision=fp32,zero_stage=3"),
        ("llama", ADAPTERS, f"tp=2,{BATCH},precision=fp32"),
        ("gpt", ADAPTERS, PP),
        ("gpt", ADAPTERS, "dp=2,micro_batch_size=2,precision=fp32,zero_stage=1"),
        ("gpt", ADAPTERS, "dp=2,micro_batch_size=2,precision=bf16,zero_stage=3"),
        ("llama", ADAPTERS, "dp=2,micro_batch_size=2,precision=fp32,zero_stage=2"),
        ("moe", ADAPTERS, "dp=2,ep=2,micro_batch_size=2,precision=fp32,zero_stage=3"),
        ("gpt", MUON, PP),
        ("moe", MUON, "dp=2,ep=2,micro_batch_size=2,precision=fp32"),
        ("llama", ADAFACTOR, "dp=2,micro_batch_size=2,precision=fp32"),
    ],
    4: [
        ("gpt", ADAPTERS, "tp=2,dp=2,micro_batch_size=2,precision=fp32,zero_stage=3"),
        ("llama", ADAPTERS, "tp=2,pp=2,micro_batch_size=1,accumulation_steps=4,precision=fp32"),
    ],
}


@pytest.mark.parametrize(
    "matrix", [SOME, pytest.param(MORE, marks=pytest.mark.slow)], ids=["some", "more"]
)
def test_losses_are_those_of_one_fp32_rank_with_the_same_workload(
    matrix: dict[int, list[Row]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [row for rows in matrix.values() for row in rows]
    plain = {str((model, workload)): (model, workload, ONE_RANK) for model, workload, _ in rows}
    jobs = {size: [_job(row) for row in rows] for size, rows in matrix.items()}
    jobs[1] = [*(_job(row) for row in plain.values()), *jobs[1]]
    results = run_jobs(jobs, tmp_path_factory.mktemp("ranks"))
    assert len(results) == sum(map(len, jobs.values())), results[-1].get("error")
    wanted = {
        str((r["model"], r["changes"]["workload"])): _measured(r) for r in results[: len(plain)]
    }
    for result in results[len(plain) :]:
        seen, whole = (
            _measured(result),
            wanted[str((result["model"], result["changes"]["workload"]))],
        )
        tolerance = TOLERANCES[result["config"].partition("precision=")[2].partition(",")[0]]
        np.testing.assert_allclose(
            seen.losses, whole.losses, rtol=tolerance, err_msg=str(result["config"])
        )
        np.testing.assert_allclose(
            seen.grad_norms, whole.grad_norms, rtol=10 * tolerance, err_msg=result["config"]
        )
        assert whole.losses[-1] < whole.losses[0] - 0.004, (
            "training must get somewhere for the comparison to mean anything"
        )
        assert result["groups_left"] == 0


def _job(row: Row) -> dict[str, Any]:
    model, workload, config = row
    return {"model": model, "config": config, "changes": {"workload": workload}}


def _measured(result: dict[str, Any]) -> Measurement:
    assert "measurement" in result, (result["config"], result.get("error") or result.get("failure"))
    return Measurement.from_dict(result["measurement"])
