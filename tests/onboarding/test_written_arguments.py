"""What a program's own text gives transformers' Trainer is its current config: reviewed line by
line, and set otherwise by each trial."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.first_spec import first_draft
from autotune.onboarding.script.reading import read_script
from autotune.onboarding.script.syntax import Text
from autotune.onboarding.script.written_arguments import written_arguments
from autotune.reviews import lines_of, review
from autotune.reviews.lines import edited
from autotune.spec import config_label
from tests.onboarding.drafting import Launch, Read, drafted
from tests.shortcuts import file_with, write

PROGRAM = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

MODEL = "meta-llama/Llama-3.1-8B"
model = AutoModelForCausalLM.from_pretrained(MODEL)
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    gradient_checkpointing=True,
    bf16=True,
    fsdp="full_shard auto_wrap",
)
Trainer(model=model, args=args).train()
"""
LAUNCH = "torchrun --nproc-per-node 8 sft.py\n"


def written(tmp_path: Path, program: str = PROGRAM) -> Path:
    write(tmp_path, {"sft.py": program, "run.sh": LAUNCH})
    return tmp_path / "run.sh"


def test_a_review_predicts_what_the_text_says_and_edits_its_lines(tmp_path: Path) -> None:
    found = review(written(tmp_path), cluster="h200-sxm", seq_len=2048)
    assert found.config is not None
    assert found.study.workload.global_batch_size == 2 * 8 * 8
    assert found.study.workload.model.name == "llama-8b"
    assert found.study.workload.loop == "hf_trainer"
    config = found.config
    assert (config.micro_batch_size, config.precision, config.recompute, config.zero_stage) == (
        2,
        "bf16",
        "full",
        3,
    )
    changed = {(line.file, line.after.strip()) for edit in found.edits for line in edit.lines}
    assert ("sft.py", "gradient_checkpointing=False,") in changed
    assert ("sft.py", "per_device_train_batch_size=4, torch_compile=True,") in {
        (line.file, line.after.strip()) for line in found.lines
    }
    assert not any(edit.unplaced for edit in found.edits)
    changed_text = edited(found.texts, found.lines)["sft.py"]
    assert written_arguments(Text(ast.parse(changed_text))) is not None, "it is Python still"
    assert not any("sft.py --" in line for line in lines_of(found)), (
        "its command line changes nothing"
    )


def test_a_program_alone_is_asked_for_the_ranks_that_nothing_says(tmp_path: Path) -> None:
    path = written(tmp_path).with_name("sft.py")
    assert any("--batch" in each.remedy for each in review(path, seq_len=2048).missing)
    known = review(path, cluster="h100-sxm-1x4", seq_len=2048)
    assert known.study.workload.global_batch_size == 2 * 8 * 4


def test_a_spec_has_the_config_as_its_baseline_and_each_trial_sets_the_text_otherwise(
    tmp_path: Path,
) -> None:
    draft = drafted(tmp_path, {"sft.py": PROGRAM, "run.sh": LAUNCH})
    document = draft.document
    assert document["baseline"] == "micro_batch_size=2,precision=bf16,recompute=full,zero_stage=3"
    assert document["space"]["micro_batch_size"] == [1, 2, 4, 8]
    assert document["trainer"]["argv"][-1] == "sft.py"
    assert draft.fill_in == ("workload.seq_len",)
    (places,) = document["trainer"]["overrides"].values()
    assert places["TrainingArguments.per_device_train_batch_size"] == "{micro_batch_size}"
    assert places["TrainingArguments.gradient_checkpointing"] == {
        "recompute": {"full": True, "none": False}
    }
    assert places["TrainingArguments.bf16"] == {
        "precision": {"bf16": True, "fp16": False, "fp32": False}
    }
    assert places["TrainingArguments.save_strategy"] == "no"
    assert places["TrainingArguments.output_dir"] == "{trial_dir}"
    assert not any("fsdp" in place for place in places), "the text keeps it"
    assert "line 8, currently 2" in draft.text
    (note,) = [note for note in draft.notes if "`overrides`" in note]
    assert "per_device_train_batch_size (line 8)" in note


PARTLY = """
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="meta-llama/Llama-3.1-8B")
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--max_length", type=int, default=2048)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.model)
training_args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=args.batch_size,
    gradient_accumulation_steps=4,
    gradient_checkpointing=True,
    bf16=True,
    fsdp="full_shard",
)
Trainer(model=model, args=training_args).train()
"""


def test_options_and_text_together_are_the_launch(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"train.py": PARTLY, "run.sh": "torchrun --nproc-per-node 8 train.py --batch_size 2\n"},
    )
    found = review(tmp_path / "run.sh", cluster="h200-sxm")
    assert found.config is not None
    config = found.config
    assert (config.micro_batch_size, config.accumulation_steps, config.precision) == (2, 4, "bf16")
    assert (config.recompute, config.zero_stage, found.study.workload.seq_len) == ("full", 3, 2048)
    changed = {(line.file, line.after.strip()) for line in found.lines}
    assert any(file == "run.sh" and "--batch_size" in after for file, after in changed)
    assert ("train.py", "gradient_checkpointing=False,") in changed
    assert not any("torch_compile" in after for file, after in changed if file == "run.sh")


WHOLE = PARTLY[: PARTLY.index("training_args =")]
OF_OPTIONS = "per_device_train_batch_size=args.batch_size"


@pytest.mark.parametrize(
    ("trained", "label", "understood"),
    [
        (
            f"SFTTrainer(model=model, args=SFTConfig({OF_OPTIONS}))",
            "mb2 acc1 bf16 full-recompute",
            "",
        ),
        (
            f"lora = LoraConfig(r=16)\nTrainer(model=get_peft_model(model, lora), args=TrainingArguments('out', {OF_OPTIONS}))",
            "mb2 acc1 fp32",
            "with lora r16",
        ),
        (
            f"TrainingArguments('out', {OF_OPTIONS}, bf16=True, fsdp=False, deepspeed=None)",
            "mb2 acc1 bf16",
            "",
        ),
        (f"TrainingArguments('out', {OF_OPTIONS}, optim='adafactor')", "mb2 acc1 fp32", ""),
    ],
    ids=["defaults of trl", "adapters", "switches that are off", "an optimizer"],
)
def test_what_the_text_adds_to_options_by_any_word_counts(
    tmp_path: Path, trained: str, label: str, understood: str
) -> None:
    write(
        tmp_path,
        {
            "train.py": f"{WHOLE}{trained}\n",
            "run.sh": "torchrun --nproc-per-node 8 train.py --batch_size 2\n",
        },
    )
    found = review(tmp_path / "run.sh", cluster="h200-sxm")
    assert found.config is not None
    assert config_label(found.config).endswith(label)
    assert understood in found.understood
    assert found.study.workload.loop == "hf_trainer"
    assert found.study.workload.optimizer == ("adafactor" if "optim=" in trained else "adamw")


def test_a_program_whose_options_say_all_keeps_its_own_draft(tmp_path: Path) -> None:
    draft = drafted(tmp_path, {"train.py": f"{WHOLE}TrainingArguments('out', {OF_OPTIONS})\n"})
    assert "baseline" in draft.document
    assert draft.as_options is None


LIGHTNING = """
import lightning as L
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

model = Lit(AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B"))
loader = DataLoader(texts, batch_size=4, shuffle=True)
held_out = DataLoader(others, batch_size=16)
trainer = L.Trainer(devices=8, precision="bf16-mixed", accumulate_grad_batches=2, strategy="fsdp")
trainer.fit(model, loader, held_out)
"""


def test_lightnings_trainer_and_loader_say_ranks_batch_precision_and_sharding(
    tmp_path: Path,
) -> None:
    write(tmp_path, {"train.py": LIGHTNING, "run.sh": "python train.py\n"})
    found = review(tmp_path / "run.sh", cluster="h100-sxm-1x8", seq_len=2048)
    assert found.config is not None
    assert found.study.workload.loop == "lightning"
    assert found.study.workload.global_batch_size == 4 * 2 * 8
    config = found.config
    assert (config.dp, config.micro_batch_size, config.accumulation_steps) == (8, 4, 2)
    assert (config.precision, config.zero_stage) == ("bf16", 3)


@pytest.mark.parametrize(
    ("change", "computed"),
    [
        (('strategy="fsdp"', 'strategy=FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")'), None),
        (("devices=8,", "devices=8, **more,"), None),
        (("batch_size=4", "batch_size=batch_of(model)"), "batch_size"),
        (('precision="bf16-mixed"', "precision=settings.precision"), "precision"),
    ],
)
def test_what_lightnings_trainer_is_given_by_code_is_not_guessed(
    change: tuple[str, str], computed: str | None
) -> None:
    text = LIGHTNING.replace(*change)
    found = written_arguments(Text(ast.parse(text)))
    assert found is None if computed is None else found is not None and found.computed == {computed}
    assert read_script("train.py", text).written is None, "without an option that says it"


@pytest.mark.parametrize(
    ("lora", "load", "expected"),
    [
        (
            "LoraConfig()",
            "",
            {"method": "lora", "rank": 8, "targets": "attention", "library": "peft"},
        ),
        (
            "LoraConfig(r=RANK, lora_alpha=32, target_modules='all-linear')",
            ", quantization_config=BitsAndBytesConfig(load_in_4bit=True)",
            {
                "method": "qlora",
                "rank": 32,
                "targets": "all",
                "library": "peft",
                "upcast": False,
            },
        ),
        (
            "LoraConfig(r=4, target_modules=['q_proj', 'down_proj'])",
            "",
            {"method": "lora", "rank": 4, "targets": "all", "library": "peft"},
        ),
    ],
)
def test_adapters_that_the_text_says_plainly_are_those_of_the_plan(
    tmp_path: Path, lora: str, load: str, expected: dict[str, Any]
) -> None:
    program = PROGRAM.replace("args =", f"RANK = 32\nmodel = get_peft_model(model, {lora})\nargs =")
    program = program.replace("from_pretrained(MODEL", f"from_pretrained(MODEL{load}").replace(
        "fsdp=", "# fsdp="
    )
    path = written(tmp_path, program)
    assert (
        drafted(tmp_path, {"sft.py": program, "run.sh": LAUNCH}).document["workload"]["peft"]
        == expected
    )
    found = review(path, cluster="h100-sxm", seq_len=2048)
    assert (
        f"with {expected['method']} r{expected['rank']} ({expected['targets']})" in found.understood
    )
    assert float(found.estimate.peak_memory_bytes) < 60e9, "not the optimizer states of all weights"


@pytest.mark.parametrize(
    "change",
    [
        ("from transformers", "from peft import LoraConfig\nfrom transformers"),
        ("from transformers", "lora = LoraConfig(r=rank_of(model))\nfrom transformers"),
        ("from transformers", "lora = LoraConfig(target_modules='.*layers.*')\nfrom transformers"),
        (
            "from_pretrained(MODEL)",
            "from_pretrained(MODEL, quantization_config=BitsAndBytesConfig(load_in_4bit=True))",
        ),
        (
            "Trainer(model=model, args=args)",
            "TrainingArguments(output_dir='other')\nTrainer(model=model, args=args)",
        ),
        ("bf16=True,", "**more,"),
        ("bf16=True,", "deepspeed=settings,"),
        ("bf16=True,", "deepspeed={'zero_optimization': {'stage': 3}},"),
        ("bf16=True,", "optim='an_optimizer_of_ours',"),
    ],
    ids=[
        "adapters",
        "computed rank",
        "unknown modules",
        "quantized",
        "two calls",
        "others behind **",
        "sharding by a variable",
        "sharding by a mapping",
        "optimizer",
    ],
)
def test_what_these_arguments_do_not_say_is_not_guessed(change: tuple[str, str]) -> None:
    assert written_arguments(Text(ast.parse(PROGRAM))) is not None
    assert written_arguments(Text(ast.parse(PROGRAM.replace(*change)))) is None


GRPO = """
from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=8, max_completion_length=256, bf16=True)
GRPOTrainer(model="Qwen/Qwen2-0.5B-Instruct", reward_funcs=reward, args=args, train_dataset=data).train()
"""


def test_a_loop_of_grpo_is_tuned_by_its_text_and_said_to_do_more_than_is_predicted(
    tmp_path: Path,
) -> None:
    draft = drafted(
        tmp_path, {"grpo.py": GRPO, "run.sh": "accelerate launch --num_processes 8 grpo.py\n"}
    )
    (places,) = draft.document["trainer"]["overrides"].values()
    assert places["GRPOConfig.per_device_train_batch_size"] == "{micro_batch_size}"
    assert draft.document["baseline"].startswith("micro_batch_size=8,precision=bf16")
    beyond = "a step is predicted without generation, rewards and a reference model (GRPOConfig)"
    assert any(note.startswith(beyond) for note in draft.notes)
    found = review(tmp_path / "run.sh", cluster="h100-sxm", seq_len=768)
    assert any(each.startswith(beyond) for each in found.assumed)


def test_a_value_that_the_text_computes_is_not_known(tmp_path: Path) -> None:
    program = PROGRAM.replace(
        "per_device_train_batch_size=2", "per_device_train_batch_size=batch_of(model)"
    )
    found = review(written(tmp_path, program), cluster="h100-sxm", seq_len=2048)
    assert found.config is None
    assert any("micro-batch" in each.what for each in found.missing)
    computed = PROGRAM.replace("bf16=True", "bf16=settings.bf16")
    missing = review(written(tmp_path, computed), cluster="h100-sxm", seq_len=2048).missing
    assert any("--bf16 (line 11)" in each.what for each in missing)
    asked = PROGRAM.replace("bf16=True", "bf16=torch.cuda.is_bf16_supported()")
    known = review(written(tmp_path, asked), cluster="h100-sxm", seq_len=2048).config
    assert known.precision == "bf16"


LOADED = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B"{dtype})
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=4, bf16=True)
Trainer(model=model, args=arguments).train()
"""


LOOP = """
import argparse
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--seq-len", type=int, default=2048)
arguments = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained({name})
"""


@pytest.mark.parametrize(
    ("name", "model", "comment"),
    [
        ('"meta-llama/Llama-3.1-8B"', "meta-llama/Llama-3.1-8B", "line 8"),
        ('"meta-llama/Llama-3-8B"', "llama-8b", "assumed for meta-llama/Llama-3-8B (line 8)"),
    ],
)
def test_the_model_that_a_loop_of_its_own_loads_is_the_specs(
    tmp_path: Path, name: str, model: str, comment: str
) -> None:
    script = file_with(tmp_path / "train.py", LOOP.format(name=name))
    draft = first_draft(script, model=None, cluster="h100-sxm-1x8", folder=tmp_path)
    (entry,) = (entry for entry in draft.entries if entry.key == "model")
    assert (entry.value, entry.comment) == (model, comment)
    found = review(script, cluster="h100-sxm-1x8")
    assert not found.missing
    assert found.estimate is not None


BATCH_OPTION = "torchrun --nproc-per-node 8 train.py --batch_size 2\n"
PLACES = "trainer/overrides/train.py"
OPTIONS = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--batch_size', type=int, default=2)\nargs = parser.parse_args()\n"
ALL_BY_OPTIONS = PARTLY.replace(
    "    gradient_accumulation_steps=4,\n    gradient_checkpointing=True,\n", ""
).replace('    bf16=True,\n    fsdp="full_shard",\n', "")


def partly(program: str, **read: Any) -> Launch:
    return Launch({"train.py": program, "run.sh": BATCH_OPTION}, Read(**read))


READ = {
    "weights that are loaded in bf16 are said": Launch(
        {
            "sft.py": PROGRAM.replace(
                "from_pretrained(MODEL)", "from_pretrained(MODEL, torch_dtype=torch.bfloat16)"
            ),
            "run.sh": LAUNCH,
        },
        Read(document={"workload/pure_bf16": True, "workload/shards_in_fp32": True}),
    ),
    "a spec tells by options and by overrides": partly(
        PARTLY,
        document={
            "baseline": "micro_batch_size=2,precision=bf16,recompute=full,zero_stage=3",
            "workload/global_batch_size": 64,
            f"{PLACES}/TrainingArguments.gradient_accumulation_steps": "{accumulation_steps}",
            f"{PLACES}/TrainingArguments.per_device_train_batch_size": None,
        },
        words=("--batch_size={micro_batch_size}",),
    ),
    "arguments that options give whole need no word": partly(
        ALL_BY_OPTIONS, knobs=("micro_batch_size=2",)
    ),
    **{
        f"a trainer that is not read beside options leaves no baseline: {trained}": partly(
            f"{WHOLE}{trained}\n",
            document={"baseline": None},
            notes=("autotune does not understand",),
        )
        for trained in (
            f"GRPOTrainer(model=model, args=GRPOConfig({OF_OPTIONS}, gradient_accumulation_steps=8, **more))",
            "import lightning as L\nL.Trainer(devices=8, accumulate_grad_batches=4, **more)",
            "import lightning as L\nL.Trainer(8, strategy='fsdp')",
        )
    },
    "arguments that are not understood beside options leave no baseline": partly(
        PARTLY.replace("bf16=True,", "**more,"),
        document={"baseline": None},
        notes=("does not understand TrainingArguments(...) in line 11",),
    ),
    "Lightning's Trainer and options together are the launch": Launch(
        {
            "train.py": OPTIONS + LIGHTNING.replace("batch_size=4", "batch_size=args.batch_size"),
            "run.sh": "python train.py --batch_size 4\n",
        },
        Read(
            document={
                "workload/global_batch_size": 4 * 2 * 8,
                "baseline": "micro_batch_size=4,precision=bf16,zero_stage=3",
                PLACES: {
                    "Trainer.precision": {
                        "precision": {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
                    },
                    "Trainer.accumulate_grad_batches": "{accumulation_steps}",
                    "Trainer.max_steps": "{steps}",
                    "Trainer.devices": "{nproc_per_node}",
                    "Trainer.num_nodes": "{nnodes}",
                    "Trainer.default_root_dir": "{trial_dir}",
                },
            },
            words=("--batch_size={micro_batch_size}",),
        ),
        "h100-sxm-1x8",
    ),
    "weights whose type nothing says are an assumption: transformers 5 loads the checkpoint's own": Launch(
        {"train.py": LOADED.format(dtype="")},
        Read(notes=("weights are planned as fp32 (line 3 of train.py",)),
    ),
    **{
        f"weights whose type the text says: {dtype}": Launch(
            {"train.py": LOADED.format(dtype=dtype)},
            Read(unsaid=("weights are planned as fp32 (line 3 of train.py",)),
        )
        for dtype in (", dtype=torch.float32", ", torch_dtype='bfloat16'", ", **how")
    },
    "weights whose type the text computes are an assumption": Launch(
        {"train.py": LOADED.format(dtype=", dtype=chosen")},
        Read(notes=("weights are planned as fp32 (line 3 of train.py computes their type)",)),
    ),
    **{
        f"a loaded model that is not certain is asked for: {why}": Launch(
            {"train.py": text}, Read(asked=("model",))
        )
        for why, text in {
            "computed": LOOP.format(name="arguments.model"),
            "unknown": LOOP.format(name='"my/own"'),
            "two": LOOP.format(name='"Qwen/Qwen3-8B"')
            + 'teacher = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-14B")\n',
            "one of two computed": LOOP.format(name='"Qwen/Qwen3-8B"')
            + "other = AutoModelForCausalLM.from_pretrained(arguments.other)\n",
            "adapters": LOOP.format(name='"Qwen/Qwen3-8B"')
            + "from peft import get_peft_model\nmodel = get_peft_model(model)\n",
        }.items()
    },
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)
