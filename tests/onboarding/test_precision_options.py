"""What says the number format of a program, and in which words: never a word that its option refuses, never a format that it does not compute in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from tests.shortcuts import write

ARGPARSE = """
import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=4)
"""
TRAINER = """
from dataclasses import dataclass, field
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class ModelArguments:
    dtype: str | None = field(default=None, metadata={"help": "of the weights", "choices": ["auto", "bfloat16", "float32"]})
HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
"""
CONFIGURATOR = """
import torch
from contextlib import nullcontext
batch_size = 12
gradient_accumulation_steps = 1
block_size = 64
device = "cuda"
dtype = "bfloat16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "float16"
exec(open("configurator.py").read())
AUTOCAST
for it in range(9):
    print(f"iter {it}: loss {loss:.3f}")
"""
NULL = 'ctx = nullcontext() if "cuda" not in device else torch.autocast("cuda", dtype=torch.bfloat16)'


def drafted(tmp_path: Path, program: str, run: str = "python train.py", cluster: str | None = None) -> Draft:
    write(tmp_path, {"train.py": program, "run.sh": f"{run}\n"})
    return first_draft(tmp_path / "run.sh", model="gpt2-small", cluster=cluster, folder=tmp_path)


def words_of(draft: Draft) -> tuple[Any, Any]:
    trainer = draft.document["trainer"]
    word = next((word for word in trainer["argv"] if "{precision}" in word), None)
    return word, trainer.get("values", {}).get("precision")


@pytest.mark.parametrize(
    ("option", "values", "precisions"),
    [
        (
            "'--dtype', default='auto', choices=['auto', 'bfloat16', 'float16', 'float32']",
            {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"},
            ["fp32", "bf16", "fp16"],
        ),
        ("'--precision', default='FP32', choices=['FP32', 'BF16']", {"fp32": "FP32", "bf16": "BF16"}, ["fp32", "bf16"]),
        ("'--torch_dtype', choices=['bfloat16', 'float16']", {"bf16": "bfloat16", "fp16": "float16"}, ["bf16", "fp16"]),
    ],
)
def test_only_words_of_the_choices_are_written(
    tmp_path: Path, option: str, values: dict[str, str], precisions: list[str]
) -> None:
    draft = drafted(tmp_path, f"{ARGPARSE}p.add_argument({option})\n", cluster="h100-sxm-1x1")
    assert words_of(draft)[1] == values
    assert draft.document["space"]["precision"] == precisions


@pytest.mark.parametrize("name", ["--model-dtype", "--dtype", "--torch_dtype", "--param-dtype"])
def test_a_type_that_is_not_given_and_has_no_words_is_no_knob(tmp_path: Path, name: str) -> None:
    program = f"{ARGPARSE}p.add_argument('{name}', default=None)\nmodel.to(torch.bfloat16)\n"
    draft = drafted(tmp_path, program, cluster="h100-sxm-1x1")
    assert words_of(draft) == (None, None)
    assert {"space.precision", "baseline"} <= set(draft.fill_in)


def test_flags_of_autocast_go_before_the_type_of_the_weights(tmp_path: Path) -> None:
    program = f'{ARGPARSE}p.add_argument("--model-dtype", default=None)\np.add_argument("--amp", action="store_true")\n'
    draft = drafted(tmp_path, program, cluster="h100-sxm-1x1")
    assert words_of(draft) == ("{precision}", {"fp16": "--amp", "fp32": None})
    assert "precision=fp32" in draft.document["baseline"]


@pytest.mark.parametrize(("given", "today"), [("", "fp32"), (" --bf16", "bf16"), (" --bf16 --dtype bfloat16", "bf16")])
def test_trainings_own_flags_go_before_the_type_that_a_model_is_loaded_in(
    tmp_path: Path, given: str, today: str
) -> None:
    draft = drafted(tmp_path, TRAINER, f"torchrun --nproc-per-node 2 train.py{given}", "h100-sxm-1x2")
    assert words_of(draft) == ("{precision}", {"bf16": "--bf16=True", "fp16": "--fp16=True", "fp32": None})
    assert f"precision={today}" in draft.document["baseline"]
    assert ("--dtype=bfloat16" in draft.document["trainer"]["argv"]) == ("--dtype" in given)


def test_choices_without_a_default_say_nothing_of_today(tmp_path: Path) -> None:
    program = f"{ARGPARSE}p.add_argument('--dtype', choices=['bfloat16', 'float32'])\n"
    draft = drafted(tmp_path, program, cluster="h100-sxm-1x1")
    assert "baseline" not in draft.document
    assert any("--dtype (line 5) is not given" in note for note in draft.notes)


def test_numbers_keep_to_the_choices(tmp_path: Path) -> None:
    program = ARGPARSE.replace("default=4", "default=4, choices=[2, 4, 6]")
    draft = drafted(tmp_path, program, cluster="h100-sxm-1x1")
    assert draft.document["space"]["micro_batch_size"] == [2, 4, 6]


@pytest.mark.parametrize(
    ("cluster", "today"),
    [("h100-sxm-1x1", "bf16"), ("v100-32gb-1x1", "fp16"), ("cpu-1x1", "fp16"), (None, None)],
)
def test_a_default_that_the_machine_decides(tmp_path: Path, cluster: str | None, today: str | None) -> None:
    program = CONFIGURATOR.replace("AUTOCAST", "")
    draft = drafted(tmp_path, program, cluster=cluster)
    assert words_of(draft) == ("--dtype={precision}", {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"})
    if today is None:
        assert "baseline" in draft.fill_in
        assert any("the default of --dtype (line 8) depends on the machine" in note for note in draft.notes)
    else:
        assert f"precision={today}" in draft.document["baseline"]


def test_a_condition_that_is_not_about_the_machine_is_not_known(tmp_path: Path) -> None:
    program = ARGPARSE + "p.add_argument('--dtype', default='bfloat16' if FAST else 'float32')\n"
    draft = drafted(tmp_path, program, cluster="h100-sxm-1x1")
    assert "baseline" in draft.fill_in
    assert any("the default of --dtype (line 5) depends on the machine" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("run", "cluster"), [("--device=cpu", None), ("--device=cpu --dtype=bfloat16", None), ("", "cpu-1x1")]
)
@pytest.mark.parametrize(
    "autocast",
    [
        NULL,
        "if device == 'cpu':\n    ctx = nullcontext()\nelse:\n    ctx = torch.autocast('cuda', dtype=torch.bfloat16)",
    ],
)
def test_autocast_that_is_left_out_on_cpus_is_no_knob_there(
    tmp_path: Path, run: str, cluster: str | None, autocast: str
) -> None:
    draft = drafted(tmp_path, CONFIGURATOR.replace("AUTOCAST", autocast), f"python train.py {run}", cluster)
    assert words_of(draft) == (None, None)
    assert draft.document["space"]["precision"] == ["fp32"]
    assert "precision=fp32" in draft.document["baseline"]
    assert any("on CPUs train.py always computes in fp32 (line" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (" --precision amp_bf16", {"bf16": "amp_bf16", "fp16": "amp"}),
        (" --precision bf16", {"fp16": "fp16"}),
        (" --precision pure_bf16", {"bf16": "pure_bf16"}),
    ],
)
def test_the_word_of_today_is_kept_where_others_are_near(tmp_path: Path, given: str, values: dict[str, str]) -> None:
    choices = ["amp", "amp_bf16", "bf16", "fp16", "pure_bf16", "fp32"]
    program = f"{ARGPARSE}p.add_argument('--precision', default='fp32', choices={choices})\n"
    draft = drafted(tmp_path, program, f"python train.py{given}", "h100-sxm-1x1")
    found = words_of(draft)[1] or {}
    assert {value: found.get(value, value) for value in values} == values
    assert "precision=bf16" in draft.document["baseline"]


@pytest.mark.parametrize(
    ("today", "cluster", "offered"),
    [
        ("bfloat16", "h100-sxm-1x8", ["bf16"]),
        ("float16", "h100-sxm-1x8", ["fp16", "bf16"]),
        ("float32", "h100-sxm-1x8", ["fp32", "bf16"]),
        ("float32", None, ["fp32", "bf16"]),
        ("float32", "v100-32gb-1x8", ["fp32", "fp16"]),
        ("float16", "v100-32gb-1x8", ["fp16"]),
        ("float32", "cpu-1x4", ["fp32", "bf16"]),
        ("bfloat16", "cpu-1x4", ["bf16", "fp32"]),
    ],
)
def test_offered_are_the_format_of_today_and_those_that_may_be_faster_there(
    today: str, cluster: str | None, offered: list[str], tmp_path: Path
) -> None:
    program = f"{ARGPARSE}p.add_argument('--dtype', default='{today}', choices=['float32', 'bfloat16', 'float16'])\n"
    assert drafted(tmp_path, program, cluster=cluster).document["space"]["precision"] == offered


@pytest.mark.parametrize(
    ("flags", "offered"), [("--bf16", ["bf16"]), ("--fp16", ["fp16", "bf16"]), ("", ["fp32", "bf16"])]
)
def test_of_flags_too(flags: str, offered: list[str], tmp_path: Path) -> None:
    draft = drafted(tmp_path, TRAINER, f"torchrun --nproc-per-node 8 train.py {flags}", cluster="h100-sxm-1x8")
    assert draft.document["space"]["precision"] == offered
