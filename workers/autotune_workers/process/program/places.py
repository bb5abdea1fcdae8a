"""Protocols of the nodes on which one attempt of a program runs, and of what provides them.

The counterpart of `gang.gang_runner.RankPools` for programs: one keeper per node instead of one
process per rank. A keeper starts its node's program, reads its log, and ends all processes that the
program started (`keeper`; the owner's side is `keeper.owner`).

    ready      {"event": "ready", "address": A, "port": P}                 the node can start a program; P is a free port at A
    started    {"event": "started", "pid": N, "program": PATH,             PATH: the file found for argv[0]
                "hostname": NAME, "gpus": [...]}                           gpus: as CUDA_VISIBLE_DEVICES names them
    refused    {"event": "refused", "reason": TEXT}                        the program cannot be started there
    lines      {"event": "lines", "lines": [[ARRIVED_S, TEXT], ...]}       log lines; ARRIVED_S on the node's own monotonic clock;
               "left_out": {...}                                           output left out before these lines, if any (`LeftOut`); without lines:
                                                                           there is output, but no line to forward
    probe      {"event": "probe", "reports": [...]}                        the probe's reports from inside the program (`autotune_workers.probe`)
    ended      {"event": "ended", "code": C, "peak_bytes": N, "gpu_peak_bytes": N or null, "kernel_oom": B, "left": [PID, ...]}
                                                                           all processes of the program have ended except `left`
    gone       {"event": "gone", "why": TEXT}                              the keeper is lost: no more messages

`code`: exit status of the program, negative for a signal, null if even SIGKILL did not end it.
`peak_bytes`: largest resident high-water mark of any process of the program. `gpu_peak_bytes`: peak
memory of these processes on one GPU; null if unknown. `refused`, `ended` and `gone` are last
messages. A place serves one attempt; `disband` ends processes that remain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from autotune_workers.gang.attempt_runner import Place, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOrder:
    """The order for one node. Has plain values only, because it is sent between processes and
    machines as JSON."""

    argv: tuple[str, ...]
    """the command"""
    env: Mapping[str, str] = field(default_factory=dict)
    """variables added to the environment of the node"""
    files: Mapping[str, str] = field(default_factory=dict)
    """content by file name, written into a folder of the attempt, whose path replaces
    `trainers.launch_files.FOLDER`"""
    cwd: str = ""
    """absolute path, or relative to a folder that was sent to the node; empty: the folder of
    `files`"""
    nodes: int = 1
    """number of nodes of the attempt; if there are several, gloo is set to the interface with the
    node's address, unless a variable sets it"""
    trainer: str = ""
    """name of the trainer that defines step lines"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """the trainer's options that affect its log"""
    watched: bool = True
    """whether the probe observes the program"""
    keeps_files: bool = True
    """whether existing files that the program overwrites are restored"""


class NodeHandle(Protocol):
    """A node's keeper, as the runner uses it. Methods do not raise when it is gone."""

    name: str
    ready: bool
    address: str
    """address of its node; valid once it is ready"""
    port: int
    """a free port at `address`, valid once it is ready; a new one for each attempt"""

    def begin(self, order: ProgramOrder) -> None:
        """Starts the program."""
        ...

    def end(self, *, hung: bool = False) -> None:
        """Ends the program with SIGTERM, then SIGKILL to all its processes; the message `ended`
        follows. Does nothing without a program. `hung`: first read which collectives its ranks had
        begun."""
        ...


class ProgramPlaces(Source, Protocol):
    """Provides nodes for attempts and takes them back; reuses only `healthy` ones."""

    @property
    def is_local(self) -> bool:
        """Whether every node is this machine, so that a program or folder missing here is missing
        everywhere."""

    def form(self, *, nodes: int, ranks_per_node: int, study: str, folder: str) -> Place | None:
        """Allocates whole nodes, running ones if possible; their keepers may still be starting.
        Returns None if too few are free now. `study`: part of the name of a new place. `folder`:
        the program's folder, to be sent to the nodes; empty if they have it."""
