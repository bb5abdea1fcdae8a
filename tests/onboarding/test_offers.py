"""What a draft offers: micro-batches that are in the batch, options that act on steps, outputs of
each trial's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.spec import ParallelConfig
from autotune.trainers import trainer
from autotune.trainers.documents.output_options import TRIAL_DIR, with_own_outputs
from tests.onboarding.drafting import Launch, Read, drafted, loaded

PROGRAM = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("-b", "--batch-size", type=int, default=12)
p.add_argument("--grad-accum", type=int, default=1)
p.add_argument("--seq-len", type=int, default=64)
p.add_argument("-o", "--work-dir", default="out")
"""


HF = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"


def launch(read: Read, run: str = "python train.py -b 12", program: str = PROGRAM) -> Launch:
    return Launch(
        {"run.sh": f"{run}\n", **({"train.py": program} if program else {})},
        read,
        "h100-sxm-1x1",
        "gpt2-small",
    )


READ = {
    "micro-batches divide the batch": launch(
        Read(
            document={"workload/global_batch_size": 12, "space/micro_batch_size": [3, 6, 12]},
            unsaid=("accumulation option of",),
        )
    ),
    "micro-batches divide a batch that is accumulated": launch(
        Read(document={"space/micro_batch_size": [3, 6, 12, 24]}),
        "python train.py -b 12 --grad-accum 2",
    ),
    "a program that leaves one micro-batch says so": launch(
        Read(
            notes=(
                "elsewhere.py has no accumulation option that autotune recognizes, so a batch of 32 allows only one micro-batch",
                "workload.global_batch_size",
            )
        ),
        "python elsewhere.py --batch-size 32 --seq-len 64",
        "",
    ),
    "what trials are told as the launch is needs no other word": launch(
        Read(document={"trainer/training/--logging_steps=1": None}),
        "python train.py --per_device_train_batch_size 4 --logging_steps 1",
        HF,
    ),
    "what trials are told otherwise than the launch": launch(
        Read(document={"trainer/training/--logging_steps=1": "--logging_steps=5"}),
        "python train.py --per_device_train_batch_size 4 --logging_steps 5",
        HF,
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)


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
def test_options_of_other_parts_are_not_offered(
    tmp_path: Path, name: str, given: str, is_offered: bool
) -> None:
    program = f"{PROGRAM}p.add_argument('--fsdp', action='store_true')\np.add_argument('--{name}', type=int, default=2)\n"
    files = {"train.py": program, "run.sh": f"python train.py -b 12{given}\n"}
    draft = drafted(tmp_path, files, "h100-sxm-1x1", model="gpt2-small")
    assert (f"knobs: {{{name}:" in draft.text) == is_offered


@pytest.mark.parametrize("given", ["-o runs", "-oruns", "--work runs", "--work-dir=runs"])
def test_an_output_by_any_name_is_of_each_trials_own(tmp_path: Path, given: str) -> None:
    files = {"train.py": PROGRAM, "run.sh": f"python train.py -b 12 {given}\n"}
    study = loaded(drafted(tmp_path, files, "h100-sxm-1x1", model="gpt2-small"), tmp_path)
    config = ParallelConfig(micro_batch_size=12, accumulation_steps=1, precision="fp32")
    launch = with_own_outputs(
        trainer("command").launch(study.workload, config, study.trainer_options)
    )
    outputs = [word for word in launch.argv if word.startswith(("-o", "--work"))]
    assert outputs == [f"--work-dir={TRIAL_DIR}/work_dir"]
