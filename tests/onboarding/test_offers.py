"""What a draft offers: micro-batches that are in the batch, options that act on steps, outputs of each trial's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from autotune.spec import ParallelConfig
from autotune.trainers import trainer
from autotune.trainers.documents.output_options import TRIAL_DIR, with_own_outputs
from tests.onboarding.test_started_program import loaded
from tests.shortcuts import file_with

PROGRAM = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("-b", "--batch-size", type=int, default=12)
p.add_argument("--grad-accum", type=int, default=1)
p.add_argument("--seq-len", type=int, default=64)
p.add_argument("-o", "--work-dir", default="out")
"""


def drafted(tmp_path: Path, program: str, run: str = "python train.py -b 12", cluster: str = "h100-sxm-1x1") -> Draft:
    if program:
        (tmp_path / "train.py").write_text(program)
    return first_draft(file_with(tmp_path / "run.sh", f"{run}\n"), model="gpt2-small", cluster=cluster, folder=tmp_path)


def test_micro_batches_divide_the_batch(tmp_path: Path) -> None:
    draft = drafted(tmp_path, PROGRAM)
    assert draft.document["workload"]["global_batch_size"] == 12
    assert draft.document["space"]["micro_batch_size"] == [3, 6, 12]
    draft = drafted(tmp_path, PROGRAM, "python train.py -b 12 --grad-accum 2")
    assert draft.document["space"]["micro_batch_size"] == [3, 6, 12, 24]


def test_a_program_that_leaves_one_micro_batch_says_so(tmp_path: Path) -> None:
    draft = drafted(tmp_path, "", "python elsewhere.py --batch-size 32 --seq-len 64")
    said = next(note for note in draft.notes if "accumulation option of" in note)
    assert "a batch of 32 allows one micro-batch" in said
    assert "workload.global_batch_size" in said
    assert not any("accumulation option of" in note for note in drafted(tmp_path, PROGRAM).notes)


@pytest.mark.parametrize(
    ("name", "given", "is_offered"),
    [
        ("num_workers", "", True),
        ("dataloader_num_workers", "", True),
        ("workers", "", True),
        ("audio_zeroshot_workers", "", False),
        ("preprocessing_num_workers", "", False),
        ("val_num_workers", "", False),
        ("fsdp_offload_cpu", "", False),
        ("fsdp_offload_cpu", " --fsdp", True),
        ("prefetch_factor", "", True),
        ("eval_prefetch", "", False),
    ],
)
def test_options_of_other_parts_are_not_offered(tmp_path: Path, name: str, given: str, is_offered: bool) -> None:
    program = (
        f"{PROGRAM}p.add_argument('--fsdp', action='store_true')\np.add_argument('--{name}', type=int, default=2)\n"
    )
    assert (f"knobs: {{{name}:" in drafted(tmp_path, program, f"python train.py -b 12{given}").text) == is_offered


def test_what_trials_are_told_as_the_launch_is_needs_no_other_word(tmp_path: Path) -> None:
    program = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
    run = "python train.py --per_device_train_batch_size 4 --logging_steps {}"
    training: dict[str, Any] = drafted(tmp_path, program, run.format(1)).document["trainer"]["training"]
    assert "--logging_steps=1" not in training
    training = drafted(tmp_path, program, run.format(5)).document["trainer"]["training"]
    assert training["--logging_steps=1"] == "--logging_steps=5"


@pytest.mark.parametrize("given", ["-o runs", "-oruns", "--work runs", "--work-dir=runs"])
def test_an_output_by_any_name_is_of_each_trials_own(tmp_path: Path, given: str) -> None:
    study = loaded(drafted(tmp_path, PROGRAM, f"python train.py -b 12 {given}"), tmp_path)
    config = ParallelConfig(micro_batch_size=12, accumulation_steps=1, precision="fp32")
    launch = with_own_outputs(trainer("command").launch(study.workload, config, study.trainer_options))
    outputs = [word for word in launch.argv if word.startswith(("-o", "--work"))]
    assert outputs == [f"--work-dir={TRIAL_DIR}/work_dir"]
