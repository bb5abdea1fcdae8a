"""Launches of programs that post-train, as people write them: what is read, and what an export
keeps of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from tests.onboarding.drafting import Read, at_path, drafted
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
    """The command of an export with what was read, with other knobs where some are given, and its
    file."""
    study = api.load_study(draft.document, base=folder)
    assert study.baseline is not None
    launch = trainer(study.trainer).launch(
        study.workload, replace(study.baseline, **knobs), dict(study.trainer_options)
    )
    return " ".join(launch.argv), yaml.safe_load(next(iter(launch.files.values()), "{}"))


def of_text(text: str, folder: Path, name: str = "run.sh", cluster: str | None = NODE) -> Draft:
    return first_draft(file_with(folder / name, text), cluster=cluster, folder=folder)


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


@pytest.mark.parametrize(
    "command", ["trl grpo --config grpo.yaml --num_processes 4 --bf16 false --reward_funcs a b"]
)
def test_flags_of_trl_count_over_its_file(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grpo.yaml").write_text(TRL + "num_processes: 8\n")
    monkeypatch.chdir(tmp_path)
    for draft in (
        of_text(command, tmp_path),
        command_draft(shlex.split(command), cluster=NODE, folder=tmp_path),
    ):
        assert draft.document["baseline"].startswith("dp=4,")
        assert draft.document["space"]["precision"] == ["fp32"]
        assert draft.document["trainer"]["settings"]["reward_funcs"] == ["a", "b"]


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
    # a file decides it that launches do not write
    assert draft.document["space"]["zero_stage"] == [3]
    argv, written = exported(draft, tmp_path)
    assert argv.startswith("trl grpo --config")
    assert argv.endswith("--num_processes 8")
    assert (written["seed"], written["accelerate_config"]) == (3, "zero3")
    assert not {"config_file", "main_process_port", "num_processes"} & written.keys()


@pytest.mark.parametrize("folder", ["$(dirname $0)", '$(cd "$(dirname "$0")" && pwd)'])
def test_the_folder_of_a_script_is_written_out_and_what_only_a_shell_computes_is_named(
    folder: str, tmp_path: Path
) -> None:
    draft = of_text(
        f"HERE={folder}\n{VERL} data.train_files=$HERE/train.parquet trainer.experiment_name=at_$(date +%s)\n",
        tmp_path,
    )
    assert draft.document["trainer"]["settings"]["data"]["train_files"] == str(
        tmp_path / "train.parquet"
    )
    assert any("experiment_name: only the shell can compute" in note for note in draft.notes)


def test_what_a_base_of_nemo_rl_decides_is_read_and_stays_with_it(tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    write(
        tmp_path / "bases",
        {
            "base.yaml": BASE,
            "inner.yaml": "defaults: base.yaml\npolicy: {train_micro_batch_size: 4}\n",
        },
    )
    draft = of_text(
        "defaults: [bases/inner.yaml]\npolicy: {tokenizer: {name: x}}\n", tmp_path, "own.yaml"
    )
    rl = draft.document["rl"]
    assert (rl["engine"], rl["responses"], rl["reference"], rl["micro_batch_tokens"]) == (
        "megatron",
        8,
        True,
        16384,
    )
    assert draft.document["baseline"].startswith("tp=2,pp=1,dp=4,")
    _, written = exported(draft, tmp_path)
    assert written["defaults"] == str(tmp_path / "bases" / "inner.yaml")
    assert "loss_fn" not in written
    assert "logprob_batch_size" not in written["policy"]
    assert written["grpo"]["seed"] == 7
    assert written["grpo"]["max_num_steps"] == 300
    assert written["policy"]["megatron_cfg"]["optimizer"]["lr"] == 2e-7


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
        of_text(
            f"cd {tmp_path}\n{command}\nuv run tests/dump.py a --output b\n", tmp_path / "elsewhere"
        ),
        command_draft(shlex.split(command), cluster=NODE, folder=tmp_path),
    ):
        assert draft.document["rl"]["micro_batch_tokens"] == 4096
        assert draft.document["rl"]["mini_batches"] == 2
        argv, written = exported(draft, tmp_path)
        assert re.sub("^python3? ", "", argv).startswith(start.removeprefix("python "))
        assert "=" not in argv
        assert Path(written["defaults"]) == tmp_path / "examples" / "configs" / "mine.yaml"


@pytest.mark.parametrize(("said", "whole"), [("=1", True), ("=4", False), ("", False)])
def test_experts_of_verl_are_whole_or_cut_as_its_launch_says(
    said: str, whole: bool, tmp_path: Path
) -> None:
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
    # 57 GiB of experts over ep=2, or over ep * tp = 8
    assert (float(weights) > 16 * 2**30) is whole
    model = exported(draft, tmp_path)[1]["actor_rollout_ref"]
    assert [
        model[role]["megatron"].get("expert_tensor_parallel_size") for role in ("actor", "ref")
    ] == ([1, 1] if whole else [None, None])


def _sleeping(
    text: str, says_it_sleeps: str, folder: Path, name: str
) -> list[tuple[bool, float, str]]:
    """(whether the engine sleeps, peak in bytes, what an export writes) of a launch without and
    with the words."""
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
            (
                draft.document["rollout"].get("sleeps", True),
                float(predicted.peak_memory_bytes),
                f"{argv} {file}",
            )
        )
    return found


@pytest.mark.parametrize(
    ("text", "words", "written", "name"),
    [
        (
            f"{OPENRLHF} --vllm.gpu_memory_utilization 0.5",
            " --vllm.enable_sleep",
            "--vllm.enable_sleep",
            "run.sh",
        ),
        (
            f"{TRL}use_vllm: true\n",
            "vllm_enable_sleep_mode: true\n",
            "'vllm_enable_sleep_mode': True",
            "grpo.yaml",
        ),
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


def test_the_file_that_a_command_of_verl_names_decides_what_it_does_not_say(tmp_path: Path) -> None:
    inner = tmp_path / "examples" / "config"
    inner.mkdir(parents=True)
    script = (
        f"""CONFIG="$(pwd)/examples/config"\n{VERL} --config-path="$CONFIG" --config-name='mine'"""
    )
    with pytest.raises(
        SpecError,
        match=r"starts verl with mine.yaml in ./examples/config, but this file was not found",
    ):
        of_text(script, tmp_path)
    (inner / "mine.yaml").write_text(
        "hydra: {searchpath: [file://verl/trainer/config]}\ndefaults: [ppo_trainer, _self_]\n"
        "data: {max_response_length: 3072}\nactor_rollout_ref: {rollout: {multi_turn: {enable: true}}}\n"
    )
    draft = of_text(script, tmp_path)
    assert draft.document["rl"]["response_lengths"]["max"] == 3072
    assert exported(draft, tmp_path)[1]["actor_rollout_ref"]["rollout"]["multi_turn"] == {
        "enable": True
    }


def test_commands_of_verl_and_its_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = [
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    ]
    plain = command_draft(
        ["python3", "-m", "verl.trainer.main_ppo", *told], cluster=NODE, folder=tmp_path
    )
    assert plain.document["trainer"]["kind"] == "verl"
    assert "start" not in plain.document["trainer"]
    recipe = ["python3", "-m", "recipe.dapo.main_dapo"]
    draft = command_draft([*recipe, *told], cluster=NODE, folder=tmp_path)
    assert draft.document["trainer"]["start"] == recipe
    assert exported(draft, tmp_path)[0].startswith(
        "python3 -m recipe.dapo.main_dapo --config-path="
    )
    with pytest.raises(
        SpecError, match="one_step_off_policy, which assigns GPUs to engines with its own keys"
    ):
        command_draft(
            ["python3", "-m", "recipe.one_step_off_policy.main_ppo", *told],
            cluster=NODE,
            folder=tmp_path,
        )
    with pytest.raises(SpecError, match="split_placement"):
        command_draft(["python3", "main_ppo_split.py", *told], cluster=NODE, folder=tmp_path)


@pytest.mark.parametrize("name", ["trl", "nemo_rl", "openrlhf"])
def test_the_learning_rate_that_nobody_told_is_the_programs(name: str) -> None:
    subject = trainer(name)
    assert isinstance(subject, PostTrainer)
    rate = next(option.default for option in subject.options if option.name == "learning_rate")
    assert rate == (5e-6 if name == "nemo_rl" else 1e-6)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What an export keeps of a launch; what is not given is not checked."""

    command: tuple[str, ...] = ()
    """parts of its command"""
    without: tuple[str, ...] = ()
    """parts that are not in it"""
    written: Mapping[str, Any] = field(default_factory=dict)
    """values of its file, by path; None: there is none"""


class Launched(NamedTuple):
    """A row of a table: files, what is read of them, and what an export keeps."""

    files: Mapping[str, str]
    read: Read = Read()
    kept: Kept = Kept()
    cluster: str = NODE


def openrlhf(flags: str, read: Read, *has: str, without: tuple[str, ...] = ()) -> Launched:
    return Launched({"run.sh": f"{OPENRLHF} {flags}\n"}, read, Kept(command=has, without=without))


def trl(said: str, read: Read, **more: Any) -> Launched:
    return Launched({"grpo.yaml": f"{TRL}{said}\n"}, read, **more)


def trl_on_eight(said: str, read: Read, zero3: str, ds: str) -> Launched:
    """A launch whose configuration names other files."""
    files = {"zero3.yaml": zero3, "ds.json": ds, "grpo.yaml": f"{TRL}\n{said}\n"}
    return Launched({"run.sh": "trl grpo --config grpo.yaml --num_processes 8", **files}, read)


def verl(said: str, read: Read, **written: Any) -> Launched:
    return Launched({"run.sh": f"{VERL} {said}"}, read, Kept(written=written.get("written", {})))


def nemo(files: Mapping[str, str], read: Read, written: Mapping[str, Any]) -> Launched:
    return Launched(files, read, Kept(written=written))


def rl(**values: Any) -> Read:
    """Values of its post-training."""
    return Read(document={f"rl/{name}": value for name, value in values.items()})


def adapters(rank: int, **more: Any) -> Read:
    return Read(
        document={
            "workload/peft/rank": rank,
            **{f"workload/peft/{name}": value for name, value in more.items()},
        }
    )


OF_ITS_OWN = (
    "--actor.num_gpus_per_node 2 --ref.num_gpus_per_node 2 --critic.num_gpus_per_node 2 --vllm.num_engines 2 --vllm.tensor_parallel_size 2"
    " --train.colocate_actor_ref --ds.packing_samples --train.micro_batch_size 8"
)
DS_ZERO1 = '{"zero_optimization": {"stage": 1}}'
DS_ON_HOST = '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}'
ZERO3_ON_HOST = ZERO3.replace(
    "{zero_stage: 3}", "{zero_stage: 3, offload_optimizer_device: cpu, offload_param_device: none}"
)
NO_PACKING = BASE.replace(
    "  sequence_packing: {enabled: true,",
    "  dynamic_batching: {enabled: true, train_mb_tokens: 8192}\n  sequence_packing: {enabled: false,",
)
MEGATRON = Read(document={"rl/engine": "megatron"})
LAUNCHED = {
    "openrlhf: what a script leaves to the program": openrlhf(
        "",
        rl(reference=True, padded=True),
        "--ref.num_gpus_per_node 8",
        "--rollout.micro_batch_size 1",
        "--actor.adam.lr 1e-06",
        "--train.seed 42",
        without=("init_coef", "use_loss", "packing_samples", "max_new_tokens"),
    ),
    "openrlhf: a loss of KL": openrlhf(
        "--algo.kl.init_coef 0.001 --algo.kl.use_loss --rollout.micro_batch_size 2",
        rl(reference=True, padded=True),
        "--algo.kl.init_coef 0.001",
        "--algo.kl.use_loss",
        "--rollout.micro_batch_size",
    ),
    "openrlhf: another estimator": openrlhf(
        "--algo.advantage.estimator rloo",
        rl(reference=True, padded=True),
        "--algo.advantage.estimator rloo",
        without=("group_norm",),
    ),
    "openrlhf: no reference, packed": openrlhf(
        "--algo.kl.init_coef 0 --ds.packing_samples",
        rl(reference=False, padded=None),
        "--algo.kl.init_coef 0",
        "--ds.packing_samples",
        without=("use_loss",),
    ),
    "openrlhf: ranges": openrlhf(
        "--actor.eps_clip_low_high 0.2 0.27 --algo.dynamic_filtering_range 0 1 --reward.clip_range -10 10",
        rl(reference=True, padded=True),
        "--actor.eps_clip_low_high 0.2 0.27",
        "--algo.dynamic_filtering_range 0 1",
        "--reward.clip_range -10 10",
    ),
    "openrlhf: a critic with GPUs of its own is said and kept": Launched(
        {"run.sh": f"python3 -m openrlhf.cli.train_ppo_ray {MODEL} {OF_ITS_OWN}"},
        Read(
            document={"rl/placement": {"split": [4, 4]}}, notes=("critic model has its own 2 GPUs",)
        ),
        Kept(command=("--critic.num_gpus_per_node 2", "--vllm.num_engines 2")),
    ),
    **{
        f"openrlhf: adapters are counted and kept: {targets}": openrlhf(
            flags, adapters(8, targets=targets), flags
        )
        for flags, targets in (
            ("--ds.lora.rank 8", "all"),
            ("--ds.lora.rank 8 --ds.lora.target_modules q_proj v_proj", "attention"),
        )
    },
    **{
        f"trl: {name}": trl(said, rl(prompts=32), kept=Kept(written=written))
        for name, said, written in (
            (
                "what a file leaves to the program",
                "",
                {
                    "loss_type": "dapo",
                    "use_vllm": False,
                    "bf16": True,
                    "gradient_checkpointing": True,
                    "learning_rate": 1e-6,
                    "seed": 42,
                    "max_steps": -1,
                    "num_generations": 8,
                },
            ),
            (
                "another loss, and a server",
                "loss_type: dr_grpo\nuse_vllm: true\nvllm_mode: server\nseed: 3",
                {"loss_type": "dr_grpo", "use_vllm": True, "vllm_mode": "server", "seed": 3},
            ),
            (
                "fp16, nothing recomputed",
                "fp16: true\ngradient_checkpointing: false\nloss_type: bnpo",
                {"fp16": True, "bf16": False, "gradient_checkpointing": False, "loss_type": "bnpo"},
            ),
        )
    },
    **{
        f"trl: how it shards is read from the file that its configuration names: {line}": trl_on_eight(
            line, Read(document={"rl/engine": engine, "space/zero_stage": stages}), ZERO3, DS_ZERO1
        )
        for line, engine, stages in (
            ("accelerate_config: zero2", "deepspeed", [2, 3]),
            ("accelerate_config: zero3.yaml", "deepspeed", [3]),
            ("deepspeed: ds.json", "deepspeed", [1]),
            ("accelerate_config: fsdp2", None, [3]),
            ("fsdp: full_shard", None, [2, 3]),
        )
    },
    **{
        f"trl: what its files keep in host memory is named: {path}": trl_on_eight(
            line,
            Read(
                notes=(
                    f"{path.replace(': ', ': plans ignore ')} and assume that everything is on the GPU, so the launch may need less memory and more time",
                ),
                unsaid=("offload_param_device",),
            ),
            ZERO3_ON_HOST,
            DS_ON_HOST,
        )
        for line, path in (
            (
                "accelerate_config: zero3.yaml",
                "zero3.yaml: deepspeed_config.offload_optimizer_device",
            ),
            ("deepspeed: ds.json", "deepspeed: zero_optimization.offload_param.device"),
        )
    },
    "trl: ranks are the cluster's": trl("", Read(baseline="dp=16,"), cluster="h100-sxm-2x8"),
    "trl: ranks are the file's": trl("num_processes: 4", Read(baseline="dp=4,")),
    **{
        f"trl: adapters are counted and kept: {modules}": trl(
            f"use_peft: true\nlora_r: 32\nlora_alpha: 64\n{said}",
            adapters(32, method="lora", targets=targets),
            kept=Kept(
                written={
                    "use_peft": True,
                    "lora_r": 32,
                    "lora_alpha": 64,
                    "lora_target_modules": modules,
                }
            ),
        )
        for said, targets, modules in (
            ("", "attention", ["q_proj", "v_proj"]),
            ("lora_target_modules: [q_proj, down_proj]", "all", ["q_proj", "down_proj"]),
            ("lora_target_modules: all-linear", "all", "all-linear"),
        )
    },
    "nemo-rl: a base that is not there and is known": nemo(
        {
            "own.yaml": "defaults: ../../grpo_math_1B.yaml\npolicy: {model_name: meta-llama/Meta-Llama-3-8B, logprob_batch_size: 2}\ncluster: {gpus_per_node: 8}\n"
        },
        rl(
            prompts=32,
            responses=16,
            reference=True,
            micro_batch_tokens=2048,
            log_prob_micro_batch_tokens=1024,
        ),
        {
            "defaults": "${oc.env:PWD}/examples/configs/grpo_math_1B.yaml",
            "policy/logprob_batch_size": 2,
            "policy/optimizer/kwargs/lr": 5e-6,
        },
    ),
    "nemo-rl: dynamic batches stay dynamic": nemo(
        {"own.yaml": NO_PACKING},
        rl(padded=True, micro_batch_tokens=8192),
        {
            "defaults": None,
            "policy/dynamic_batching": {
                "enabled": True,
                "train_mb_tokens": 8192,
                "logprob_mb_tokens": 8192,
            },
            "policy/sequence_packing/enabled": False,
        },
    ),
    **{
        f"nemo-rl: what plans leave out is said also of its bases: {named}": Launched(
            {
                "own.yaml": "defaults: inner.yaml\npolicy: {generation: {vllm_cfg: {gpu_memory_utilization: 0.7}}}\n",
                "base.yaml": BASE,
                "inner.yaml": f"defaults: base.yaml\npolicy: {{{said}}}\n",
            },
            Read(notes=(named,), document={"rollout/memory_fraction": fraction}),
        )
        for said, named, fraction in (
            (
                "megatron_cfg: {peft: {enabled: true}}",
                "plans do not count what policy.megatron_cfg.peft.enabled saves",
                0.7,
            ),
            (
                "generation: {backend: sglang}",
                "autotune does not read the engines' degree and memory with policy.generation.backend=sglang",
                None,
            ),
            (
                "megatron_cfg: {enabled: false}, dtensor_cfg: {enabled: true, expert_parallel_size: 8}",
                "expert_parallel_size=8: plans shard experts like all other weights",
                0.7,
            ),
        )
    },
    "verl: an estimator that costs what grpo costs stays what it is": verl(
        "algorithm.adv_estimator=rloo",
        rl(algorithm="grpo"),
        written={"algorithm/adv_estimator": "rloo"},
    ),
    "verl: an engine that keeps its cache is counted": verl(
        "actor_rollout_ref.rollout.free_cache_engine=False",
        Read(document={"rollout/sleeps": False}),
        written={"actor_rollout_ref/rollout/free_cache_engine": False},
    ),
    **{
        f"verl: adapters are counted and written once: {key}": verl(
            f"actor_rollout_ref.model.{key}=64",
            adapters(64),
            written={
                "actor_rollout_ref/model/lora_rank": of_one,
                "actor_rollout_ref/model/lora/rank": of_other,
            },
        )
        for key, of_one, of_other in (("lora_rank", 64, None), ("lora.rank", None, 64))
    },
    "verl: adapters that exist already are counted and kept": verl(
        "actor_rollout_ref.model.lora_adapter_path=/adapters",
        Read(
            document={"workload/peft/rank": 32},
            notes=("the adapters' rank is not read; plans assume rank 32",),
        ),
        written={
            "actor_rollout_ref/model/lora_adapter_path": "/adapters",
            "actor_rollout_ref/model/lora_rank": None,
        },
    ),
    **{
        f"verl: Megatron needs no key of its own: {told}": verl(
            told, MEGATRON, written={"defaults": ["ppo_megatron_trainer", "_self_"]}
        )
        for told in (
            "--config-path=config --config-name=ppo_megatron_trainer.yaml",
            "model_engine=megatron",
        )
    },
    "verl: a choice of settings that is not read is said": verl(
        "reward@reward=my_reward",
        Read(notes=("reward@reward=my_reward: the content of these settings is not read",)),
    ),
}


@pytest.mark.parametrize("name", LAUNCHED)
def test_what_is_read_and_kept(name: str, tmp_path: Path) -> None:
    files, read, kept, cluster = LAUNCHED[name]
    draft = drafted(tmp_path, files, cluster)
    read.check(draft, tmp_path)
    command, written = exported(draft, tmp_path)
    assert [part for part in kept.command if part not in command] == []
    assert [part for part in kept.without if part in command] == []
    assert {path: at_path(written, path) for path in kept.written} == kept.written


def test_a_long_response_is_not_cut_at_the_assumed_sequence(tmp_path: Path) -> None:
    draft = of_text(
        TRL.replace("max_completion_length: 512", "max_completion_length: 4096"),
        tmp_path,
        "grpo.yaml",
    )
    assert draft.document["rl"]["response_lengths"]["max"] == 4096


REFUSED = {
    "of TRL, without the number of its GPUs": (
        {"grpo.yaml": TRL},
        None,
        "does not give the number of GPUs",
    ),
    "of TRL, by a file that is not there": (
        {"run.sh": "trl grpo --config other.yaml --num_processes 4"},
        NODE,
        r"other\.yaml, which was not found",
    ),
    "of TRL, based on a file that is not there": (
        {
            "run.sh": "trl grpo --config grpo.yaml --num_processes 8",
            "grpo.yaml": f"{TRL}\naccelerate_config: other.yaml\n",
        },
        NODE,
        r"is based on other\.yaml, which was not found",
    ),
    "of TRL by accelerate, with flags that are not read": (
        {
            "run.sh": "accelerate launch --num_processes 8 --use_fsdp -m trl.scripts.grpo --config grpo.yaml",
            "grpo.yaml": TRL,
        },
        NODE,
        "has --use_fsdp, which autotune does not support",
    ),
    "of TRL's rloo": (
        {"run.sh": "trl rloo --model_name_or_path x"},
        NODE,
        "starts TRL's rloo, which autotune does not support",
    ),
    "of NeMo-RL's DPO": (
        {"run.sh": "uv run examples/run_dpo.py --config examples/configs/dpo.yaml"},
        NODE,
        "starts NeMo-RL's DPO, which autotune does not support",
    ),
    "of NeMo-RL, on a base that is not there": (
        {"own.yaml": "defaults: my_base.yaml\npolicy: {model_name: x}\n"},
        NODE,
        r"is based on my_base\.yaml, which was not found",
    ),
    **{
        f"of NeMo-RL, whose GPUs are counted otherwise: {what}": (
            {
                "own.yaml": "defaults: base.yaml\npolicy: {tokenizer: {name: x}}\n",
                "base.yaml": f"{BASE}\n{said}\n",
            },
            NODE,
            what,
        )
        for said, what in (
            ("async_rl: {sampler: {name: in_order}}", "belongs to NeMo-RL's single controller"),
            (
                "on_policy_distillation: {enabled: true, non_colocated_teachers: {enabled: true}}",
                "has teachers on their own GPUs",
            ),
            (
                "data: {default: {env_name: reward_model}}\nenv: {reward_model: {resources: {num_nodes: 1, gpus_per_node: 1}}}",
                "has a reward model on its own GPUs",
            ),
        )
    },
    **{
        f"of verl's {engine} engine": (
            {"run.sh": f"{VERL} {told}"},
            NODE,
            f"trains with verl's {engine} engine, which autotune does not support",
        )
        for engine, told in (
            ("veomni", "model_engine=veomni"),
            ("torchtitan", "actor_rollout_ref.actor.strategy=torchtitan"),
            ("mlite", "actor@actor_rollout_ref.actor=mlite_actor"),
        )
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    files, cluster, message = REFUSED[name]
    with pytest.raises(SpecError, match=message):
        drafted(tmp_path, files, cluster)
