"""Every value that a first spec lists has a valid config: over the launches and scripts of the
tests beside this one, and the programs that other tests start."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.onboarding
from autotune import api
from autotune.errors import AutotuneError
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from autotune.onboarding.valid_values import with_valid_values
from autotune.space import SearchSpace
from tests.matrix import sampled
from tests.onboarding.drafting import A100, Launch, drafted, loaded
from tests.shortcuts import file_with

TESTS = Path(__file__).parents[1]
CLUSTERS = (A100, "h100-sxm-2x8", "cpu-1x4")


def _launches() -> Iterator[tuple[str, Launch]]:
    """Of the tables of this folder."""
    for module in pkgutil.iter_modules(tests.onboarding.__path__):
        if module.name.startswith("test_") and module.name not in __name__:
            for name, value in vars(
                importlib.import_module(f"{tests.onboarding.__name__}.{module.name}")
            ).items():
                rows = value.items() if isinstance(value, dict) else ()
                yield from ((f"{name}: {key}", row) for key, row in rows if isinstance(row, Launch))


LAUNCHES = dict(_launches())
PROGRAMS = sorted(
    [
        *TESTS.glob("onboarding/scripts/*.py.txt"),
        *TESTS.glob("*/programs/[a-z]*.py"),
        *TESTS.glob("workers/*/programs/*.py"),
    ]
)


def unused(draft: Draft, folder: Path) -> dict[str, list[Any]]:
    """Values of its space that no valid config has, by knob, read from its text."""
    study = loaded(draft, folder)
    table = SearchSpace.of_study(study).table
    found = {
        "world_sizes": set(study.space.world_sizes) - set(np.unique(table.world_size).tolist())
    }
    for name, values in study.space.knobs.items():
        knob, codes = table.knobs[name], set(np.unique(table.column(name)).tolist())
        found[name] = {value for value in values if knob.encode(value) not in codes}
    today = study.baseline
    return {
        name: sorted(values, key=str)
        for name, values in found.items()
        if values - ({today.value(name)} if today and name in table.knobs else set())
    }


def check(draft: Draft, folder: Path) -> None:
    """What `init` writes of it lists valid values, unless stand-ins decide, or no config at all is
    valid, as is said."""
    try:
        study = loaded(draft, folder)
        written = with_valid_values(draft, study)
    except AutotuneError:  # no config is valid here, which is said, or the cluster is too small
        return
    if {"cluster", "workload.global_batch_size"} & set(draft.fill_in):
        return
    listed = draft.document["space"]
    left = unused(written, folder) if isinstance(listed, dict) else {}
    if {"model", "workload.seq_len"} & set(draft.fill_in):
        left = {name: left[name] for name in left.keys() & {"micro_batch_size", "world_sizes"}}
    assert left == {}
    assert loaded(written, folder).baseline == study.baseline
    kept, before = (SearchSpace.of_study(each) for each in (loaded(written, folder), study))
    assert {*kept.table} == {*before.table}, "and not one config is lost"


def test_tables_and_programs_are_found() -> None:
    assert len(LAUNCHES) > 100
    assert len(PROGRAMS) > 20


@pytest.mark.thorough
@pytest.mark.parametrize("name", LAUNCHES)
def test_every_value_of_a_launch_is_valid_for_some_config(name: str, tmp_path: Path) -> None:
    launch = LAUNCHES[name]
    try:
        draft = drafted(tmp_path, launch.files, launch.cluster, model=launch.model)
    except AutotuneError:
        return
    check(draft, tmp_path)


@pytest.mark.parametrize("cluster", sampled(CLUSTERS, [A100]))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_every_value_of_a_program_is_valid_for_some_config(
    program: Path, cluster: str, tmp_path: Path
) -> None:
    script = file_with(tmp_path / "train.py", program.read_text())
    check(first_draft(script, cluster=cluster, folder=tmp_path), tmp_path)


def test_what_init_prints_lists_no_value_without_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.cli import run

    monkeypatch.chdir(tmp_path)
    file_with(
        tmp_path / "train.py",
        "import argparse\np = argparse.ArgumentParser()\n"
        'p.add_argument("--batch-size", type=int, default=8)\np.add_argument("--accum", type=int, default=1)\n'
        'p.add_argument("--seq-len", type=int, default=64)\np.parse_args()\n',
    )
    options = ["--model", "nano-gpt", "--cluster", "cpu-1x1", "-o", "spec.yaml"]
    assert run(["init", "train.py", *options]) == 0
    study = api.load_study(tmp_path / "spec.yaml")
    assert study.space.knobs["micro_batch_size"] == (2, 4, 8), "of a batch of 8"
