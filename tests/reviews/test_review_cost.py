"""What a review costs, in figures that do not depend on how fast the machine is: what it loads, and
how often it asks the cost model and the trainer."""

from __future__ import annotations

import cProfile
import gc
import os
import pstats
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.fast_start import fast_start
from autotune.reviews import review
from tests.benchmarks.review_time import LAUNCHES, NODE

UNNEEDED = (
    "torch",
    "ray",
    "optuna",
    "botorch",
    "transformers",
    "pandas",
    "matplotlib",
    "sqlalchemy",
    "alembic",
    "fastapi",
    "httpx",
    "scipy",
    "rich",
    "jinja2",
)
LOADED = f"""
import io, contextlib, sys
from autotune.cli import run
with contextlib.redirect_stdout(io.StringIO()):
    assert run(sys.argv[1:]) in (0, 1)
print(*sorted(set({UNNEEDED!r}) & sys.modules.keys()))
"""
MOST_MODULES = 750
"""at most so many are loaded, Python's own too"""


def written(name: str, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The file to review and its options."""
    files, options = LAUNCHES[name]
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder / next(iter(files)), options


@pytest.mark.parametrize("name", ["transformers' Trainer, FSDP", "verl"])
def test_a_review_loads_nothing_that_it_does_not_need(name: str, tmp_path: Path) -> None:
    file, options = written(name, tmp_path)
    program = LOADED + f"assert len(sys.modules) < {MOST_MODULES}, len(sys.modules)\n"
    words = [sys.executable, "-c", program, "review", str(file), *options]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("name", "estimates", "questions"),
    [
        ("transformers' Trainer, FSDP", 20, 200),
        ("Megatron-LM, 8B", 30, 500),
        ("verl", 30, 200),
        ("NeMo-RL", 30, 300),
    ],
)
def test_the_cost_model_and_the_trainer_are_asked_a_few_times(
    name: str, estimates: int, questions: int, tmp_path: Path
) -> None:
    """Neither once for each constant, nor for each way to pack, nor for each config in the
    space."""
    file, options = written(name, tmp_path)
    cluster = dict(zip(options[::2], options[1::2], strict=True)).get("--cluster", NODE)
    profile = cProfile.Profile()
    profile.enable()
    found = review(file, cluster=cluster)
    profile.disable()
    assert found.estimate is not None
    calls = {
        (Path(where).name, function): count
        for (where, _, function), (count, *_) in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    }
    assert 0 < calls["step.py", "time_parts"] <= estimates
    assert 0 < calls["trainer.py", "limits"] <= questions


def test_a_brief_command_gives_back_what_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    monkeypatch.delenv("PYDANTIC_DISABLE_PLUGINS", raising=False)
    before = dict(os.environ)
    with fast_start():
        assert not gc.isenabled()
        assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
        assert os.environ["PYDANTIC_DISABLE_PLUGINS"] == "__all__"
    assert gc.isenabled()
    assert dict(os.environ) == before
