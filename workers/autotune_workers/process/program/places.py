"""Program places: the nodes on which one attempt of a program runs, as the runner sees them, and
the protocol of what provides them.

The counterpart of `gang.gang_runner.RankPools` for programs: a keeper per node instead of a process
per rank. A keeper starts the program of its node, reads its log, and ends everything that the
program started (`keeper`; its owner on the node is `keeper.owner`).

    ready      {"event": "ready", "address": A, "port": P}                 the node can start a program; P is a free port at A
    started    {"event": "started", "pid": N, "program": PATH,             PATH: the file that argv[0] was found to be
                "hostname": NAME, "gpus": [...]}                           gpus: as CUDA_VISIBLE_DEVICES names them
    refused    {"event": "refused", "reason": TEXT}                        the program cannot be started there
    lines      {"event": "lines", "lines": [[ARRIVED_S, TEXT], ...]}       of the log; ARRIVED_S on the node's own monotonic clock;
               "left_out": {...}                                           of the lines before these, where there was something (`left_out`); without lines:
                                                                           there is output, but no line to pass on
    probe      {"event": "probe", "reports": [...]}                        what the probe says from inside the program (`autotune_workers.probe`)
    ended      {"event": "ended", "code": C, "peak_bytes": N, "gpu_peak_bytes": N or null, "kernel_oom": B, "left": [PID, ...]}
                                                                           nothing of the program is left but `left`
    gone       {"event": "gone", "why": TEXT}                              the keeper is lost: no more messages

`code`: exit status of the program, negative for a signal, null when even SIGKILL did not end it.
`peak_bytes`: the largest resident high-water mark of any one process below the program;
`gpu_peak_bytes`: the most memory that they held on one GPU; null where nobody can tell. `refused`,
`ended` and `gone` are last messages. A place serves one attempt: `disband` ends what may still be
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from autotune_workers.gang.attempt_runner import Place, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOrder:
    """What one node shall start. Plain values only: it is sent between processes and machines as
    JSON."""

    argv: tuple[str, ...]
    """the command"""
    env: Mapping[str, str] = field(default_factory=dict)
    """variables that are added to the environment of the node"""
    files: Mapping[str, str] = field(default_factory=dict)
    """text by name, written into a folder of the attempt's own, whose path takes the place of
    `trainers.launch_files.FOLDER`"""
    cwd: str = ""
    """absolute; empty: the folder of `files`; with a folder that was sent along, relative to
    that"""
    nodes: int = 1
    """of the attempt; where there are several, gloo is told the interface that holds the node's
    address, unless a variable says which"""
    trainer: str = ""
    """whose step lines the log has"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """of the trainer, as far as its log depends on them"""
    watched: bool = True
    """whether the probe looks at what the program does"""
    keeps_files: bool = True
    """whether files that were there before are put back after the program wrote others in their
    place"""


class NodeHandle(Protocol):
    """The keeper of a node as the runner sees it. None of these raises when it is gone."""

    name: str
    ready: bool
    address: str
    """address of its node, known once it is ready"""
    port: int
    """a port that is free at `address`, known once it is ready; a new one for each attempt"""

    def begin(self, order: ProgramOrder) -> None:
        """Starts the program."""
        ...

    def end(self, *, hung: bool = False) -> None:
        """Ends the program: SIGTERM, then SIGKILL to all that it started; the message `ended`
        follows. Without a program it does nothing. `hung`: it is asked first which collectives its
        ranks had begun."""
        ...


class ProgramPlaces(Source, Protocol):
    """Where nodes come from, and where they go after an attempt; those that are not `healthy` are
    not used again."""

    @property
    def is_local(self) -> bool:
        """Whether every node is this machine, so that a program or folder that is missing here is
        missing everywhere."""

    def form(self, *, nodes: int, ranks_per_node: int, study: str, folder: str) -> Place | None:
        """So many whole nodes, warm where possible; their keepers may still be starting. None when
        there are not enough free ones now. `study`: part of the name of a new place; `folder`: the
        program's folder, to be sent along; empty when the nodes have it."""
