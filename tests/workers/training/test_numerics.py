"""Every knob trains: each config's losses and gradient norms are those of one fp32 rank on the same
data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotune.spec import Measurement
from tests.matrix import sampled
from tests.workers.trial_ranks import run_jobs

TOLERANCES = {"fp32": 2e-5, "bf16": 1e-2, "fp16": 2e-3}
"""Relative, of each step's loss; gradient norms may differ ten times as much. fp32 differs by the
order of sums, the others by their 8 and 11 significant bits."""

BATCH = "micro_batch_size=4"
HALF = "micro_batch_size=2,accumulation_steps=2"
SINGLES = "micro_batch_size=1,accumulation_steps=4"
PP = "pp=2,micro_batch_size=1,accumulation_steps=4,precision=fp32"
MATRIX: dict[int, list[tuple[str, str]]] = {
    1: [
        *((model, f"{BATCH},precision=fp32") for model in ("gpt", "uneven", "llama", "moe")),
        ("gpt", f"{BATCH},precision=bf16"),
        ("llama", f"{BATCH},precision=bf16"),
        ("llama", f"{BATCH},precision=fp32,recompute=selective"),
        ("llama", f"{BATCH},precision=bf16,recompute=full"),
        ("llama", f"{BATCH},precision=fp32,recompute=norm"),
        ("gpt", f"{HALF},precision=bf16,recompute=mlp,loss=chunked"),
        ("gpt", f"{HALF},precision=fp32,zero_stage=1"),
        ("gpt", f"{HALF},precision=bf16,zero_stage=3,recompute=full"),
    ],
    2: [
        ("gpt", "dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32"),
        ("llama", "dp=2,micro_batch_size=2,precision=fp32,zero_stage=1"),
        ("llama", "dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32,zero_stage=3"),
        ("llama", "dp=2,micro_batch_size=2,precision=fp16,zero_stage=0"),
        (
            "llama",
            "dp=2,micro_batch_size=1,accumulation_steps=2,precision=bf16,zero_stage=1,recompute=selective",
        ),
        ("gpt", "dp=2,micro_batch_size=2,precision=fp16,zero_stage=3,recompute=full"),
        ("gpt", "pp=2,micro_batch_size=1,accumulation_steps=4,precision=fp32,pp_schedule=gpipe"),
        ("gpt", f"{PP},zero_stage=1"),
        ("uneven", f"{PP},pp_schedule=interleaved_1f1b,virtual_stages=2,recompute=selective"),
        ("gpt", f"{PP},pp_schedule=interleaved_zero_bubble,virtual_stages=2"),
        ("gpt", f"{PP},pp_split=edges,pp_schedule=interleaved_1f1b,virtual_stages=3"),
        ("gpt", f"{PP},zero_stage=3,loss=chunked"),
        ("gpt", f"{PP},zero_stage=2,pp_schedule=interleaved_zero_bubble,virtual_stages=2"),
        ("llama", "pp=2,micro_batch_size=2,accumulation_steps=2,precision=fp16"),
        ("llama", f"tp=2,{BATCH},precision=fp32"),
        ("gpt", f"tp=2,{BATCH},precision=fp32,sequence_parallel=true"),
        ("gpt", f"tp=2,{BATCH},precision=fp32,sequence_parallel=true,loss=chunked"),
        ("llama", f"tp=2,{BATCH},precision=bf16,sequence_parallel=true,recompute=full"),
        ("gpt", f"tp=2,{BATCH},precision=bf16,zero_stage=3,sequence_parallel=true"),
        ("moe", f"tp=2,{BATCH},precision=fp32,sequence_parallel=true"),
        ("llama", f"cp=2,{HALF},precision=fp32"),
        ("gpt", f"cp=2,{BATCH},precision=bf16,zero_stage=3"),
        ("llama", f"cp=2,{HALF},precision=fp32,cp_style=heads"),
        ("gpt", f"cp=2,{BATCH},precision=fp32,cp_style=gather"),
        ("moe", "dp=2,ep=2,micro_batch_size=1,accumulation_steps=2,precision=fp32"),
        ("moe", "dp=2,ep=2,micro_batch_size=2,precision=fp32,zero_stage=3"),
        ("moe", "dp=2,ep=2,micro_batch_size=2,precision=fp32,dispatcher=allgather"),
        ("moe", "dp=2,ep=2,micro_batch_size=2,precision=bf16,zero_stage=1,recompute=full"),
        ("moe", f"cp=2,ep=2,{BATCH},precision=fp32"),
    ],
    4: [
        (
            "gpt",
            "tp=2,pp=2,micro_batch_size=2,accumulation_steps=2,precision=fp32,sequence_parallel=true",
        ),
        (
            "llama",
            "tp=2,pp=2,micro_batch_size=2,accumulation_steps=2,precision=bf16,pp_schedule=interleaved_1f1b,virtual_stages=2",
        ),
        ("llama", "tp=2,dp=2,micro_batch_size=2,precision=fp32,zero_stage=3"),
        ("gpt", "tp=2,dp=2,micro_batch_size=2,precision=fp32,zero_stage=1,sequence_parallel=true"),
        ("gpt", "pp=2,dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32,zero_stage=1"),
        ("uneven", "pp=4,micro_batch_size=1,accumulation_steps=4,precision=fp32"),
        ("llama", "tp=2,cp=2,micro_batch_size=4,precision=fp32,sequence_parallel=true"),
        (
            "moe",
            "pp=2,dp=2,ep=2,micro_batch_size=1,accumulation_steps=2,precision=fp32,zero_stage=2",
        ),
        ("moe", "dp=4,ep=2,micro_batch_size=1,precision=fp32"),
        ("gpt", "dp=4,dp_replicas=2,micro_batch_size=1,precision=fp32,zero_stage=3"),
        ("moe", "dp=4,ep=2,dp_replicas=2,micro_batch_size=1,precision=fp32,zero_stage=1"),
    ],
    8: [
        (
            "llama",
            "tp=2,pp=2,dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32,zero_stage=3",
        )
    ],
}


ALWAYS = {
    ("gpt", "dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32"),
    ("llama", "dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32,zero_stage=3"),
    ("uneven", f"{PP},pp_schedule=interleaved_1f1b,virtual_stages=2,recompute=selective"),
    ("llama", f"tp=2,{BATCH},precision=bf16,sequence_parallel=true,recompute=full"),
    ("llama", f"cp=2,{HALF},precision=fp32"),
    ("moe", "dp=2,ep=2,micro_batch_size=1,accumulation_steps=2,precision=fp32"),
}
"""One of each kind of parallelism, which every round runs."""


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], dict[str, Any]]:
    """What came of every config that is asked for and of the one rank of its model, from processes
    that are started once per world size."""
    asked = {
        (item.callspec.params["model"], item.callspec.params["config"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and "results" in item.fixturenames
        and item.path == request.path
    }
    asked |= {(model, f"{BATCH},precision=fp32") for model, _ in asked}
    jobs = {
        size: [
            {"model": model, "config": config} for model, config in rows if (model, config) in asked
        ]
        for size, rows in MATRIX.items()
    }
    jobs = {size: some for size, some in jobs.items() if some}
    return {(r["model"], r["config"]): r for r in run_jobs(jobs, tmp_path_factory.mktemp("ranks"))}


@pytest.mark.parametrize(
    ("model", "config"), sampled([row for rows in MATRIX.values() for row in rows], ALWAYS)
)
def test_losses_are_those_of_one_fp32_rank(
    results: dict[Any, Any], model: str, config: str
) -> None:
    check_losses(results, model, config)


def check_losses(results: dict[Any, Any], model: str, config: str) -> None:
    """Compares a config's losses and gradient norms, of results by model and config, with those of
    one fp32 rank."""
    assert (model, config) in results, "the ranks ended before this config; see the first error"
    result = results[model, config]
    assert "measurement" in result, result.get("error") or result.get("failure")
    seen = Measurement.from_dict(result["measurement"])
    wanted = Measurement.from_dict(results[model, f"{BATCH},precision=fp32"]["measurement"])
    tolerance = TOLERANCES[config.partition("precision=")[2].partition(",")[0]]
    np.testing.assert_allclose(seen.losses, wanted.losses, rtol=tolerance)
    np.testing.assert_allclose(seen.grad_norms, wanted.grad_norms, rtol=10 * tolerance)
    assert wanted.losses[-1] < wanted.losses[0] - 0.2, (
        "training must get somewhere for the comparison to mean anything"
    )
    assert result["groups_left"] == 0
    assert seen.peak_memory_bytes is None or 0 < seen.peak_memory_bytes < 1e9


def test_matrix_covers_every_word_that_a_cpu_can_run() -> None:
    text = " ".join(config for rows in MATRIX.values() for _, config in rows)
    for word in (
        *(f"zero_stage={i}" for i in range(4)),
        *(f"pp_schedule={s}" for s in ("gpipe", "interleaved_1f1b", "interleaved_zero_bubble")),
        *(f"precision={p}" for p in TOLERANCES),
        *(f"recompute={r}" for r in ("selective", "full", "norm", "mlp")),
        *(f"{axis}=2" for axis in ("tp", "pp", "dp", "cp", "ep", "virtual_stages", "dp_replicas")),
        *(f"cp_style={s}" for s in ("heads", "gather")),
        *("sequence_parallel=true", "loss=chunked", "pp_split=edges", "dispatcher=allgather"),
    ):
        assert word in text
    assert sum(len(rows) for rows in MATRIX.values()) >= 40
