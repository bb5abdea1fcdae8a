"""The allocation of Slurm that this process belongs to: in a batch script, in a step, or under
salloc, where the process may run on the login node.

What Slurm tells its processes (srun(1), sbatch(1)) says which job and nodes; how much time is left
is asked of squeue, because older releases tell no end. Nobody waits for Slurm's controller: it may
restart while a study runs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from autotune.errors import RunnerError

SRUN = "AUTOTUNE_SRUN"
"""variable with further options of each srun that autotune calls, such as
`--container-image=IMAGE`"""
_CONTAINER = "--container"
ANSWER_S = 30.0
"""for a command of Slurm"""
LOOK_S = 60.0
"""between two questions for the time left: an administrator may change the limit"""
_KEPT = re.compile(
    r"SLURM_(CONF|CLUSTER_NAME|WORKING_CLUSTER|JOB_ID|JOBID|JOB_USER|JOB_UID|JOB_GID|JOB_ACCOUNT|JOB_PARTITION)$"
)
"""of Slurm's variables, those that a further step needs; the others would be defaults of its
options, of our own step and not of the job"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A job's nodes."""

    job: str
    """its number"""
    num_nodes: int
    """>= 1, spare ones too"""
    node_list: str
    """as Slurm writes it: `n[1-4]`"""
    restarts: int = 0
    """how many times the job was requeued"""
    cpus_per_node: int = 0
    """CPUs that the job has on each node, the least; 0: not told"""

    def hosts(self) -> list[str]:
        """Names of its nodes, in Slurm's order. Raises `RunnerError`."""
        return ask("scontrol", "show", "hostnames", self.node_list).split()

    def srun(self, *options: str, nodes: int = 0, plain: bool = False) -> list[str]:
        """The beginning of a command that runs on each node of the job beside what runs there,
        once; `nodes`: on so many; `plain`: not in the container."""
        count = nodes or self.num_nodes
        return [
            *(
                "srun",
                f"--jobid={self.job}",
                "--overlap",
                f"--nodes={count}",
                f"--ntasks={count}",
                "--ntasks-per-node=1",
            ),
            *(
                "--cpu-bind=none",
                "--mem=0",
                "--mpi=none",
                "--kill-on-bad-exit=0",
                "--wait=0",
                "--quiet",
            ),
            *(word for word in _further_options() if not (plain and word.startswith(_CONTAINER))),
            *options,
        ]

    def left_s(self) -> float | None:
        """Time until the job's limit; None: there is no limit, or Slurm does not answer."""
        try:
            return seconds_of(ask("squeue", "--noheader", f"--jobs={self.job}", "--format=%L"))
        except RunnerError:
            return None

    def requeue(self) -> None:
        """Has the job begin again, which ends this process soon. Raises `RunnerError`."""
        ask("scontrol", "requeue", self.job)


def allocation(environment: Mapping[str, str] | None = None) -> Allocation | None:
    """The allocation of this process; None outside of one, and where Slurm's commands are not at
    hand, as in a container."""
    told = os.environ if environment is None else environment
    job, nodes = told.get("SLURM_JOB_ID", ""), told.get("SLURM_JOB_NODELIST", "")
    if not (
        job
        and nodes
        and shutil.which("srun", path=told.get("PATH"))
        and shutil.which("scontrol", path=told.get("PATH"))
    ):
        return None
    return Allocation(
        job=job,
        num_nodes=number(told, "SLURM_JOB_NUM_NODES") or number(told, "SLURM_NNODES") or 1,
        node_list=nodes,
        restarts=number(told, "SLURM_RESTART_COUNT"),
        cpus_per_node=min(
            (int(n) for n in re.findall(r"(?:^|,)(\d+)", told.get("SLURM_JOB_CPUS_PER_NODE", ""))),
            default=0,
        ),
    )


def number(told: Mapping[str, str], name: str) -> int:
    """The whole number in a variable; 0 where it holds none."""
    text = told.get(name, "")
    return int(text) if text.isdigit() else 0


def unused_nodes() -> str:
    """Where this process is in a job of several nodes: what `cluster: local` leaves out, in words;
    else empty."""
    job = allocation()
    if job is None or job.num_nodes < 2:
        return ""
    return f"job {job.job} has {job.num_nodes} nodes, but `cluster: local` is only this node; use `cluster: slurm` for all nodes"


def in_container() -> bool:
    """Whether the steps of the job run in a container, whose files are not those of this
    process."""
    return any(word.startswith(_CONTAINER) for word in _further_options())


def _further_options() -> list[str]:
    return shlex.split(os.environ.get(SRUN, ""))


def step_environment() -> dict[str, str]:
    """Our environment for srun, without what Slurm said of our own step."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") or _KEPT.match(name)
    }


def is_same_host(one: str, other: str) -> bool:
    """Whether two hostnames, with their domain or without, are one node's."""
    return one.partition(".")[0] == other.partition(".")[0]


def is_on_a_node(hosts: Sequence[str]) -> bool:
    """Whether this process runs on one of these nodes; under salloc it may run on the login
    node."""
    here = {
        name.partition(".")[0]
        for name in (socket.gethostname(), os.environ.get("SLURMD_NODENAME", ""))
    }
    return bool(here & {host.partition(".")[0] for host in hosts})


def move_to_nodes() -> None:
    """Under salloc, whose shell may run on the login node: replaces this process by the same
    command on the first node of the allocation. Otherwise does nothing."""
    job = allocation()
    if job is None or is_on_a_node(hosts := job.hosts()):
        return
    terminal = ["--pty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    command = job.srun(*terminal, f"--nodelist={hosts[0]}", f"--chdir={os.getcwd()}", nodes=1)
    told = {"SLURM_JOB_NODELIST": job.node_list, "SLURM_JOB_NUM_NODES": str(job.num_nodes)}
    told |= {name: os.environ[name] for name in ("SLURM_JOB_CPUS_PER_NODE",) if name in os.environ}
    # of the job, where srun would tell of its own step
    words = [f"{name}={value}" for name, value in told.items()]
    os.execvpe(command[0], [*command, "env", *words, *sys.orig_argv], step_environment())


def ask(*argv: str, folder: Path | None = None) -> str:
    """What a command of Slurm says that runs in the folder. Raises `RunnerError` with its words
    when it fails or does not answer."""
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=step_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunnerError(
            f"{argv[0]} could not run: {error}", remedy="check Slurm with `sinfo`", field="slurm"
        ) from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-500:]
        raise RunnerError(
            f"{' '.join(argv[:2])} failed: {said}",
            remedy="check Slurm with `squeue` and `sinfo`",
            field="slurm",
        )
    return done.stdout.strip()


def seconds_of(text: str) -> float | None:
    """A time as Slurm writes it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS. None for
    any other text, such as UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if found is None:
        return None
    days, *parts = (None if part is None else int(part) for part in found.groups())
    a, b, c = parts
    assert a is not None
    if days is not None:
        return days * 86400.0 + a * 3600 + (b or 0) * 60 + (c or 0)
    if b is None:
        return a * 60.0
    return float(a * 60 + b) if c is None else float(a * 3600 + b * 60 + c)


def notice_s(limit_s: float) -> float:
    """How long before its limit a job is told so, of a limit of so many seconds."""
    return min(120.0, limit_s / 8)


class JobClock:
    """How long trials may still run in this job: until twice its notice before the limit, as Slurm
    may send its signal up to a minute early. Asked in a thread of its own."""

    def __init__(self, job: Allocation) -> None:
        self._job = job
        self._end_s: float | None = None
        self._notice_s: float | None = None
        self._closed = threading.Event()
        self._look()
        self._thread = threading.Thread(
            target=self._keep_looking, name="autotune-slurm-clock", daemon=True
        )
        self._thread.start()

    def left_s(self) -> float | None:
        """Seconds, negative once they are over; None: no end is known."""
        return None if self._end_s is None else self._end_s - time.monotonic()

    def _look(self) -> None:
        if (left_s := self._job.left_s()) is not None:
            self._notice_s = self._notice_s or notice_s(left_s)
            self._end_s = time.monotonic() + left_s - 2 * self._notice_s

    def _keep_looking(self) -> None:
        while not self._closed.wait(LOOK_S):
            self._look()

    def close(self) -> None:
        """Asks no more."""
        self._closed.set()
