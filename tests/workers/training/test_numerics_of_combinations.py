"""Further combinations of the knobs that `test_numerics` tries one by one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workers.training.test_numerics import BATCH, HALF, PP, SINGLES, check_losses
from tests.workers.trial_ranks import run_jobs

pytestmark = pytest.mark.slow

HYBRID = "dp=4,dp_replicas=2,micro_batch_size=1,precision=fp32"
MATRIX: dict[int, list[tuple[str, str]]] = {
    1: [
        *((model, f"{BATCH},precision=fp32") for model in ("gpt", "uneven", "llama", "moe")),
        ("llama", f"{SINGLES},precision=fp32"),
        ("llama", f"{HALF},precision=fp16"),
        ("moe", f"{BATCH},precision=bf16"),
        ("gpt", f"{HALF},precision=fp16,loss=chunked"),
        ("gpt", f"{BATCH},precision=fp32,zero_stage=3,loss=chunked"),
    ],
    2: [
        ("gpt", "dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32,zero_stage=2"),
        ("uneven", f"{PP}"),
        ("llama", f"{PP},recompute=full"),
        ("llama", f"{PP},pp_schedule=interleaved_1f1b,virtual_stages=2"),
        ("llama", f"{PP},pp_schedule=interleaved_zero_bubble,virtual_stages=2"),
        ("llama", f"{PP},zero_stage=3,pp_schedule=gpipe"),
        ("uneven", f"{PP},zero_stage=3,pp_schedule=interleaved_1f1b,virtual_stages=2"),
        ("llama", "pp=2,micro_batch_size=2,accumulation_steps=2,precision=bf16,zero_stage=2"),
        ("gpt", f"tp=2,{BATCH},precision=fp32"),
        ("llama", f"tp=2,{BATCH},precision=fp16,recompute=selective"),
        ("moe", "dp=2,micro_batch_size=2,precision=fp32"),
        ("moe", f"{PP},pp_schedule=interleaved_zero_bubble,virtual_stages=2"),
        ("llama", f"tp=2,{BATCH},precision=fp32,loss=chunked,zero_stage=3"),
        ("llama", f"{PP},loss=chunked,pp_schedule=interleaved_zero_bubble,virtual_stages=2"),
        ("llama", f"{PP},loss=chunked,pp_schedule=interleaved_1f1b,virtual_stages=2"),
        ("uneven", f"{PP},pp_split=edges,zero_stage=3"),
        ("gpt", f"{PP},pp_split=edges,pp_schedule=interleaved_zero_bubble,virtual_stages=3"),
        (
            "llama",
            f"{PP},pp_split=edges,pp_schedule=interleaved_1f1b,virtual_stages=3,zero_stage=1,loss=chunked",
        ),
        ("gpt", f"tp=2,{BATCH},precision=fp32,recompute=norm,sequence_parallel=true"),
        ("moe", "dp=2,ep=2,micro_batch_size=2,precision=fp32,recompute=mlp"),
        ("moe", "dp=2,ep=2,micro_batch_size=2,precision=fp32,recompute=norm"),
        ("llama", f"{PP},recompute=mlp"),
        ("gpt", f"cp=2,{BATCH},precision=fp16"),
        ("gpt", f"cp=2,{BATCH},precision=fp16,cp_style=heads"),
        ("moe", "dp=2,ep=2,micro_batch_size=2,precision=bf16,zero_stage=3,dispatcher=allgather"),
    ],
    4: [
        *(("gpt", f"{HYBRID},zero_stage={stage}") for stage in (1, 2)),
        (
            "llama",
            "dp=2,cp=2,dp_replicas=2,micro_batch_size=1,accumulation_steps=2,precision=fp32,zero_stage=3",
        ),
        ("moe", f"{HYBRID},ep=2,zero_stage=3"),
        *(
            ("gpt", f"cp=4,{BATCH},precision=fp32,cp_style={style}")
            for style in ("ring", "heads", "gather")
        ),
        *(
            (
                "gpt",
                f"pp=2,cp=2,micro_batch_size=1,accumulation_steps=4,precision=fp32,cp_style={style}",
            )
            for style in ("ring", "heads")
        ),
        ("moe", "tp=2,dp=2,ep=2,micro_batch_size=2,precision=fp32,dispatcher=allgather"),
        ("gpt", "tp=2,dp=2,micro_batch_size=2,precision=fp32,loss=chunked,zero_stage=3"),
        ("llama", "pp=4,micro_batch_size=1,accumulation_steps=4,precision=fp32,pp_split=edges"),
    ],
    8: [
        ("llama", "tp=2,dp=4,dp_replicas=2,micro_batch_size=1,precision=fp32,zero_stage=3"),
        (
            "gpt",
            "pp=2,dp=4,dp_replicas=2,micro_batch_size=1,precision=fp32,zero_stage=1,pp_schedule=gpipe",
        ),
    ],
}


def test_losses_of_combinations_are_those_of_one_fp32_rank(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    jobs = {
        size: [{"model": model, "config": config} for model, config in rows]
        for size, rows in MATRIX.items()
    }
    found = run_jobs(jobs, tmp_path_factory.mktemp("ranks"))
    results: dict[tuple[str, str], dict[str, Any]] = {(r["model"], r["config"]): r for r in found}
    for rows in MATRIX.values():
        for model, config in rows:
            check_losses(results, model, config)
