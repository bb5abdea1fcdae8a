"""Samples the training thread and its surroundings from another thread, `LOOKS` times per second:

    lines      where the training thread is: number of samples by phase, innermost line of the program's own code, and innermost library function
    stopped    time in which the whole process did not run, other than by waiting for a processor: SIGSTOP, a freezer, a quota
    process    processor time of user and system, page faults, writes, compilations, allocator retries
    node       every `NODE_S`, by one process of a node: processor time of all processes, of this training's and of others
    links      TCP connections to other nodes: round-trip times, queued bytes, retransmissions
    gpu        clocks and what limits them, power, utilization, if NVML is installed

Values are sums since training began; the difference of two reports covers the time between them.
"""

from __future__ import annotations

import linecache
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Set
from typing import Any

from .machine import NodeLoad, links, usable_cores
from .mirror import Mirror
from .model_facts import rank_of
from .own_files import is_library
from .phases import BACKWARD, NAMES, OPTIMIZER, Phases
from .versions import text_of, uses_cuda

LOOKS = 20.0
LATE_S = 0.015
"""a sample that is late by more than this shows that the process did not run, seconds"""
TELL_S, NODE_S = 2.0, 8.0
MOST_LINES = 400
"""largest number of places that are counted"""
MOST_BELOW = 2
"""with more than this number of library functions below the program's line, the line's text is not
used to classify it"""
_KINDS = (
    ("collective", ("distributed/distributed_c10d.py", "_functional_collectives.py")),
    ("compile", ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py", "torch/_dynamo/guards.py")),
    ("data", ("torch/utils/data/", "datasets/arrow_dataset.py", "datasets/iterable_dataset.py", "/webdataset/", "/streaming/base/")),
    ("checkpoint", ("torch/serialization.py", "distributed/checkpoint/", "safetensors/")),
    ("log", ("logging/__init__.py", "tqdm/", "rich/", "wandb/", "tensorboard/", "mlflow/")),
    ("optimizer", ("torch/nn/utils/clip_grad.py", "torch/amp/grad_scaler.py")),
)  # fmt: skip
_WORDS = (
    ("checkpoint", ("checkpoint", "save_")),
    ("evaluation", ("evaluat", "validat", "valid_", "eval_", "test_loss")),
    ("log", ("log_", "_log", "report", "progress", "print", "upload", "metric", "telemetry", "tracker", "monitor")),
    ("data", ("load", "batch", "collate", "dataset", "__getitem__", "__next__", "__iter__", "tokeniz", "augment", "fetch", "read_", "get_data", "prefetch", "sample")),
)  # fmt: skip
_CALLS = (
    ("log", ("print(", "logger.", "logging.", ".log(", ".write(", ".info(", "add_scalar(")),
    ("checkpoint", ("save(", "save_pretrained(", "save_state")),
    ("data", ("next(", "dataloader", "data_loader", "dataset", "loader")),
    ("device", (".item()", ".tolist()", ".cpu()", ".numpy()", "synchronize(")),
)
"""`device`: the host waits for the device"""


class Watch:
    """Samples one process."""

    def __init__(self, phases: Phases, reports: Any, torch: Any, root: int = 0) -> None:
        """`root`: number of the process whose descendants belong to this training; 0: the one in
        AUTOTUNE_PROBE_ROOT."""
        self._phases, self._reports, self._torch = phases, reports, torch
        self._lines: dict[tuple[str, ...], int] = {}
        self._pass_functions: set[str] = set()
        """the program's functions that contain passes or optimizer steps, whose names do not
        classify other work"""
        self._gap: list[tuple[str, ...]] = []
        """unclassified places since a backward pass, kept until the next phase is known"""
        self._gaps_ended: list[int] = []
        """the phases that followed such gaps"""
        phases.on_gap_end = self._gaps_ended.append
        self.paused = False
        """whether samples are skipped, because the profiler disturbs the program"""
        self.looks = 0
        self.stopped_s = 0.0
        self._began_s = 0.0
        self._pid = os.getpid()
        self._end = threading.Event()
        self._node = NodeLoad(root)
        self._links: dict[tuple[str, str], dict[str, Any]] = {}
        """connections by (local, remote) address, with their maxima so far"""
        self._mirror = Mirror(torch, reports)
        self._gpu: Any = None

    def start(self) -> None:
        """Starts sampling."""
        self._began_s = time.monotonic()
        threading.Thread(target=self._run, name="autotune-probe", daemon=True).start()

    def end(self) -> None:
        """Stops sampling and reports."""
        if not self._end.is_set():
            self._end.set()
            if os.environ.get("LOCAL_RANK", "0") == "0":
                self._node.look()
            self._report()
            self._mirror.exchange()

    def _run(self) -> None:
        last_report_s = last_node_s = 0.0
        try:
            while True:
                planned_s, cpu_s, delay_s = (
                    time.monotonic() + 1 / LOOKS,
                    time.process_time(),
                    _delay_s(),
                )
                if self._end.wait(1 / LOOKS) or os.getpid() != self._pid:
                    return
                now_s = time.monotonic()
                late_s = now_s - planned_s
                if (
                    late_s > LATE_S
                ):  # time on the run queue does not count, nor time in which the program computes and blocks other threads
                    self.stopped_s += max(
                        0.0, late_s - (_delay_s() - delay_s) - (time.process_time() - cpu_s)
                    )
                if not self.paused:
                    self._sample()
                if now_s - last_node_s > NODE_S or not last_node_s:
                    last_node_s = now_s
                    if os.environ.get("LOCAL_RANK", "0") == "0":
                        self._node.look()
                if now_s - last_report_s > TELL_S:
                    last_report_s = now_s
                    self._report()
                    self._mirror.exchange()
        except Exception as error:
            self._reports.send("trouble", error="watch: " + repr(error)[:300])

    def _sample(self) -> None:
        while self._gaps_ended:
            self._end_gap(self._gaps_ended.pop(0))
        frame = sys._current_frames().get(self._phases.thread)
        if frame is None:
            return
        self.looks += 1
        phase = NAMES[self._phases.stack[-1]]
        names, *place = _place_of(frame, self._pass_functions)
        if phase in ("forward", "backward", "optimizer"):
            self._pass_functions |= names
        key = (phase, *place)
        if phase == "rest" and not place[0] and self._phases.left == BACKWARD:
            self._gap.append(key)
        else:
            self._count(key)

    def _end_gap(self, phase: int) -> None:
        """Counts the places of a gap. Nothing is loaded between a backward pass and the optimizer,
        so unclassified places there are the program's own work."""
        gap, self._gap = self._gap, []
        for key in gap:
            self._count((key[0], "own", *key[2:]) if phase == OPTIMIZER else key)

    def _count(self, key: tuple[str, ...]) -> None:
        if key in self._lines or len(self._lines) < MOST_LINES:
            self._lines[key] = self._lines.get(key, 0) + 1

    def _report(self) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._reports.send(
            "watch",
            rank=rank_of(self._torch),
            at=time.monotonic(),
            elapsed_s=round(time.monotonic() - self._began_s, 3),
            looks=self.looks,
            lines=[
                [*key, count]
                for key, count in sorted(self._lines.items(), key=lambda entry: -entry[1])[:40]
            ],
            stopped_s=round(self.stopped_s, 4),
            user_s=round(used.ru_utime, 3),
            system_s=round(used.ru_stime, 3),
            major_faults=used.ru_majflt,
            minor_faults=used.ru_minflt,
            cores=usable_cores(),
            threads=_threads(self._torch),
            host=socket.gethostname(),
            memory_pressure_s=_pressure("/proc/pressure/memory"),
            machine=text_of("/proc/sys/kernel/random/boot_id").strip(),
            **_io(),
            **_group(),
            **_allocator(self._torch),
            node=self._node.told,
            links=self._link_maxima(),
            gpu=self._gpu_state(),
        )

    def _link_maxima(self) -> list[dict[str, Any]]:
        for link in links():
            known = self._links.get((link["local"], link["remote"]), link)
            more = {
                name: max(link[name], known[name])
                for name in ("rtt_s", "queued_bytes", "resent", "sent_bytes", "busy_s")
            }
            self._links[link["local"], link["remote"]] = {**link, **more}
        return sorted(self._links.values(), key=lambda link: -int(link["sent_bytes"]))[:32]

    def _gpu_state(self) -> dict[str, Any]:
        if not uses_cuda(self._torch):
            return {}
        try:
            if self._gpu is None:
                from .nvml import Gpu

                cuda = self._torch.cuda
                self._gpu = Gpu(str(cuda.get_device_properties(cuda.current_device()).uuid))
            return dict(self._gpu.read())
        except Exception:  # no NVML, or an unknown device
            return {}


def _threads(torch: Any) -> int:
    try:
        return int(torch.get_num_threads())
    except Exception:
        return 0


def _place_of(frame: Any, around: Set[str]) -> tuple[frozenset[str], str, str, str, str]:
    """(names of the program's functions; kind of work; the program's innermost line as path:number;
    its text; the innermost library function below it). The kind is found from library files, else
    from the line's text, else from names of the program's functions that are not in `around`."""
    kind, own, text, below = "", "", "", ""
    names = []
    depth = between = 0
    while frame is not None and depth < 60:
        code = frame.f_code
        of_file, is_library = _kind_of_file(code.co_filename)
        kind = kind or of_file
        if is_library:
            below = below or code.co_name
            between += not own
        else:
            if not own:
                path = code.co_filename
                own, text = (
                    f"{path}:{frame.f_lineno}",
                    linecache.getline(path, frame.f_lineno).strip()[:100],
                )
            names.append(code.co_name.lower())
        frame, depth = frame.f_back, depth + 1
    if not kind and between <= MOST_BELOW:
        kind = next((kind for kind, words in _CALLS if any(word in text for word in words)), "")
    if not kind:
        outside_passes = [name for name in names if name not in around]
        kind = next(
            (
                kind
                for kind, words in _WORDS
                if any(w in name for name in outside_passes for w in words)
            ),
            "",
        )
    return frozenset(names), kind, own, text, below


def _kind_of_file(path: str) -> tuple[str, bool]:
    """(kind of work in this file or empty, whether it belongs to a library)"""
    if path not in _FILES:
        kind = next((kind for kind, parts in _KINDS if any(part in path for part in parts)), "")
        _FILES[path] = kind, is_library(path)
    return _FILES[path]


_FILES: dict[str, tuple[str, bool]] = {}


def _delay_s() -> float:
    fields = text_of("/proc/thread-self/schedstat").split()
    return int(fields[1]) * 1e-9 if len(fields) > 1 else 0.0


def _pressure(path: str) -> float:
    """Seconds in which some task of the machine waited for this resource (the kernel's pressure
    stall information)."""
    for word in text_of(path).split("\n", 1)[0].split():
        if word.startswith("total="):
            return int(word[6:]) * 1e-6
    return 0.0


def _io() -> dict[str, int]:
    counters = dict(
        line.split(": ") for line in text_of("/proc/self/io").splitlines() if ": " in line
    )
    return {"writes": int(counters.get("syscw", 0)), "written_bytes": int(counters.get("wchar", 0)), "read_bytes": int(counters.get("read_bytes", 0))}  # fmt: skip


def _group() -> dict[str, float]:
    """For this process's control group (version 1 or 2): seconds throttled by a CPU quota, and how
    often memory was at its limit."""
    limits: dict[str, float] = {}
    for line in text_of("/proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        path = path.rstrip("/")
        if names == "" or "cpu" in names.split(","):
            path_of_file = "/sys/fs/cgroup" + ("/cpu" if names else "") + path + "/cpu.stat"
            values = _numbers(path_of_file)
            if values.get("nr_throttled"):
                limits["throttled_s"] = (
                    values.get("throttled_time", 0) * 1e-9 or values.get("throttled_usec", 0) * 1e-6
                )
        if names == "memory":
            path_of_file = "/sys/fs/cgroup/memory" + path
            count = text_of(path_of_file + "/memory.failcnt").strip()
            if count.isdigit() and path:
                limits["memory_at_limit"] = int(count)
        if names == "" and path:
            values = _numbers("/sys/fs/cgroup" + path + "/memory.events")
            if values:
                limits["memory_at_limit"] = values.get("max", 0) + values.get("high", 0)
    return limits


def _numbers(path: str) -> dict[str, int]:
    """The lines `NAME NUMBER` of a file as a dict."""
    lines = (line.split() for line in text_of(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2}


def _allocator(torch: Any) -> dict[str, int]:
    if not uses_cuda(torch):
        return {}
    try:
        stats = torch.cuda.memory_stats()
    except Exception:
        return {}
    return {
        "alloc_retries": int(stats.get("num_alloc_retries", 0)),
        "allocated_bytes": int(stats.get("allocated_bytes.all.peak", 0)),
        "reserved_bytes": int(stats.get("reserved_bytes.all.peak", 0)),
    }
