"""What a program's code shards or accumulates under no condition is part of its launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.onboarding.first_spec import first_draft
from autotune.reviews import review
from autotune.space import SearchSpace
from tests.onboarding.drafting import loaded

PROGRAM = """import argparse, torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, fully_shard
from accelerate import Accelerator
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--seq-len", type=int, default=2048)
parser.add_argument("--shard", action="store_true")
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=torch.bfloat16)
{code}
"""


def program(folder: Path, code: str) -> Path:
    (folder / "train.py").write_text(PROGRAM.format(code=code))
    (folder / "train.sh").write_text("torchrun --nproc_per_node=8 train.py --batch-size 2\n")
    return folder / "train.sh"


@pytest.mark.parametrize(
    ("code", "stage"),
    [
        ("for layer in model.model.layers:\n    fully_shard(layer)\nfully_shard(model)", 3),
        ("fully_shard(model, reshard_after_forward=False)", 2),
        ("model = FSDP(model)", 3),
        ("model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)", 2),
        ("model = FSDP(model, sharding_strategy=ShardingStrategy.NO_SHARD)", 0),
        ("if args.shard:\n    fully_shard(model)", 0),
        ("def shard(model):\n    fully_shard(model)\nshard(model)", 3),
        ("optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)", 1),
        ("", 0),
    ],
)
def test_what_is_sharded(tmp_path: Path, code: str, stage: int) -> None:
    found = review(program(tmp_path, code), cluster="h100-sxm-1x8")
    assert found.config is not None
    assert found.config.zero_stage == stage


@pytest.mark.parametrize(
    ("code", "is_said"),
    [("if args.shard:\n    fully_shard(model)", True), ("fully_shard(model)", False), ("", False)],
)
def test_sharding_under_a_condition_leaves_the_memory_an_upper_bound(
    tmp_path: Path, code: str, is_said: bool
) -> None:
    found = review(program(tmp_path, code), cluster="h100-sxm-1x8")
    assert any("sharding under a condition" in each for each in found.assumed) == is_said
    assert found.is_upper_bound == is_said


ADAPTED = "model = get_peft_model(model, LoraConfig(r={rank}, target_modules=['q_proj']))"


@pytest.mark.parametrize(
    ("code", "rank", "is_said"),
    [
        (ADAPTED.format(rank=32), 32, False),
        (f"R = 32\n{ADAPTED.format(rank='R')}", 32, False),
        (ADAPTED.format(rank="args.batch_size"), None, True),
        (f"if args.seq_len > 9:\n    {ADAPTED.format(rank=32)}", None, True),
        ("model = get_peft_model(model, IA3Config())", None, True),
        ("", None, False),
    ],
)
def test_adapters_that_a_loop_of_its_own_trains_are_planned_or_named(
    tmp_path: Path, code: str, rank: int | None, is_said: bool
) -> None:
    found = review(program(tmp_path, code), model="qwen2.5-7b", cluster="h100-sxm-1x8")
    assert found.study is not None
    peft = found.study.workload.peft
    assert (peft and peft.rank) == rank
    said = [each for each in found.assumed if "not modeled: adapters (get_peft_model" in each]
    assert bool(said) == is_said
    assert found.is_upper_bound == is_said


@pytest.mark.parametrize("given", ["", " --use_lora"])
def test_a_switch_decides_on_adapters_whose_rank_the_code_says(tmp_path: Path, given: str) -> None:
    launch = program(tmp_path, f"if args.use_lora:\n    {ADAPTED.format(rank=32)}")
    text = (tmp_path / "train.py").read_text()
    switch = 'parser.add_argument("--use_lora", action="store_true")\nargs ='
    (tmp_path / "train.py").write_text(text.replace("args =", switch, 1))
    launch.write_text(launch.read_text().rstrip() + given + "\n")
    found = review(launch, model="qwen2.5-7b", cluster="h100-sxm-1x8")
    assert found.study is not None
    peft = found.study.workload.peft
    assert (peft and peft.rank) == (32 if given else None)
    assert not found.is_upper_bound


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("fully_shard(model, offload_policy=CPUOffloadPolicy())", "CPUOffloadPolicy in line 11"),
        ("FSDP(model, cpu_offload=CPUOffload(offload_params=True))", "CPUOffload in line 11"),
        ("FSDP(model, cpu_offload=CPUOffload(offload_params=args.shard))", "CPUOffload in line 11"),
        ("FSDP(model, cpu_offload=CPUOffload())", ""),
        ("FSDP(model, cpu_offload=CPUOffload(offload_params=False))", ""),
        ("wrappers[0](model)", ""),
    ],
)
def test_weights_on_the_host_are_named(tmp_path: Path, code: str, said: str) -> None:
    found = review(program(tmp_path, code), cluster="h100-sxm-1x8")
    assert any(f"weights on the host ({said})" in each for each in found.assumed) == bool(said)
    assert found.is_upper_bound == bool(said)


@pytest.mark.parametrize(
    ("code", "steps"),
    [
        ("accelerator = Accelerator(gradient_accumulation_steps=4)", 4),
        ("accelerator = Accelerator()", 1),
    ],
)
def test_what_accelerate_accumulates(tmp_path: Path, code: str, steps: int) -> None:
    path = program(tmp_path, code)
    found = review(path, cluster="h100-sxm-1x8")
    assert found.config is not None
    assert (found.config.accumulation_steps, found.config.global_batch_size) == (steps, 16 * steps)


@pytest.mark.parametrize(
    ("code", "place"),
    [
        (
            "accelerator = Accelerator(gradient_accumulation_steps=4)",
            "Accelerator.gradient_accumulation_steps",
        ),
        ("ACCUM_STEPS = 4\nAccelerator(gradient_accumulation_steps=ACCUM_STEPS)", "ACCUM_STEPS"),
    ],
)
def test_each_micro_batch_has_the_accumulation_of_the_batch(
    tmp_path: Path, code: str, place: str
) -> None:
    draft = first_draft(program(tmp_path, code), cluster="h100-sxm-1x8", folder=tmp_path)
    document = draft.document
    assert document["trainer"]["overrides"]["train.py"] == {place: "{accumulation_steps}"}
    assert "accumulation_steps" not in {*document["space"], *document["trainer"].get("fixed", {})}
    study = loaded(draft, tmp_path)
    batches = {config.micro_batch_size for config in SearchSpace.of_study(study)}
    assert batches == set(document["space"]["micro_batch_size"]) == {1, 2, 4, 8}


def test_a_fixed_accumulation_says_that_one_micro_batch_is_valid(tmp_path: Path) -> None:
    code = "accum_steps = 4\nAccelerator(gradient_accumulation_steps=accum_steps * 1)"
    draft = first_draft(program(tmp_path, code), cluster="h100-sxm-1x8", folder=tmp_path)
    said = "accumulation_steps is always 4 (line 11), so a batch of 64 allows only one micro-batch"
    assert f"# {said}" in draft.text
    assert any(said in note and "trainer.overrides" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("code", "optimizer", "said"),
    [
        ("bnb.optim.AdamW8bit(model.parameters())", "adamw_8bit", ""),
        ("Adafactor(model.parameters())", "adafactor", ""),
        ("torch.optim.SGD(model.parameters(), lr=1)", "sgd", ""),
        ("torch.optim.AdamW(model.parameters())", "adamw", ""),
        ("ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD)", "sgd", ""),
        ("Lion(model.parameters())", "adamw", "the optimizer Lion; planned as AdamW"),
        (
            "SGD(model.parameters()) if args.shard else AdamW(model.parameters())",
            "adamw",
            "which of SGD, AdamW",
        ),
    ],
)
def test_the_optimizer_that_a_text_makes(
    tmp_path: Path, code: str, optimizer: str, said: str
) -> None:
    found = review(program(tmp_path, f"optimizer = {code}"), cluster="h100-sxm-1x8")
    assert found.study is not None
    assert found.study.workload.optimizer == optimizer
    assert any(
        said in each for each in found.assumed if "optimizer" in each or "source creates" in each
    ) == bool(said)


TRAINER = """from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
Trainer(model=model, args=args, train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("options", "settings", "stage", "said"),
    [
        ("--fsdp True", '{"reshard_after_forward": true}', 3, ""),
        ("--fsdp True", '{"reshard_after_forward": false}', 2, ""),
        ("--fsdp True", '{"fsdp_reshard_after_forward": false}', 2, ""),
        ("--fsdp full_shard", '{"cpu_offload": true}', 3, "fsdp_config.cpu_offload"),
        ("--fsdp 'full_shard auto_wrap offload'", "{}", 3, "fsdp=full_shard auto_wrap offload"),
    ],
)
def test_what_a_file_of_fsdp_decides_for_transformers(
    tmp_path: Path, options: str, settings: str, stage: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "fsdp.json").write_text(settings)
    launch = tmp_path / "train.sh"
    launch.write_text(
        f"torchrun --nproc_per_node=8 train.py --per_device_train_batch_size 2 {options} --fsdp_config fsdp.json\n"
    )
    found = review(launch, cluster="h100-sxm-1x8", seq_len=2048)
    assert found.config is not None
    assert found.config.zero_stage == stage
    assert any(f"weights on the host ({said})" in each for each in found.assumed) == bool(said)


@pytest.mark.parametrize(
    ("written", "stage", "said"),
    [
        ("fsdp=True, fsdp_config={'reshard_after_forward': False}", 2, ""),
        ("fsdp=True, fsdp_config={'cpu_offload': True}", 3, "TrainingArguments in line 2"),
        ("fsdp='full_shard offload'", 3, "fsdp=full_shard offload"),
    ],
)
def test_what_written_arguments_of_fsdp_decide(
    tmp_path: Path, written: str, stage: int, said: str
) -> None:
    arguments = f"args = TrainingArguments('out', per_device_train_batch_size=2, {written})"
    (tmp_path / "train.py").write_text(TRAINER.replace(TRAINER.splitlines()[1], arguments))
    (tmp_path / "train.sh").write_text("torchrun --nproc_per_node=8 train.py\n")
    draft = first_draft(tmp_path / "train.sh", cluster="h100-sxm-1x8", folder=tmp_path)
    assert draft.document["space"]["zero_stage"][0] == stage
    assert f"zero_stage={stage}" in draft.document["baseline"]
    named = [note for note in draft.notes if f"weights on the host ({said})" in note]
    assert bool(named) == bool(said)
