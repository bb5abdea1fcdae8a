"""Programs, and models that code builds, over two real nodes that do not see their folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.ports import LogRead
from autotune.spec import ModelCode
from autotune.testing.runners import ended
from autotune_workers.runners.ray import RayRunner
from tests.nodes.ray_nodes import RayNodes
from tests.workers import own_models
from tests.workers.program_requests import GLOO, on_two_nodes
from tests.workers.ray.two_node_trials import ALONE, measured, spread
from tests.workers.requests import events_of, measurement_of, one

pytestmark = ALONE


@pytest.fixture(scope="module")
def runner(two_nodes: RayNodes) -> Iterator[RayRunner]:
    with RayRunner(address=two_nodes.address) as runner:
        yield runner


def unseen(nodes: RayNodes, tmp_path: Path, file: str | Path, name: str = "") -> Path:
    """A folder of the driver's with this file, which is empty on all nodes."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(file, folder / name)
    for node in nodes.nodes:
        assert node.start("mount", "-t", "tmpfs", "tmpfs", str(folder)).wait() == 0
    return folder


@pytest.mark.slow
def test_nodes_that_do_not_see_the_folder_are_sent_it(
    two_nodes: RayNodes, runner: RayRunner, tmp_path: Path
) -> None:
    folder = unseen(two_nodes, tmp_path, GLOO)
    events = events_of(runner, on_two_nodes(0, cwd=folder, working_dir="upload"))
    measurement_of(ended(events))
    lines = [
        line
        for e in events
        if isinstance(e, LogRead)
        for line in e.lines
        if line.startswith("rank ")
    ]
    assert {line.split()[3] for line in lines} == {node.name for node in two_nodes.nodes}
    assert not any(str(folder) in line for line in lines)
    assert one(runner, on_two_nodes(1, cwd=folder)).failure is not None


@pytest.mark.slow
def test_ranks_that_do_not_see_the_folder_of_a_module_are_sent_it(
    two_nodes: RayNodes, runner: RayRunner, tmp_path: Path
) -> None:
    folder = unseen(two_nodes, tmp_path, own_models.__file__, "mine.py")
    asked = spread(2, trainer_options={"working_dir": "upload"})
    code = ModelCode(
        module="mine:language_model",
        args='{"depth": 2}',
        folder=str(folder),
        num_parameters=100_000,
    )
    model = replace(asked.workload.model, vocab_size=256, code=code)
    asked = replace(asked, workload=replace(asked.workload, model=model))
    measured(runner, asked)
    (folder / "mine.py").write_text("raise RuntimeError('the folder is packed once')")
    measured(runner, replace(asked, number=3))
