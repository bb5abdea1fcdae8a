"""TRL, NeMo-RL and OpenRLHF: names that their releases have, launches that are read again, logs by
phase."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from autotune.errors import SpecError
from autotune.onboarding.configuration_files import read_present, recognized
from autotune.onboarding.imported_spec import import_draft
from autotune.schema import parse_study
from autotune.spec import ParallelConfig, Workload
from autotune.trainers import StepMetrics, trainer, write_launch
from autotune.trainers.base.effective import effective
from autotune.trainers.logs.formats import parse_loss_dictionary
from autotune.trainers.post_training.logs import read_phases
from autotune.trainers.present_configuration import PresentConfiguration, dotted
from tests.trainers.test_verl import LINE, MEGATRON, OPTIONS, RL, WORKLOAD, PostTrainerContract

DATA = Path(__file__).parent / "data"
TRL = replace(WORKLOAD, trainer="trl", rl=replace(RL, balance="none", padded=True))
NEMO = replace(WORKLOAD, trainer="nemo_rl", rl=replace(RL, balance="mini_batch"))
NEMO_MEGATRON = replace(NEMO, rl=replace(RL, balance="mini_batch", engine="megatron"))
OPENRLHF = replace(WORKLOAD, trainer="openrlhf", rl=replace(RL, balance="none", engine="deepspeed"))
TRL_LINE = "{'loss': '0.0123', 'grad_norm': '0.5', 'completions/mean_length': '61.5', 'completions/max_length': '64', 'step_time': '12.25', 'epoch': '0.1'}"
OPENRLHF_LINE = "✨ Global step 4: {'policy_loss': 0.25, 'response_length': 900.0, 'timing/make_experience': 20.5, 'timing/ppo_train': 50.0, 'timing/broadcast': 1.5, 'timing/generation': 30.0, 'timing/step_total': 102.0}"
NEMO_LOG = """
========================= Step 1/10 =========================
  • Loss: 0.0100
  • Mean Generation Length: 523.2500
  • Total step time: 40.00s
  • generation: 20.00s (50.0%)
  • policy_training: 12.00s (30.0%)
  • policy_and_reference_logprobs: 5.00s (12.5%)
  • prepare_for_generation/total: 2.00s (5.0%)
"""


class TestTrl(PostTrainerContract):
    """The contract, with DDP and FSDP2."""

    trainer = "trl"
    options = OPTIONS
    workload = TRL
    sharded: ClassVar = {"dp": 8, "zero_stage": 3, "recompute": "full"}
    settings_of_a_knob: ClassVar = {"per_device_train_batch_size": 4}
    log_lines: ClassVar = {TRL_LINE: StepMetrics(step_time_s=12.25, loss=0.0123, grad_norm=0.5)}


class TestNemoRl(PostTrainerContract):
    """The contract, with DTensor."""

    trainer = "nemo_rl"
    options = OPTIONS
    workload = NEMO
    sharded: ClassVar = {"dp": 8, "zero_stage": 3, "recompute": "full"}
    settings_of_a_knob: ClassVar = {"policy": {"train_micro_batch_size": 4}}
    log_lines: ClassVar = {
        "  • Avg Reward: 0.5": None,
        "  • Total step time: 40.00s": StepMetrics(step_time_s=40.0),
    }


class TestNemoRlWithMegatron(PostTrainerContract):
    """The contract, with Megatron."""

    trainer = "nemo_rl"
    options = OPTIONS
    workload = NEMO_MEGATRON
    sharded: ClassVar = {"tp": 2, "pp": 2, "dp": 2, "zero_stage": 1}
    settings_of_a_knob: ClassVar = {"policy": {"megatron_cfg": {"enabled": False}}}
    log_lines: ClassVar = {
        "  • Avg Reward: 0.5": None,
        "  • Total step time: 40.00s": StepMetrics(step_time_s=40.0),
    }


class TestOpenRlhf(PostTrainerContract):
    """The contract, with DeepSpeed."""

    trainer = "openrlhf"
    options = OPTIONS
    workload = OPENRLHF
    sharded: ClassVar = {"dp": 8, "zero_stage": 3, "recompute": "full"}
    settings_of_a_knob: ClassVar = {"train": {"micro_batch_size": 4}}
    log_lines: ClassVar = {OPENRLHF_LINE: StepMetrics(step=4, step_time_s=102.0, loss=0.25)}


def names(release: str) -> set[str]:
    return set(json.loads((DATA / f"{release}.json").read_text(encoding="utf-8")))


def config(**knobs: Any) -> ParallelConfig:
    return ParallelConfig(accumulation_steps=64 // knobs.get("dp", 1), **knobs)


def test_every_key_of_trl_is_a_field_of_its_arguments() -> None:
    launch = trainer("trl").launch(TRL, config(dp=8, zero_stage=3), OPTIONS)
    written = yaml.safe_load(launch.files["grpo.yaml"])
    of_the_script = {"model_name_or_path"}
    assert set(written) - names("trl-1.16.0") == of_the_script
    assert written["steps_per_generation"] == 8 * written["gradient_accumulation_steps"]
    assert launch.argv[:2] == ("trl", "grpo")


def test_every_flag_of_openrlhf_is_one_of_its_program() -> None:
    launch = trainer("openrlhf").launch(OPENRLHF, config(dp=8, zero_stage=3, extra={"micro_batch_tokens": 8192, "rollout_gpus": 8, "staleness": 1}), OPTIONS)  # fmt: skip
    flags = {word[2:] for word in launch.argv if word.startswith("--")}
    assert flags - names("openrlhf-0.11.2") == set()
    assert {"train.dynamic_batch_enable", "train.async_enable", "vllm.num_engines"} <= flags
    assert "train.colocate_all" not in flags


def test_every_key_of_nemo_rl_stands_in_its_example() -> None:
    known = names("nemo-rl-7ea279a")
    for workload, knobs in (
        (NEMO, {"dp": 8, "zero_stage": 3}),
        (NEMO_MEGATRON, {"tp": 2, "pp": 2, "dp": 2, "zero_stage": 1}),
    ):
        launch = trainer("nemo_rl").launch(workload, config(**knobs, extra={"rollout_gpus": 8, "staleness": 2, "micro_batch_tokens": 8192}), OPTIONS)  # fmt: skip
        written = yaml.safe_load(launch.files["nemo_rl.yaml"])
        assert written.pop("defaults") == "${oc.env:PWD}/examples/configs/grpo_math_1B.yaml"
        assert set(dotted(written)) - known == set()
        assert written["policy"]["generation"]["colocated"] == {
            "enabled": False,
            "resources": {"num_nodes": 1, "gpus_per_node": 8},
        }
        # what `async_grpo_train` asserts before it starts
        assert written["policy"]["generation"]["vllm_cfg"]["async_engine"] is True
        assert written["loss_fn"]["use_importance_sampling_correction"] is True
        left = trainer("nemo_rl").read_config(PresentConfiguration.of_launch(launch)).settings
        assert sorted(dotted(left)) == [
            "grpo.max_num_steps",
            "grpo.seed",
            "loss_fn.reference_policy_kl_penalty",
        ]


def test_logs_are_read_by_phase() -> None:
    verl = read_phases([LINE])
    assert (verl.median("generation"), verl.median("update"), verl.median("response_mean")) == (
        144.5,
        203.25,
        1402.5,
    )
    nemo = read_phases(NEMO_LOG.splitlines())
    assert nemo.steps[0] == {
        "loss": 0.01, "response_mean": 523.25, "step": 40.0, "generation": 20.0, "update": 12.0, "log_prob": 5.0, "refit": 2.0,
    }  # fmt: skip
    openrlhf = read_phases([OPENRLHF_LINE])
    assert (openrlhf.median("generation"), openrlhf.median("update"), openrlhf.median("refit")) == (
        30.0,
        50.0,
        1.5,
    )
    trl = read_phases([TRL_LINE, TRL_LINE.replace("64", "80")])
    assert (trl.median("step"), trl.largest("response_max")) == (12.25, 80.0)
    assert read_phases(["step 3 of 10", "{'loss': 2.0}"]).steps == ()


def test_any_program_of_trl_that_generates_tells_the_seconds_of_its_steps() -> None:
    found = parse_loss_dictionary(TRL_LINE)
    assert found is not None
    assert found.step_time_s == 12.25
    plain = parse_loss_dictionary("{'loss': '0.5', 'step_time': '12.25'}")
    assert plain is not None
    assert plain.step_time_s is None  # another program's word may mean another thing


def test_the_first_step_is_left_out_of_medians() -> None:
    lines = [
        f"step:{i} - timing_s/gen:{seconds} - timing_s/step:9"
        for i, seconds in enumerate((90, 10, 12), start=1)
    ]
    assert read_phases(lines).median("generation") == 11.0


def test_a_script_of_openrlhf_is_read() -> None:
    script = "set -x\nN=8\npython3 -m openrlhf.cli.train_ppo_ray \\\n  --actor.num_nodes 1 --actor.num_gpus_per_node $N --vllm.num_engines 8 --train.colocate_all \\\n  --train.batch_size 128 --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.micro_batch_size 2 --ds.zero_stage 3 \\\n  --actor.model_name_or_path Qwen/Qwen2.5-7B --algo.advantage.estimator group_norm --data.max_len 4096 --rollout.max_new_tokens 3072\n"
    found = trainer("openrlhf").read_config(PresentConfiguration(files={"run.sh": script}))
    assert (
        found.knobs["dp"],
        found.knobs["micro_batch_size"],
        found.knobs["accumulation_steps"],
    ) == (8, 2, 8)
    assert found.rl["mini_batches"] == 8
    assert found.rl["prompt_lengths"] == 1024
    assert "placement" not in found.rl


@pytest.mark.parametrize(
    ("workload", "knobs"),
    [(WORKLOAD, {"dp": 16, "zero_stage": 3}), (TRL, {"dp": 16, "zero_stage": 3}), (NEMO, {"dp": 16, "zero_stage": 3}), (OPENRLHF, {"dp": 16, "zero_stage": 3})],
    ids=lambda value: getattr(value, "trainer", ""),
)  # fmt: skip
def test_an_exported_folder_becomes_a_spec_that_asks_for_lengths_and_speed(
    workload: Workload, knobs: dict[str, Any], tmp_path: Path
) -> None:
    name, launched = workload.trainer, config(**knobs, recompute="full")
    write_launch(trainer(name).launch(workload, launched, OPTIONS), tmp_path / "launch")
    present = read_present(tmp_path / "launch")
    assert recognized(present) == name
    draft = import_draft(
        present,
        name,
        tmp_path / "launch",
        folder=tmp_path,
        cluster="h100-sxm-2x8",
        model="llama-1b",
    )
    assert {"rl.prompt_lengths", "rl.response_lengths", "rollout.tokens_per_s_per_gpu"} <= set(
        draft.fill_in
    )
    assert yaml.safe_load(draft.text) == draft.document
    study = parse_study({**draft.document, "workload": {"seq_len": 1 << 16}}, base=tmp_path)
    assert study.baseline is not None
    assert effective(study.baseline) == effective(launched)
    assert study.workload.rl is not None
    assert (study.workload.rl.responses, study.workload.rl.mini_batch) == (8, 64)


@pytest.mark.parametrize("name", ["verl", "trl", "nemo_rl", "openrlhf"])
def test_each_says_what_its_names_were_checked_against(name: str) -> None:
    assert any(sign.isdigit() for sign in trainer(name).checked_against)


TRL_FILE = """
model_name_or_path: Qwen/Qwen2.5-1.5B
output_dir: myout
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
num_generations: 8
max_completion_length: 512
beta: 0.001
seed: 7
bf16: true
save_steps: 100
max_steps: 500
learning_rate: 1.0e-6
"""
OPENRLHF_SCRIPT = """
ray job submit --address=http://127.0.0.1:8265 --runtime-env-json='{"working_dir": "/openrlhf"}' \\
  -- python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 8 --vllm.num_engines 4 --vllm.tensor_parallel_size 2 \\
  --train.colocate_all --ds.enable_sleep --actor.model_name_or_path Qwen/Qwen2.5-7B --train.batch_size 128 --train.micro_batch_size 2 --rollout.batch_size 128 \\
  --rollout.n_samples_per_prompt 8 --rollout.max_new_tokens 1024 --data.max_len 2048 --ds.zero_stage 3 --ds.param_dtype bf16 \\
  --algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.init_coef 0.001 --data.prompt_dataset data.jsonl --train.seed 7
"""
VERL_FILE = """
data: {train_files: $HOME/data/train.parquet, max_prompt_length: 512, max_response_length: 1024, train_batch_size: 64}
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-7B}
  actor: {strategy: fsdp, ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 2}
  rollout: {n: 8, tensor_model_parallel_size: 2}
trainer: {nnodes: 1, n_gpus_per_node: 8, save_freq: 20, total_epochs: 3}
algorithm: {adv_estimator: grpo}
"""
NEMO_FILE = """
defaults: my_base.yaml
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 8, max_num_steps: 500, seed: 7}
loss_fn: {reference_policy_kl_penalty: 0.001}
policy: {model_name: Qwen/Qwen2.5-7B, train_global_batch_size: 512, train_micro_batch_size: 4, max_total_sequence_length: 2048, dtensor_cfg: {enabled: true}}
cluster: {num_nodes: 1, gpus_per_node: 8}
"""


def flattened(document: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(document, dict):
        return {prefix.rstrip("."): document}
    return {
        path: value
        for key, inner in document.items()
        for path, value in flattened(inner, f"{prefix}{key}.").items()
    }


@pytest.mark.parametrize(
    ("name", "file", "text", "kept", "only_in_exports"),
    [
        ("trl", "grpo.yaml", TRL_FILE, {"beta": 0.001, "seed": 7, "output_dir": "myout", "save_strategy": "steps", "save_steps": 100, "max_steps": 500, "logging_steps": 10}, {"output_dir", "save_strategy", "save_steps", "max_steps", "logging_steps"}),
        ("openrlhf", "run.sh", OPENRLHF_SCRIPT, {"algo.kl.init_coef": 0.001, "train.seed": 7, "data.prompt_dataset": "data.jsonl"}, set()),
        ("verl", "verl.yaml", VERL_FILE, {"data.train_files": "${oc.env:HOME}/data/train.parquet", "data.max_prompt_length": 512, "data.max_response_length": 1024, "trainer.save_freq": 20, "trainer.total_epochs": 3}, {"trainer.save_freq", "trainer.total_epochs"}),
        ("nemo_rl", "grpo.yaml", NEMO_FILE, {"loss_fn.reference_policy_kl_penalty": 0.001, "grpo.seed": 7, "grpo.max_num_steps": 500}, {"grpo.max_num_steps"}),
    ],
)  # fmt: skip
def test_what_is_no_knob_stays_as_it_is(name: str, file: str, text: str, kept: dict[str, Any], only_in_exports: set[str]) -> None:  # fmt: skip
    """The KL coefficient, the seed, where and how often is saved: exports have the user's, trials
    all but what would save or last."""
    subject = trainer(name)
    reading = subject.read_config(PresentConfiguration(files={file: text}))
    flat = flattened(reading.settings)
    assert {key: flat.get(key) for key in kept} == kept
    assert not {"address", "runtime-env-json"} & flat.keys()
    in_trials = subject.in_trial({"settings": reading.settings})["settings"]
    assert flat.keys() - flattened(in_trials).keys() == only_in_exports
    if name == "nemo_rl":
        assert reading.options["base"] == "my_base.yaml"
        assert reading.missing == ("my_base.yaml",)
    if name == "openrlhf":
        assert reading.rl["phase_offload"] == "all"


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [("trl", "grpo.yaml", TRL_FILE), ("openrlhf", "run.sh", OPENRLHF_SCRIPT), ("verl", "verl.yaml", VERL_FILE), ("nemo_rl", "grpo.yaml", NEMO_FILE)],
)  # fmt: skip
def test_the_models_file_is_the_path_of_the_weights(name: str, file: str, text: str) -> None:
    reading = trainer(name).read_config(PresentConfiguration(files={file: text}))
    assert reading.model_file == reading.options["model"]
    assert reading.model_file.startswith("Qwen/")


@pytest.mark.parametrize("value", ["auto", "$N", "0"])
@pytest.mark.parametrize(
    "key", ["per_device_train_batch_size", "gradient_accumulation_steps", "num_generations"]
)
def test_a_count_of_trl_that_is_not_said_counts_as_one(key: str, value: str) -> None:
    told = {**yaml.safe_load(TRL_FILE), key: value, "num_processes": 8}
    found = trainer("trl").read_config(PresentConfiguration(files={"a.yaml": yaml.safe_dump(told)}))
    counts = {
        "per_device_train_batch_size": found.knobs["micro_batch_size"],
        "gradient_accumulation_steps": found.knobs["accumulation_steps"],
        "num_generations": found.rl["responses"],
    }
    assert counts[key] == 1
    assert [each for each in found.remarks if key in each] or value == "0"
    assert found.global_batch_size == found.knobs["micro_batch_size"] * found.knobs["accumulation_steps"] * 8  # fmt: skip


def test_engines_that_take_all_gpus_of_nemo_rl_leave_none_for_training() -> None:
    told = yaml.safe_load(NEMO_FILE)
    told["policy"]["generation"] = {
        "colocated": {"enabled": False, "resources": {"num_nodes": 1, "gpus_per_node": 8}}
    }
    present = PresentConfiguration(files={"grpo.yaml": yaml.safe_dump(told)})
    with pytest.raises(SpecError, match="has 8 GPUs, but the engines alone need 8"):
        trainer("nemo_rl").read_config(present)


@pytest.mark.parametrize("defaults", [3, "ppo_trainer", {"a": 1}])
def test_defaults_of_verl_that_are_no_list_name_no_group(defaults: Any) -> None:
    told = {**yaml.safe_load(VERL_FILE), "defaults": defaults}
    found = trainer("verl").read_config(
        PresentConfiguration(files={"verl.yaml": yaml.safe_dump(told)})
    )
    assert found.rl["engine"] == "fsdp"


def test_what_the_engines_assert_is_refused() -> None:
    """DeepSpeed's AutoTP has neither ZeRO 3 nor sequence parallelism; Megatron-Core wants equal
    virtual stages."""

    def refused(name: str, workload: Workload, **knobs: Any) -> list[str]:
        made = ParallelConfig(accumulation_steps=64 // knobs["dp"], **knobs)
        return [limit.knob for limit in trainer(name).limits(workload, made, OPTIONS)]

    assert refused("openrlhf", OPENRLHF, tp=2, dp=4, zero_stage=3) == ["zero_stage"]
    assert refused("openrlhf", OPENRLHF, tp=2, dp=4, zero_stage=2, sequence_parallel=True) == [
        "sequence_parallel"
    ]
    assert refused("openrlhf", OPENRLHF, tp=2, dp=4, zero_stage=2) == []
    packed = {"zero_stage": 3, "extra": {"micro_batch_tokens": 8192}}
    assert refused("nemo_rl", NEMO, dp=4, cp=2, **packed) == ["cp"]
    assert refused("nemo_rl", NEMO, tp=2, dp=2, cp=2, zero_stage=3, sequence_parallel=True) == [
        "sequence_parallel"
    ]
    assert refused("nemo_rl", NEMO, tp=2, dp=2, cp=2, zero_stage=3) == []
    stages = {"tp": 2, "pp": 2, "dp": 4, "zero_stage": 1, "pp_schedule": "interleaved_1f1b"}
    assert refused("verl", MEGATRON, **stages, virtual_stages=4) == ["virtual_stages"]
    assert refused("verl", MEGATRON, **stages, virtual_stages=7) == []
