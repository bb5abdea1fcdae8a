"""What Slurm says of a job is read as it writes it, and nothing of our own step becomes a default
of the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.slurm.allocation import (
    allocation,
    is_on_a_node,
    notice_s,
    seconds_of,
    step_environment,
)
from autotune.slurm.hardware import cluster_from, slurm_cluster
from tests.shortcuts import file_with


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("2:30", 150.0),
        ("01:00:00", 3600.0),
        ("1-00", 86400.0),
        ("1-12:30", 86400.0 + 12.5 * 3600),
        ("2-03:04:05", 2 * 86400.0 + 3 * 3600 + 245),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
        ("1:2:3:4", None),
    ],
)
def test_times_are_read_as_slurm_writes_them(text: str, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


def commands(folder: Path) -> str:
    """A folder with commands of Slurm's names."""
    for name in ("srun", "scontrol"):
        file_with(folder / name, "#!/bin/sh\n").chmod(0o755)
    return str(folder)


def test_an_allocation_is_read_from_the_environment(tmp_path: Path) -> None:
    told = {
        "PATH": commands(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_JOB_CPUS_PER_NODE": "8(x2),4",
    }
    job = allocation(told)
    assert (job.job, job.num_nodes, job.restarts, job.cpus_per_node) == ("7", 3, 2, 4)
    assert allocation({**told, "PATH": "/nowhere"}) is None, "a container without Slurm's commands"
    assert allocation({"PATH": told["PATH"]}) is None


def test_a_step_is_not_told_of_the_step_that_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "SLURM_JOB_ID",
        "SLURM_CONF",
        "SLURM_NTASKS",
        "SLURM_STEP_ID",
        "SLURM_CPU_BIND",
        "SLURM_MEM_PER_NODE",
    ):
        monkeypatch.setenv(name, "1")
    kept = {name for name in step_environment() if name.startswith("SLURM_")}
    assert kept == {"SLURM_JOB_ID", "SLURM_CONF"}
    assert step_environment()["PATH"] == os.environ["PATH"]


def test_a_host_is_known_by_its_short_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1.cluster")
    assert is_on_a_node(["n1"])
    assert not is_on_a_node(["n2", "n3"])


def test_a_short_job_is_told_later() -> None:
    assert notice_s(4 * 60) == 30.0
    assert notice_s(86400) == 120.0


GPU = {
    "name": "NVIDIA H100 80GB HBM3",
    "memory_bytes": 85_000_000_000,
    "sms": 132,
    "clock_khz": 1_980_000,
    "memory_clock_khz": 2_619_000,
    "bus_bits": 5120,
    "major": 9,
    "minor": 0,
}


def node(
    host: str, *gpus: str, memory: int = 64 << 30, cpus: int = 8, given: int | None = None
) -> dict[str, object]:
    devices = [{**GPU, "name": name} for name in gpus]
    given_gpus = len(gpus) if given is None else given
    return {
        "host": host,
        "devices": devices,
        "given_gpus": given_gpus,
        "memory_bytes": memory,
        "cpus": cpus,
    }


def test_the_cluster_is_what_all_nodes_have() -> None:
    found = cluster_from(
        [node("n1", *[str(GPU["name"])] * 4), node("n2", *[str(GPU["name"])] * 4)], num_nodes=2
    )
    assert (found.gpu.name, found.num_nodes, found.gpus_per_node) == ("h100-sxm", 2, 4)
    assert found.gpu.memory_bytes == 85e9, "what is really there"


def test_nodes_of_cpus_share_the_least_that_one_has() -> None:
    found = cluster_from(
        [node("n1", memory=16 << 30), node("n2", memory=8 << 30, cpus=2)], num_nodes=2
    )
    assert (found.gpu.name, found.num_nodes, found.gpus_per_node) == ("cpu", 2, 2)
    assert found.gpu.memory_bytes == 4 << 30


def test_mixed_types_are_refused_by_name() -> None:
    with pytest.raises(
        SpecError, match=r"n1 has 1 x NVIDIA H100 80GB HBM3; n2 has 1 x NVIDIA A100-SXM4-80GB"
    ) as refused:
        cluster_from(
            [node("n1", str(GPU["name"])), node("n2", "NVIDIA A100-SXM4-80GB")], num_nodes=2
        )
    assert "constraint" in refused.value.remedy


def test_gpus_that_no_driver_describes_are_asked_for() -> None:
    with pytest.raises(
        SpecError, match="gives this job 2 GPUs on each node, but there is no CUDA driver"
    ):
        cluster_from([node("n1", given=2), node("n2", given=2)], num_nodes=2)


def test_outside_of_a_job_there_is_no_such_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(SpecError, match="this process is not in a Slurm job") as refused:
        slurm_cluster()
    assert "--on slurm" in refused.value.remedy
