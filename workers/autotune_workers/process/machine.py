"""Processes, memory and network interfaces of this machine (Linux): resident sizes, OOM kills,
memory limits, descendants, GPU memory.

Values that the system does not provide are None (0 for counters). They are evidence, never a
condition for running.

Peak memory of a program's processes on any one GPU, from the driver (NVML):

    own     sum over the program's processes on a GPU       used if the driver knows the processes by the same numbers
    grown   memory in use on a GPU, less what was in use when the program began       used otherwise, as in containers with their own process numbers

Without GPUs or NVML, or if NVML fails, there is no reading; memory is then read from the program's
log.

Network interface of an address: gloo guesses it from the host's name, and uses loopback if that
name does not resolve.

CPUs near a GPU: those of its NUMA node, from the driver (NVML).

A rank on another socket launches its kernels and copies its batches across the link between
sockets. Memory follows the CPUs: Linux allocates a page on the node of the CPU that first writes to
it (numa(7)).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

SAMPLE_S = 0.5
"""shortest interval of readings of GPU memory, seconds"""


@final
class GpuMemory:
    """GPU memory of one program. NVML is loaded when the program begins."""

    def __init__(self, nvml: Any = None) -> None:
        """`nvml`: used instead of the module pynvml, for tests."""
        self._nvml = nvml
        self._used_before: dict[Any, int] = {}
        """bytes in use on each visible GPU when the program began"""
        self._last_reading_s = -SAMPLE_S
        self._own: int | None = None
        self._grown: int | None = None

    @property
    def peak_bytes(self) -> int | None:
        """Peak on the GPU with the highest peak, bytes; None without a reading."""
        return self._grown if self._own is None else self._own

    def begin(self, visible: str | None) -> None:
        """Starts the readings when the program begins. `visible`: its CUDA_VISIBLE_DEVICES; None
        for all GPUs."""
        if visible == "" or (self._nvml is None and not os.path.exists("/proc/driver/nvidia")):
            return
        with contextlib.suppress(Exception):  # no readings without driver or module
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            handles = [gpu_handle(self._nvml, name) for name in self._names(visible)]
            self._used_before = {handle: self._used(handle) for handle in handles}

    def look(self, pids: Collection[int]) -> None:
        """Reads the memory of these processes, unless the last reading is newer than `SAMPLE_S`."""
        now_s = time.monotonic()
        if not self._used_before or now_s - self._last_reading_s < SAMPLE_S:
            return
        self._last_reading_s = now_s
        with contextlib.suppress(Exception):
            for handle, before in self._used_before.items():
                by_process = self._bytes_by_process(handle)
                own = [by_process[pid] for pid in pids if pid in by_process]
                if own:
                    self._own = max(self._own or 0, sum(own))
                self._grown = max(self._grown or 0, self._used(handle) - before)

    def _names(self, visible: str | None) -> list[str]:
        if visible is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return [name.strip() for name in visible.split(",") if name.strip()]

    def _used(self, handle: Any) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)

    def _bytes_by_process(self, handle: Any) -> Mapping[int, int]:
        """Bytes on the GPU by process number, without processes whose bytes the driver does not
        report."""
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return {
            process.pid: int(process.usedGpuMemory) for process in found if process.usedGpuMemory
        }


OOM_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
"""counters of the machine, and of this process's cgroup if that is the root of what it sees, as in
a container"""
EXPENDABLE = 500
"""oom_score_adj (proc(5)) of ranks and programs: the OOM killer rates them as if they used half of
the machine's memory in addition"""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Makes the kernel SIGKILL this process when the thread that started it ends, even if this
    process is stopped.

    Exits at once if the parent ended before the call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned descendants, in place of process 1."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def status_bytes(key: str, pid: int | str = "self") -> int | None:
    """A size from /proc/PID/status in bytes, such as VmRSS (resident) or VmData (private writable);
    None if unavailable."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def oom_kills(counters: Sequence[Path] = OOM_COUNTERS) -> int:
    """Number of kills by the kernel's OOM killer so far, according to these files; only an increase
    is meaningful.

    The files do not show which process was killed: see `failure_kind.of_death`.
    """
    count = 0
    for path in counters:
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    count += int(line.split()[1])
    return count


def be_expendable() -> None:
    """Makes the kernel's OOM killer prefer this process and its children over their owner, a
    service or a database."""
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        score.write_text(str(max(EXPENDABLE, int(score.read_text()))))


@contextlib.contextmanager
def memory_limit(limit_bytes: float | None) -> Iterator[None]:
    """Limits the growth of this process's private memory to `limit_bytes` until the block ends.
    None: no limit.

    Uses RLIMIT_DATA, which counts private writable mappings, not libraries. Allocations beyond it
    fail with ENOMEM, so that running out of memory is an exception in the rank instead of a kill by
    the kernel.
    """
    held = status_bytes("VmData")
    if limit_bytes is None or held is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(held + limit_bytes)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def give_back_memory() -> None:
    """Returns the allocator's free memory to the system, so that the resident size is the memory in
    use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_alive(pid: int) -> bool:
    """Whether a process with this number exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def descendants(root: int) -> list[int]:
    """Process numbers of all descendants of `root` except zombies, found by the parents in
    /proc."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        children.setdefault(int(parent), []).append(int(entry))
        if state in ("Z", "X"):
            zombies.add(int(entry))
    found: list[int] = []
    level = [root]
    while level:
        level = [child for parent in level for child in children.get(parent, ())]
        found += level
    return [pid for pid in found if pid not in zombies]


_SIOCGIFADDR = 0x8915
"""netdevice(7): the IPv4 address of an interface"""
_ADDRESS = slice(20, 24)
"""position of the IPv4 address in the answer, a struct ifreq"""


def interface_of(address: str) -> str:
    """Name of the interface that has this IPv4 address; empty if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[_ADDRESS]) == address:
                    return name
    return ""


_WORD_BITS = 64


def bind_near_gpu(visible: str | None, nvml: Any = None) -> frozenset[int]:
    """Binds this thread and its future children to the CPUs near the first visible GPU. Returns
    these CPUs; empty if nothing was changed.

    `visible`: CUDA_VISIBLE_DEVICES; None for all GPUs. `nvml`: used instead of the module pynvml,
    for tests.
    """
    # without driver, module or affinity of the GPU the rank is not bound
    with contextlib.suppress(Exception):
        if nvml is None:
            nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        allowed = os.sched_getaffinity(0)
        near = cpus_near(nvml, gpu_handle(nvml, (visible or "0").split(",")[0].strip())) & allowed
        if near and near != allowed:
            os.sched_setaffinity(0, near)
            return frozenset(near)
    return frozenset()


def gpu_handle(nvml: Any, name: str) -> Any:
    """NVML's handle of a GPU by its name in CUDA_VISIBLE_DEVICES: a number or a UUID."""
    return (
        nvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdigit()
        else nvml.nvmlDeviceGetHandleByUUID(name)
    )


def cpus_near(nvml: Any, handle: Any) -> set[int]:
    """The CPUs of the GPU's NUMA node, including those that this process may not use."""
    words = nvml.nvmlDeviceGetCpuAffinity(
        handle, ((os.cpu_count() or 1) + _WORD_BITS - 1) // _WORD_BITS
    )
    return {
        cpu
        for cpu in range(len(words) * _WORD_BITS)
        if int(words[cpu // _WORD_BITS]) >> cpu % _WORD_BITS & 1
    }


def free_port(host: str) -> int:
    """A TCP port that is free at this address now."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])
