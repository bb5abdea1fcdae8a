"""Launches of programs that post-train, as people write them: what is read, and what an export keeps of it."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import api
from autotune.cost import estimate
from autotune.errors import SpecError
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import command_draft, first_draft
from autotune.space import why_not
from autotune.trainers import trainer
from autotune.trainers.post_training.trainer import PostTrainer
from tests.shortcuts import file_with, write

NODE = "h100-sxm-1x8"
MODEL = "--actor.model_name_or_path meta-llama/Meta-Llama-3-8B"
OPENRLHF = (
    f"python3 -m openrlhf.cli.train_ppo_ray {MODEL} --vllm.num_engines 8 --train.colocate_all --train.micro_batch_size 2"
    " --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --algo.advantage.estimator group_norm --data.max_len 4096"
)
OLD = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --actor_num_gpus_per_node 8 --vllm_num_engines 4 --vllm_tensor_parallel_size 2"
    " --colocate_all_models --pretrain meta-llama/Meta-Llama-3-8B --micro_train_batch_size 8 --train_batch_size 128 --rollout_batch_size 1024"
    " --micro_rollout_batch_size 16 --prompt_max_len 1024 --generate_max_len 1024 --zero_stage 3 --bf16 --init_kl_coef 0.01 --packing_samples"
)
TRL = "model_name_or_path: Qwen/Qwen2.5-7B\nmax_completion_length: 512\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 8\n"
VERL = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64"
    " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.n_gpus_per_node=8"
)
BASE = """
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 8, seed: 7, max_num_steps: 300, async_grpo: {enabled: false}}
loss_fn: {reference_policy_kl_penalty: 0.02}
policy:
  model_name: meta-llama/Meta-Llama-3-8B
  train_global_batch_size: 512
  train_micro_batch_size: 2
  logprob_batch_size: 3
  max_total_sequence_length: 4096
  precision: bfloat16
  dtensor_cfg: {enabled: false}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 2, optimizer: {lr: 2.0e-7}}
  sequence_packing: {enabled: true, train_mb_tokens: "${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}"}
cluster: {num_nodes: 1, gpus_per_node: 8}
"""


def exported(draft: Draft, folder: Path, **knobs: Any) -> tuple[str, dict[str, Any]]:
    """The command of an export with what was read, with other knobs where some are given, and its file."""
    study = api.load_study(draft.document, base=folder)
    assert study.baseline is not None
    launch = trainer(study.trainer).launch(
        study.workload, replace(study.baseline, **knobs), dict(study.trainer_options)
    )
    return " ".join(launch.argv), yaml.safe_load(next(iter(launch.files.values()), "{}"))


def of_text(text: str, folder: Path, name: str = "run.sh", cluster: str | None = NODE) -> Draft:
    return first_draft(file_with(folder / name, text), cluster=cluster, folder=folder)


@pytest.mark.parametrize(
    ("flags", "reference", "has", "has_not"),
    [
        ("", True, ["--ref.num_gpus_per_node 8", "--rollout.micro_batch_size 1", "--actor.adam.lr 1e-06", "--train.seed 42"],
         ["init_coef", "use_loss", "packing_samples", "max_new_tokens"]),
        ("--algo.kl.init_coef 0.001 --algo.kl.use_loss --rollout.micro_batch_size 2", True, ["--algo.kl.init_coef 0.001", "--algo.kl.use_loss", "--rollout.micro_batch_size"], []),
        ("--algo.advantage.estimator rloo", True, ["--algo.advantage.estimator rloo"], ["group_norm"]),
        ("--algo.kl.init_coef 0 --ds.packing_samples", False, ["--algo.kl.init_coef 0", "--ds.packing_samples"], ["use_loss"]),
        ("--actor.eps_clip_low_high 0.2 0.27 --algo.dynamic_filtering_range 0 1 --reward.clip_range -10 10", True,
         ["--actor.eps_clip_low_high 0.2 0.27", "--algo.dynamic_filtering_range 0 1", "--reward.clip_range -10 10"], []),
    ],
)  # fmt: skip
def test_openrlhf_keeps_what_a_script_says_and_what_it_leaves_to_the_program(
    flags: str, reference: bool, has: list[str], has_not: list[str], tmp_path: Path
) -> None:
    draft = of_text(f"{OPENRLHF} {flags}\n", tmp_path)
    assert draft.document["rl"]["reference"] is reference
    assert draft.document["rl"].get("padded", False) is ("packing" not in flags)
    command, _ = exported(draft, tmp_path)
    assert [part for part in has if part not in command] == []
    assert [part for part in has_not if part in command] == []


def test_openrlhf_before_0_11_is_read_and_written_by_its_own_names(tmp_path: Path) -> None:
    draft = of_text(OLD, tmp_path)
    assert "micro_batch_size=8,accumulation_steps=2" in draft.document["baseline"]
    assert (draft.document["rl"]["prompts"], draft.document["rl"]["mini_batches"]) == (1024, 8)
    command, _ = exported(draft, tmp_path, micro_batch_size=4, accumulation_steps=4)
    words = shlex.split(command)
    assert not any("." in word for word in words if word.startswith("--"))
    assert "--micro_train_batch_size 4" in command
    assert "--micro_rollout_batch_size 16" in command
    assert "--generate_max_len 1024" in command
    assert {"--bf16", "--prompt_max_len", "--packing_samples"} <= set(words)
    assert not {"--param_dtype", "--max_len", "--max_new_tokens"} & set(words)
    assert len(words) == len(OLD.split()) + sum(
        1 + (following[:2] != "--") for word, following in zip(words, [*words[1:], "--"], strict=True)
        if word.startswith("--") and word not in OLD.split()
    )  # each once  # fmt: skip


def test_a_critic_with_gpus_of_its_own_is_said_and_kept(tmp_path: Path) -> None:
    flags = "--actor.num_gpus_per_node 2 --ref.num_gpus_per_node 2 --critic.num_gpus_per_node 2 --vllm.num_engines 2 --vllm.tensor_parallel_size 2 --train.colocate_actor_ref"
    draft = of_text(
        f"python3 -m openrlhf.cli.train_ppo_ray {MODEL} {flags} --ds.packing_samples --train.micro_batch_size 8",
        tmp_path,
    )
    assert draft.document["rl"]["placement"] == {"split": [4, 4]}
    assert any("critic model has its own 2 GPUs" in note for note in draft.notes)
    command, _ = exported(draft, tmp_path)
    assert "--critic.num_gpus_per_node 2" in command
    assert "--vllm.num_engines 2" in command


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("", {"loss_type": "dapo", "use_vllm": False, "bf16": True, "gradient_checkpointing": True, "learning_rate": 1e-6, "seed": 42, "max_steps": -1, "num_generations": 8}),
        ("loss_type: dr_grpo\nuse_vllm: true\nvllm_mode: server\nseed: 3\n", {"loss_type": "dr_grpo", "use_vllm": True, "vllm_mode": "server", "seed": 3}),
        ("fp16: true\ngradient_checkpointing: false\nloss_type: bnpo\n", {"fp16": True, "bf16": False, "gradient_checkpointing": False, "loss_type": "bnpo"}),
    ],
)  # fmt: skip
def test_trl_keeps_what_a_file_says_and_what_it_leaves_to_the_program(
    said: str, kept: dict[str, Any], tmp_path: Path
) -> None:
    draft = of_text(TRL + said, tmp_path, "grpo.yaml")
    assert draft.document["rl"]["prompts"] == 4 * 8 * 8 // 8
    _, written = exported(draft, tmp_path)
    assert {key: written[key] for key in kept} == kept


@pytest.mark.parametrize("command", ["trl grpo --config grpo.yaml --num_processes 4 --bf16 false --reward_funcs a b"])
def test_flags_of_trl_count_over_its_file(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "grpo.yaml").write_text(TRL + "num_processes: 8\n")
    monkeypatch.chdir(tmp_path)
    for draft in (of_text(command, tmp_path), command_draft(shlex.split(command), cluster=NODE, folder=tmp_path)):
        assert draft.document["baseline"].startswith("dp=4,")
        assert draft.document["space"]["precision"] == ["fp32"]
        assert draft.document["trainer"]["settings"]["reward_funcs"] == ["a", "b"]
    with pytest.raises(SpecError, match=r"other\.yaml, which was not found"):
        of_text("trl grpo --config other.yaml --num_processes 4", tmp_path)


ZERO3 = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nmixed_precision: bf16\nnum_processes: 8\n"


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --config_file zero3.yaml -m trl.scripts.grpo --config grpo.yaml --seed 3",
        "accelerate launch --config_file=zero3.yaml --main_process_port 29501 trl/scripts/grpo.py --config grpo.yaml --seed 3",
        "trl grpo --config grpo.yaml --seed 3 --accelerate_config zero3.yaml",
    ],
)
def test_trl_by_accelerate_is_trl_grpo(command: str, tmp_path: Path) -> None:
    write(tmp_path, {"grpo.yaml": TRL, "zero3.yaml": ZERO3})
    draft = of_text(command, tmp_path)
    assert "dp=8" in draft.document["baseline"]
    assert "zero_stage=3" in draft.document["baseline"]
    assert draft.document["rl"]["engine"] == "deepspeed"
    assert draft.document["space"]["zero_stage"] == [3]  # a file decides it that launches do not write
    argv, written = exported(draft, tmp_path)
    assert argv.startswith("trl grpo --config")
    assert argv.endswith("--num_processes 8")
    assert (written["seed"], written["accelerate_config"]) == (3, "zero3")
    assert not {"config_file", "main_process_port", "num_processes"} & written.keys()


@pytest.mark.parametrize(
    ("line", "engine", "stages"),
    [
        ("accelerate_config: zero2", "deepspeed", [2, 3]),
        ("accelerate_config: zero3.yaml", "deepspeed", [3]),
        ("deepspeed: ds.json", "deepspeed", [1]),
        ("accelerate_config: fsdp2", None, [3]),
        ("fsdp: full_shard", None, [2, 3]),
    ],
)
def test_how_trl_shards_is_read_from_the_files_that_its_configuration_names(
    line: str, engine: str | None, stages: list[int], tmp_path: Path
) -> None:
    write(
        tmp_path,
        {"zero3.yaml": ZERO3, "ds.json": '{"zero_optimization": {"stage": 1}}', "grpo.yaml": f"{TRL}\n{line}\n"},
    )
    draft = of_text("trl grpo --config grpo.yaml --num_processes 8", tmp_path)
    assert draft.document["rl"].get("engine") == engine
    assert draft.document["space"]["zero_stage"] == stages
    (tmp_path / "grpo.yaml").write_text(f"{TRL}\naccelerate_config: other.yaml\n")
    with pytest.raises(SpecError, match=r"is based on other\.yaml, which was not found"):
        of_text("trl grpo --config grpo.yaml --num_processes 8", tmp_path)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("accelerate_config: zero3.yaml", "zero3.yaml: deepspeed_config.offload_optimizer_device"),
        ("deepspeed: ds.json", "deepspeed: zero_optimization.offload_param.device"),
    ],
)
def test_what_the_files_of_trl_keep_in_host_memory_is_named(line: str, path: str, tmp_path: Path) -> None:
    offload = "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: none}"
    write(
        tmp_path,
        {
            "zero3.yaml": ZERO3.replace("deepspeed_config: {zero_stage: 3}", offload),
            "ds.json": '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}',
            "grpo.yaml": f"{TRL}\n{line}\n",
        },
    )
    draft = of_text("trl grpo --config grpo.yaml --num_processes 8", tmp_path)
    assert [each for each in draft.remarks if "offload" in each] == [
        f"{path}: plans assume these are on the GPU, so the launch may need less memory"
    ]


def test_trl_by_accelerate_with_flags_that_are_not_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grpo.yaml").write_text(TRL)
    with pytest.raises(SpecError, match="has --use_fsdp, which autotune does not support"):
        of_text("accelerate launch --num_processes 8 --use_fsdp -m trl.scripts.grpo --config grpo.yaml", tmp_path)


@pytest.mark.parametrize("folder", ["$(dirname $0)", '$(cd "$(dirname "$0")" && pwd)'])
def test_the_folder_of_a_script_is_written_out_and_what_only_a_shell_computes_is_named(
    folder: str, tmp_path: Path
) -> None:
    draft = of_text(
        f"HERE={folder}\n{VERL} data.train_files=$HERE/train.parquet trainer.experiment_name=at_$(date +%s)\n", tmp_path
    )
    assert draft.document["trainer"]["settings"]["data"]["train_files"] == str(tmp_path / "train.parquet")
    assert any("experiment_name: only the shell can compute" in note for note in draft.notes)


def test_ranks_of_trl_are_its_files_or_the_clusters_or_asked_for(tmp_path: Path) -> None:
    assert of_text(TRL, tmp_path, "grpo.yaml", "h100-sxm-2x8").document["baseline"].startswith("dp=16,")
    assert of_text(TRL + "num_processes: 4\n", tmp_path, "grpo.yaml").document["baseline"].startswith("dp=4,")
    with pytest.raises(SpecError, match="does not give the number of GPUs"):
        of_text(TRL, tmp_path, "grpo.yaml", None)


def test_what_a_base_of_nemo_rl_decides_is_read_and_stays_with_it(tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    write(
        tmp_path / "bases",
        {"base.yaml": BASE, "inner.yaml": "defaults: base.yaml\npolicy: {train_micro_batch_size: 4}\n"},
    )
    draft = of_text("defaults: [bases/inner.yaml]\npolicy: {tokenizer: {name: x}}\n", tmp_path, "own.yaml")
    rl = draft.document["rl"]
    assert (rl["engine"], rl["responses"], rl["reference"], rl["micro_batch_tokens"]) == ("megatron", 8, True, 16384)
    assert draft.document["baseline"].startswith("tp=2,pp=1,dp=4,")
    _, written = exported(draft, tmp_path)
    assert written["defaults"] == str(tmp_path / "bases" / "inner.yaml")
    assert "loss_fn" not in written
    assert "logprob_batch_size" not in written["policy"]
    assert written["grpo"]["seed"] == 7
    assert written["grpo"]["max_num_steps"] == 300
    assert written["policy"]["megatron_cfg"]["optimizer"]["lr"] == 2e-7


def test_a_base_of_nemo_rl_that_is_not_there_is_named_or_known(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"is based on my_base\.yaml, which was not found"):
        of_text("defaults: my_base.yaml\npolicy: {model_name: x}\n", tmp_path, "own.yaml")
    draft = of_text(
        "defaults: ../../grpo_math_1B.yaml\npolicy: {model_name: meta-llama/Meta-Llama-3-8B, logprob_batch_size: 2}\ncluster: {gpus_per_node: 8}\n",
        tmp_path, "own.yaml",
    )  # fmt: skip
    rl = draft.document["rl"]
    assert (rl["prompts"], rl["responses"], rl["reference"]) == (32, 16, True)
    assert (rl["micro_batch_tokens"], rl["log_prob_micro_batch_tokens"]) == (2048, 1024)
    _, written = exported(draft, tmp_path)
    assert written["defaults"] == "${oc.env:PWD}/examples/configs/grpo_math_1B.yaml"
    assert written["policy"]["logprob_batch_size"] == 2
    assert written["policy"]["optimizer"]["kwargs"]["lr"] == 5e-6


def test_dynamic_batches_of_nemo_rl_stay_dynamic(tmp_path: Path) -> None:
    text = BASE.replace(
        "  sequence_packing: {enabled: true,",
        "  dynamic_batching: {enabled: true, train_mb_tokens: 8192}\n  sequence_packing: {enabled: false,",
    )
    draft = of_text(text, tmp_path, "own.yaml")
    assert (draft.document["rl"]["padded"], draft.document["rl"]["micro_batch_tokens"]) == (True, 8192)
    _, written = exported(draft, tmp_path)
    assert "defaults" not in written
    assert written["policy"]["dynamic_batching"] == {
        "enabled": True,
        "train_mb_tokens": 8192,
        "logprob_mb_tokens": 8192,
    }
    assert written["policy"]["sequence_packing"]["enabled"] is False


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("async_rl: {sampler: {name: in_order}}", "belongs to NeMo-RL's single controller"),
        ("on_policy_distillation: {enabled: true, non_colocated_teachers: {enabled: true}}", "has teachers on their own GPUs"),
        ("data: {default: {env_name: reward_model}}\nenv: {reward_model: {resources: {num_nodes: 1, gpus_per_node: 1}}}", "has a reward model on its own GPUs"),
    ],
)  # fmt: skip
def test_a_configuration_of_nemo_rl_whose_gpus_are_counted_otherwise_is_refused(said: str, what: str, tmp_path: Path) -> None:  # fmt: skip
    (tmp_path / "base.yaml").write_text(f"{BASE}\n{said}\n")
    with pytest.raises(SpecError, match=re.escape(what)):
        of_text("defaults: base.yaml\npolicy: {tokenizer: {name: x}}\n", tmp_path, "own.yaml")


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("megatron_cfg: {peft: {enabled: true}}", "policy.megatron_cfg.peft.enabled: plans do not count what it saves"),
        ("generation: {backend: sglang}", "policy.generation.backend=sglang: the degree and memory of its engines are not read"),
        ("megatron_cfg: {enabled: false}, dtensor_cfg: {enabled: true, expert_parallel_size: 8}", "expert_parallel_size=8: plans shard experts like all other weights"),
    ],
)  # fmt: skip
def test_what_plans_leave_out_of_nemo_rl_is_said_also_of_its_bases(said: str, named: str, tmp_path: Path) -> None:
    write(tmp_path, {"base.yaml": BASE, "inner.yaml": f"defaults: base.yaml\npolicy: {{{said}}}\n"})
    draft = of_text(
        "defaults: inner.yaml\npolicy: {generation: {vllm_cfg: {gpu_memory_utilization: 0.7}}}\n", tmp_path, "own.yaml"
    )
    assert any(named in note for note in draft.notes)
    assert ("memory_fraction" in draft.document["rollout"]) == ("sglang" not in said)


@pytest.mark.parametrize("start", ["uv run examples/run_grpo.py", "uv run python examples/run_grpo.py", "python examples/run_grpo.py"])  # fmt: skip
def test_overrides_of_nemo_rl_count_over_the_file_that_its_command_names(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples" / "configs").mkdir(parents=True)
    (tmp_path / "examples" / "run_grpo.py").write_text("import ray\n")
    (tmp_path / "examples" / "configs" / "mine.yaml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    command = f"{start} --config examples/configs/mine.yaml policy.train_micro_batch_size=1 grpo.num_generations_per_prompt=16"
    (tmp_path / "elsewhere").mkdir()
    for draft in (
        of_text(command, tmp_path),
        of_text(f"cd {tmp_path}\n{command}\nuv run tests/dump.py a --output b\n", tmp_path / "elsewhere"),
        command_draft(shlex.split(command), cluster=NODE, folder=tmp_path),
    ):
        assert draft.document["rl"]["micro_batch_tokens"] == 4096
        assert draft.document["rl"]["mini_batches"] == 2
        argv, written = exported(draft, tmp_path)
        assert re.sub("^python3? ", "", argv).startswith(start.removeprefix("python "))
        assert "=" not in argv
        assert Path(written["defaults"]) == tmp_path / "examples" / "configs" / "mine.yaml"
    with pytest.raises(SpecError, match="starts NeMo-RL's DPO, which autotune does not support"):
        of_text("uv run examples/run_dpo.py --config examples/configs/dpo.yaml", tmp_path)
    with pytest.raises(SpecError, match="starts TRL's rloo, which autotune does not support"):
        of_text("trl rloo --model_name_or_path x", tmp_path)


@pytest.mark.parametrize(("said", "whole"), [("=1", True), ("=4", False), ("", False)])
def test_experts_of_verl_are_whole_or_cut_as_its_launch_says(said: str, whole: bool, tmp_path: Path) -> None:
    degree = f" actor_rollout_ref.actor.megatron.expert_tensor_parallel_size{said}" if said else ""
    text = (
        f"{VERL} actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"
        f" actor_rollout_ref.actor.megatron.expert_model_parallel_size=2{degree}"
    ).replace("Qwen2.5-7B", "Qwen3-30B-A3B")
    draft = of_text(text, tmp_path)
    study = api.load_study(draft.document, base=tmp_path)
    assert study.workload.rl.whole_experts is whole
    assert study.baseline is not None
    eight = why_not(study.workload, replace(study.baseline, ep=8))
    assert (eight is None) is whole  # over tp * dp, or over dp alone
    weights = estimate(study.workload, study.baseline).memory_parts_bytes.weights
    assert (float(weights) > 16 * 2**30) is whole  # 57 GiB of experts over ep=2, or over ep * tp = 8
    model = exported(draft, tmp_path)[1]["actor_rollout_ref"]
    assert [model[role]["megatron"].get("expert_tensor_parallel_size") for role in ("actor", "ref")] == (
        [1, 1] if whole else [None, None]
    )


def test_an_estimator_that_costs_what_grpo_costs_stays_what_it_is(tmp_path: Path) -> None:
    draft = of_text(f"{VERL} algorithm.adv_estimator=rloo", tmp_path)
    assert draft.document["rl"]["algorithm"] == "grpo"
    assert exported(draft, tmp_path)[1]["algorithm"]["adv_estimator"] == "rloo"


@pytest.mark.parametrize(
    ("said", "targets", "modules"),
    [
        ("", "attention", ["q_proj", "v_proj"]),
        ("lora_target_modules: [q_proj, down_proj]", "all", ["q_proj", "down_proj"]),
        ("lora_target_modules: all-linear", "all", "all-linear"),
    ],
)
def test_adapters_of_trl_are_counted_and_kept(said: str, targets: str, modules: Any, tmp_path: Path) -> None:
    draft = of_text(f"{TRL}use_peft: true\nlora_r: 32\nlora_alpha: 64\n{said}\n", tmp_path, "grpo.yaml")
    peft = draft.document["workload"]["peft"]
    assert (peft["method"], peft["rank"], peft["targets"]) == ("lora", 32, targets)
    _, written = exported(draft, tmp_path)
    assert (written["use_peft"], written["lora_r"], written["lora_alpha"]) == (True, 32, 64)
    assert written["lora_target_modules"] == modules


def _sleeping(text: str, says_it_sleeps: str, folder: Path, name: str) -> list[tuple[bool, float, str]]:
    """(whether the engine sleeps, peak in bytes, what an export writes) of a launch without and with the words."""
    found = []
    for i, written in enumerate((text, f"{text}{says_it_sleeps}")):
        inside = folder / str(i)
        inside.mkdir()
        draft = of_text(written, inside, name)
        study = api.load_study(draft.document, base=inside)
        assert study.baseline is not None
        predicted = estimate(study.workload, study.baseline)
        argv, file = exported(draft, inside)
        found.append(
            (draft.document["rollout"].get("sleeps", True), float(predicted.peak_memory_bytes), f"{argv} {file}")
        )
    return found


@pytest.mark.parametrize(
    ("text", "words", "written", "name"),
    [
        (f"{OPENRLHF} --vllm.gpu_memory_utilization 0.5", " --vllm.enable_sleep", "--vllm.enable_sleep", "run.sh"),
        (f"{TRL}use_vllm: true\n", "vllm_enable_sleep_mode: true\n", "'vllm_enable_sleep_mode': True", "grpo.yaml"),
    ],
    ids=["openrlhf", "trl"],
)
def test_an_engine_that_never_sleeps_keeps_its_memory(
    text: str, words: str, written: str, name: str, tmp_path: Path
) -> None:
    (awake, kept, without), (asleep, freed, with_words) = _sleeping(text, words, tmp_path, name)
    assert (awake, asleep) == (False, True)
    assert kept > freed + 10 * 2**30
    assert written in with_words
    assert written not in without


def test_an_engine_of_verl_that_keeps_its_cache_is_counted(tmp_path: Path) -> None:
    draft = of_text(f"{VERL} actor_rollout_ref.rollout.free_cache_engine=False", tmp_path)
    assert draft.document["rollout"]["sleeps"] is False
    assert exported(draft, tmp_path)[1]["actor_rollout_ref"]["rollout"]["free_cache_engine"] is False


@pytest.mark.parametrize("flags", ["--ds.lora.rank 8", "--ds.lora.rank 8 --ds.lora.target_modules q_proj v_proj"])
def test_adapters_of_openrlhf_are_counted_and_kept(flags: str, tmp_path: Path) -> None:
    draft = of_text(f"{OPENRLHF} {flags}", tmp_path)
    peft = draft.document["workload"]["peft"]
    assert (peft["rank"], peft["targets"]) == (8, "attention" if "q_proj" in flags else "all")
    assert flags in exported(draft, tmp_path)[0]


@pytest.mark.parametrize("key", ["lora_rank", "lora.rank"])
def test_adapters_of_verl_are_counted_and_written_once(key: str, tmp_path: Path) -> None:
    draft = of_text(f"{VERL} actor_rollout_ref.model.{key}=64", tmp_path)
    assert draft.document["workload"]["peft"]["rank"] == 64
    model = exported(draft, tmp_path)[1]["actor_rollout_ref"]["model"]
    assert [model.get("lora_rank"), model.get("lora", {}).get("rank")].count(64) == 1


def test_adapters_of_verl_that_exist_already_are_counted_and_kept(tmp_path: Path) -> None:
    draft = of_text(f"{VERL} actor_rollout_ref.model.lora_adapter_path=/adapters", tmp_path)
    assert draft.document["workload"]["peft"]["rank"] == 32
    assert any("the rank of its adapters is not read; plans assume rank 32" in note for note in draft.notes)
    model = exported(draft, tmp_path)[1]["actor_rollout_ref"]["model"]
    assert model["lora_adapter_path"] == "/adapters"
    assert "lora_rank" not in model


@pytest.mark.parametrize("told", ["model_engine=veomni", "actor_rollout_ref.actor.strategy=torchtitan", "actor@actor_rollout_ref.actor=mlite_actor"])  # fmt: skip
def test_an_engine_of_verl_that_is_not_read_is_refused(told: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"trains with verl's (veomni|torchtitan|mlite) engine, which autotune does not support"):  # fmt: skip
        of_text(f"{VERL} {told}", tmp_path)


@pytest.mark.parametrize("told", ["--config-path=config --config-name=ppo_megatron_trainer.yaml", "model_engine=megatron"])  # fmt: skip
def test_verls_megatron_needs_no_key_of_its_own(told: str, tmp_path: Path) -> None:
    draft = of_text(f"{VERL} {told}", tmp_path)
    assert draft.document["rl"]["engine"] == "megatron"
    assert exported(draft, tmp_path)[1]["defaults"] == ["ppo_megatron_trainer", "_self_"]


def test_a_choice_of_settings_that_is_not_read_is_said(tmp_path: Path) -> None:
    draft = of_text(f"{VERL} reward@reward=my_reward", tmp_path)
    assert any("reward@reward=my_reward: the content of these settings is not read" in note for note in draft.notes)


def test_the_file_that_a_command_of_verl_names_decides_what_it_does_not_say(tmp_path: Path) -> None:
    inner = tmp_path / "examples" / "config"
    inner.mkdir(parents=True)
    script = f"""CONFIG="$(pwd)/examples/config"\n{VERL} --config-path="$CONFIG" --config-name='mine'"""
    with pytest.raises(SpecError, match=r"starts verl with mine.yaml in ./examples/config, which was not found"):
        of_text(script, tmp_path)
    (inner / "mine.yaml").write_text(
        "hydra: {searchpath: [file://verl/trainer/config]}\ndefaults: [ppo_trainer, _self_]\n"
        "data: {max_response_length: 3072}\nactor_rollout_ref: {rollout: {multi_turn: {enable: true}}}\n"
    )
    draft = of_text(script, tmp_path)
    assert draft.document["rl"]["response_lengths"]["max"] == 3072
    assert exported(draft, tmp_path)[1]["actor_rollout_ref"]["rollout"]["multi_turn"] == {"enable": True}


def test_a_long_response_is_not_cut_at_the_assumed_sequence(tmp_path: Path) -> None:
    draft = of_text(TRL.replace("max_completion_length: 512", "max_completion_length: 4096"), tmp_path, "grpo.yaml")
    assert draft.document["rl"]["response_lengths"]["max"] == 4096


def test_commands_of_verl_and_its_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = ["actor_rollout_ref.model.path=Qwen/Qwen2.5-7B", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"]
    plain = command_draft(["python3", "-m", "verl.trainer.main_ppo", *told], cluster=NODE, folder=tmp_path)
    assert plain.document["trainer"]["kind"] == "verl"
    assert "start" not in plain.document["trainer"]
    recipe = ["python3", "-m", "recipe.dapo.main_dapo"]
    draft = command_draft([*recipe, *told], cluster=NODE, folder=tmp_path)
    assert draft.document["trainer"]["start"] == recipe
    assert exported(draft, tmp_path)[0].startswith("python3 -m recipe.dapo.main_dapo --config-path=")
    with pytest.raises(SpecError, match="one_step_off_policy, which assigns GPUs to engines with its own keys"):
        command_draft(["python3", "-m", "recipe.one_step_off_policy.main_ppo", *told], cluster=NODE, folder=tmp_path)
    with pytest.raises(SpecError, match="split_placement"):
        command_draft(["python3", "main_ppo_split.py", *told], cluster=NODE, folder=tmp_path)


@pytest.mark.parametrize("name", ["trl", "nemo_rl", "openrlhf"])
def test_the_learning_rate_that_nobody_told_is_the_programs(name: str) -> None:
    subject = trainer(name)
    assert isinstance(subject, PostTrainer)
    rate = next(option.default for option in subject.options if option.name == "learning_rate")
    assert rate == (5e-6 if name == "nemo_rl" else 1e-6)
