"""Detects the cluster `local`: this machine's GPUs, or its CPU.

GPUs are counted by a child process with the driver's library, so CUDA_VISIBLE_DEVICES and MIG are
respected, torch is not imported, and no CUDA context remains in this process. Without a GPU, the
cluster has up to `MAX_CPU_RANKS` CPU processes as ranks, which share the memory equally. CPU and
memory limits of cgroups (containers) are respected.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.spec import ClusterSpec, GpuSpec
from autotune.spec.catalog import cluster_of, gpu

MAX_CPU_RANKS = 4
"""maximum number of ranks on a CPU"""
MIN_RANK_BYTES = 1 << 30
"""minimum memory of a rank, bytes; torch and gloo alone need most of it"""
PROBE_TIMEOUT_S = 60.0
"""timeout of the child process that counts GPUs, seconds"""
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/proc/driver/nvidia/version")
_NO_LIMIT = 1 << 60
"""cgroups without a memory limit report a larger number than this, or a word"""

_PROBE = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
devices, count = [], ctypes.c_int()
if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
    for index in range(count.value):
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, 256, device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
        entry = {"name": name.value.decode(), "memory_bytes": memory.value}
        for key, number in (("sms", 16), ("clock_khz", 13), ("memory_clock_khz", 36), ("bus_bits", 37), ("major", 75), ("minor", 76)):
            value = ctypes.c_int()
            cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
            entry[key] = value.value
        devices.append(entry)
print(json.dumps(devices))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """A GPU as described by the driver."""

    name: str
    """product name"""
    memory_bytes: int
    """total memory"""
    sms: int
    """number of streaming multiprocessors"""
    clock_khz: int
    """maximum core clock"""
    memory_clock_khz: int
    """maximum memory clock; 0 if unknown"""
    bus_bits: int
    """width of the memory bus"""
    major: int
    """compute capability, before the dot"""
    minor: int
    """compute capability, after the dot"""


def local_cluster() -> ClusterSpec:
    """This machine as a cluster: its CUDA GPUs of the first one's type, or ranks on the CPU."""
    devices = cuda_devices()
    if not devices:
        return cpu_cluster(memory_bytes(), cores=usable_cores())
    same_type = [device for device in devices if device.name == devices[0].name]
    return cluster_of(gpu_of(devices[0]), num_nodes=1, gpus_per_node=len(same_type))


def cpu_cluster(
    memory: int, *, max_ranks: int = MAX_CPU_RANKS, cores: int | None = None
) -> ClusterSpec:
    """A cluster of CPU ranks, each with an equal share of `memory` (bytes): as many as have
    `MIN_RANK_BYTES`, halved from `max_ranks` until they do. They share `cores`."""
    ranks = max_ranks
    while ranks > 1 and memory // ranks < MIN_RANK_BYTES:
        ranks //= 2
    share = replace(gpu("cpu"), memory_bytes=float(memory // ranks))
    return replace(cluster_of(share, num_nodes=1, gpus_per_node=ranks), cores_per_node=cores)


def usable_cores(root: Path = Path("/")) -> int:
    """Number of cores that this process may use: those in its affinity mask, at most the smallest
    CPU quota of its cgroups, rounded up.

    `root`: the folder that contains proc/ and sys/.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min([allowed, *_cgroup_cores(root)])


def cuda_devices() -> list[CudaDevice]:
    """The CUDA devices that are visible to this process; empty if there is no driver, or it does not
    answer."""
    if not any(os.path.exists(path) for path in _DRIVER_FILES):
        return []
    try:
        probe = subprocess.run(
            [sys.executable, "-I", "-c", _PROBE],
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
        return [CudaDevice(**entry) for entry in json.loads(probe.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError):
        return []


_KNOWN = (
    (r"H100 80GB HBM3$", "h100-sxm"),
    (r"H100 PCIe$", "h100-pcie"),
    (r"H100 NVL$", "h100-nvl"),
    (r"H200$", "h200-sxm"),
    (r"GH200 480GB$", "gh200"),
    (r"H800$", "h800"),
    (r"H20$", "h20"),
    (r" B200$", "b200-sxm"),
    (r" B300 SXM6 AC$", "b300-sxm"),
    (r"GB200$", "gb200-nvl72"),
    (r"GB300$", "gb300-nvl72"),
    (r"L4$", "l4"),
    (r"L40$", "l40"),
    (r"L40S$", "l40s"),
    (r"T4$", "t4"),
    (r"A10$", "a10"),
    (r"A10G$", "a10g"),
    (r"A30$", "a30"),
    (r"A40$", "a40"),
    (r"RTX 3090$", "rtx-3090"),
    (r"RTX 4090$", "rtx-4090"),
    (r"RTX 5090$", "rtx-5090"),
    (r"RTX 6000 Ada Generation$", "rtx-6000-ada"),
    (r"RTX A6000$", "rtx-a6000"),
    (r"H200 NVL$", "h200-nvl"),
    (r" B100$", "b100-sxm"),
    (r"GB10$", "gb10"),
    (r"L20$", "l20"),
    (r"RTX 3060$", "rtx-3060"),
    (r"RTX 3080$", "rtx-3080"),
    (r"RTX 3080 Ti$", "rtx-3080-ti"),
    (r"RTX 3090 Ti$", "rtx-3090-ti"),
    (r"RTX 2080 Ti$", "rtx-2080-ti"),
    (r"RTX 4060 Ti$", "rtx-4060-ti-16gb"),
    (r"RTX 4070 Ti$", "rtx-4070-ti"),
    (r"RTX 4070 Ti SUPER$", "rtx-4070-ti-super"),
    (r"RTX 4080$", "rtx-4080"),
    (r"RTX 4080 SUPER$", "rtx-4080-super"),
    (r"RTX 5070 Ti$", "rtx-5070-ti"),
    (r"RTX 5080$", "rtx-5080"),
    (r"RTX 5000 Ada Generation$", "rtx-5000-ada"),
    (r"RTX A4000$", "rtx-a4000"),
    (r"RTX A5000$", "rtx-a5000"),
    (r"Quadro RTX 8000$", "rtx-8000"),
    (r"RX 7900 XTX", "rx-7900-xtx"),
    (r"MI210", "mi210"),
    (r"MI350X", "mi350x"),
    (r"RTX PRO 6000 Blackwell", "rtx-pro-6000"),
    (r"MI250X", "mi250x"),
    (r"MI300X", "mi300x"),
    (r"MI325X", "mi325x"),
    (r"MI355X", "mi355x"),
    (r"A800-SXM4-80GB$", "a800"),
    (r"A100-SXM4-80GB$", "a100-80gb"),
    (r"A100 80GB PCIe$", "a100-pcie-80gb"),
    (r"A100-PCIE-40GB$", "a100-pcie-40gb"),
    (r"A100-SXM4-40GB$", "a100-40gb"),
    (r"V100-SXM[23]-32GB", "v100-32gb"),
    (r"V100-SXM[23]-16GB", "v100-16gb"),
)
"""patterns of the driver's product names, with names of the catalog"""


def gpu_of(device: CudaDevice) -> GpuSpec:
    """The catalog's GPU for this device, with the device's memory; for an unknown product, a GPU
    from the driver's description."""
    for pattern, name in _KNOWN:
        if re.search(pattern, device.name):
            return replace(gpu(name), memory_bytes=float(device.memory_bytes))
    return _described(device)


_TENSOR_FLOPS = {
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 9): 1024,
    (9, 0): 4096,
    (10, 0): 8192,
    (10, 3): 8192,
    (12, 0): 1024,
}
"""dense fp16 FLOPs of the tensor cores per SM and clock, by compute capability (NVIDIA architecture
white papers)"""
_FP32_LANES = {(7, 0): 64, (7, 5): 64, (8, 0): 64}
"""fp32 multiply-adds per SM and clock, by compute capability; 128 for all others"""
_MEMORY_CLOCK_KHZ = 5_000_000
"""memory clock if the driver does not report it"""


def _described(device: CudaDevice) -> GpuSpec:
    """A GPU that is not in the catalog, with peaks computed from multiprocessors, clocks and memory
    bus. They are correct to the order of magnitude."""
    capability = (device.major, device.minor)
    clock = device.clock_khz * 1e3
    tensor = device.sms * _TENSOR_FLOPS.get(capability, 1024) * clock
    peaks = {"fp32": device.sms * 2 * _FP32_LANES.get(capability, 128) * clock, "fp16": tensor}
    if capability >= (8, 0):
        peaks |= {"tf32": tensor / 2, "bf16": tensor}
    if capability >= (8, 9):
        peaks |= {"fp8": 2 * tensor}
    if capability[0] == 10:  # the tensor cores of B200 and B300
        peaks |= {"mxfp8": 2 * tensor, "nvfp4": (6 if capability[1] else 4) * tensor}
    return GpuSpec(
        name=re.sub(r"[^a-z0-9]+", "-", device.name.lower().removeprefix("nvidia ")).strip("-")
        or "cuda",
        memory_bytes=float(device.memory_bytes),
        peak_flops_per_s=peaks,
        memory_bytes_per_s=2e3
        * (device.memory_clock_khz or _MEMORY_CLOCK_KHZ)
        * max(device.bus_bits, 64)
        / 8,
        source=f"the driver's description of {device.name}: {device.sms} SMs at {device.clock_khz / 1e6:.2f} GHz; not a datasheet",
    )


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may use, bytes: the machine's, or the smallest limit of its cgroups.

    `root`: the folder that contains proc/ and sys/.
    """
    limits = [_machine_bytes(root), *_cgroup_limits(root)]
    return min(limit for limit in limits if limit > 0)


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Available memory of the machine, bytes, at most `memory_bytes`. If the system does not report
    it, `memory_bytes`. `root`: as in `memory_bytes`."""
    total = memory_bytes(root)
    return min(total, _meminfo_bytes("MemAvailable", root) or total)


def _machine_bytes(root: Path) -> int:
    total = _meminfo_bytes("MemTotal", root)
    if total:
        return total
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")  # not Linux


def _meminfo_bytes(key: str, root: Path) -> int:
    """A size from /proc/meminfo, bytes; 0 if it is missing."""
    match = re.search(rf"^{key}:\s+(\d+) kB", _text(root / "proc/meminfo"), flags=re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _cgroup_limits(root: Path) -> list[int]:
    """Memory limits of this process's cgroups, bytes."""
    texts = [
        _text(folder / ("memory.limit_in_bytes" if is_old else "memory.max")).strip()
        for folder, is_old in _cgroup_folders("memory", root)
    ]
    return [int(text) for text in texts if text.isdigit() and 0 < int(text) < _NO_LIMIT]


def _cgroup_cores(root: Path) -> list[int]:
    """CPU quotas of this process's cgroups, in cores, rounded up."""
    limits = []
    for folder, is_old in _cgroup_folders("cpu", root):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_old else ("cpu.max",)
        quota_us, period_us = [*" ".join(_text(folder / n) for n in names).split(), "", ""][:2]
        if quota_us.isdigit() and period_us.isdigit() and int(quota_us) and int(period_us):
            limits.append(-(-int(quota_us) // int(period_us)))
    return limits


def _cgroup_folders(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's cgroups and of all their parents, each with whether it is
    of version 1."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            yield base.joinpath(*parts[:depth]), bool(controllers)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
