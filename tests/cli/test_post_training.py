"""Post-training from the command line: a plan by phases, and the draft of a script of verl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from autotune.schema import parse_study
from tests.test_post_training import spec

SCRIPT = """#!/usr/bin/env bash
max_response_length=$((1024 * 8))
python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \\
    data.max_prompt_length=1024 data.max_response_length=${max_response_length} data.train_batch_size=512 data.train_files=train.parquet \\
    actor_rollout_ref.rollout.n=16 algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$((2 * (1024 + max_response_length))) \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.model.path=meta-llama/Llama-3.1-8B trainer.n_gpus_per_node=8 trainer.nnodes=1
"""


def test_the_command_line_prints_the_phases(run: Any, output_of: Any, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        yaml.safe_dump(
            spec(cluster="h100-sxm-4x8", knobs={"rollout_gpus": [8, 16], "staleness": [1]})
        ),
        encoding="utf-8",
    )
    output = output_of("plan", path, "--top", 1)
    for words in (
        "step time of the first config, by phase: ",
        "best split: ",
        "more nodes for training",
        "trainer waits",
    ):
        assert words in output
    assert run("plan", path, "--top", 1, "--json").document["post_training"]["algorithm"] == "grpo"
    config = "dp=16,accumulation_steps=16,zero_stage=3,rollout_gpus=16,staleness=1"
    assert "by phases:" in run("estimate", path, "--config", config).out


def test_a_verl_script_becomes_a_draft_with_placeholders_for_lengths_and_speed(
    run: Any, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    shown = run(
        "init", "run.sh", "--cluster", "h100-sxm-1x8", "--model", "llama-8b", "-o", "spec.yaml"
    )
    assert shown.code == 0, shown.err
    assert (
        "fill in: rl.prompt_lengths, rl.response_lengths, rollout.tokens_per_s_per_gpu"
        in shown.out + shown.err
    )
    document = yaml.safe_load((tmp_path / "spec.yaml").read_text(encoding="utf-8"))
    assert document["rl"]["prompts"] == 512
    assert document["rl"]["micro_batch_tokens"] == 2 * 9216
    assert document["rl"]["response_lengths"]["max"] == 8192
    assert document["trainer"]["settings"] == {
        "data": {"train_files": "train.parquet"},
        "trainer": {"total_epochs": 30},
    }  # how long verl trains where nobody says
    study = parse_study(document, base=tmp_path)
    assert (study.baseline.tp, study.baseline.dp, study.baseline.accumulation_steps) == (4, 2, 256)
