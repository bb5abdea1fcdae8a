"""Each name of an option is one option: what a launch gives by any of them is what the program is
started with."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from autotune.onboarding.first_spec import command_draft, first_draft
from tests.onboarding.drafting import Launch, Read, argv, drafted
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
def test_the_value_given_by_any_name_is_todays_and_stands_once(
    tmp_path: Path, program: str, arguments: str
) -> None:
    files = {"train.py": program + PRINTS, "run.sh": f"python train.py {arguments}\n"}
    draft = drafted(tmp_path, files, "h100-sxm-1x1", model="gpt2-small")
    Read(baseline="dp=1,micro_batch_size=6,", document={"workload/global_batch_size": 12}).check(
        draft, tmp_path
    )
    words = argv(draft)
    assert sum("micro_batch_size" in word for word in words) == 1
    assert sum("accumulation_steps" in word for word in words) == 1
    assert not {
        "-b",
        "6",
        "-b6",
        "-b=6",
        "--acc",
        "2",
        "--acc=2",
        "--batch=6",
        "--batch-size=6",
    } & set(words)


def launch(arguments: str, read: Read, program: str = ARGPARSE) -> Launch:
    files = {"train.py": program + PRINTS, "run.sh": f"python train.py {arguments}\n"}
    return Launch(files, read, "h100-sxm-1x1", "gpt2-small")


DATA = 'p.add_argument("data", nargs="?", default="cats")'
READ = {
    "a beginning that two options have is left as it is": launch(
        "-b 6 --grad 2",
        Read(document={"workload/global_batch_size": 6}, words=("--grad=2",)),
        f'{ARGPARSE}p.add_argument("--grad-clip", type=float, default=1.0)\n',
    ),
    "a short option without a knob stays as it is written": launch(
        "-b 6 -j 2 -v", Read(start=("python", "train.py", "-j", "2", "-v"), without=("--workers",))
    ),
    "what stands behind a flag is its own": launch(
        "--bf16 dogs -b 6",
        Read(words=("dogs", "{precision}"), without=("--bf16",), knobs=("precision=bf16",)),
    ),
    "a flag that is switched off by another name is off": launch(
        "-b 6 --plain-matmul",
        Read(
            document={
                "baseline": "dp=1,micro_batch_size=6,precision=fp32",
                "space/compile": [False, True],
            },
            without=("--plain-matmul",),
        ),
    ),
    **{
        f"a positional that may be left out is not asked for: {more}": launch(
            "-b 6",
            Read(without=("FILL-IN",), settled=("trainer.argv",)),
            ARGPARSE.replace(DATA, f"p.add_argument('data', {more})"),
        )
        for more in ("nargs='?'", "nargs='*'", "nargs='?', default='x'", "nargs=argparse.REMAINDER")
    },
    "a positional that the launch gives is not asked for": launch(
        "-v dogs -b 6",
        Read(words=("dogs",), without=("FILL-IN",)),
        ARGPARSE.replace(DATA, 'p.add_argument("data")'),
    ),
    "a positional that the launch does not give is asked for": launch(
        "-b 6", Read(words=("FILL-IN",)), ARGPARSE.replace(DATA, 'p.add_argument("data")')
    ),
    "a positional with a knob is told in its place": launch(
        "512 dogs -b 6",
        Read(start=("python", "train.py", "{seq_len}", "dogs"), without=("512",)),
        ARGPARSE.replace(DATA, f'p.add_argument("seq_len", type=int)\n{DATA}'),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    READ[name].check(tmp_path)


PLACES = {
    "argparse": """\
        import argparse
        p = argparse.ArgumentParser()
        p.add_argument("out", nargs="?", default="o")
        p.add_argument("batch_size", type=int, nargs="?", default=4)
        p.parse_args()
        """,
    "click": """\
        import click
        @click.command()
        @click.argument("out", default="o")
        @click.argument("batch_size", type=int, default=4)
        def main(out, batch_size): pass
        main()
        """,
}


@pytest.mark.parametrize(
    ("words", "due"),
    [
        ("", ["o", "{micro_batch_size}"]),
        ("my", ["my", "{micro_batch_size}"]),
        ("my 8", ["my", "{micro_batch_size}"]),
    ],
)
@pytest.mark.parametrize("parser", PLACES)
def test_a_positional_that_is_tuned_stays_behind_those_before_it(
    tmp_path: Path, parser: str, words: str, due: list[str]
) -> None:
    path = file_with(tmp_path / "train.py", dedent(PLACES[parser]))
    place = {"model": "gpt2-small", "cluster": "h100-sxm-1x1"}
    draft = command_draft(["python", str(path), *words.split()], folder=tmp_path, **place)
    assert draft.document["trainer"]["argv"][2:] == due
    if not words:
        alone = first_draft(path, folder=tmp_path, **place)
        assert alone.document["trainer"]["argv"][2:] == due


def test_one_that_is_required_before_it_is_asked_for_in_its_place(tmp_path: Path) -> None:
    text = dedent(PLACES["click"]).replace('"out", default="o"', '"out"')
    draft = first_draft(file_with(tmp_path / "train.py", text), folder=tmp_path, cluster="cpu-1x1")
    assert draft.document["trainer"]["argv"][2:] == ["FILL-IN", "{micro_batch_size}"]
