"""The local cluster is what is really here."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import detect
from autotune.detect import (
    CudaDevice,
    cpu_cluster,
    free_memory_bytes,
    gpu_of,
    memory_bytes,
    usable_cores,
)
from autotune.spec import catalog
from autotune_workers.probe.injected import machine as probed

GIB = 1 << 30
H100 = CudaDevice(
    name="NVIDIA H100 80GB HBM3",
    memory_bytes=85 * 10**9,
    sms=132,
    clock_khz=1_980_000,
    memory_clock_khz=2_619_000,
    bus_bits=5120,
    major=9,
    minor=0,
)


def test_the_local_cluster_is_one_node() -> None:
    cluster = detect.local_cluster()
    assert cluster.num_nodes == 1
    assert cluster.num_gpus >= 1
    assert cluster.gpu.memory_bytes > 0


@pytest.mark.parametrize(
    ("memory", "ranks"),
    [(64 * GIB, 4), (4 * GIB, 4), (3 * GIB, 2), (GIB + GIB // 2, 1), (GIB // 4, 1)],
)
def test_cpu_ranks_share_the_memory(memory: int, ranks: int) -> None:
    cluster = cpu_cluster(memory)
    assert cluster.name == f"cpu-1x{ranks}"
    assert cluster.gpu.is_cpu
    assert cluster.gpu.memory_bytes == memory // ranks


def machine(root: Path, *, cgroup: str = "", **files: str) -> Path:
    """A /proc and /sys of 8 GiB, with these control group files (path with __ for /)."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text(
        f"MemTotal:       {8 * GIB // 1024} kB\nMemFree: 1 kB\n", encoding="utf-8"
    )
    (root / "proc" / "self" / "cgroup").write_text(cgroup, encoding="utf-8")
    for name, content in files.items():
        path = (
            root
            / "sys"
            / "fs"
            / "cgroup"
            / name.replace("__", "/")
            .replace("_max", ".max")
            .replace("_limit", ".limit")
            .replace("_cfs", ".cfs")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "gib"),
    [
        pytest.param("", {}, 8, id="a plain machine"),
        pytest.param(
            "0::/a/b\n",
            {
                "memory_max": "max\n",
                "a__memory_max": f"{2 * GIB}\n",
                "a__b__memory_max": f"{4 * GIB}\n",
            },
            2,
            id="the tightest control group",
        ),
        pytest.param(
            "5:cpu,cpuacct:/x\n4:memory:/docker/1\n",
            {
                "memory__memory_limit_in_bytes": str(3 * GIB),
                "memory__docker__1__memory_limit_in_bytes": str((1 << 63) - 4096),
            },
            3,
            id="control groups of version 1",
        ),
        pytest.param(
            "0::/../..\ngarbage\n",
            {"memory_max": str(64 * GIB)},
            8,
            id="a limit beyond the machine",
        ),
    ],
)
def test_the_tightest_limit_of_the_memory_counts(
    tmp_path: Path, cgroup: str, files: dict[str, str], gib: int
) -> None:
    assert memory_bytes(machine(tmp_path, cgroup=cgroup, **files)) == gib * GIB


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        pytest.param("", {}, 8, id="a plain machine"),
        pytest.param(
            "0::/a/b\n",
            {
                "cpu_max": "max 100000\n",
                "a__cpu_max": "250000 100000\n",
                "a__b__cpu_max": "400000 100000\n",
            },
            3,
            id="the tightest control group",
        ),
        pytest.param(
            "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n",
            {
                "cpu__docker__1__cpu_cfs_quota_us": "150000\n",
                "cpu__docker__1__cpu_cfs_period_us": "100000\n",
                "cpu__cpu_cfs_quota_us": "-1\n",
                "cpu__cpu_cfs_period_us": "100000\n",
            },
            2,
            id="control groups of version 1",
        ),
        pytest.param(
            "0::/\ngarbage\n", {"cpu_max": "6400000 100000"}, 8, id="a limit beyond the machine"
        ),
        pytest.param("0::/\n", {"cpu_max": "10000 100000"}, 1, id="less than one core"),
    ],
)
def test_the_tightest_limit_of_the_processor_time_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cgroup: str,
    files: dict[str, str],
    cores: int,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    root = machine(tmp_path, cgroup=cgroup, **files)
    assert usable_cores(root) == cores
    assert probed.usable_cores(str(root)) == cores, "the probe, which imports nothing of autotune"


def test_free_memory_is_what_is_available_within_the_limits(tmp_path: Path) -> None:
    root = machine(tmp_path, cgroup="0::/a\n", a__memory_max=f"{6 * GIB}\n")
    meminfo = root / "proc" / "meminfo"
    assert free_memory_bytes(root) == 6 * GIB, "the system does not tell"
    told = meminfo.read_text(encoding="utf-8")
    for available, free in ((7, 6), (5, 5)):
        meminfo.write_text(f"{told}MemAvailable: {available * GIB // 1024} kB\n", encoding="utf-8")
        assert free_memory_bytes(root) == free * GIB
    assert free_memory_bytes() > 0


def test_a_known_product_is_the_catalog_gpu_with_its_real_memory() -> None:
    gpu = gpu_of(H100)
    assert gpu.name == "h100-sxm"
    assert gpu.memory_bytes == 85e9
    assert gpu.peak_flops_per_s == catalog.gpu("h100-sxm").peak_flops_per_s


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("AMD Instinct MI250X", "mi250x"),
        ("NVIDIA GB200", "gb200-nvl72"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("NVIDIA GeForce RTX 3080", "rtx-3080"),
        ("NVIDIA RTX A5000", "rtx-a5000"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA GB10", "gb10"),
        ("AMD Instinct MI350X", "mi350x"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "h100-80gb-hbm3-mig-1g-10gb"),
    ],
)
def test_products_by_their_names(product: str, name: str) -> None:
    assert gpu_of(replace(H100, name=product)).name == name


def test_an_unknown_product_is_described_by_its_driver() -> None:
    """An H100 under another name comes out within a fifth of the datasheet's bandwidth and peaks
    (its boost clock is a little higher)."""
    described, known = gpu_of(replace(H100, name="NVIDIA H100 Prototype")), catalog.gpu("h100-sxm")
    assert described.name == "h100-prototype"
    assert "not a datasheet" in described.source
    assert described.memory_bytes_per_s == pytest.approx(known.memory_bytes_per_s, rel=0.2)
    assert set(described.peak_flops_per_s) == set(known.peak_flops_per_s)
    for precision, peak in known.peak_flops_per_s.items():
        assert described.peak_flops_per_s[precision] == pytest.approx(peak, rel=0.2)


def test_an_old_product_has_no_bf16() -> None:
    turing = gpu_of(replace(H100, name="Tesla T4", sms=40, clock_khz=1_590_000, major=7, minor=5))
    assert set(turing.peak_flops_per_s) == {"fp32", "fp16"}
    assert turing.peak_flops_per_s["fp16"] == pytest.approx(65e12, rel=0.01)
    assert turing.peak_flops_per_s["fp32"] == pytest.approx(8.1e12, rel=0.01)


def test_looking_around_imports_no_torch_and_makes_no_cuda_context() -> None:
    program = "import sys; from autotune.detect import local_cluster; local_cluster(); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.strip() == "False"


@pytest.mark.gpu
def test_a_real_gpu_is_found_with_the_memory_that_torch_sees() -> None:
    import torch

    cluster = detect.local_cluster()
    assert not cluster.gpu.is_cpu
    assert cluster.num_gpus == torch.cuda.device_count()
    assert cluster.gpu.memory_bytes == pytest.approx(
        torch.cuda.get_device_properties(0).total_memory, rel=0.01
    )
