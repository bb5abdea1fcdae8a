"""A knob that is added by one line: every part that was not taught it is named and refuses it, and
nothing that exists changes.

The line goes into a copy of the packages, which an interpreter of its own imports.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.spec import ParallelConfig
from autotune.testing.knobs import PARTS, knob_uses
from autotune.trainers import trainer_names

ROOT = Path(__file__).parents[1]
LINE = """    ddp_bucket_mb: int = knob("count", 25, "size of a gradient bucket of DDP", label="bucket{}", unit="MiB")
"""
BEFORE = "    extra: Mapping[str, Value] = NO_EXTRA\n"
ASKED = """
import json, sys
from dataclasses import replace
from autotune.cost import estimate
from autotune.errors import AutotuneError
from autotune.schema import json_schema, parse_space
from autotune.spec import KNOBS, ParallelConfig, config_label
from autotune.testing.trainers import WORKLOAD
from autotune.trainers import trainer, trainer_names
from autotune_workers.runners.simulated import SIMULATED_RUNNER

plain = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4)
other = replace(plain, ddp_bucket_mb=100)

def refusal(ask):
    try:
        ask()
    except AutotuneError as error:
        return f"{error.field}: {error}"

def figures(config):
    return estimate(WORKLOAD, config).step_time_s, SIMULATED_RUNNER.key(config)

print(json.dumps({
    "labels": [config_label(plain), config_label(other), str(ParallelConfig.parse(config_label(other)) == other)],
    "keys": [plain.key, other.key],
    "schema": "ddp_bucket_mb" in json_schema()["$defs"]["SpaceDocument"]["properties"],
    "space": parse_space({"ddp_bucket_mb": [25, 100]}).knobs["ddp_bucket_mb"],
    "at its default": {
        name: [limit.knob for limit in trainer(name).limits(WORKLOAD, plain) if limit.knob != "workload.rl"] == []
        for name in trainer_names()
    },
    "limits": {
        name: [limit.knob for limit in trainer(name).limits(WORKLOAD, other, {"argv": ["x", "{dp}"]} if name == "command" else {})]
        for name in trainer_names()
    },
    "cost model": refusal(lambda: estimate(WORKLOAD, other)),
    "same figures": refusal(lambda: figures(other)) is None and figures(other) == figures(plain),
    "command": trainer("command").launch(WORKLOAD, other, {"argv": sys.argv[1:]}).argv,
}))
"""


def with_the_line(folder: Path) -> Path:
    """A copy of the packages with one knob more."""
    for package in ("autotune", "workers/autotune_workers"):
        shutil.copytree(
            ROOT / package,
            folder / Path(package).name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    config = folder / "autotune" / "spec" / "config.py"
    text = config.read_text()
    assert text.count(BEFORE) == 1
    config.write_text(text.replace(BEFORE, LINE + BEFORE))
    return folder


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_the_line(tmp_path_factory.mktemp("grown"))


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """An interpreter that finds the packages in this folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=900,
    )


def answers(folder: Path) -> dict[str, Any]:
    """What the packages in this folder do with the new knob."""
    done = python(
        folder,
        "-c",
        ASKED,
        "x",
        "{dp}",
        "{micro_batch_size}",
        "{accumulation_steps}",
        "{ddp_bucket_mb}",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_every_part_that_forgot_the_knob_is_named(grown: Path) -> None:
    done = python(grown, "-m", "autotune.testing.knobs")
    assert done.returncode == 1, done.stderr
    # `command` knows every knob by its placeholder as soon as it is declared
    forgetful = [use.part for use in knob_uses() if use.part != "trainer command"]
    assert len(forgetful) == len(trainer_names()) - 1 + len(PARTS)
    sentences = [
        f"the {part} neither reads ddp_bucket_mb nor declares it neutral or impossible"
        for part in forgetful
    ]
    assert sorted(done.stdout.splitlines()) == sorted(sentences)


def test_the_knob_is_spelled_and_stored_without_further_code_and_refused_where_it_is_not_known(
    grown: Path,
) -> None:
    found = answers(grown)
    existing = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=4)
    assert found["labels"] == [
        "tp1 pp1 dp8 mb2 acc4 bf16",
        "tp1 pp1 dp8 mb2 acc4 bf16 bucket100",
        "True",
    ]
    assert found["keys"][0] == existing.key, "stored configs keep their key"
    assert json.loads(found["keys"][1].partition(":")[2])["ddp_bucket_mb"] == 100
    assert found["schema"]
    assert found["space"] == [25, 100]
    assert all(found["at its default"].values())
    for name in trainer_names():
        assert "ddp_bucket_mb" in found["limits"][name], f"the {name} trainer drops the knob"
    assert found["command"] == ["x", "8", "2", "4", "100"]
    assert found["cost model"].startswith("ddp_bucket_mb: ")
    assert "does not support ddp_bucket_mb, but ddp_bucket_mb=100" in found["cost model"]


@pytest.mark.thorough
def test_a_knob_that_is_declared_neutral_makes_no_difference_in_estimate_and_simulation(
    tmp_path: Path,
) -> None:
    folder = with_the_line(tmp_path)
    declared = folder / "autotune" / "cost" / "model_knobs.py"
    text = declared.read_text()
    mark = "    own_knobs_neutral="
    assert text.count(mark) == 1
    declared.write_text(
        text.replace(
            mark, f'    neutral={{"ddp_bucket_mb": "hidden behind the backward pass"}},\n{mark}'
        )
    )
    found = answers(folder)
    assert found["cost model"] is None
    assert found["same figures"]
    assert "cost model" not in python(folder, "-m", "autotune.testing.knobs").stdout
