"""Faults that are put into real trainings on this machine, and what a diagnosis must say of each
first: class, and rank or node.

    python -m tests.diagnosing.faults [NAME ...]      runs them all, or those of these names, and prints a table

Trainings of `train.py` on one node are forked from this process, which has torch already, with the
probe in them: that takes a tenth of the time of a start by `autotune run --diagnose -- torchrun`,
which the others have, and all with `--launched`. Ranks are found by the RANK in their environment.
A foreign process that is found beside a fault which is another one is set aside where this harness
itself saw that others used the processors meanwhile: on a machine with other work that is so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.shortcuts import write

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 900.0
CGROUP = Path("/sys/fs/cgroup/cpu")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
Injector = Callable[["Started"], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One run with a fault; healthy without `cause`."""

    name: str
    cause: str = ""
    """the class that must come first"""
    ranks: int = 2
    nodes: int = 1
    rank: int | None = None
    """the rank that must be named"""
    node: int | None = None
    """number of the node that must be named, where one must be"""
    options: str = ""
    """of the program"""
    program: str = "train.py"
    of_run: str = ""
    """options of `autotune run`"""
    inject: Injector | None = None
    rate: str = ""
    """bandwidth of the links of `limited`"""
    limited: tuple[int, ...] = ()
    also: tuple[str, ...] = ()
    """classes that are as right"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A run that has been started."""

    pid: int
    over: threading.Event
    ranks: dict[int, int] = field(default_factory=dict)
    """processes of ranks that were forked"""

    def rank(self, number: int) -> int | None:
        """The process of a rank; None until it is there."""
        if self.ranks:
            return self.ranks[number]
        for pid in _below(self.pid):
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if (
                    f"RANK={number}".encode() in variables
                    and b"train" in Path(f"/proc/{pid}/cmdline").read_bytes()
                ):
                    return pid
        return None

    def wait_for(self, number: int) -> int | None:
        """The same, once it is there."""
        while not self.over.is_set():
            if (pid := self.rank(number)) is not None:
                return pid
            time.sleep(0.1)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What came of a run."""

    document: dict[str, Any]
    foreign: float
    """processors that others used meanwhile"""
    text: str = ""

    def causes(self, fault: Fault) -> list[dict[str, Any]]:
        """Findings that count."""
        aside = self.foreign > 0.08 and fault.cause != "foreign_process"
        return [
            f for f in self.document["findings"] if not (aside and f["class"] == "foreign_process")
        ]

    def problem(self, fault: Fault) -> str:
        """What is wrong with the diagnosis; empty where nothing is."""
        found = self.causes(fault)
        said = [
            (f["class"], f["share"] and round(f["share"], 2), f["rank"], f["node"]) for f in found
        ]
        if not fault.cause:
            verdict = self.document["verdict"]
            unseen = verdict if verdict.startswith(("no optimizer step", "too few steps")) else ""
            return f"a healthy run, but {said}" if found else unseen
        if not found or found[0]["class"] not in (fault.cause, *fault.also):
            return f"{fault.cause} was not first: {said}"
        if fault.rank is not None and found[0]["rank"] != fault.rank:
            return f"it is rank {fault.rank}: {said}"
        if fault.node is not None and not found[0]["node"].endswith(f"-{fault.node + 1}"):
            return f"it is node {fault.node}: {said}"
        return ""


def stopped(rank: int, *, of: float = 0.5, period_s: float = 0.1) -> Injector:
    """The rank's process is stopped for a share of the time."""

    @contextlib.contextmanager
    def inject(run: Started) -> Iterator[None]:
        def go() -> None:
            pid = run.wait_for(rank)
            while pid is not None and not run.over.is_set():
                try:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(period_s * of)
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(period_s * (1 - of))
                except OSError:
                    return

        thread = threading.Thread(target=go)
        thread.start()
        yield
        thread.join()

    return inject


def held(rank: int, *, cores: float) -> Injector:
    """A quota of its control group holds the rank."""

    @contextlib.contextmanager
    def inject(run: Started) -> Iterator[None]:
        group = CGROUP / f"autotune-test-{os.getpid()}"
        group.mkdir()
        write(group, {"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": str(int(50_000 * cores))})

        def go() -> None:
            if (pid := run.wait_for(rank)) is not None:
                with contextlib.suppress(OSError):
                    (group / "cgroup.procs").write_text(str(pid))

        thread = threading.Thread(target=go)
        thread.start()
        try:
            yield
        finally:
            thread.join()
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (CGROUP / "cgroup.procs").write_text(pid)
            group.rmdir()

    return inject


def hogs(count: int) -> Injector:
    """Processes of others that compute."""

    @contextlib.contextmanager
    def inject(run: Started) -> Iterator[None]:
        run.wait_for(0)
        # of nobody here: what this process starts counts as the training's own
        start = f"for _ in $(seq {count}); do {sys.executable} -c 'while True: sum(range(10000))' >/dev/null 2>&1 & echo $!; done"
        others = subprocess.run(
            ["sh", "-c", start], capture_output=True, text=True, check=True
        ).stdout.split()
        try:
            yield
        finally:
            for other in others:
                os.kill(int(other), signal.SIGKILL)

    return inject


def command_of(fault: Fault, node: int = 0, address: str = "") -> list[str]:
    """What a person types."""
    tool = str(Path(sys.executable).with_name("autotune"))
    if fault.ranks == 1:
        launch = [sys.executable]
    else:
        launch = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={fault.ranks // fault.nodes}",
        ]
        several = [
            f"--nnodes={fault.nodes}",
            f"--node-rank={node}",
            f"--master-addr={address}",
            "--master-port=29533",
        ]
        launch += several if fault.nodes > 1 else ["--standalone"]
    return [
        tool,
        "run",
        "--diagnose",
        "--json",
        *fault.of_run.split(),
        "--",
        *launch,
        str(PROGRAMS / fault.program),
        *fault.options.split(),
    ]


def run(fault: Fault, folder: Path, *, launched: bool = False) -> Seen:
    """Runs it."""
    variables = {
        **os.environ,
        "AUTOTUNE_STORE": str(folder / "results.db"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    before = _machine()
    if fault.nodes == 1 and fault.program == "train.py" and not fault.of_run and not launched:
        document, text, ours_s = _forked(fault, folder)
    elif fault.nodes > 1:
        document, text, ours_s = _on_nodes(fault, folder, variables)
    else:
        with open(folder / "stderr.txt", "w+") as errors:
            process = subprocess.Popen(
                command_of(fault),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=variables,
                cwd=folder,
            )
            started = Started(pid=process.pid, over=threading.Event())
            used = threading.Thread(target=_watch, args=(started, spent := [0.0]))
            used.start()
            with (fault.inject or _nothing)(started):
                out, _ = process.communicate(timeout=LIMIT_S)
                started.over.set()
            used.join()
            errors.seek(0)
            document, text, ours_s = json.loads(out), errors.read(), spent[0]
    lasted_s = _machine()[0] - before[0]
    return Seen(
        document=document, foreign=(_machine()[1] - before[1] - ours_s) / lasted_s, text=text
    )


def _forked(fault: Fault, folder: Path) -> tuple[dict[str, Any], str, float]:
    """Ranks that are forked, each with the probe, and the diagnosis of what they report."""
    import torch  # noqa: F401 - so that the ranks have it

    from autotune.diagnosis import diagnose, evidence_of
    from autotune_workers.probe.probe_folder import Reports

    reports = folder / "reports"
    reports.mkdir()
    began = os.times()
    over, ranks = threading.Event(), {}
    for rank in range(fault.ranks):
        if (pid := os.fork()) == 0:
            _be_a_rank(fault, rank, folder, reports)
        ranks[rank] = pid
    with (fault.inject or _nothing)(Started(pid=os.getpid(), over=over, ranks=ranks)):
        codes = [os.waitpid(pid, 0)[1] for pid in ranks.values()]
        over.set()
    ended = os.times()
    reader, told = Reports(reports), []
    while found := reader.read():
        told += found
    evidence = evidence_of(told)
    text = (folder / "output.txt").read_text()[-2000:]
    assert not any(codes), text
    assert evidence is not None, text
    ours_s = (
        ended.children_user + ended.children_system - began.children_user - began.children_system
    )
    return diagnose(evidence).to_dict(), text, ours_s


def _be_a_rank(fault: Fault, rank: int, folder: Path, reports: Path) -> None:
    import atexit
    import runpy

    code = 1
    atexit._clear()  # what this process would do at its end is not the rank's
    try:
        output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        several = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(20000 + os.getppid() % 20000),
            "WORLD_SIZE": str(fault.ranks),
        }
        os.environ.update(
            several,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            OMP_NUM_THREADS="1",
            AUTOTUNE_PROBE_ROOT=str(os.getppid()),
        )
        import torch

        from autotune_workers.probe.injected import channel, training

        training.watch(torch, channel.Channel(str(reports)))
        sys.argv = [str(PROGRAMS / fault.program), *fault.options.split()]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def _on_nodes(
    fault: Fault, folder: Path, variables: dict[str, str]
) -> tuple[dict[str, Any], str, float]:
    from tests.nodes.network import Network

    with Network(fault.nodes) as network:
        for at in fault.limited:
            network.nodes[at].limit(fault.rate)
        address = network.nodes[0].address
        with open(folder / "stderr.txt", "w+") as errors:
            processes = [
                node.start(
                    *command_of(fault, at, address),
                    environment={**variables, "GLOO_SOCKET_IFNAME": "eth0"},
                    stdout=subprocess.PIPE,
                    stderr=errors if at == 0 else subprocess.DEVNULL,
                    text=True,
                )
                for at, node in enumerate(network.nodes)
            ]
            began = os.times()
            out = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
            ended = os.times()
            errors.seek(0)
            ours_s = (
                ended.children_user
                + ended.children_system
                - began.children_user
                - began.children_system
            )
            return json.loads(out[0]), errors.read(), ours_s


def _nothing(run: Started) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _watch(run: Started, spent: list[float]) -> None:
    """Processor seconds of the run and all below it."""
    known: dict[int, float] = {}
    while not run.over.is_set():
        for pid in _below(run.pid):
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                known[pid] = (int(fields[11]) + int(fields[12])) * _TICK_S
        time.sleep(0.5)
    spent[0] = sum(known.values())


def _below(root: int) -> list[int]:
    found = [root]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _machine() -> tuple[float, float]:
    ticks = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return time.monotonic(), (sum(ticks) - ticks[3] - ticks[4]) * _TICK_S


STEPS = "--steps=18 --width=128"
FAULTS: tuple[Fault, ...] = (
    Fault(name="loader of all sleeps, 2 ranks", cause="input", options=f"{STEPS} --loader-sleep=0.02"),
    Fault(name="loader of all sleeps, 3 ranks", cause="input", ranks=3, options=f"{STEPS} --loader-sleep=0.05"),
    Fault(name="loader of one process sleeps", cause="input", ranks=1, options=f"{STEPS} --loader-sleep=0.02"),
    Fault(name="loader of rank 0 sleeps", cause="input", rank=0, options=f"{STEPS} --loader-sleep=0.03 --of-rank=0"),
    Fault(name="loader of rank 1 sleeps", cause="input", rank=1, options=f"{STEPS} --loader-sleep=0.03 --of-rank=1"),
    Fault(name="loader of rank 2 of 3 sleeps", cause="input", ranks=3, rank=2, options=f"{STEPS} --loader-sleep=0.05 --of-rank=2"),
    Fault(name="loop of its own sleeps", cause="input", options=f"{STEPS} --plain-sleep=0.2"),
    Fault(name="loop of its own sleeps on rank 1", cause="input", rank=1, options=f"{STEPS} --plain-sleep=0.2 --of-rank=1"),
    Fault(name="loader sleeps, accumulation", cause="input", options="--steps=16 --width=128 --accumulation=3 --loader-sleep=0.03"),
    Fault(name="rank 1 has three times the work", cause="slow_rank", rank=1, options=f"{STEPS} --work=3 --of-rank=1"),
    Fault(name="rank 0 has three times the work", cause="slow_rank", rank=0, options=f"{STEPS} --work=3 --of-rank=0"),
    Fault(name="rank 2 of 3 has four times the work", cause="slow_rank", ranks=3, rank=2, options=f"{STEPS} --work=4 --of-rank=2"),
    Fault(name="rank 3 of 4 has four times the work", cause="slow_rank", ranks=4, rank=3, options=f"{STEPS} --work=4 --of-rank=3"),
    Fault(name="rank 1 is stopped half the time", cause="slow_rank", rank=1, options="--steps=24", inject=stopped(1)),
    Fault(name="rank 0 is stopped half the time", cause="slow_rank", rank=0, options="--steps=24", inject=stopped(0)),
    Fault(name="rank 1 is stopped in short turns", cause="slow_rank", rank=1, options="--steps=24", inject=stopped(1, of=0.6, period_s=0.05)),
    Fault(name="rank 2 of 3 is stopped", cause="slow_rank", ranks=3, rank=2, options="--steps=18", inject=stopped(2, of=0.7)),
    Fault(name="a quota holds rank 1 at a quarter", cause="slow_rank", rank=1, options="--steps=18", inject=held(1, cores=0.25)),
    Fault(name="a quota holds rank 0 at a quarter", cause="slow_rank", rank=0, options="--steps=18", inject=held(0, cores=0.25)),
    Fault(name="a quota holds rank 2 of 3", cause="slow_rank", ranks=3, rank=2, options="--steps=18", inject=held(2, cores=0.15)),
    Fault(name="two foreign processes, 2 ranks", cause="foreign_process", options="--steps=24", inject=hogs(2)),
    Fault(name="three foreign processes, 2 ranks", cause="foreign_process", options="--steps=24", inject=hogs(3)),
    Fault(name="two foreign processes, one process", cause="foreign_process", ranks=1, options="--steps=24", inject=hogs(2)),
    Fault(name="four foreign processes, 3 ranks", cause="foreign_process", ranks=3, options="--steps=18", inject=hogs(4)),
    Fault(name="lengths with a long tail, 2 ranks", cause="unequal_lengths", options="--steps=36 --width=128 --lengths=tail"),
    Fault(name="lengths with a long tail, 3 ranks", cause="unequal_lengths", ranks=3, options="--steps=30 --width=128 --lengths=tail"),
    Fault(name="lengths with a long tail, 4 ranks", cause="unequal_lengths", ranks=4, options="--steps=30 --width=128 --lengths=tail"),
    Fault(name="lengths with a long tail, wide", cause="unequal_lengths", options="--steps=24 --lengths=tail"),
    Fault(name="evaluation each 10 steps", cause="pauses", options="--steps=30 --width=128 --evaluate-every=10"),
    Fault(name="evaluation each 5 steps", cause="pauses", options="--steps=24 --width=128 --evaluate-every=5"),
    Fault(name="evaluation of one process", cause="pauses", ranks=1, options="--steps=30 --width=128 --evaluate-every=10"),
    Fault(name="checkpoints each 5 steps", cause="pauses", options="--steps=24 --save-every=5"),
    Fault(name="checkpoints each 10 steps", cause="pauses", ranks=3, options="--steps=24 --save-every=4"),
    Fault(name="shapes that change under compile", cause="recompilation", options=f"{STEPS} --compile --shapes"),
    Fault(name="shapes that change, one process", cause="recompilation", ranks=1, options=f"{STEPS} --compile --shapes"),
    Fault(name="shapes that change, wide", cause="recompilation", options="--steps=18 --compile --shapes"),
    Fault(name="prints in each micro-batch", cause="host", options=f"{STEPS} --print-lines=1500"),
    Fault(name="prints, one process", cause="host", ranks=1, options=f"{STEPS} --print-lines=1500"),
    Fault(name="prints, accumulation", cause="host", options="--steps=12 --width=128 --accumulation=4 --print-lines=1000"),
    Fault(name="computes in Python between passes", cause="host", options=f"{STEPS} --host-loop=1500"),
    Fault(name="computes in Python on rank 1", cause="host", rank=1, options=f"{STEPS} --host-loop=2500 --of-rank=1"),
    Fault(name="links of both nodes are slow", cause="communication_between_nodes", nodes=2, rate="30mbit", limited=(0, 1), options="--steps=16 --width=128"),
    Fault(name="link of one of two nodes is slow", cause="communication_between_nodes", nodes=2, rate="30mbit", limited=(1,), options="--steps=16 --width=128"),
    Fault(name="links of three nodes are slow", cause="communication_between_nodes", ranks=3, nodes=3, rate="30mbit", limited=(0, 1, 2), options="--steps=12 --width=128"),
    Fault(name="link of one of three nodes is slow", cause="slow_node", ranks=3, nodes=3, rate="20mbit", limited=(2,), node=2, options="--steps=12 --width=128"),
    Fault(name="loader of one node sleeps", cause="input", nodes=2, rank=1, options="--steps=20 --width=128 --loader-sleep=0.1 --of-rank=1"),
    Fault(name="Hugging Face: samples sleep", cause="input", ranks=1, program="train_hf.py", options="--sleep=0.03"),
    Fault(name="Hugging Face: samples sleep, 2 ranks", cause="input", program="train_hf.py", options="--sleep=0.03"),
    Fault(name="Hugging Face: evaluates each 5 steps", cause="pauses", ranks=1, program="train_hf.py", options="--evaluate=5"),
    Fault(name="Lightning: samples sleep", cause="input", ranks=1, program="train_lightning.py", options="--sleep=0.03"),
    Fault(name="Lightning: prints in each batch", cause="host", ranks=1, program="train_lightning.py", options="--lines=1500"),
    Fault(name="memory is given back and asked for again", cause="memory", options="--steps=24 --churn-mb=800"),
    Fault(name="memory is asked for again on rank 1", cause="memory", rank=1, options="--steps=24 --churn-mb=800 --of-rank=1", also=("slow_rank",)),
    Fault(
        name="a prediction of another model",
        cause="prediction",
        ranks=1,
        options="--steps=18 --width=64",
        of_run="--model llama-8b --cluster cpu-1x1 --seq-len 64 --batch 8 --precision fp32",
    ),
)  # fmt: skip
HEALTHY: tuple[Fault, ...] = (
    *(Fault(name=f"healthy, {ranks} ranks, width {width}", ranks=ranks, options=f"--steps=18 --width={width}") for ranks in (1, 2, 3, 4) for width in (128, 192, 256)),
    Fault(name="healthy, accumulation", options="--steps=16 --width=128 --accumulation=4"),
    Fault(name="healthy, batch 16", options="--steps=20 --batch-size=16"),
    Fault(name="healthy, long sequences", options="--steps=20 --width=128 --seq-len=256"),
    Fault(name="healthy, compiled", options="--steps=18 --width=192 --compile"),
    Fault(name="healthy, two nodes", nodes=2, options="--steps=20 --batch-size=16"),
    Fault(name="healthy, Hugging Face", ranks=1, program="train_hf.py"),
    Fault(name="healthy, Hugging Face, 2 ranks", program="train_hf.py"),
    Fault(name="healthy, Lightning", ranks=1, program="train_lightning.py"),
)  # fmt: skip


def _in_turn(faults: tuple[Fault, ...]) -> list[Fault]:
    """One of each class, then the second of each: what is seen early is of all kinds."""
    seen: dict[str, int] = {}
    turns = []
    for fault in faults:
        turns.append((seen.setdefault(fault.cause, 0), fault))
        seen[fault.cause] += 1
    return [fault for _, fault in sorted(turns, key=lambda turn: turn[0])]


def main(names: list[str]) -> None:
    """Prints a row for each fault."""
    import tempfile

    launched = "--launched" in names
    names = [name for name in names if not name.startswith("--")]
    wrong: dict[bool, list[str]] = {True: [], False: []}
    count = {True: 0, False: 0}
    for fault in _in_turn((*FAULTS, *HEALTHY)):
        if names and not any(name in fault.name for name in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            began_s = time.monotonic()
            try:
                seen = run(fault, Path(folder), launched=launched)
                problem = seen.problem(fault)
                alone = [f["class"] for f in seen.document["findings"]]
            except Exception as error:
                problem, alone = f"{type(error).__name__}: {error}"[:300], []
            is_fault = bool(fault.cause)
            count[is_fault] += 1
            if problem:
                wrong[is_fault].append(fault.name)
            took_s = time.monotonic() - began_s
            print(
                f"{'ok   ' if not problem else 'WRONG'} {fault.name} [{took_s:.0f} s] {problem} {alone}",
                flush=True,
            )
    print(
        f"faults: {count[True] - len(wrong[True])} of {count[True]} right; healthy: {count[False] - len(wrong[False])} of {count[False]} silent"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
