"""Sequences of unequal length train the same however they are packed, padded and dealt: losses and
gradient norms are those of each sequence alone on one fp32 rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.spec import Measurement
from tests.workers.trial_ranks import run_jobs

pytestmark = pytest.mark.thorough

RL: dict[str, Any] = {
    "algorithm": "grpo", "prompts": 4, "responses": 2, "mini_batches": 2, "epochs": 2, "reference": True, "balance": "mini_batch", "lengths": [3, 9, 9, 14, 27],
}  # fmt: skip
ALONE = "micro_batch_size=1,accumulation_steps=4,precision=fp32"
TWO = "dp=2,micro_batch_size=1,accumulation_steps=2,precision=fp32"
PACKED, PADDED = {"micro_batch_tokens": 48}, {"padded": True}
ROWS: dict[int, list[tuple[str, str, dict[str, Any]]]] = {
    1: [
        ("llama", ALONE, {}),
        ("llama", ALONE, PACKED),
        ("llama", ALONE, PACKED | {"log_prob_micro_batch_tokens": 96}),
        (
            "llama",
            "micro_batch_size=2,accumulation_steps=2,precision=fp32",
            PADDED | {"group_by_length": True},
        ),
        ("llama", f"{ALONE},loss=chunked,recompute=full", PACKED),
        ("gpt", ALONE, {}),
        ("gpt", ALONE, PACKED),
        ("gpt", "micro_batch_size=4,precision=fp32", {}),
        ("moe", ALONE, {}),
    ],
    2: [
        *(("llama", f"{TWO},zero_stage={stage}", PACKED) for stage in range(4)),
        ("gpt", TWO, PADDED),
        ("gpt", f"tp=2,{ALONE}", PACKED),
        ("gpt", f"tp=2,{ALONE},sequence_parallel=true", PACKED),
        ("llama", f"tp=2,{ALONE},sequence_parallel=true,loss=chunked", PADDED),
        ("moe", f"{TWO},ep=2", PACKED),
        ("moe", f"{TWO},ep=2,zero_stage=3", PACKED),
    ],
}


def test_losses_are_those_of_each_sequence_alone(tmp_path: Path) -> None:
    jobs = {
        size: [{"model": model, "config": config, "changes": {"workload": {"rl": RL | more}}} for model, config, more in rows]
        for size, rows in ROWS.items()
    }  # fmt: skip
    results = run_jobs(jobs, tmp_path)
    assert len(results) == sum(map(len, ROWS.values())), (tmp_path / "log").read_text()[-3000:]
    alone: dict[str, Measurement] = {}
    for result in results:
        assert "measurement" in result, result
        found = Measurement.from_dict(result["measurement"])
        one = alone.setdefault(result["model"], found)
        told = (result["model"], result["config"], result["changes"])
        np.testing.assert_allclose(found.losses, one.losses, rtol=2e-5, err_msg=str(told))
        np.testing.assert_allclose(found.grad_norms, one.grad_norms, rtol=2e-3, err_msg=str(told))
        assert set(found.phases_s) == {
            "log_prob",
            "reference",
            "update",
            "generation",
            "waiting",
            "refit",
        }
        assert (
            min(found.phases_s[name] for name in ("log_prob", "reference", "update", "generation"))
            > 0
        )
        assert found.mean_step_time_s == pytest.approx(sum(found.phases_s.values()), rel=0.2)
    assert alone["llama"].losses[-1] < alone["llama"].losses[0]
