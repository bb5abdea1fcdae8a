"""Reviews of post-training: verl's own launch of a 7B on one node, with what only a log of its runs
says."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune import api
from autotune.cost import estimate
from autotune.onboarding.first_spec import first_draft
from autotune.plan.plan import plan
from autotune.reviews.reviewing import review
from autotune.reviews.target import read_target
from autotune.space import SearchSpace
from tests.shortcuts import file_with

LAUNCH = """\
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \\
    actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.n=5 \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1
"""
STEP = (
    "step:{} - perf/total_num_tokens:1800000 - timing_s/gen:{} - timing_s/reward:2.0 - timing_s/update_actor:33 - timing_s/step:104 - "
    "response_length/mean:250.0 - response_length/max:1024.0 - prompt_length/mean:104 - prompt_length/max:230"
)
LOG = "\n".join(
    STEP.format(number, seconds) for number, seconds in enumerate((60.5, 50.5, 51.5), start=1)
)


@pytest.fixture
def launch(tmp_path: Path) -> Path:
    return file_with(tmp_path / "run.sh", LAUNCH)


def test_a_draft_has_the_shape_of_the_named_weights_and_what_its_engine_can_run(
    launch: Path,
) -> None:
    """The shape of Qwen2's 7B is that of Qwen2.5's; FSDP cuts no layers, and what needs less memory
    is among the limits of tokens."""
    draft = first_draft(launch, cluster="h100-sxm-1x8", folder=launch.parent)
    assert draft.document["model"] == "qwen2.5-7b"
    assert "assumed for Qwen/Qwen2-7B-Instruct" in draft.text
    assert draft.document["space"].keys() == {
        "cp",
        "cp_style",
        "recompute",
        "zero_stage",
        "micro_batch_size",
        "precision",
    }
    assert draft.document["knobs"]["micro_batch_tokens"] == [12000, 24000, 48000]
    study = api.load_study(
        {**draft.document, "rollout": {"generation_s": 50, "tp": 2, "memory_fraction": 0.6}}
    )
    assert plan(SearchSpace.of_study(study)).feasible >= 6
    assert study.baseline is not None
    present = estimate(study.workload, study.baseline)
    assert float(present.oom_probability) < 0.3, "it is an example that verl ships for this node"


def test_lengths_that_nobody_told_are_at_their_limits_and_generation_is_left_out(
    launch: Path,
) -> None:
    found = review(launch, cluster="h100-sxm-1x8")
    lengths, generation, *_ = found.assumed
    assert "512 tokens" in lengths
    assert "1,024 tokens" in lengths
    assert "upper bound" in lengths
    assert all("--log" in each for each in (lengths, generation))
    assert found.is_upper_bound
    assert float(found.estimate.phases_s.generation) == pytest.approx(0, abs=1e-6)
    told = review(launch, cluster="h100-sxm-1x8", log=LOG).estimate
    assert float(found.estimate.phases_s.update) > float(told.phases_s.update)


def test_a_measured_step_needs_its_lengths_and_its_generation(launch: Path) -> None:
    found = review(launch, cluster="h100-sxm-1x8", measured_s=104)
    assert found.study is None
    assert {each.what for each in found.missing} == {"the response lengths", "the generation speed"}


def test_a_limit_of_tokens_below_the_longest_sequence_is_named(launch: Path) -> None:
    text = launch.read_text()
    assert "ppo_max_token_len_per_gpu=24000" in text
    launch.write_text(
        text.replace("ppo_max_token_len_per_gpu=24000", "ppo_max_token_len_per_gpu=1000")
    )
    (missing,) = review(launch, cluster="h100-sxm-1x8").missing
    assert "a micro-batch must hold the longest sequence" in missing.what
    assert "micro_batch_tokens=1000" in missing.what
    assert "correct the launch" in missing.remedy


@pytest.mark.parametrize(("said", "named"), [("algorithm.filter_groups.enable=True", "responses that algorithm.filter_groups regenerates"), ("reward_model.enable=True", "reward model"), ("distillation.enabled=True distillation.nnodes=1", "teacher's 8 GPUs"), ("actor_rollout_ref.actor.entropy_coeff=0.001", "copies of the logits")])  # fmt: skip
def test_what_is_not_counted_is_said(said: str, named: str, launch: Path) -> None:
    launch.write_text(f"{launch.read_text().rstrip()} {said}\n")
    assert any(named in each for each in review(launch, cluster="h100-sxm-1x8").assumed)


def test_a_log_answers_what_no_configuration_says(launch: Path) -> None:
    found = review(launch, cluster="h100-sxm-1x8", log=LOG)
    assert found.study.workload.rl is not None
    rl = found.study.workload.rl
    assert (rl.prompt_lengths.mean, rl.response_lengths.longest) == (
        pytest.approx(104, rel=0.02),
        1024,
    )
    assert rl.reward_s == 2.0
    assert float(found.estimate.phases_s.generation) == pytest.approx(51, rel=0.05)
    assert found.observed.step_time_s == 104


def test_phases_of_a_log_are_compared_phase_by_phase(launch: Path) -> None:
    """Evaluation and saving are part of a printed step, and generation has no error: what is
    measured is what the trainer runs."""
    phases = "timing_s/old_log_prob:8 - timing_s/ref:7 - timing_s/update_actor:33 - timing_s/testing:40 - timing_s/save_checkpoint:30"
    found = review(
        launch, cluster="h100-sxm-1x8", log=LOG.replace("timing_s/update_actor:33", phases)
    )
    parts = found.estimate.phases_s
    told = float(parts.generation + parts.reward + parts.refit)
    assert found.observed.step_time_s == pytest.approx(told + 8 + 7 + 33)
    assert "excluding evaluation and saving" in found.observed.source
    assert float(parts.generation) == pytest.approx(51, rel=0.05)
    assert float(parts.total) == pytest.approx(float(found.estimate.step_time_s))
    assert sum(found.estimate.time_parts_s.to_dict().values()) == pytest.approx(
        float(found.estimate.step_time_s)
    )
    assert float(found.estimate.step_time_s) == pytest.approx(found.observed.step_time_s, rel=0.03)


def test_a_log_without_generation_times_is_not_asked_for_again(launch: Path) -> None:
    found = review(launch, cluster="h100-sxm-1x8", log=LOG.replace("timing_s/gen", "timing_s/else"))
    (missing,) = found.missing
    assert "the log does not contain this value" in missing.remedy


def test_a_model_that_was_named_is_taken_for_nothing(launch: Path) -> None:
    draft = first_draft(launch, model="llama-8b", cluster="h100-sxm-1x8", folder=launch.parent)
    assert "taken for" not in draft.text


def test_a_spec_with_knobs_of_post_training_is_reviewed(launch: Path) -> None:
    draft = first_draft(launch, cluster="h100-sxm-1x8", folder=launch.parent)
    spec = launch.with_name("study.yaml")
    spec.write_text(
        draft.text.replace("tokens_per_s_per_gpu: 1000.0", "generation_s: 50").replace(
            "[12000, 24000", "[1536, 24000"
        )
    )
    few = launch.with_name("few.yaml")
    few.write_text(
        spec.read_text().replace("micro_batch_tokens: 24000", "micro_batch_tokens: 1536")
    )
    assert not review(spec).edits
    (edit,) = review(few).edits
    assert dict(edit.changes)["micro_batch_tokens"] in ((1536, 24000), (1536, 48000))


def test_the_longest_that_may_come_is_said_beside_a_log(launch: Path) -> None:
    (launch.parent / "run.log").write_text(LOG)
    draft = first_draft(launch, cluster="h100-sxm-1x8", folder=launch.parent).document
    draft["rl"]["prompt_lengths"] = {"log": "run.log"}
    draft["rl"]["response_lengths"] = {"log": "run.log", "max": 4096}
    draft |= {"rollout": {"log": "run.log", "tp": 2}, "workload": {"seq_len": 8192}}
    study = api.load_study(draft, base=launch.parent)
    assert study.workload.rl.response_lengths.longest == 4096
    assert study.workload.rl.reward_s == 2.0
    rate = (
        dict(study.workload.rl.rollout.tokens_per_s_per_gpu)[2] if study.workload.rl.rollout else 0
    )
    assert rate == pytest.approx(1_800_000 * 250 / 354 / 51 / 8, rel=0.02), (
        "of the log's own tokens"
    )


@pytest.mark.parametrize(
    ("line", "edited"),
    [("accelerate_config: zero3", "accelerate_config: zero2"), ("accelerate_config: fsdp2", "")],
)
def test_the_edit_of_how_trl_shards_is_the_line_that_says_so(
    line: str, edited: str, tmp_path: Path
) -> None:
    """What TRL's fsdp2 does is not in the file: no edit of it is proposed, which would not hold."""
    found = review(
        file_with(
            tmp_path / "grpo.yaml",
            f"model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct\n{line}\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 4\n"
            "num_generations: 8\nmax_completion_length: 512\nbf16: true\nuse_vllm: true\n",
        ),
        cluster="h100-sxm-1x8",
        seq_len=1024,
    )
    edits = [edit for edit in (*found.edits, *found.trials) if "zero_stage" in edit.changes]
    assert [each.after for edit in edits for each in edit.lines] == ([edited] if edited else [])
    assert not any(
        "fsdp_config" in each for edit in (*found.edits, *found.trials) for each in edit.unplaced
    )


SPLITS = {
    "nemo.yaml": "defaults: grpo_math_1B.yaml\npolicy: {model_name: meta-llama/Llama-3.1-8B, generation: {colocated: {enabled: false, resources: "
    "{num_nodes: 1, gpus_per_node: 4}}}}\ncluster: {num_nodes: 3, gpus_per_node: 4}\n",
    "verl.sh": LAUNCH.replace(
        "n_gpus_per_node=8 trainer.nnodes=1",
        "n_gpus_per_node=4 trainer.nnodes=2 actor_rollout_ref.rollout.nnodes=1 trainer.v1.trainer_mode=separate_async",
    ),
    "openrlhf.sh": "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path meta-llama/Llama-3.1-8B --actor.num_nodes 2 --actor.num_gpus_per_node 4 "
    "--vllm.num_engines 4 --vllm.tensor_parallel_size 1 --train.batch_size 128 --rollout.batch_size 128 --train.colocate_actor_ref --data.max_len 2048 "
    "--algo.advantage.estimator group_norm",
}
"""eight GPUs that train and four that generate, in nodes of four"""


@pytest.mark.parametrize("name", SPLITS)
def test_a_type_of_gpu_stands_for_all_nodes_of_the_launch_also_those_that_generate(
    name: str, tmp_path: Path
) -> None:
    target = read_target(file_with(tmp_path / name, SPLITS[name]), cluster="h100-sxm")
    assert target.document["cluster"] == "h100-sxm-3x4"
    (way,) = (
        each for each in target.document["rl"]["placement"].values() if isinstance(each, list)
    )
    assert way == [8, 4]
    assert (
        "runner"
        not in first_draft(
            file_with(
                tmp_path / name,
                SPLITS[name].replace("nodes: 3", "nodes: 2").replace("nnodes=2", "nnodes=1"),
            ),
            folder=tmp_path,
        ).document
    )
    assert (
        "currently 12 GPUs, 3 nodes x 4 GPUs"
        in first_draft(file_with(tmp_path / name, SPLITS[name]), folder=tmp_path).text
    )


def test_a_number_that_only_the_shell_knows_is_asked_for_and_not_taken_from_the_programs_defaults(
    launch: Path,
) -> None:
    path = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
    launch.write_text(
        LAUNCH.replace("trainer.n_gpus_per_node", f"{path}=$SP trainer.n_gpus_per_node")
    )
    found = review(launch, cluster="h100-sxm-1x8")
    assert [each.what for each in found.missing] == [
        f"a number that only the shell can compute (command: {path}='$SP')"
    ]
    assert found.estimate is None
    launch.write_text(
        LAUNCH.replace("trainer.n_gpus_per_node", f"{path}=${{SP:-2}} trainer.n_gpus_per_node")
    )
    answered = review(launch, cluster="h100-sxm-1x8")
    assert not answered.missing
    assert answered.config.cp == 2
