"""LoRA, frozen weights and second models by the options of public programs: none is planned as a
full fine-tuning in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.first_spec import first_draft
from autotune.reviews import lines_of, review
from tests.shortcuts import file_with

HF = (
    "--model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --gradient_checkpointing True "
    "--model_max_length 2048 --bf16 True"
)
LORA_ARGUMENTS = """from dataclasses import dataclass
import peft
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class LoraArguments:
    lora_r: int = 8
    q_lora: bool = False
HfArgumentParser((TrainingArguments, LoraArguments)).parse_args_into_dataclasses()
"""
OPTIONAL = LORA_ARGUMENTS.replace("    q_lora", "    use_lora: bool = False\n    q_lora")


def lora(
    rank: int, targets: str = "attention", method: str = "lora", library: str = "peft"
) -> dict[str, Any]:
    return {"method": method, "rank": rank, "targets": targets, "library": library}


@pytest.mark.parametrize(
    ("options", "program", "peft"),
    [
        ("--use_peft --lora_r 32", "", lora(32)),
        (
            "--use_peft --load_in_4bit --lora_target_modules all-linear",
            "",
            lora(16, "all", "qlora"),
        ),
        ("--lora_dim 128 --lora_module_name layers.", "", lora(128, "all", library="")),
        ("--lora_dim 0", "", None),
        ("", LORA_ARGUMENTS, lora(8)),
        ("--q_lora True", LORA_ARGUMENTS, lora(8, method="qlora")),
        (
            "--use_lora True --lora_r 4 --lora_target_modules q_proj down_proj",
            OPTIONAL,
            lora(4, "all"),
        ),
        ("--lora_r 4", OPTIONAL, None),
        ("", "", None),
    ],
)
def test_adapters_are_those_that_the_options_ask_for(
    options: str, program: str, peft: dict[str, Any] | None, tmp_path: Path
) -> None:
    if program:
        (tmp_path / "train.py").write_text(program)
    draft = first_draft(
        file_with(tmp_path / "run.sh", f"torchrun --nproc_per_node 8 train.py {HF} {options}\n"),
        cluster="h100-sxm-1x8",
        folder=tmp_path,
    )
    assert draft.document["workload"].get("peft") == peft


QLORA_PROGRAM = """import peft
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, HfArgumentParser, TrainingArguments
HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
four_bits = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", quantization_config=four_bits)
"""


@pytest.mark.parametrize(
    ("more", "upcast"),
    [
        ("model = peft.get_peft_model(model, peft.LoraConfig(r=8))", {"upcast": False}),
        (
            "model = peft.get_peft_model(peft.prepare_model_for_kbit_training(model), peft.LoraConfig(r=8))",
            {},
        ),
        ("trainer = SFTTrainer(model, peft_config=peft.LoraConfig(r=8))", {}),
    ],
)
def test_a_program_that_makes_its_own_adapters_upcasts_only_what_it_prepares(
    more: str, upcast: dict[str, bool], tmp_path: Path
) -> None:
    """What a trainer of a library does with its adapters depends on its release: nothing is
    said."""
    (tmp_path / "train.py").write_text(f"{QLORA_PROGRAM}{more}\n")
    draft = first_draft(
        file_with(tmp_path / "run.sh", f"torchrun --nproc_per_node 8 train.py {HF}\n"),
        cluster="h100-sxm-1x8",
        folder=tmp_path,
    )
    assert draft.document["workload"]["peft"] == {**lora(8, method="qlora"), **upcast}


OWN_OPTIONS = """import argparse
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--max_length", type=int, default=1024)
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--lora_r", type=int, default=64)
args = parser.parse_args()
four_bits = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", quantization_config=four_bits)
model = prepare_model_for_kbit_training(model{switch})
model = get_peft_model(model, LoraConfig(r=args.lora_r, target_modules="all-linear"))
arguments = TrainingArguments("out", per_device_train_batch_size=args.batch_size, bf16=True)
Trainer(model=model, args=arguments, train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("switch", "recompute"),
    [
        ("", "full"),
        (", True", "full"),
        (", use_gradient_checkpointing=True", "full"),
        (", use_gradient_checkpointing=False", "none"),
    ],
)
@pytest.mark.parametrize(("options", "rank"), [("", 64), ("--lora_r 8", 8)])
def test_a_program_of_qlora_with_options_of_its_own_is_read_whole(
    switch: str, recompute: str, options: str, rank: int, tmp_path: Path
) -> None:
    """The text says bits, matrices and number format, an option the rank; PEFT's preparation
    switches recomputation on."""
    (tmp_path / "train.py").write_text(OWN_OPTIONS.replace("{switch}", switch))
    launch = file_with(tmp_path / "run.sh", f"python train.py {options}\n")
    found = review(launch, cluster="rtx-4090-1x1")
    assert found.study is not None
    assert found.config is not None
    peft = found.study.workload.peft
    assert peft is not None
    assert (peft.method, peft.rank, peft.targets, peft.upcast) == ("qlora", rank, "all", None)
    assert (found.config.precision, found.config.recompute) == ("bf16", recompute)


@pytest.mark.parametrize(
    "switched",
    [
        ("load_in_4bit=True", "load_in_4bit=args.use_4bit"),
        (
            "quantization_config=four_bits",
            "quantization_config=four_bits if args.use_4bit else None",
        ),
    ],
)
@pytest.mark.parametrize("rank", ["args.lora_r", "64"])
@pytest.mark.parametrize("is_on", [True, False])
def test_an_option_switches_four_bits_and_their_preparation(
    switched: tuple[str, str], rank: str, is_on: bool, tmp_path: Path
) -> None:
    program = OWN_OPTIONS.replace("{switch}", "").replace(*switched).replace("args.lora_r", rank)
    program = program.replace(
        "\nargs =", "\nparser.add_argument('--use_4bit', action='store_true')\nargs ="
    )
    program = program.replace("model = prepare", "if args.use_4bit:\n    model = prepare")
    (tmp_path / "train.py").write_text(program)
    options = "--use_4bit" if is_on else ""
    launch = file_with(tmp_path / "run.sh", f"python train.py {options}\n")
    found = review(launch, cluster="a100-80gb-1x1")
    assert found.study is not None
    assert found.config is not None
    peft = found.study.workload.peft
    assert peft is not None
    expected = ("qlora", "full") if is_on else ("lora", "none")
    assert (peft.method, found.config.recompute) == expected
    assert (peft.rank, peft.targets, found.config.precision) == (64, "all", "bf16")


@pytest.mark.parametrize("prepares", [True, False])
def test_it_is_the_same_where_the_text_holds_all_arguments(prepares: bool, tmp_path: Path) -> None:
    program = """import peft
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
four_bits = BitsAndBytesConfig(load_in_4bit=True)
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B", quantization_config=four_bits)
model = peft.get_peft_model(PREPARED, peft.LoraConfig(r=8))
args = TrainingArguments(output_dir="out", per_device_train_batch_size=2, gradient_accumulation_steps=8, bf16=True)
Trainer(model=model, args=args).train()
"""
    prepared = "peft.prepare_model_for_kbit_training(model)" if prepares else "model"
    (tmp_path / "train.py").write_text(program.replace("PREPARED", prepared))
    launch = file_with(tmp_path / "run.sh", "torchrun --nproc_per_node 8 train.py\n")
    draft = first_draft(launch, cluster="h100-sxm-1x8", folder=tmp_path)
    upcast = {} if prepares else {"upcast": False}
    assert draft.document["workload"]["peft"] == {**lora(8, method="qlora"), **upcast}


@pytest.mark.parametrize(
    ("config", "peft", "note"),
    [
        ("peft.LoraConfig(r=8)", 8, ""),
        ("None", 0, ""),
        ("peft.LoraConfig(r=8) if WITH else None", 0, "adapters (SFTTrainer in line 8)"),
        ("made()", 0, "adapters (SFTTrainer in line 8)"),
        ("get_peft_config(arguments)", 0, ""),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_adapters_that_a_trainer_is_given_are_planned_or_named(
    config: str, peft: int, note: str, named: bool, tmp_path: Path
) -> None:
    given = f"config = {config}\n" if named else "\n"
    program = QLORA_PROGRAM.replace(", quantization_config=four_bits", "")
    program = program.replace("four_bits = BitsAndBytesConfig(load_in_4bit=True)\n", "\n\n")
    program = program.replace("BitsAndBytesConfig, ", "")
    program += f"{given}SFTTrainer(model, peft_config={'config' if named else config})\n"
    (tmp_path / "train.py").write_text(program)
    launch = file_with(tmp_path / "run.sh", f"torchrun --nproc_per_node 8 train.py {HF}\n")
    found = review(launch, cluster="h100-sxm-1x8")
    assert (found.study.workload.peft.rank if found.study.workload.peft else 0) == peft
    assert any(note in each for each in found.assumed) if note else True
    assert found.is_upper_bound == bool(note)


@pytest.mark.parametrize(
    ("placement", "ranks", "is_said"),
    [
        ("'auto'", 8, True),
        ("{'': 0}", 8, True),
        ("PLACES", 8, True),
        ("'auto'", 1, False),
        ("{'': int(os.environ['LOCAL_RANK'])}", 8, False),
        ("None", 8, False),
    ],
)
def test_a_model_that_all_ranks_put_on_the_same_gpus_is_named(
    placement: str, ranks: int, is_said: bool, tmp_path: Path
) -> None:
    program = "import os\nPLACES = 'balanced'\n" + QLORA_PROGRAM.replace(
        "quantization_config=four_bits", f"device_map={placement}"
    )
    (tmp_path / "train.py").write_text(program)
    launch = file_with(tmp_path / "run.sh", f"torchrun --nproc_per_node {ranks} train.py {HF}\n")
    draft = first_draft(launch, cluster=f"h100-sxm-1x{ranks}", folder=tmp_path)
    said = [note for note in draft.notes if "device_map=" in note and "in line 7" in note]
    assert len(said) == is_said
    reviewed = review(launch, cluster=f"h100-sxm-1x{ranks}")
    assert any("device_map=" in each for each in reviewed.assumed) == is_said


MEGATRON = (
    "torchrun --nproc_per_node 8 finetune.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--seq-length 1024 --micro-batch-size 8 --global-batch-size 256 --bf16"
)


def test_frozen_weights_are_named_and_leave_the_memory_an_upper_bound(tmp_path: Path) -> None:
    path = file_with(tmp_path / "run.sh", f"{MEGATRON} --freeze-ViT --freeze-LM\n")
    found = review(path, cluster="h100-sxm")
    assert found.is_upper_bound
    assert any(
        "--freeze-ViT, --freeze-LM; planned as if every weight were trained" in each
        for each in found.assumed
    )
    path.write_text(f"{MEGATRON}\n")
    assert not review(path, cluster="h100-sxm").is_upper_bound


def test_the_sizes_of_one_part_are_not_those_of_the_model(tmp_path: Path) -> None:
    path = file_with(tmp_path / "run.sh", f"{MEGATRON} --language-model-type mistral_7b\n")
    found = review(path, cluster="h100-sxm")
    assert [each.what for each in found.missing] == ["the model's shape"]
    assert any(
        "a model with several parts (--language-model-type)" in each for each in found.assumed
    )
    assert review(path, cluster="h100-sxm", model="mistral-7b").estimate is not None


def test_a_method_that_trains_less_is_no_verdict_that_it_does_not_fit(tmp_path: Path) -> None:
    path = file_with(
        tmp_path / "oft.yaml",
        "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nstage: sft\ndo_train: true\nfinetuning_type: oft\n"
        "dataset: d\ntemplate: llama3\ncutoff_len: 2048\nper_device_train_batch_size: 1\nbf16: true\n",
    )
    found = review(path, cluster="h100-sxm-1x1")
    assert found.fits is None
    assert any(
        line.startswith("may not fit") and "up to 100% risk" in line for line in lines_of(found)
    )


@pytest.mark.parametrize("setting", ["lisa_n_layers: 4", "unfrozen_parameters: [lm_head.*]"])
def test_a_setting_that_trains_some_weights_is_named(setting: str, tmp_path: Path) -> None:
    path = file_with(
        tmp_path / "part.yml",
        "base_model: NousResearch/Llama-2-7b-hf\ndatasets: [{path: d, type: alpaca}]\nsequence_len: 2048\n"
        f"micro_batch_size: 1\ngradient_accumulation_steps: 1\nbf16: true\noptimizer: adamw_torch\n{setting}\n",
    )
    found = review(path, cluster="h100-sxm-1x1")
    assert found.is_upper_bound
    assert (
        f"not modeled: {setting.partition(':')[0]}; planned as if every weight were trained"
        in found.assumed
    )
