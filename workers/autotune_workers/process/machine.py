"""What this machine says about its processes: memory in use, kernel kills, death with the parent,
memory limits. Linux.

Readings that the system does not offer are None (or 0 for counters): they are evidence, never a
condition for running.

The most memory that a program's processes held on any one GPU, as the driver tells (NVML).

    own     sum over the program's processes of a GPU       what counts, where the driver names processes by the numbers that we know
    grown   memory in use on a GPU, less what was in use when the program began       else, as in containers with process numbers of their own

Without GPUs, without NVML or where it fails, there is no reading: memory is then what the program's
own log says.

Which network interface holds an address. gloo guesses by the host's name, and falls back to
loopback where that name does not resolve.

The CPUs near a GPU: those of its NUMA node, as the driver tells (NVML).

A rank that runs on another socket launches its kernels and copies its batches across the link
between sockets. Memory follows the CPUs: Linux takes a page from the node of the CPU that first
writes to it (numa(7)).
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
"""time between two readings"""


@final
class GpuMemory:
    """The readings of one program. NVML is loaded when the program begins."""

    def __init__(self, nvml: Any = None) -> None:
        """`nvml`: the module pynvml, where it is not to be imported."""
        self._nvml = nvml
        self._before: dict[Any, int] = {}
        """bytes in use on each visible GPU when the program began"""
        self._looked_s = -SAMPLE_S
        self._own: int | None = None
        self._grown: int | None = None

    @property
    def peak_bytes(self) -> int | None:
        """On the fullest GPU; None without a reading."""
        return self._grown if self._own is None else self._own

    def begin(self, visible: str | None) -> None:
        """The program begins; `visible`: its CUDA_VISIBLE_DEVICES, None for all GPUs."""
        if visible == "" or (self._nvml is None and not os.path.exists("/proc/driver/nvidia")):
            return
        with contextlib.suppress(Exception):  # no driver, no module: no reading
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            handles = [gpu_handle(self._nvml, name) for name in self._names(visible)]
            self._before = {handle: self._used(handle) for handle in handles}

    def look(self, pids: Collection[int]) -> None:
        """Takes a reading for these processes, unless the last one is young."""
        now_s = time.monotonic()
        if not self._before or now_s - self._looked_s < SAMPLE_S:
            return
        self._looked_s = now_s
        with contextlib.suppress(Exception):
            for handle, before in self._before.items():
                held = self._held(handle)
                own = [held[pid] for pid in pids if pid in held]
                if own:
                    self._own = max(self._own or 0, sum(own))
                self._grown = max(self._grown or 0, self._used(handle) - before)

    def _names(self, visible: str | None) -> list[str]:
        if visible is None:
            return [str(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return [name.strip() for name in visible.split(",") if name.strip()]

    def _used(self, handle: Any) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)

    def _held(self, handle: Any) -> Mapping[int, int]:
        """Bytes by process number; a process whose bytes the driver does not tell is left out."""
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return {
            process.pid: int(process.usedGpuMemory) for process in found if process.usedGpuMemory
        }


OOM_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
"""of the machine, and of this process's memory group where it is the root of what it sees, as in a
container"""
EXPENDABLE = 500
"""oom_score_adj (proc(5)) of ranks and programs: as if they held half of the machine's memory more
than they do"""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel SIGKILL this process when the thread that started it ends, even while this
    process is stopped.

    Exits at once when the parent died before the call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent has ended, instead of the
    system's first process."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def status_bytes(key: str, pid: int | str = "self") -> int | None:
    """A size of /proc/PID/status in bytes: VmRSS (resident), VmData (private writable), ..."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def oom_kills(counters: Sequence[Path] = OOM_COUNTERS) -> int:
    """How often the kernel's out-of-memory killer has struck so far, as far as these files tell;
    only a rise means something.

    They do not tell which process was killed: see `failure_kind.of_death`.
    """
    count = 0
    for path in counters:
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    count += int(line.split()[1])
    return count


def be_expendable() -> None:
    """Has the kernel's out-of-memory killer take this process, and what it starts, rather than its
    owner, a service or a database."""
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        score.write_text(str(max(EXPENDABLE, int(score.read_text()))))


@contextlib.contextmanager
def memory_limit(limit_bytes: float | None) -> Iterator[None]:
    """Lets this process take at most `limit_bytes` of private memory more than it holds now, until
    the block ends.

    Uses RLIMIT_DATA, which counts private writable mappings and not libraries: an allocation beyond
    it fails with ENOMEM, so that running out of memory is an exception in the rank and not the
    kernel's choice of a victim.
    """
    held = status_bytes("VmData")
    if limit_bytes is None or held is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(held + limit_bytes)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def give_back_memory() -> None:
    """Returns what the allocator holds in reserve to the system, so that a resident size says what
    is really in use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_alive(pid: int) -> bool:
    """Whether a process of this number exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def descendants(root: int) -> list[int]:
    """Process numbers of all descendants of `root` that are no zombies, by the parents that /proc
    names."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it ended meanwhile
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
"""of the interface in the answer, a struct ifreq"""


def interface_of(address: str) -> str:
    """The name of the interface that holds this IPv4 address; empty when none does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[_ADDRESS]) == address:
                    return name
    return ""


_WORD_BITS = 64


def bind_near_gpu(visible: str | None, nvml: Any = None) -> frozenset[int]:
    """Binds this thread, and those that it starts, to the CPUs near the first GPU that it may use.
    Returns them; empty where nothing was changed.

    `visible`: CUDA_VISIBLE_DEVICES; None for all GPUs. `nvml`: the module pynvml, where it is not
    to be imported.
    """
    # no driver, no module, a GPU that does not tell: the rank runs where it is
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
    """The CPUs of the GPU's NUMA node, also those that this process may not use."""
    words = nvml.nvmlDeviceGetCpuAffinity(
        handle, ((os.cpu_count() or 1) + _WORD_BITS - 1) // _WORD_BITS
    )
    return {
        cpu
        for cpu in range(len(words) * _WORD_BITS)
        if int(words[cpu // _WORD_BITS]) >> cpu % _WORD_BITS & 1
    }


def free_port(host: str) -> int:
    """A port that is free at this address now."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])
