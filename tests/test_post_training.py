"""Specs of post-training: what they become, what is refused with its field, what a plan says of
phases and splits, and drafts of programs that post-train."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.errors import InfeasibleError, SpecError
from autotune.schema import parse_study
from autotune.space import SearchSpace, default_config
from autotune.spec import Study
from tests.shortcuts import present
from tests.trainers.test_verl import LINE

SPEC: dict[str, Any] = {
    "model": "llama-1b",
    "cluster": "h100-sxm-2x8",
    "workload": {"seq_len": 9216},
    "rl": {
        "algorithm": "grpo", "prompts": 64, "responses": 16, "mini_batch_prompts": 16,
        "prompt_lengths": {"mean": 180, "max": 1024}, "response_lengths": {"mean": 1400, "p50": 900, "p95": 4200, "max": 8192}, "micro_batch_tokens": 16384,
    },
    "rollout": {"tokens_per_s_per_gpu": {1: 6000, 2: 5000}, "memory_fraction": 0.5},
    "trainer": {"kind": "verl", "model": "meta-llama/Llama-3.2-1B"},
    "space": {"zero_stage": 3, "recompute": ["none", "full"]},
}  # fmt: skip


def spec(path: str = "", value: Any = None, **more: Any) -> dict[str, Any]:
    found = deepcopy({**SPEC, **more})
    if path:
        node = found
        *outer, last = path.split(".")
        for key in outer:
            node = node.setdefault(key, {})
        if value is None:
            del node[last]
        else:
            node[last] = value
    return found


def test_a_step_becomes_an_optimizer_step_of_its_mini_batch() -> None:
    study = parse_study(spec())
    rl = present(study.workload.rl)
    assert study.workload.global_batch_size == 16 * 16
    assert (rl.mini_batches, rl.sequences, rl.engine, rl.balance, rl.padded) == (
        4,
        1024,
        "fsdp",
        "batch",
        False,
    )
    assert dict(present(rl.rollout).tokens_per_s_per_gpu) == {1: 6000.0, 2: 5000.0}
    assert parse_study(spec("rl.algorithm", "ppo")).workload.rl.critic == study.workload.model  # type: ignore[union-attr]


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_store_gives_back_what_was_asked(algorithm: str) -> None:
    study = parse_study(spec("rl.algorithm", algorithm))
    assert Study.from_dict(json.loads(json.dumps(study.to_dict()))) == study


@pytest.mark.parametrize(
    ("path", "value", "field", "words"),
    [
        ("rl.algorithm", "reinforce", "rl.algorithm", "grpo"),
        ("rl.prompts", None, "rl.prompts", "required"),
        ("rl.response_lengths", None, "rl.response_lengths", "required"),
        ("rollout.tokens_per_s_per_gpu", -5, "rollout.tokens_per_s_per_gpu", "greater than 0"),
        ("rl.mini_batch_prompts", 24, "rl.mini_batch_prompts", "must divide prompts"),
        ("rl.response_lengths", {"mean": 900, "file": "x.txt"}, "rl.response_lengths", "one way"),
        ("rl.response_lengths", {"p50": 900, "p95": 800, "max": 1000}, "rl.response_lengths", "must not decrease"),
        ("rl.response_lengths", {"mean": 900, "max": 16384}, "workload.seq_len", "longest sequence"),
        ("rl.staleness", 1, "rl.staleness", "placement=colocated"),
        ("rl.placement", "async", "rl.staleness", "needs a value for staleness"),
        ("rl.placement", {"split": [12, 8]}, "rl.placement", "must add up to the cluster's"),
        ("rl.placement", {"split": [8, 6]}, "rl.placement", r"8 \+ 6 are 14 and .* has 16"),
        ("rl.critic", {"model": "llama-1b"}, "rl.critic", "only ppo"),
        ("rl.resposes", 3, "rl.resposes", "there is no key"),
        ("rollout", None, "rollout", "does not model generation speed"),
        ("rollout.generation_s", 20, "rollout", "one way"),
        ("rollout.tp", 4, "rollout.tp", "given only for tp=1, 2"),
        ("rollout.memory_fraction", 1.5, "rollout.memory_fraction", "less than or equal"),
        ("rl", None, "rollout", "no `rl`"),
        ("workload.global_batch_size", 100, "workload.global_batch_size", "prompts x responses / mini_batches"),
        ("workload.lengths", {"mean": 900}, "workload.lengths", "under `rl`"),
        ("knobs", {"phase_offload": ["none", "half"]}, "knobs.phase_offload", "one of none, optimizer, all"),
        ("knobs", {"rollout_tp": [0, 1]}, "knobs.rollout_tp", "1 or more"),
        ("rl.response_lengths", {"file": "/nowhere"}, "rl.response_lengths.file", "paths are allowed only in a spec that is read from a file"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_at_their_field(path: str, value: Any, field: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        parse_study(spec(path, value))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("placement", "seen"),
    [
        ("colocated", ("colocated", 0, 0.0)),
        ({"split": [8, 8]}, ("split", 8, 0.0)),
        ({"async": [8, 8], "staleness": 1}, ("async", 8, 1.0)),
    ],
)
def test_placements_are_written_as_the_page_has_them(
    placement: Any, seen: tuple[str, int, float]
) -> None:
    rl = present(parse_study(spec("rl.placement", placement)).workload.rl)
    assert (rl.placement, rl.rollout_gpus, rl.staleness) == seen


def test_the_baseline_has_the_values_of_the_present_step() -> None:
    """Wherever they stand in the list of a knob."""
    study = parse_study(
        spec(knobs={"micro_batch_tokens": [8192, 16384, 32768], "rollout_tp": [2, 1]})
    )
    baseline = default_config(SearchSpace.build(study.workload, study.space))
    assert dict(baseline.extra) == {"micro_batch_tokens": 16384, "rollout_tp": 1}


def test_a_reference_that_dpo_does_not_have_costs_nothing() -> None:
    asked = spec(
        "rl.algorithm", "dpo", rollout=None, trainer="native", cluster="cpu-1x1", model="nano-gpt"
    )
    asked["rl"] |= {"responses": 2, "mini_batch_prompts": 64}
    del asked["rollout"]
    for said, expected in ((None, True), (False, False)):
        rl = {**asked["rl"], **({} if said is None else {"reference": said})}
        found = present(parse_study({**asked, "rl": rl}).workload.rl)
        assert found.reference is expected


def test_the_pairs_of_dpo_follow_from_the_workload() -> None:
    asked = spec(rl={"algorithm": "dpo"}, trainer={"kind": "command", "argv": ["train.py"]})
    del asked["rollout"]
    asked["workload"] = {"seq_len": 1024, "global_batch_size": 128}
    rl = present(parse_study(asked).workload.rl)
    assert (rl.prompts, rl.responses, rl.mini_batch, rl.reference) == (64, 2, 128, True)
    assert rl.tokens == 128 * 1024
    assert any("fill seq_len" in words for words in rl.assumed)
    asked["rl"] |= {"prompt_lengths": 200}
    rl = present(parse_study(asked).workload.rl)
    assert (rl.prompt_lengths.mean, rl.response_lengths.mean, rl.longest) == (200, 824, 1024)
    asked["rl"] |= {"response_lengths": {"mean": 300, "max": 800}, "prompts": 64}
    assert present(parse_study(asked).workload.rl).response_lengths.mean == pytest.approx(300, 0.01)


@pytest.mark.parametrize("batch", [127, [64, 128]])
def test_pairs_need_a_batch_of_whole_pairs(batch: Any) -> None:
    asked = spec(rl={"algorithm": "dpo"}, workload={"seq_len": 1024, "global_batch_size": batch})
    del asked["rollout"]
    with pytest.raises(SpecError, match="sequences in a pair") as caught:
        parse_study(asked)
    assert caught.value.field == "workload.global_batch_size"


def test_an_engine_without_a_share_of_memory_is_an_assumption() -> None:
    for fraction, said in ((0.0, True), (0.5, False)):
        rl = present(parse_study(spec("rollout.memory_fraction", fraction)).workload.rl)
        assert any("rollout.memory_fraction is not set" in text for text in rl.assumed) is said


def test_a_batch_is_asked_for_where_nothing_tells_it() -> None:
    with pytest.raises(SpecError, match="required, but is missing") as caught:
        parse_study(
            {
                "model": "llama-1b",
                "cluster": "h100-sxm-1x8",
                "workload": {"seq_len": 1024},
                "space": {"dp": 8},
            }
        )
    assert caught.value.field == "workload.global_batch_size"


def test_speed_and_lengths_come_from_a_log(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(
        "\n".join(LINE.replace("step:3", f"step:{i}") for i in range(1, 5)), encoding="utf-8"
    )
    found = present(
        parse_study(
            spec("rollout", {"log": "run.log", "memory_fraction": 0.5}), base=tmp_path
        ).workload.rl
    )
    assert present(found.rollout).rate(1) == pytest.approx(
        1024 * found.response_lengths.mean / (144.5 * 16)
    )
    own = parse_study(
        spec("rl.response_lengths", {"log": "run.log"}) | {"workload": {"seq_len": 99999}},
        base=tmp_path,
    ).workload.rl
    assert own is not None
    assert own.response_lengths.mean == pytest.approx(1402.5, rel=0.01)
    (tmp_path / "run.log").write_text("nothing of a step\n", encoding="utf-8")
    with pytest.raises(SpecError, match="no step of verl"):
        parse_study(spec("rollout", {"log": "run.log"}), base=tmp_path)


def test_a_plan_shows_phases_and_what_was_assumed() -> None:
    study = api.load_study(spec(knobs={"micro_batch_tokens": [9216, 16384], "rollout_tp": [1, 2]}))
    document = api.plan_of(study, top=3).to_dict()
    first = document["configs"][0]
    assert sum(first["estimate"]["phases_s"].values()) == pytest.approx(
        first["estimate"]["step_time_s"]
    )
    assert document["not_modelled"] == []
    assert "prompts" in document["post_training"]["assumed"][0]
    assert document["post_training"]["splits"] == []
    assert set(document["post_training"]["one_more_node"]) == {"both"}


def test_a_plan_compares_splits_and_finds_the_one_that_waits_least() -> None:
    study = api.load_study(
        spec(cluster="h100-sxm-4x8", knobs={"rollout_gpus": [8, 16, 24], "staleness": [1]})
    )
    found = api.plan_of(study, top=1).to_dict()
    sides = found["post_training"]
    assert [row["rollout_gpus"] for row in sides["splits"]] == [16, 24]
    best = min(sides["splits"], key=lambda row: row["step_time_s"])
    assert found["configs"][0]["config"]["extra"]["rollout_gpus"] == best["rollout_gpus"]
    for row in sides["splits"]:
        assert row["trainer_waits_s"] + row["training_s"] == pytest.approx(row["step_time_s"])
        assert row["rollout_waits_s"] + row["generation_s"] == pytest.approx(row["step_time_s"])
    assert abs(sides["balanced"]["rollout_gpus"] - best["rollout_gpus"]) <= 8
    assert set(sides["one_more_node"]) == {"training", "generation"}


def test_sides_that_alternate_always_wait() -> None:
    study = api.load_study(spec(cluster="h100-sxm-4x8", knobs={"rollout_gpus": [16]}))
    sides = api.plan_of(study, top=1).to_dict()["post_training"]
    assert sides["splits"]
    assert sides["balanced"] is None


def test_a_split_that_the_trainer_cannot_launch_is_in_no_plan() -> None:
    study = api.load_study(spec(cluster="h100-sxm-1x8", knobs={"rollout_gpus": [0, 4]}))
    found = api.plan_of(study, top=1000).to_dict()
    assert {each["config"]["extra"]["rollout_gpus"] for each in found["configs"]} == {0}
    assert (
        "separate engines need whole nodes of 8 GPUs"
        in found["post_training"]["splits_why_not"]["4"]
    )


def test_fine_tuning_on_unequal_lengths_is_a_step_without_generation() -> None:
    document = {
        "model": "llama-1b", "cluster": "h100-sxm-1x8", "trainer": {"kind": "command", "argv": ["python", "x.py", "--tokens={micro_batch_tokens}", "--balance={balance}", "--mbs={micro_batch_size}", "--acc={accumulation_steps}"]},
        "workload": {"seq_len": 8192, "global_batch_size": 256, "lengths": {"mean": 900, "p95": 3000, "max": 8192}}, "space": {"micro_batch_size": [1, 2, 4]},
        "knobs": {"micro_batch_tokens": [0, 8192, 16384], "balance": ["none", "mini_batch"]},
    }  # fmt: skip
    rows = api.plan_of(api.load_study(document), top=50).rows
    assert rows[0].config.extra["balance"] == "mini_batch"
    assert rows[0].config.extra["micro_batch_tokens"] > 0
    phases = present(rows[0].estimate.phases_s)
    assert phases.update == phases.total
    with pytest.raises(SpecError, match="generating responses"):
        parse_study({**document, "knobs": {"rollout_tp": [1, 2]}})


def test_trainers_that_cannot_post_train_say_who_can() -> None:
    study = parse_study(spec(trainer="torchtitan"))
    with pytest.raises(Exception, match=r"does not support post-training steps.*verl"):
        api.plan_of(study)


def test_a_sequence_longer_than_a_micro_batch_has_one_of_its_own_in_openrlhf_alone() -> None:
    """verl and NeMo-RL refuse such a limit; OpenRLHF packs the sequence alone."""
    document = spec()
    for trainer, engine, is_legal in (("verl", "fsdp", False), ("openrlhf", "deepspeed", True)):
        asked = {
            **document,
            "trainer": {"kind": trainer, "model": "x"},
            "rl": {**document["rl"], "engine": engine, "micro_batch_tokens": 4096},
        }
        study = parse_study(
            {
                **asked,
                "space": {
                    "micro_batch_size": [1],
                    "zero_stage": [2, 3],
                    "recompute": ["none", "full"],
                    "precision": ["bf16"],
                },
            }
        )
        if is_legal:
            assert len(SearchSpace.of_study(study)) > 0
        else:
            with pytest.raises(InfeasibleError, match="hold the longest sequence"):
                SearchSpace.of_study(study)
