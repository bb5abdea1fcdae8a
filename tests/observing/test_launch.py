"""What is reviewed of a command, and what is found of its Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.observing.launch import cluster_here, target_of
from autotune.observing.versions import versions_of
from autotune.trainers.base.own_program import name_in, program_name
from tests.shortcuts import file_with

TASKS = {"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("command", "environment", "target"),
    [
        ("python train.py --lr 1", {}, "python train.py --lr 1"),
        (
            "python -u train.py --lr 1",
            TASKS,
            "torchrun --nnodes=2 --nproc-per-node=8 train.py --lr 1",
        ),
        (
            "python -m pkg.train",
            {"OMPI_COMM_WORLD_SIZE": "4"},
            "torchrun --nnodes=1 --nproc-per-node=4 -m pkg.train",
        ),
        (
            "torchrun --nnodes=2 train.py",
            {**TASKS, "SLURM_STEP_NUM_TASKS": "2"},
            "torchrun --nnodes=2 train.py",
        ),
    ],
)
def test_tasks_of_a_scheduler_are_ranks(
    command: str, environment: dict[str, str], target: str
) -> None:
    assert target_of(command.split(), environment) == tuple(target.split())


def test_a_shell_stands_for_its_script(tmp_path: Path) -> None:
    script = file_with(tmp_path / "train.sh", "torchrun train.py\n")
    for command in (["bash", str(script)], [str(script)]):
        assert target_of(command, {}) == script
    given = ("bash", str(script), "--more")  # its arguments are read with it
    assert target_of(given, {}) == given
    assert target_of(["bash", "-c", "torchrun train.py"], {}) == ("bash", "-c", "torchrun train.py")


def test_the_cluster_has_the_ranks_of_the_launch() -> None:
    here = cluster_here(None, (2, 3))
    assert (here.num_nodes, here.gpus_per_node) == (2, 3)
    assert cluster_here(None, None).num_gpus == 1


def test_a_program_has_the_name_of_its_file_or_module() -> None:
    assert name_in(["torchrun", "--nproc-per-node", "8", "src/train.py", "--a", "b"]) == "train.py"
    assert name_in(["python", "-m", "torch.distributed.run", "train.py"]) == "train.py"
    assert name_in(["accelerate", "launch", "-m", "pkg.train"]) == "pkg.train"
    assert program_name("megatron", {"argv": ["x.py"]}) == "megatron"
    assert (
        program_name("command", {"argv": ["torchrun", "train.py", "--mb={micro_batch_size}"]})
        == "train.py"
    )


def test_versions_are_those_of_the_commands_own_python() -> None:
    found = versions_of([sys.executable, "train.py"])
    assert found["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found["torch"]
    assert versions_of([str(Path(sys.executable).with_name("torchrun")), "train.py"]) == found
    assert versions_of(["sh", "-c", "true"]) == {}
