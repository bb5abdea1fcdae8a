"""Programs of preference training count pairs of sequences; specs for them count sequences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.onboarding.pairs import as_pairs
from tests.onboarding.drafting import argv, drafted, loaded

MODEL = '{"architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 1024}'
IMPORTS = "from trl import DPOConfig, DPOTrainer\nfrom transformers import AutoModelForCausalLM\nmodel = AutoModelForCausalLM.from_pretrained('model')\n"
TRAIN = "DPOTrainer(model=model, args=args, train_dataset=data()).train()\n"
ARGUMENTS = (
    "per_device_train_batch_size=2, gradient_accumulation_steps=4, bf16=True, max_length=512"
)
RUN = "torchrun --nproc_per_node 8 dpo.py\n"


def files(arguments: str = ARGUMENTS) -> dict[str, str]:
    """A program of trl, with its launch."""
    text = f"{IMPORTS}args = DPOConfig({arguments})\n{TRAIN}"
    return {"run.sh": RUN, "dpo.py": text, "model/config.json": MODEL}


def test_a_sample_of_dpo_is_two_sequences_and_a_reference_model_runs_beside_them(
    tmp_path: Path,
) -> None:
    draft = drafted(tmp_path, files())
    assert not [note for note in draft.notes if "predicted without" in note]
    overrides = draft.document["trainer"]["overrides"]["dpo.py"]
    assert overrides["DPOConfig.per_device_train_batch_size"] == "{micro_batch_size // 2}"
    assert "two sequences each" in draft.text
    assert "pairs per rank" in draft.text
    assert "sequences per rank" not in draft.text
    study = loaded(draft, tmp_path)
    assert study.workload.global_batch_sizes == (2 * 4 * 2 * 8,)
    assert (study.baseline.micro_batch_size, study.baseline.accumulation_steps) == (4, 4)
    rl = study.workload.rl
    assert rl is not None
    assert (rl.prompts, rl.responses, rl.reference) == (64, 2, True)
    assert study.workload.tokens_per_sequence == 512
    assert all("seq_len" in words for words in rl.assumed)


def test_pairs_of_an_unknown_number_are_said_to_be_left_out(tmp_path: Path) -> None:
    draft = drafted(tmp_path, files())
    without = draft.edited("space", value={"precision": ["bf16"]}).put("rl", None)
    found = as_pairs(without, has_reference=True, source="DPOConfig")
    assert found.notes[-1].endswith(
        "without the reference model and the other sequence of each pair (DPOConfig)"
    )
    assert replace(found, notes=without.notes) == without


def test_log_probabilities_computed_before_need_no_reference_model(tmp_path: Path) -> None:
    draft = drafted(tmp_path, files(f"{ARGUMENTS}, precompute_ref_log_probs=True"))
    assert draft.document["rl"] == {"algorithm": "dpo", "reference": False}


@pytest.mark.parametrize("kind", ["RewardConfig", "ORPOConfig", "CPOConfig"])
def test_other_trainings_on_pairs_have_no_reference_model(kind: str, tmp_path: Path) -> None:
    text = files()["dpo.py"].replace("DPOConfig", kind)
    draft = drafted(tmp_path, {**files(), "dpo.py": text})
    assert draft.document["rl"] == {"algorithm": "dpo", "reference": False}
    assert draft.document["workload"]["global_batch_size"] == 128


@pytest.mark.parametrize("kind", ["KTOConfig", "RLOOConfig"])
def test_trainings_without_pairs_say_what_is_not_predicted(kind: str, tmp_path: Path) -> None:
    text = files()["dpo.py"].replace("DPOConfig", kind)
    draft = drafted(tmp_path, {**files(), "dpo.py": text})
    assert "rl" not in draft.document
    assert draft.document["workload"]["global_batch_size"] == 64
    assert [note for note in draft.notes if "predicted without" in note and kind in note]


def test_options_of_a_command_get_samples_too(tmp_path: Path) -> None:
    text = f"{IMPORTS}from trl import ScriptArguments, TrlParser\nargs = TrlParser((ScriptArguments, DPOConfig)).parse_args_and_config()[1]\n{TRAIN}"
    run = f"{RUN.strip()} --per_device_train_batch_size 2 --gradient_accumulation_steps 4\n"
    draft = drafted(tmp_path, {**files(), "dpo.py": text, "run.sh": run})
    assert "--per_device_train_batch_size={micro_batch_size // 2}" in argv(draft)
    assert draft.document["workload"]["global_batch_size"] == 128


def test_a_class_of_the_same_name_in_the_program_is_not_trls(tmp_path: Path) -> None:
    text = "from dataclasses import dataclass\nfrom transformers import HfArgumentParser\n@dataclass\nclass DPOConfig:\n    batch_size: int = 4\nHfArgumentParser((DPOConfig,))\n"
    draft = drafted(tmp_path, {**files(), "dpo.py": text})
    assert "rl" not in draft.document
    assert [note for note in draft.notes if "predicted without" in note]
