"""A program that reads its batch from the environment is tuned by its variables, in a draft and in
a review."""

from __future__ import annotations

from pathlib import Path

from autotune.onboarding.draft import Draft
from autotune.reviews import review
from autotune.spec import ParallelConfig
from autotune.trainers import trainer
from tests.onboarding.drafting import drafted, loaded
from tests.shortcuts import write

CONFIG = """
import os
BATCH_SIZE = int(os.environ.get("BATCH_SIZE", "4"))
GRAD_ACCUM = int(os.getenv("GRAD_ACCUM", 2))
SEQ_LEN = int(os.environ["SEQ_LEN"])
MAX_ITERS = int(os.environ.get("MAX_ITERS", 300))
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
NAME, OMP = os.environ.get("RUN_NAME", "a"), os.environ.get("OMP_NUM_THREADS")
"""
FILES = {
    "run.sh": "export BATCH_SIZE=8 SEQ_LEN=64 OMP_NUM_THREADS=1\ntorchrun --nproc_per_node=2 train.py\n",
    "train.py": "import config as cfg\nprint(cfg.BATCH_SIZE)\n",
    "config.py": CONFIG,
}


def draft_of(folder: Path, files: dict[str, str]) -> Draft:
    return drafted(folder, files, "h100-sxm-1x2", model="gpt2-small")


def test_variables_that_the_program_reads_tell_a_trial_its_config(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, FILES)
    assert draft.document["trainer"]["env"] == {
        "BATCH_SIZE": "{micro_batch_size}",
        "GRAD_ACCUM": "{accumulation_steps}",
        "SEQ_LEN": "{seq_len}",
        "MAX_ITERS": "{steps}",
        "OMP_NUM_THREADS": "1",
    }
    assert draft.document["workload"] == {"seq_len": 64, "global_batch_size": 8 * 2 * 2}
    assert draft.document["trainer"]["training"] == {"steps": 300}
    assert draft.fill_in == ()
    study = loaded(draft, tmp_path)
    config = ParallelConfig(dp=2, micro_batch_size=16, accumulation_steps=1, precision="fp32")
    launch = trainer("command").launch(
        study.workload, config, {**study.trainer_options, "steps": 7}
    )
    told = {name: launch.env[name] for name in ("BATCH_SIZE", "GRAD_ACCUM", "SEQ_LEN", "MAX_ITERS")}
    assert told == {"BATCH_SIZE": "16", "GRAD_ACCUM": "1", "SEQ_LEN": "64", "MAX_ITERS": "7"}


def test_an_option_tells_what_its_default_takes_from_the_environment(tmp_path: Path) -> None:
    program = (
        "import argparse, os\np = argparse.ArgumentParser()\n"
        "p.add_argument('--batch-size', type=int, default=int(os.environ.get('BATCH_SIZE', 4)))\n"
    )
    draft = draft_of(tmp_path, {"run.sh": "python train.py --batch-size 8\n", "train.py": program})
    assert "env" not in draft.document["trainer"]
    assert "--batch-size={micro_batch_size}" in draft.document["trainer"]["argv"]


def test_an_edit_of_a_variable_is_the_line_that_exports_it(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    found = review(tmp_path / "run.sh", cluster="h100-sxm-1x2", model="gpt2-small")
    edit = next(edit for edit in found.edits if edit.knob == "micro_batch_size")
    assert edit.lines[0].line == 1
    assert "export BATCH_SIZE=16 SEQ_LEN=64" in edit.lines[0].after
    assert edit.unplaced == ("GRAD_ACCUM=1",)
