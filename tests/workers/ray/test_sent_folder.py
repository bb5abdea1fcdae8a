"""Programs, and models that code builds, over two real nodes that do not see their folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.ports import LogRead
from autotune.spec import ModelCode
from autotune.testing.runners import ended, events_until_ended
from autotune_workers.runners.ray import RayRunner
from tests.nodes.ray_nodes import RayNodes
from tests.workers import own_models
from tests.workers.program_requests import GLOO, on_two_nodes
from tests.workers.ray.two_node_trials import ALONE, measured, spread
from tests.workers.requests import one

pytestmark = ALONE


@pytest.fixture(scope="module")
def runner(two_nodes: RayNodes) -> Iterator[RayRunner]:
    with RayRunner(address=two_nodes.address) as runner:
        yield runner


@pytest.mark.slow
def test_nodes_that_do_not_see_the_folder_are_sent_it(two_nodes: RayNodes, runner: RayRunner, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(GLOO, folder)
    for node in two_nodes.nodes:
        assert node.start("mount", "-t", "tmpfs", "tmpfs", str(folder)).wait() == 0
    asked = on_two_nodes(0, cwd=folder, working_dir="upload")
    runner.start(asked)
    events = events_until_ended(runner, [asked.id])
    assert ended(events).failure is None, ended(events).failure
    lines = [line for e in events if isinstance(e, LogRead) for line in e.lines if line.startswith("rank ")]
    assert {line.split()[3] for line in lines} == {node.name for node in two_nodes.nodes}
    assert not any(str(folder) in line for line in lines)
    assert one(runner, on_two_nodes(1, cwd=folder)).failure is not None


@pytest.mark.slow
def test_ranks_that_do_not_see_the_folder_of_a_module_are_sent_it(
    two_nodes: RayNodes, runner: RayRunner, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(own_models.__file__, folder / "mine.py")
    for node in two_nodes.nodes:
        assert node.start("mount", "-t", "tmpfs", "tmpfs", str(folder)).wait() == 0
    asked = spread(2, trainer_options={"working_dir": "upload"})
    code = ModelCode(module="mine:language_model", args='{"depth": 2}', folder=str(folder), num_parameters=100_000)
    model = replace(asked.workload.model, vocab_size=256, code=code)
    asked = replace(asked, workload=replace(asked.workload, model=model))
    measured(runner, asked)
    (folder / "mine.py").write_text("raise RuntimeError('the folder is packed once')")
    measured(runner, replace(asked, number=3))
