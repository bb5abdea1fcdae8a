"""verl: names that its release has, a launch that is read again, and what each engine refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from autotune.errors import ExportError
from autotune.spec import ClusterSpec, ParallelConfig, Peft, Workload
from autotune.spec.lengths import Lengths
from autotune.spec.post_training import PostTraining, Rollout
from autotune.testing.trainers import TrainerContract
from autotune.trainers import StepMetrics, trainer, write_launch
from autotune.trainers.post_training.trainer import PostTrainer
from autotune.trainers.present_configuration import PresentConfiguration, dotted, without_equal
from tests.benchmarks.post_training import QWEN_7B

RL = PostTraining(
    algorithm="grpo", prompts=64, responses=8, mini_batches=8, prompt_lengths=Lengths(values=(512.0,)), response_lengths=Lengths(values=(1024.0,)),
    rollout=Rollout(tokens_per_s_per_gpu=((1, 2400.0), (2, 2000.0)), memory_fraction=0.6), balance="batch",
)  # fmt: skip
WORKLOAD = Workload(
    model=QWEN_7B, cluster=ClusterSpec.of("h100-sxm", num_nodes=2, gpus_per_node=8), seq_len=1536, global_batch_size=64, trainer="verl", rl=RL,
)  # fmt: skip
MEGATRON = replace(WORKLOAD, rl=replace(RL, engine="megatron"))
OPTIONS = {"model": "Qwen/Qwen2.5-7B"}
KEPT = ["data.max_prompt_length", "data.max_response_length", "trainer.total_training_steps"]
"""read, and written again as they are"""
LINE = (
    "(TaskRunner pid=7) step:3 - actor/pg_loss:0.0125 - actor/grad_norm:np.float64(0.5) - perf/max_memory_reserved_gb:61.5 - timing_s/gen:144.5 "
    "- timing_s/update_actor:203.25 - timing_s/step:450.5 - response_length/mean:1402.5"
)


class PostTrainerContract(TrainerContract):
    """The contract for a program whose weights or optimizer are always sharded."""

    sharded: ClassVar[Mapping[str, Any]]
    """knobs of a config that it launches"""
    test_every_value_of_every_knob_changes_the_launch_or_is_refused_or_neutral = (
        None  # varies configs with whole weights, all of which it refuses
    )

    def test_settings_of_the_trainers_own_are_read_and_written_again(self) -> None:
        subject, config = (
            self.subject(),
            ParallelConfig(**self.sharded, accumulation_steps=64 // self.sharded["dp"]),
        )
        plain = subject.launch(self.workload, config, self.options)
        launch = subject.launch(
            self.workload, config, {**self.options, "settings": {"made_up_setting": 7}}
        )
        assert launch != plain
        reading = subject.read_config(PresentConfiguration.of_launch(launch))
        known = subject.read_config(PresentConfiguration.of_launch(plain))
        assert without_equal(reading.settings, known.settings) == {"made_up_setting": 7}
        assert reading.knobs == known.knobs

    def test_ranks_that_do_not_fit_are_refused(self) -> None:
        config = ParallelConfig(**{**self.sharded, "dp": 32, "accumulation_steps": 2})
        with pytest.raises(ExportError, match="ranks do not fit on 2 nodes with 8 ranks each"):
            self.subject().launch(self.workload, config, self.options)

    def test_a_launch_lands_whole_and_again(self, tmp_path: Path) -> None:
        launch = self.launched(**self.sharded)
        written = write_launch(launch, tmp_path / "out")
        assert {path.name for path in written} == {*launch.files, "launch.sh", "launch.json"}
        assert write_launch(launch, tmp_path / "out") == written

    def test_each_knob_that_it_carries_changes_the_launch(self) -> None:
        values = {
            "rollout_tp": 2,
            "rollout_gpus": 8,
            "micro_batch_tokens": 8192,
            "log_prob_micro_batch_tokens": 9216,
            "phase_offload": "all",
            "balance": "none",
        }
        plain = self.launched(**self.sharded)
        for name, value in values.items():
            more = {"micro_batch_tokens": 8192} if name == "log_prob_micro_batch_tokens" else {}
            knobs = {**self.sharded, "extra": {name: value, **more}}
            subject = self.subject()
            assert isinstance(subject, PostTrainer)
            if name in subject.carried:
                assert self.launched(**knobs) != plain, name
            else:
                with pytest.raises(ExportError, match=name):
                    self.launched(**knobs)


class TestVerl(PostTrainerContract):
    """The contract, with FSDP."""

    sharded: ClassVar = {"dp": 8, "zero_stage": 3, "recompute": "full"}

    trainer = "verl"
    options = OPTIONS
    workload = WORKLOAD
    settings_of_a_knob: ClassVar = {
        "actor_rollout_ref": {"rollout": {"tensor_model_parallel_size": 4}}
    }
    log_lines: ClassVar = {
        LINE: StepMetrics(
            step=3, step_time_s=450.5, loss=0.0125, grad_norm=0.5, peak_memory_bytes=61.5 * 2**30
        ),
        "(TaskRunner pid=7) ('Initial validation metrics: {}')": None,
    }


class TestVerlWithMegatron(PostTrainerContract):
    """The contract, with Megatron."""

    sharded: ClassVar = {"tp": 2, "dp": 4, "zero_stage": 1}

    trainer = "verl"
    options = OPTIONS
    workload = MEGATRON
    settings_of_a_knob: ClassVar = {
        "actor_rollout_ref": {"actor": {"megatron": {"tensor_model_parallel_size": 4}}}
    }
    log_lines: ClassVar = {
        LINE: StepMetrics(
            step=3, step_time_s=450.5, loss=0.0125, grad_norm=0.5, peak_memory_bytes=61.5 * 2**30
        )
    }


def with_critic(workload: Workload) -> Workload:
    return replace(workload, rl=replace(workload.rl or RL, algorithm="ppo", critic=workload.model))


def written(workload: Workload, **knobs: Any) -> dict[str, Any]:
    config = ParallelConfig(accumulation_steps=64 // knobs.get("dp", 1), **knobs)
    launch = trainer("verl").launch(workload, config, OPTIONS)
    return dict(yaml.safe_load(launch.files["verl.yaml"]))


@pytest.mark.parametrize(
    ("workload", "defaults", "knobs"),
    [
        (WORKLOAD, "ppo_trainer", {"dp": 8, "zero_stage": 3, "recompute": "full", "cp": 2, "cp_style": "heads"}),
        (MEGATRON, "ppo_megatron_trainer", {"tp": 4, "dp": 4, "zero_stage": 1, "sequence_parallel": True, "recompute": "full"}),
        (MEGATRON, "ppo_megatron_trainer", {"tp": 2, "pp": 2, "dp": 4, "zero_stage": 1, "virtual_stages": 2, "pp_schedule": "interleaved_1f1b"}),
        (with_critic(WORKLOAD), "ppo_trainer", {"dp": 8, "zero_stage": 3, "recompute": "full", "cp": 2, "cp_style": "heads"}),
        (with_critic(MEGATRON), "ppo_megatron_trainer", {"tp": 4, "dp": 4, "zero_stage": 1, "sequence_parallel": True, "recompute": "full"}),
    ],
)  # fmt: skip
def test_every_name_is_one_of_the_release(
    workload: Workload, defaults: str, knobs: dict[str, Any]
) -> None:
    names = json.loads(
        (Path(__file__).parent / "data" / "verl-0.9.1.json").read_text(encoding="utf-8")
    )[defaults]
    document = written(workload, **knobs, extra={"rollout_tp": 2, "micro_batch_tokens": 8192, "log_prob_micro_batch_tokens": 16384, "phase_offload": "all"})  # fmt: skip
    assert document.pop("defaults") == [defaults, "_self_"]
    document.pop("hydra")
    for role in (document["actor_rollout_ref"]["actor"], document.get("critic", {})):
        # a mapping of Megatron-Core's own names
        role.get("megatron", {}).pop("override_transformer_config", None)
    document["actor_rollout_ref"]["actor"].pop("optim")
    assert sorted(set(dotted(document)) - set(names)) == []


@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "knobs"),
    [
        (WORKLOAD, {"dp": 8, "zero_stage": 3, "recompute": "full", "cp": 2, "cp_style": "heads"}),
        (WORKLOAD, {"dp": 16, "zero_stage": 2}),
        (MEGATRON, {"tp": 4, "dp": 4, "zero_stage": 1, "sequence_parallel": True, "recompute": "full"}),
        (MEGATRON, {"tp": 2, "pp": 2, "dp": 4, "zero_stage": 1, "virtual_stages": 2, "pp_schedule": "interleaved_1f1b"}),
    ],
    ids=["fsdp", "fsdp whole weights", "megatron", "megatron interleaved"],
)  # fmt: skip
def test_verl_itself_reads_and_accepts_the_file(
    tmp_path: Path, workload: Workload, knobs: dict[str, Any]
) -> None:
    """Composed by Hydra from verl's own defaults, then verl's own check of it. verl is no
    dependency: `pip install --no-deps verl==0.9.1 hydra-core omegaconf tensordict pyvers orjson
    codetiming`."""
    pytest.importorskip("verl", reason="verl is not installed")
    hydra = pytest.importorskip("hydra", reason="Hydra is not installed")
    checks = pytest.importorskip("verl.utils.config", reason="a package of verl is not installed")
    document = written(workload, **knobs, extra={"rollout_tp": 2, "micro_batch_tokens": 8192})
    (tmp_path / "verl.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    with hydra.initialize_config_dir(str(tmp_path), version_base=None):
        config = hydra.compose("verl")
    checks.validate_config(config, use_reference_policy=True, use_critic=False)
    actor = config.actor_rollout_ref.actor
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (2, 8)
    assert (
        actor.ppo_max_token_len_per_gpu,
        config.actor_rollout_ref.rollout.tensor_model_parallel_size,
    ) == (8192, 2)
    actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu = False, 1
    config.data.train_batch_size = 3  # fewer than ranks: its check looks
    with pytest.raises((AssertionError, ValueError)):
        checks.validate_config(config, use_reference_policy=True, use_critic=False)


def test_engines_of_their_own_have_nodes_and_a_threshold() -> None:
    rl = replace(RL, placement="async", rollout_gpus=8, staleness=1.0)
    document = written(replace(WORKLOAD, rl=rl), dp=8, zero_stage=3)
    assert document["trainer"]["nnodes"] == 1
    assert document["actor_rollout_ref"]["rollout"]["nnodes"] == 1
    assert document["trainer"]["v1"]["trainer_mode"] == "separate_async"
    assert document["trainer"]["v1"]["sampler"]["max_off_policy_threshold"] == 2
    # what `PPOTrainerSeparateAsync` asserts before it starts
    actor = document["actor_rollout_ref"]
    syncs = document["trainer"]["v1"]["separate_async"]["parameter_sync_step"]
    assert (
        document["data"]["train_batch_size"] == syncs * actor["actor"]["ppo_mini_batch_size"] == 64
    )
    assert syncs == 8
    assert actor["rollout"]["checkpoint_engine"]["backend"] != "naive"
    assert actor["hybrid_engine"] is False
    reading = trainer("verl").read_config(
        PresentConfiguration(files={"verl.yaml": yaml.safe_dump(document)})
    )
    assert sorted(dotted(reading.settings)) == KEPT
    assert reading.rl["placement"] == {"async": [8, 8], "staleness": 1}


@pytest.mark.parametrize(
    ("workload", "knobs", "own"),
    [
        (
            WORKLOAD,
            {"dp": 8, "zero_stage": 3, "recompute": "full", "cp": 2, "cp_style": "heads"},
            "fsdp",
        ),
        (
            MEGATRON,
            {"tp": 4, "dp": 4, "zero_stage": 1, "sequence_parallel": True, "recompute": "full"},
            "megatron",
        ),
    ],
)
def test_a_critic_is_cut_packed_and_offloaded_as_the_policy(
    workload: Workload, knobs: dict[str, Any], own: str
) -> None:
    asked, more = with_critic(workload), {"micro_batch_tokens": 8192, "log_prob_micro_batch_tokens": 16384, "phase_offload": "all"}  # fmt: skip
    document = written(asked, **knobs, extra=more)
    critic, actor = document["critic"], document["actor_rollout_ref"]["actor"]
    of_policy = actor["fsdp_config" if own == "fsdp" else own]
    assert critic["model"]["path"] == OPTIONS["model"]
    assert (critic["ppo_max_token_len_per_gpu"], critic["forward_max_token_len_per_gpu"]) == (
        8192,
        16384,
    )
    assert critic[own] == of_policy
    assert critic[own]["param_offload"] is True
    assert critic.get("ulysses_sequence_parallel_size") == actor.get(
        "ulysses_sequence_parallel_size"
    )
    reading = trainer("verl").read_config(
        PresentConfiguration(files={"verl.yaml": yaml.safe_dump(document)})
    )
    assert (sorted(dotted(reading.settings)), reading.remarks) == (KEPT, ())
    document["critic"]["ppo_max_token_len_per_gpu"] = 32768
    reading = trainer("verl").read_config(
        PresentConfiguration(files={"verl.yaml": yaml.safe_dump(document)})
    )
    assert any("critic.ppo_max_token_len_per_gpu=32768" in remark for remark in reading.remarks)
    other = replace(asked, rl=replace(asked.rl or RL, critic=replace(QWEN_7B, num_layers=14)))
    with pytest.raises(ExportError, match="critic's model differs"):
        written(other, **knobs)
    settings = {"critic": {"model": {"path": "their/critic"}}}
    config = ParallelConfig(accumulation_steps=64 // knobs["dp"], **knobs)
    launch = trainer("verl").launch(other, config, {**OPTIONS, "settings": settings})
    assert yaml.safe_load(launch.files["verl.yaml"])["critic"]["model"]["path"] == "their/critic"


def test_a_command_of_a_script_is_read() -> None:
    argv = (
        "python3", "-m", "verl.trainer.main_ppo", "--config-name=ppo_megatron_trainer.yaml", "algorithm.adv_estimator=grpo", "data.train_batch_size=512",
        "data.max_prompt_length=2048", "data.max_response_length=8192", "actor_rollout_ref.rollout.n=16", "actor_rollout_ref.actor.ppo_mini_batch_size=32",
        "actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480",
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4", "actor_rollout_ref.actor.megatron.param_offload=True",
        "+actor_rollout_ref.actor.megatron.override_transformer_config.apply_rope_fusion=True", "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.8", "actor_rollout_ref.rollout.tensor_model_parallel_size=1", "trainer.n_gpus_per_node=8", "trainer.nnodes=1",
        "data.train_files=train.parquet", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    )  # fmt: skip
    found = trainer("verl").read_config(PresentConfiguration(argv=argv))
    assert found.knobs["tp"] == 4
    assert found.knobs["dp"] == 2
    assert found.global_batch_size == 512
    assert found.rl["prompts"] == 512
    assert found.rl["responses"] == 16
    assert found.rl["mini_batch_prompts"] == 32
    assert found.rl["micro_batch_tokens"] == 20480
    assert (
        found.knobs["micro_batch_size"] == 1
    )  # ppo_micro_batch_size_per_gpu means nothing beside dynamic micro-batches
    assert found.rl["phase_offload"] == "all"
    assert found.rl["engine"] == "megatron"
    assert found.rl["fused_rope"] is True
    assert found.rollout == {"tp": 1, "memory_fraction": 0.8}
    assert found.settings["data"] == {
        "train_files": "train.parquet",
        "max_prompt_length": 2048,
        "max_response_length": 8192,
    }


def test_each_engine_refuses_what_it_has_not() -> None:
    for workload, knobs, word in (
        (WORKLOAD, {"tp": 2, "dp": 8, "zero_stage": 3}, "tp"),
        (WORKLOAD, {"dp": 16}, "zero_stage"),
        (MEGATRON, {"dp": 16, "zero_stage": 3}, "zero_stage"),
        (replace(WORKLOAD, rl=None), {"dp": 16, "zero_stage": 3}, "rl"),
        (
            replace(WORKLOAD, rl=replace(RL, padded=True)),
            {"dp": 8, "cp": 2, "cp_style": "heads", "zero_stage": 3},
            "use_remove_padding",
        ),
    ):
        with pytest.raises(ExportError, match=word):
            written(workload, **knobs)


SCRIPT = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=1024 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=8 trainer.nnodes=1 {}\n"
)
SILENT = [
    ("actor_rollout_ref.actor.use_dynamic_bsz=True", {"micro_batch_tokens": 16384}),
    ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", {"learning_rate": 1e-6, "tp": 2, "memory_fraction": 0.5, "dp": 8}),
    ("actor_rollout_ref.actor.ppo_micro_batch_size=64", {"micro_batch_size": 8}),
    ("algorithm.use_kl_in_reward=True", {"reference": True}),
    ("actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.ref.fsdp_config.param_offload=True", {"reference": True, "reference_offload": True}),
    ("actor_rollout_ref.model.use_remove_padding=False", {"padded": True}),
    ("actor_rollout_ref.model.lora_rank=32", {"peft": {"method": "lora", "rank": 32, "targets": "all", "library": "peft"}}),
    ("actor_rollout_ref.actor.strategy=megatron actor_rollout_ref.actor.optim.override_optimizer_config.optimizer_offload_fraction=1", {"offload": "optimizer"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "found"), SILENT, ids=[words.rpartition(".")[2] for words, _ in SILENT]
)
def test_what_a_script_does_not_say_is_verls_own_default(words: str, found: dict[str, Any]) -> None:
    reading = trainer("verl").read_config(
        PresentConfiguration(files={"run.sh": SCRIPT.format(words)})
    )
    known = {
        **reading.knobs,
        **reading.options,
        **reading.rl,
        **reading.rollout,
        "peft": reading.peft,
    }
    assert {name: known.get(name) for name in found} == found


def test_an_optimizer_on_the_host_is_read_and_written() -> None:
    verl, path = trainer("verl"), "actor_rollout_ref.actor.optim.override_optimizer_config"
    config = ParallelConfig(tp=2, dp=4, zero_stage=1, accumulation_steps=16, offload="optimizer")
    launch = verl.launch(MEGATRON, config, OPTIONS)
    reading = verl.read_config(PresentConfiguration.of_launch(launch))
    assert reading.knobs["offload"] == "optimizer"
    assert not any(path in name for name in dotted(reading.settings))
    words = f"actor_rollout_ref.actor.strategy=megatron +{path}.optimizer_cpu_offload=True +{path}.optimizer_offload_fraction=1 +{path}.overlap_cpu_optimizer_d2h_h2d=True"
    reading = verl.read_config(PresentConfiguration(files={"run.sh": SCRIPT.format(words)}))
    assert reading.knobs["offload"] == "optimizer"
    assert [name for name in dotted(reading.settings) if path in name] == [
        f"{path}.overlap_cpu_optimizer_d2h_h2d"
    ]


KEPT_AS_THEY_ARE = [
    "actor_rollout_ref.rollout.name=sglang",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64",
    "algorithm.use_kl_in_reward=True",
    "actor_rollout_ref.model.lora_rank=32",
    "trainer.total_epochs=15",
]


@pytest.mark.parametrize("word", KEPT_AS_THEY_ARE)
def test_an_export_keeps_what_is_no_knob(word: str) -> None:
    verl = trainer("verl")
    words = f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 {word}"
    reading = verl.read_config(PresentConfiguration(files={"run.sh": SCRIPT.format(words)}))
    workload = replace(WORKLOAD, peft=Peft(**reading.peft) if reading.peft else None)
    config = ParallelConfig(dp=8, zero_stage=3, accumulation_steps=8, recompute="full")
    launch = verl.launch(workload, config, {**OPTIONS, "settings": dict(reading.settings)})
    document: Any = yaml.safe_load(launch.files["verl.yaml"])
    path, _, value = word.partition("=")
    for key in path.split("."):
        document = document[key]
    assert document == yaml.safe_load(value)
    whole = yaml.safe_load(launch.files["verl.yaml"])
    assert not (
        whole["algorithm"].get("use_kl_in_reward")
        and whole["actor_rollout_ref"]["actor"].get("use_kl_loss")
    )
    assert ("total_training_steps" in whole["trainer"]) == (
        whole["trainer"].get("total_epochs") is None
    )


def test_a_value_that_only_the_shell_knows_is_named() -> None:
    words = "actor_rollout_ref.rollout.tensor_model_parallel_size=$ROLLOUT_TP actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8"
    reading = trainer("verl").read_config(
        PresentConfiguration(files={"run.sh": SCRIPT.format(words)})
    )
    assert reading.rollout["tp"] == 2
    assert any(
        "rollout.tensor_model_parallel_size: only the shell can compute" in remark
        for remark in reading.remarks
    )
