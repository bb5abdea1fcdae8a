"""A study of post-training by the native trainer: trials of the trainer's phases alone on two real
ranks, and what its result says of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.cost import estimate
from tests.shortcuts import present

pytestmark = pytest.mark.thorough

SPEC: dict[str, Any] = {
    "name": "phases",
    "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 2, "gated_mlp": True, "ffn_hidden_size": 64, "vocab_size": 256},
    "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 2},
    "workload": {"seq_len": 128},
    "rl": {
        "algorithm": "grpo", "prompts": 8, "responses": 2, "mini_batches": 2, "reference": True, "reward_s": 0.5,
        "prompt_lengths": {"mean": 10, "max": 16}, "response_lengths": {"mean": 40, "max": 112}, "micro_batch_tokens": 256,
    },
    "rollout": {"tokens_per_s_per_gpu": 500},
    "space": {"dp": 2, "zero_stage": [0, 3], "precision": "fp32"},
    "knobs": {"micro_batch_tokens": [128, 256], "balance": ["none", "mini_batch"]},
    "trainer": "native",
    "runner": "local",
    "budget": {"max_trials": 2},
    "measure": {
        "warmup_steps": 1, "min_steps": 3, "max_steps": 3, "first_look": 0, "finalists": 1, "final_rounds": 1,
        "start_timeout_s": 600, "step_timeout_s": 600, "trial_timeout_s": 1800,
    },
}  # fmt: skip


def test_a_study_measures_the_phases_of_the_trainer_and_says_what_was_told(tmp_path: Path) -> None:
    study = api.load_study(SPEC)
    with closing(api.open_store(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        result = api.tune(study, store=store)
        trials = store.trials(result.record.id)  # as measured, without the correction for drift
    assert result.best is not None, result.trials
    assert all(trial.failure is None for trial in trials), trials
    for trial in trials:
        measured = present(trial.measurement)
        phases = dict(measured.phases_s)
        predicted = present(estimate(study.workload, trial.config).phases_s)
        assert phases["reward"] == 0.5
        assert phases["generation"] == pytest.approx(float(predicted.generation))
        assert min(phases[name] for name in ("log_prob", "reference", "update")) > 0
        assert (
            min(measured.step_times_s) > phases["generation"] + phases["reward"] + phases["refit"]
        )
        assert measured.tokens_per_step == round(
            study.workload.rl.tokens if study.workload.rl else 0
        )
    (said,) = [note for note in result.notes if "only the trainer's phases" in note]
    assert "log_prob" in said.partition("were measured")[0]
    assert "generation" in said.partition("were measured")[2]
