"""What a review prints is at most 25 rows of 100 columns; what is left out is counted and printed
by --all."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run
from autotune.reviews import MOST, Review, lines_of, review
from autotune.reviews.answer import Danger, Edit, Gain, LineEdit, Missing
from autotune.reviews.words import WIDTH, gain_words
from tests.reviews.test_reviews import PYTORCH_JOB, SPEC, TITAN, TRAIN_JOB, TRAINER
from tests.shortcuts import file_with

LOOP = """import argparse, torch
p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=8)
p.add_argument("--seq-len", type=int, default=1024)
p.add_argument("--accum", type=int, default=4)
args = p.parse_args()
loader = torch.utils.data.DataLoader(data, batch_size=args.batch_size)
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = model(x)
"""
WORDS = [f"--option{n}-of-the-program={n * 1111}" for n in range(60)]
LAUNCHES = {
    "train.sh": TRAINER,
    "one_line.sh": " ".join(
        TRAINER.split("BS=1\n")[1].replace("\\\n", "").replace("$BS", "1").split()
    ).replace(" 2>&1 | tee log.txt", " ".join(["", *WORDS])),
    "llama.toml": TITAN,
    "job.yaml": TRAIN_JOB,
    "pytorch.yaml": PYTORCH_JOB,
    "study.yaml": SPEC,
    "loop.py": LOOP,
}
EDIT = Edit(
    changes={"micro_batch_size": (1, 2)},
    alone=Gain(gain=1.2, low=1.1, high=1.3),
    lines=(LineEdit(file="train.sh", line=3, before="--mbs 1", after="--mbs 2"),) * 3,
    unplaced=("--a=1",),
)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LAUNCHES)
@pytest.mark.parametrize(
    "said", [{}, {"cluster": "h100-sxm-1x8", "seq_len": 2048, "model": "llama-8b"}]
)
def test_a_review_of_anything_is_at_most_25_rows_of_100_columns(
    name: str, said: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(LAUNCHES[name])
    given = {key: value for key, value in said.items() if name != "study.yaml" or key == "cluster"}
    found = review(tmp_path / name, **given)
    lines = lines_of(found, tokens=1e12)
    assert len(lines) <= MOST
    assert max(map(len, lines)) <= WIDTH
    everything = lines_of(found, tokens=1e12, most=None)
    assert len(everything) >= len(lines)
    assert all("--all" not in line for line in everything)


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (Gain(gain=1.36, low=1.13, high=1.71), "+36% (+13% to +71%)"),
        (Gain(gain=3.266, low=1.2, high=4.1), "3.27x the speed (1.2x to 4.1x)"),
    ],
)
def test_a_gain_from_twice_the_speed_on_is_a_factor(gain: Gain, said: str) -> None:
    assert gain_words(gain) == said


def stuffed(tmp_path: Path) -> Review:
    """With far more to say than there is room for."""
    found = review(file_with(tmp_path / "train.sh", TRAINER), cluster="h200-sxm")
    assert found.together is not None
    return replace(
        found,
        edits=(EDIT,) * 9,
        warnings=tuple(
            Danger(text=f"danger {n} " + "word " * 30, line=n, file="train.sh")
            for n in range(1, 12)
        ),
        assumed=tuple(f"option {n} " + "word " * 30 for n in range(1, 12)),
    )


def test_the_most_valuable_stays_and_the_rest_is_counted(tmp_path: Path) -> None:
    found = stuffed(tmp_path)
    lines = lines_of(found, tokens=1e12)
    assert len(lines) == MOST or len(lines) > MOST - 5
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert "fits: " in text
    assert "together: " in text
    shown = {
        "edit": len(re.findall(r"^\d+\. ", text, re.MULTILINE)),
        "warning": len(re.findall(r"^! ", text, re.MULTILINE)),
        "assumption": len(re.findall(r"^  assumed: ", text, re.MULTILINE)),
    }
    counted = {noun: int(count) for count, noun in re.findall(r"(\d+) more (\w+?)s?\b", lines[-1])}
    for noun, all_of_them in (("edit", 9), ("warning", 11), ("assumption", 11)):
        assert shown[noun] >= 1
        assert shown[noun] + counted[noun] == all_of_them
    assert "1. " in text
    everything = "\n".join(lines_of(found, most=None))
    assert everything.count("! train.sh:") == 11
    assert everything.count("assumed: ") == 11


def test_what_is_missing_is_printed_before_everything_else(tmp_path: Path) -> None:
    found = Review(
        target="a.sh",
        understood="word " * 60,
        assumed=("x " * 90,) * 30,
        missing=(Missing(what="the model's shape", remedy="add --model"),) * 4,
        warnings=(Danger(text="y " * 90),) * 30,
    )
    lines = lines_of(found)
    assert len(lines) <= MOST
    assert sum("missing: the model's shape" in line for line in lines) == 4


def test_of_a_long_line_what_changes_is_shown(tmp_path: Path) -> None:
    found = review(file_with(tmp_path / "one_line.sh", LAUNCHES["one_line.sh"]), cluster="h200-sxm")
    line = next(
        line for line in lines_of(found) if "one_line.sh:1: " in line and not line.startswith("!")
    )
    assert "--gradient_checkpointing False" in line
    assert len(line) <= WIDTH


def test_of_a_long_line_with_changes_far_apart_the_first_is_shown() -> None:
    options = "".join(f"--option_{number} value " for number in range(20))
    before = f"torchrun train.py {options}--micro 2 {options}--compile False"
    line = LineEdit(
        file="train.sh",
        line=1,
        before=before,
        after=before.replace("--micro 2", "--micro 4").replace("False", "True"),
    )
    edit = Edit(
        changes={"micro_batch_size": (2, 4), "compile": (False, True)}, alone=None, lines=(line,)
    )
    found = lines_of(Review(target="train.sh", understood="a launch", edits=(edit,)))
    (shown,) = [each for each in found if "train.sh:1: " in each]
    assert "--micro 4" in shown
    assert len(shown) <= WIDTH


def test_all_prints_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sh"
    options = "".join(
        f"export {name}=1\n"
        for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "CUDA_LAUNCH_BLOCKING")
    )
    script.write_text(TRAINER.replace("BS=1\n", f"BS=1\n{options * 8}"))
    run(["review", str(script), "--cluster", "h200-sxm"])
    few = capsys.readouterr().out
    run(["review", str(script), "--cluster", "h200-sxm", "--all"])
    everything = capsys.readouterr().out
    assert len(few.splitlines()) <= MOST
    assert "more warnings; use --all to print everything" in few
    assert everything.count("NCCL_P2P_DISABLE=1") == 8


def test_what_changes_in_a_long_line_is_shown_whole(tmp_path: Path) -> None:
    new = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor"
    before = "torchrun pretrain_gpt.py " + " ".join(WORDS[:6])
    behind = LineEdit(file="train.sh", line=3, before="a: 1", after="a: 1\n" + f"{'b' * 70}: value")
    long = LineEdit(file="train.sh", line=3, before=before, after=f"{before} {new}")
    lines = lines_of(
        replace(
            stuffed(tmp_path), edits=(replace(EDIT, lines=(behind, long)),), warnings=(), assumed=()
        )
    )
    shown = " ".join(line.strip() for line in lines)
    assert new in shown
    assert f"add below: {'b' * 70}: value" in shown
    assert max(map(len, lines)) <= WIDTH
