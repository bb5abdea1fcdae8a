"""Each name of an option is one option: what a launch gives by any of them is what the program is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.onboarding.first_spec import first_draft
from tests.shortcuts import file_with

PRINTS = '\nfor step in range(9):\n    print(f"step {step} loss {loss:.3f}")\n'
ARGPARSE = """
import argparse
p = argparse.ArgumentParser()
p.add_argument("data", nargs="?", default="cats")
p.add_argument("-b", "--batch-size", type=int, default=64)
p.add_argument("--acc", "--grad-accum-steps", type=int, default=1)
p.add_argument("-j", "--workers", type=int, default=4)
p.add_argument("-v", "--verbose", action="store_true")
p.add_argument("--bf16", action="store_true")
p.add_argument("--plain-matmul", dest="use_compile", action="store_false")
"""
CLICK = """
import click
@click.command()
@click.option("-b", "--batch-size", default=64)
@click.option("--acc", "grad_accum_steps", default=1)
def main(batch_size, grad_accum_steps): ...
"""
TYPER = """
import typer
from typing import Annotated
app = typer.Typer()
@app.command()
def main(batch_size: Annotated[int, typer.Option("--bs", "-b")] = 64, grad_accum_steps: int = 1): ...
"""
ABSL = """
from absl import flags
flags.DEFINE_integer("batch_size", 64, "sequences", short_name="b")
flags.DEFINE_integer("grad_accum_steps", 1, "micro-batches")
"""
FIRE = """
import fire
def main(batch_size=64, grad_accum_steps=1): ...
fire.Fire(main)
"""
ALIASES = """
import tyro
from dataclasses import dataclass
from typing import Annotated
@dataclass
class Args:
    batch_size: Annotated[int, tyro.conf.arg(aliases=["-b"])] = 64
    grad_accum_steps: int = 1
args = tyro.cli(Args)
"""


def _drafted(tmp_path: Path, program: str, arguments: str) -> dict[str, Any]:
    (tmp_path / "train.py").write_text(program + PRINTS)
    script = file_with(tmp_path / "run.sh", f"python train.py {arguments}\n")
    draft = first_draft(script, model="gpt2-small", cluster="h100-sxm-1x1", folder=tmp_path)
    return {**draft.document, "fill_in": draft.fill_in}


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (ARGPARSE, "-b 6 --acc 2"),
        (ARGPARSE, "-b6 --acc=2"),
        (ARGPARSE, "-b=6 --grad-accum-steps 2"),
        (ARGPARSE, "-vb6 --grad-acc 2"),
        (ARGPARSE, "--batch 6 --grad=2"),
        (ARGPARSE, "-b 9 --acc 2 --batch-size 6"),
        (CLICK, "-b 6 --acc 2"),
        (TYPER, "-b 6 --grad-accum-steps 2"),
        (TYPER, "--bs 6 --grad-accum-steps 2"),
        (ABSL, "-b 6 -grad_accum_steps=2"),
        (FIRE, "-b 6 -g 2"),
        (ALIASES, "-b 6 --grad-accum-steps 2"),
    ],
)
def test_the_value_given_by_any_name_is_todays_and_stands_once(tmp_path: Path, program: str, arguments: str) -> None:
    spec = _drafted(tmp_path, program, arguments)
    assert spec["baseline"].startswith("dp=1,micro_batch_size=6,")
    assert spec["workload"]["global_batch_size"] == 12
    words = spec["trainer"]["argv"]
    assert sum("micro_batch_size" in word for word in words) == 1
    assert sum("accumulation_steps" in word for word in words) == 1
    assert not {"-b", "6", "-b6", "-b=6", "--acc", "2", "--acc=2", "--batch=6", "--batch-size=6"} & set(words)


def test_a_beginning_that_two_options_have_is_left_as_it_is(tmp_path: Path) -> None:
    two = ARGPARSE + 'p.add_argument("--grad-clip", type=float, default=1.0)\n'
    spec = _drafted(tmp_path, two, "-b 6 --grad 2")
    assert spec["workload"]["global_batch_size"] == 6
    assert "--grad=2" in spec["trainer"]["argv"]


def test_a_short_option_without_a_knob_stays_as_it_is_written(tmp_path: Path) -> None:
    spec = _drafted(tmp_path, ARGPARSE, "-b 6 -j 2 -v")
    words = spec["trainer"]["argv"]
    at = words.index("-j")
    assert words[at : at + 3] == ["-j", "2", "-v"]
    assert not any(word.startswith("--workers") for word in words)


def test_what_stands_behind_a_flag_is_its_own(tmp_path: Path) -> None:
    spec = _drafted(tmp_path, ARGPARSE, "--bf16 dogs -b 6")
    words = spec["trainer"]["argv"]
    assert "dogs" in words
    assert "{precision}" in words
    assert "--bf16" not in words
    assert "precision=bf16" in spec["baseline"]


def test_a_flag_that_is_switched_off_by_another_name_is_off(tmp_path: Path) -> None:
    spec = _drafted(tmp_path, ARGPARSE, "-b 6 --plain-matmul")
    assert "compile" not in spec["baseline"]
    assert spec["space"]["compile"] == [False, True]
    assert "--plain-matmul" not in spec["trainer"]["argv"]


@pytest.mark.parametrize("more", ["nargs='?'", "nargs='*'", "nargs='?', default='x'", "nargs=argparse.REMAINDER"])
def test_a_positional_that_may_be_left_out_is_not_asked_for(tmp_path: Path, more: str) -> None:
    program = ARGPARSE.replace('p.add_argument("data", nargs="?", default="cats")', f"p.add_argument('data', {more})")
    spec = _drafted(tmp_path, program, "-b 6")
    assert not any("FILL-IN" in word for word in spec["trainer"]["argv"])
    assert "trainer.argv" not in spec["fill_in"]


def test_a_positional_that_the_launch_gives_is_not_asked_for(tmp_path: Path) -> None:
    program = ARGPARSE.replace(', nargs="?", default="cats"', "")
    given, missing = _drafted(tmp_path, program, "-v dogs -b 6"), _drafted(tmp_path, program, "-b 6")
    assert "dogs" in given["trainer"]["argv"]
    assert "FILL-IN" not in given["trainer"]["argv"]
    assert "FILL-IN" in missing["trainer"]["argv"]


def test_a_positional_with_a_knob_is_told_in_its_place(tmp_path: Path) -> None:
    program = ARGPARSE.replace('p.add_argument("data"', 'p.add_argument("seq_len", type=int)\np.add_argument("data"')
    words = _drafted(tmp_path, program, "512 dogs -b 6")["trainer"]["argv"]
    assert words[words.index("{seq_len}") + 1] == "dogs"
    assert "512" not in words
