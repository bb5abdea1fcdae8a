"""One rank: a process that stays warm and runs one trial after another when ordered.

It has three threads. The *main* thread trains, because signal handlers, compilers and debuggers
expect that. The *reader* takes orders meanwhile, and exits the process when the runner closes its
end of the channel. The *heartbeat* reports every second what the main thread is doing. Output of
the trial goes to the rank's log, which is emptied when a trial begins.

    python -m autotune_workers.process.rank 5 4711 '{"device": "cpu", "host": "127.0.0.1", ...}'    descriptor of the channel, process number of the parent, arguments of `serve_rank`
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from autotune.detect import memory_bytes, usable_cores
from autotune.ports import TrialRequest
from autotune.spec.plain import to_plain
from autotune_workers.gang.members import waits
from autotune_workers.gang.wire import Lines, Message, to_line
from autotune_workers.process.machine import (
    be_expendable,
    bind_near_gpu,
    die_with_parent,
    give_back_memory,
    memory_limit,
    status_bytes,
)
from autotune_workers.training.faults import Fault, Injector
from autotune_workers.training.measuring.progress import Progress

HEARTBEAT_S = 1.0
"""interval of heartbeats, seconds"""
LEAK_BYTES = 512 << 20
"""a rank whose resident memory grows by more than this since the end of its first trial is
replaced"""
STACK_LINES = 12


class Rank:
    """The rank's state and its end of the channel."""

    def __init__(
        self, channel: socket.socket, *, device: str, host: str, trial: str, collectives: str = ""
    ) -> None:
        """`host`: address at which its peers reach it; `trial`: `module:function` of the training
        loop; `collectives`: see `RankStarter`."""
        self._channel = channel
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._store: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._device, self._host = device, host
        module, _, name = trial.partition(":")
        self._trial: Callable[..., Any] = getattr(importlib.import_module(module), name)
        self._backend = collectives.rpartition(":")[2]
        self._run: int | None = None
        self._stop = threading.Event()
        self._phase = "idle"
        self._step: int | None = None
        self._progress = Progress()
        self._has_reported_failure = False
        self._aborted = False
        """whether the runner aborted the collectives of this trial"""
        self._is_joining = False
        """whether forming a process group began and has not succeeded"""
        self._first_rss_bytes: int | None = None
        self._cpus = usable_cores()
        """number of cores that all ranks of the node share; read at the start because the rank may
        be bound to a part of them later"""

    def serve(self) -> None:
        """Runs the ordered trials until the command `exit`; never returns."""
        import torch

        if self._device == "cuda":
            bind_near_gpu(os.environ.get("CUDA_VISIBLE_DEVICES"))
            torch.zeros(1, device="cuda")  # the CUDA context is part of being warm
        if not gc.get_freeze_count():
            gc.collect()
            gc.freeze()  # imported objects stay: later collections scan only the trial's objects
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "") if self._device == "cuda" else ""
        self._send(
            "ready",
            pid=os.getpid(),
            host=self._host,
            hostname=socket.gethostname(),
            gpus=gpus.split(",") if gpus else [],
        )
        while True:
            self._attempt(self._orders.get())

    def _send(self, event: str, **values: Any) -> None:
        line = to_line({"event": event, "run": self._run, **values})
        try:
            with self._lock:
                self._channel.sendall(line)
        except OSError:
            os._exit(0)  # the runner is gone

    def _read(self) -> None:
        lines = Lines()
        while True:
            try:
                chunk = self._channel.recv(1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                os._exit(0)  # the runner is gone
            for message in lines.feed(chunk):
                self._execute(message)

    def _execute(self, message: Message) -> None:
        command = message["command"]
        if command == "run":
            self._stop.clear()
            self._aborted, self._run = False, message["run"]
            self._orders.put(message)
        elif command == "store":
            self._store.put(message)
        elif command == "exit":
            os._exit(0)
        elif message.get("run") != self._run:
            return
        elif command == "stop":
            self._stop.set()
        elif command == "abort":
            from autotune_workers.training.rendezvous import abort

            self._aborted = True
            threading.Thread(target=abort, name="abort", daemon=True).start()
        elif command == "where":
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            stack = traceback.format_stack(frame) if frame else []
            self._send(
                "where",
                stack=[line.rstrip() for line in stack[-STACK_LINES:]],
                **self._progress.told(),
            )

    def _send_heartbeats(self) -> None:
        while True:
            time.sleep(HEARTBEAT_S)
            self._send(
                "heartbeat", phase=self._phase, step=self._reported_step, **self._progress.told()
            )

    def _enter(self, phase: str) -> None:
        """Notes that the trial entered this phase, and reports it at once in case the rank dies in
        it."""
        self._phase = phase
        self._send("heartbeat", phase=phase, step=self._reported_step, **self._progress.told())

    @property
    def _reported_step(self) -> int | None:
        """The current step; 0 during set-up; None before."""
        return self._step if self._step is not None or self._phase != "set-up" else 0

    def _attempt(self, order: Message) -> None:
        """Runs the trial and reports its result or failure; then cleans up and reports that the
        rank is idle."""
        self._step, self._phase, self._has_reported_failure, self._progress = (
            None,
            "start",
            False,
            Progress(),
        )
        with contextlib.suppress(OSError):  # output that is no file cannot be emptied
            os.ftruncate(1, 0)
            os.lseek(1, 0, os.SEEK_SET)
        try:
            self._send("done", **self._train(order))
        except BaseException as error:
            self._report_failure(error)
        self._phase = "clean-up"
        self._clean_up()
        leaks = self._leaks()
        self._phase = "idle"
        self._send("idle", leaks=leaks)

    def _train(self, order: Message) -> Message:
        import torch

        from autotune_workers.training.parallel.mesh import RankContext
        from autotune_workers.training.rendezvous import process_group

        request = TrialRequest.from_dict(order["request"])
        rank, world_size, timeout_s = (
            order["rank"],
            order["world_size"],
            order["collective_timeout_s"],
        )
        injector = Injector([Fault.of(f) for f in order["faults"]])
        cluster = request.workload.cluster
        cores = min(self._cpus, cluster.cores_per_node or self._cpus)
        torch.set_num_threads(max(1, cores // cluster.gpus_per_node))
        device = (
            torch.device("cuda", torch.cuda.current_device())
            if self._device == "cuda"
            else torch.device("cpu")
        )
        limit_bytes = (
            min(cluster.gpu.memory_bytes, 0.8 * memory_bytes()) if device.type == "cpu" else None
        )
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(
                min(
                    1.0,
                    cluster.gpu.memory_bytes
                    / torch.cuda.get_device_properties(device).total_memory,
                )
            )

        def report(step: Any) -> bool:
            self._step, self._phase = step.step + 1, "step"
            self._send(
                "step", step=step.step, time_s=step.time_s, loss=step.loss, grad_norm=step.grad_norm
            )
            injector.at(step.step + 1)
            return not self._stop.is_set()

        injector.at(None)
        with contextlib.closing(injector), memory_limit(limit_bytes):
            self._enter("rendezvous")
            store = self._join_peers(rank, world_size, timeout_s)
            rank_context: dict[str, Any] = {
                "rank": rank,
                "world_size": world_size,
                "device": device,
            }
            self._is_joining = True
            with process_group(store, **rank_context, timeout_s=timeout_s, backend=self._backend):
                self._is_joining = False
                try:
                    self._enter("set-up")
                    injector.at(0)
                    result = self._trial(
                        request, RankContext(**rank_context, progress=self._progress), report
                    )
                except BaseException as error:
                    # before the teardown of the groups, which may hang
                    self._report_failure(error)
                    raise
        if injector.silences:
            return {"measurement": None, "stopped": ""}
        return {
            "measurement": to_plain(result.measurement.to_dict()) if result.measurement else None,
            "stopped": result.stopped,
        }

    def _join_peers(self, rank: int, world_size: int, timeout_s: float) -> Any:
        from autotune_workers.training.rendezvous import join_store, open_store

        if rank == 0:
            store, port = open_store(self._host, world_size, timeout_s)
            self._send("store", host=self._host, port=port)
            return store
        while True:
            message = self._store.get(timeout=timeout_s)
            if message["run"] == self._run:
                return join_store(message["host"], message["port"], world_size, timeout_s)

    def _report_failure(self, error: BaseException) -> None:
        """Reports why the trial failed. Only the first failure of a trial is reported, not those of
        its teardown."""
        if not self._has_reported_failure:
            self._has_reported_failure = True
            self._send("failed", **self._explain(error))

    def _explain(self, error: BaseException) -> Message:
        traceback.print_exception(error)
        sys.stderr.flush()
        frames = traceback.extract_tb(error.__traceback__)
        failure = getattr(error, "failure", None)
        report = {
            "type": type(error).__name__,
            "text": str(error)[-4000:],
            "errno": getattr(error, "errno", None),
            "failure": failure.to_dict() if failure is not None else None,
            "step": self._reported_step,
            "phase": self._phase,
            "waited": bool(frames) and waits(frames[-1].filename, frames[-1].line or ""),
            "aborted": self._aborted,
        }
        traceback.clear_frames(error.__traceback__)  # they hold the trial's tensors
        return report

    def _clean_up(self) -> None:
        import torch

        if (
            "torch._dynamo" in sys.modules
        ):  # something was compiled; importing the compiler only to reset it takes seconds
            torch.compiler.reset()
        gc.collect()
        if self._device == "cuda":
            # a broken CUDA context is detected by `_leaks`
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
        give_back_memory()

    def _leaks(self) -> bool:
        """Whether this process must be replaced before the next trial: it leaks memory, its CUDA
        context is broken, or a process group could not be formed. After the latter, torch's
        numbering of groups differs from that of its peers, and later groups would hang."""
        import torch
        import torch.distributed as dist

        if self._is_joining or dist.is_initialized():
            return True
        if self._device == "cuda":
            from autotune_workers.training.measuring.measure import GpuAllocator

            try:
                torch.cuda.synchronize()
                if GpuAllocator(torch.cuda.current_device()).leaks():
                    return True
            except RuntimeError:
                return True
        rss_bytes = status_bytes("VmRSS")
        if rss_bytes is None:
            return False
        if self._first_rss_bytes is None:
            self._first_rss_bytes = rss_bytes
        return rss_bytes - self._first_rss_bytes > LEAK_BYTES


def preload(trial: str, collectives: str) -> None:
    """Imports what a trial needs, so that the time of imports is not part of a trial."""
    for name in filter(None, (trial, collectives)):
        importlib.import_module(name.partition(":")[0])
    importlib.import_module("autotune_workers.training.parallel.mesh")
    importlib.import_module("autotune_workers.training.rendezvous")


def serve_rank(
    channel: socket.socket, *, device: str, host: str, trial: str, collectives: str
) -> None:
    """Turns this process into a rank; never returns."""
    faulthandler.enable()
    be_expendable()
    channel.set_inheritable(False)
    try:
        preload(trial, collectives)
        Rank(channel, device=device, host=host, trial=trial, collectives=collectives).serve()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        # at once: the interpreter closes the channel seconds before the process ends, and the
        # runner would have to kill it
        os._exit(1)


def main() -> None:
    """Entry point of a rank that is started as a process of its own."""
    channel, parent, arguments = sys.argv[1:]
    die_with_parent(int(parent))
    serve_rank(socket.socket(fileno=int(channel)), **json.loads(arguments))


if __name__ == "__main__":
    main()
