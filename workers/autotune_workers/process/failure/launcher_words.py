"""Reads how a rank ended from log lines of launchers and schedulers. Takes lines, returns
`RankEnd`.

DeepSpeed            [launch.py:325:sigkill_handler] [...] exits with return code = -9
mpirun, mpiexec      noticed that process rank 3 with PID 71 on node n1 exited on signal 9 (Killed)
srun, slurmstepd     srun: error: n1: task 3: Out Of Memory;  *** STEP 1.0 CANCELLED AT ... DUE TO TIME LIMIT ***
jsrun, flux          One or more process (first noticed rank 3) terminated with signal 9
Python's own         died with <Signals.SIGKILL: 9>;  process 1 terminated with signal SIGKILL
Lightning            [rank: 1] Child process with PID 71 terminated with code -9
a shell              run.sh: line 3: 71 Killed   python train.py
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from autotune.spec import FailureKind
from autotune_workers.gang.exception_kinds import signal_named, signal_worded

_RETURN_CODE = re.compile(
    r"exits with return code = (?P<code>-?\d+)|Child process with PID \d+ terminated with code (?P<child>-?\d+)"
)
_RANK = re.compile(
    r"\bprocess rank (\d+)|\[rank: (\d+)\]|first noticed rank (\d+)|\bprocess (\d+) terminated with"
)
_MPI = re.compile(
    r"noticed that process rank|BAD TERMINATION|KILLED BY SIGNAL|EXIT STRING|terminated with signal|died with <Signals|exited on signal"
)
_SRUN = re.compile(
    r"(?:srun|flux-job|flux-shell\S*|jsrun): (?:error|fatal|ERROR)?:? ?.*?\btask(?:\(s\)|s)?(?: (?P<rank>\d+)[\d,-]*)?:? "
    r"(?P<how>Out Of Memory|Killed|Terminated|Aborted|Segmentation fault|Bus error|[Ee]xited with exit code (?P<code>\d+))"
)
_SHELL = re.compile(
    r"^(?:\S+: line \d+: +\d+ |\S*: *\d+ )?(Killed|Segmentation fault|Bus error|Aborted)(?: \(core dumped\))?(?:\s{2,}.*)?$"
)
_OOM_KILL = re.compile(
    r"oom[_-]kill event|\bOOM Killed\b|\bOOMKilled\b|Memory cgroup out of memory|exceeded memory limit .{0,40}being killed"
)
_CANCELLED = re.compile(
    r"CANCELLED AT .{0,40}DUE TO (?P<why>TIME LIMIT|PREEMPTION|NODE FAILURE|\w[\w ]*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """The end of a rank as a launcher reports it."""

    code: int
    """exit status, negative for a signal"""
    rank: int | None = None
    """the rank; None if the line does not say"""
    kind: FailureKind | None = None
    """kind of failure that a scheduler decided on; None if only the code is known"""
    said: str = ""
    """the line of the log"""


def rank_end(text: str) -> RankEnd | None:
    """The end of a rank that the line reports; None for other lines."""
    line = text.strip()[:400]
    if _OOM_KILL.search(line):
        return RankEnd(code=-signal.SIGKILL, kind=FailureKind.OUT_OF_MEMORY, said=line)
    if (match := _CANCELLED.search(line)) is not None:
        kind = FailureKind.TIMEOUT if match["why"] == "TIME LIMIT" else FailureKind.WORKER_LOST
        return RankEnd(code=-signal.SIGTERM, kind=kind, said=line)
    if (match := _RETURN_CODE.search(line)) is not None:
        return RankEnd(code=int(match["code"] or match["child"]), rank=_rank(line), said=line)
    if (match := _SRUN.search(line)) is not None:
        rank = int(match["rank"]) if match["rank"] else None
        if match["how"] == "Out Of Memory":
            return RankEnd(
                code=-signal.SIGKILL, rank=rank, kind=FailureKind.OUT_OF_MEMORY, said=line
            )
        number = signal_worded(match["how"])
        return RankEnd(code=-number if number else int(match["code"] or 1), rank=rank, said=line)
    if _MPI.search(line) and (number := signal_named(line)) is not None:
        return RankEnd(code=-number, rank=_rank(line), said=line)
    if (shell := _SHELL.match(line)) is not None and (
        number := signal_worded(shell[1])
    ) is not None:
        return RankEnd(code=-number, said=line)
    return None


def _rank(line: str) -> int | None:
    found = _RANK.search(line)
    return next((int(group) for group in found.groups() if group), None) if found else None
