"""Nodes of a Slurm allocation for programs: whole nodes, each with a keeper that a step of srun
runs there for one attempt.

free    no attempt uses the node                   busy    until its step is over
lost    its keeper went silent, or a step could not be started on it: not used until Slurm can start a step on it again
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from autotune.errors import JobEndedError
from autotune.ports.trial_runner import LeftOut
from autotune.slurm.allocation import Allocation, is_same_host
from autotune.trainers.base.torchrun import Placement
from autotune_workers.gang.attempt_runner import Place
from autotune_workers.gang.gang_runner import too_many
from autotune_workers.gang.wire import Message
from autotune_workers.slurm.keeper_step import END_S, TERMINATED, KeeperStep, NodeLook, SlurmNode

LOOK_S = 0.1
"""interval of checks of steps that start or end, seconds"""
LOOK_AGAIN_S = 15.0
"""interval of tests of a lost node, seconds"""
HELLO_S, HELLO_BYTES, MOST_CALLERS = 20.0, 1 << 20, 256
"""limits for connections without a valid greeting: seconds and bytes of a greeting, and number of
connections"""


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection that has not sent its greeting."""

    connection: socket.socket
    since_s: float
    text: bytes = b""


@final
class SlurmPlaces:
    """The nodes of an allocation; implements `ProgramPlaces`."""

    is_local = False

    def __init__(
        self, job: Allocation, ranks_per_node: int, *, left_out: Sequence[str] = ()
    ) -> None:
        """`ranks_per_node`: number of ranks that fit on each node; `left_out`: nodes that get
        none."""
        self._job, self._ranks_per_node = job, ranks_per_node
        self._hosts = [
            host for host in job.hosts() if not any(is_same_host(host, name) for name in left_out)
        ]
        self._busy: set[str] = set()
        self._lost: dict[str, NodeLook | float] = {}
        """by host: the running test, or the monotonic time of the next one"""
        self._steps: list[KeeperStep] = []
        """steps that have nodes"""
        self._waiting: list[KeeperStep] = []
        """steps without nodes, waiting until enough are free"""
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("0.0.0.0", 0), backlog=256)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def capacity(self) -> int:
        """Number of ranks that can be in use at once."""
        return len(self._hosts) * self._ranks_per_node

    def leave_out(self, node: str, needed: Placement) -> LeftOut:
        """See `autotune.ports.ChoosingRunner`."""
        rest = [host for host in self._hosts if not is_same_host(host, node)]
        if len(rest) == len(self._hosts):
            return "absent"
        if len(rest) < needed.nnodes:
            return "needed"
        self._hosts = rest
        return "left out"

    def form(self, *, nodes: int, ranks_per_node: int, study: str, folder: str) -> Place | None:
        """Allocates nodes; None while other attempts use them. If nodes are lost, the place waits
        for them or for others."""
        if nodes > len(self._hosts) or ranks_per_node > self._ranks_per_node:
            return None
        step = KeeperStep(self._job, nodes)
        if not self._place(step) and nodes <= len(self._hosts) - len(self._lost):
            step.close()
            return None
        if not step.is_started:
            self._waiting.append(step)
        return Place(handles=list(step.nodes), token=step)

    def _place(self, step: KeeperStep) -> bool:
        free = [host for host in self._hosts if host not in self._busy and host not in self._lost]
        if len(free) < len(step.nodes):
            return False
        hosts = free[: len(step.nodes)]
        self._busy.update(hosts)
        self._steps.append(step)
        step.start(hosts, self._listener.getsockname()[1])
        return True

    def wait(self, timeout_s: float) -> list[tuple[Any, Message]]:
        """Messages from the nodes. Raises `JobEndedError` once Slurm has ordered a step to end, as
        when a preemption begins."""
        is_polling = self._lost or any(step.is_ending or not step.is_ready for step in self._steps)
        received: list[tuple[Any, Message]] = []
        for key, _ in self._selector.select(min(timeout_s, LOOK_S) if is_polling else timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Caller):
                received += self._read_greeting(key.data)
            else:
                received += self._receive(*key.data)
        for step in list(self._steps):
            received += self._continue_step(step)
        self._test_lost_nodes()
        self._drop_silent_callers()
        self._waiting = [step for step in self._waiting if not self._place(step)]
        return received

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if len(self._callers()) >= MOST_CALLERS:
                connection.close()
                return
            connection.setblocking(False)
            self._selector.register(
                connection, selectors.EVENT_READ, _Caller(connection, time.monotonic())
            )

    def _callers(self) -> list[_Caller]:
        return [
            key.data for key in self._selector.get_map().values() if isinstance(key.data, _Caller)
        ]

    def _drop_silent_callers(self) -> None:
        for caller in self._callers():
            if time.monotonic() - caller.since_s > HELLO_S:
                self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        caller.connection.close()

    def _read_greeting(self, caller: _Caller) -> list[tuple[Any, Message]]:
        """Reads a part of a connection's greeting, and admits it when complete. Invalid connections
        are closed."""
        with contextlib.suppress(BlockingIOError):
            try:
                chunk = caller.connection.recv(1 << 16)
            except OSError:
                chunk = b""
            caller.text += chunk
            if not chunk or len(caller.text) > HELLO_BYTES:
                self._drop(caller)
            elif caller.text.endswith(b"\n"):
                return self._admit(caller)
        return []

    def _admit(self, caller: _Caller) -> list[tuple[Any, Message]]:
        with contextlib.suppress(
            ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError
        ):
            greeting = json.loads(caller.text)
            for step in self._steps:
                node = None if step.is_ending else step.node_of(greeting)
                if node is None:
                    continue
                self._selector.unregister(caller.connection)
                ready = node.connect(caller.connection, greeting)
                assert node.keeper is not None
                self._selector.register(node.keeper, selectors.EVENT_READ, (step, node))
                return [(node, ready)]
        with contextlib.suppress(KeyError):  # it was closed while being admitted
            self._selector.unregister(caller.connection)
        caller.connection.close()
        return []

    def _receive(self, step: KeeperStep, node: SlurmNode) -> list[tuple[Any, Message]]:
        assert node.keeper is not None
        descriptor, messages = node.keeper.fileno(), node.keeper.receive()
        if node.keeper.fileno() < 0:
            self._selector.unregister(descriptor)
        for message in messages:
            if message["event"] == "gone" and message.get("terminated"):
                raise self._job_ended()
            if message["event"] == "gone":
                node.is_lost = True
                srun_errors = f": {step.words}" if step.words else ""
                message["why"] = (
                    f"node {node.name} ({node.address}) is lost, because the node stopped responding or its watching process was killed{srun_errors}"
                )
            elif message["event"] == "refused":
                message["reason"] = f"node {node.name}: {message['reason']}"
        return [(node, message) for message in messages]

    def _continue_step(self, step: KeeperStep) -> list[tuple[Any, Message]]:
        """Continues with a step that is ending or could not be started. Returns messages about
        nodes without a connection."""
        if step.is_ending:
            if step.is_over():
                step.close()
                self._steps.remove(step)
                self._busy.difference_update(node.name for node in step.nodes)
            return []
        if step.is_ready or not (step.has_failed or step.is_slow):
            return []
        if step.code == TERMINATED:
            raise self._job_ended()
        answers = step.answers()
        if None in answers.values():
            return []
        if not any(answers.values()) and not any(node.ready for node in step.nodes):
            self._requeue(step)
            return []
        messages: list[tuple[Any, Message]] = []
        for node in [node for node in step.nodes if not node.ready and node.name in answers]:
            if not answers[node.name]:
                node.is_lost = True
                messages.append(
                    (
                        node,
                        {
                            "event": "gone",
                            "why": f"node {node.name} is lost, because Slurm cannot start anything on it",
                        },
                    )
                )
            elif step.has_failed:
                why = step.words or f"exit code {step.code}"
                messages.append(
                    (
                        node,
                        {
                            "event": "refused",
                            "reason": f"srun could not start the program on {node.name}: {why}",
                        },
                    )
                )
        step.forget_answers()
        return messages

    def _requeue(self, step: KeeperStep) -> None:
        """Releases the nodes of a step if Slurm cannot start anything on them, as while its
        controller restarts. The attempt waits again without a failure."""
        hosts = [node.name for node in step.nodes]
        step.give_back()
        self._steps.remove(step)
        self._busy.difference_update(hosts)
        self._lost.update(dict.fromkeys(hosts, time.monotonic() + LOOK_AGAIN_S / 3))
        self._waiting.append(step)

    def _job_ended(self) -> JobEndedError:
        return JobEndedError(
            f"Slurm ended a trial's step, for example because job {self._job.job} was preempted or cancelled",
            remedy="the study continues in the next job",
            field="runner",
        )

    def _test_lost_nodes(self) -> None:
        for host, look in list(self._lost.items()):
            if isinstance(look, float):
                if time.monotonic() >= look:
                    self._lost[host] = NodeLook(self._job, host)
            elif (answer := look.answer()) is not None:
                look.close()
                del self._lost[host]
                if not answer:
                    self._lost[host] = time.monotonic() + LOOK_AGAIN_S

    def disband(self, place: Place, healthy: bool) -> None:
        """Ends the step. Its nodes become free once it is over, except lost ones."""
        step: KeeperStep = place.token
        if step in self._waiting:
            self._waiting.remove(step)
            step.close()
            return
        for node in step.nodes:
            if node.keeper is not None and node.keeper.fileno() >= 0:
                self._selector.unregister(node.keeper.fileno())
            if node.is_lost:
                self._lost[node.name] = 0.0
        step.end()

    def is_placed(self, place: Place) -> bool:
        """Whether its nodes have connected."""
        return bool(place.token.is_ready)

    def shortage(self, placement: Placement) -> str:
        """Why such nodes can never be allocated; empty if they can."""
        if placement.nnodes > len(self._hosts):
            return f"the job must have as many nodes as a config needs, but this config needs {placement.nnodes} and job {self._job.job} has {len(self._hosts)}; use a smaller world size or request more nodes"
        return too_many(placement.nproc_per_node, self._ranks_per_node)

    def absence(self, placement: Placement) -> str:
        """Which nodes are lost, or not started by srun yet, as a message; empty if none."""
        if self._lost:
            return f"{', '.join(self._lost)} cannot be reached"
        starting: list[str] = []
        for step in self._steps:
            if not step.is_ending:
                starting += [node.name for node in step.nodes if not node.ready]
        return f"srun has not started the program on {', '.join(starting)} yet" if starting else ""

    def close(self) -> None:
        """Ends all programs, and waits until their steps are over."""
        for step in self._waiting:
            step.close()
        for step in self._steps:
            if not step.is_ending:
                for node in step.nodes:
                    node.end()
        end_s = time.monotonic() + END_S
        for step in [step for step in self._steps if not step.is_ending]:
            step.end(end_s)
        while not all(step.is_over() for step in self._steps):
            time.sleep(LOOK_S)
        for step in self._steps:
            step.close()
        for look in self._lost.values():
            if isinstance(look, NodeLook):
                look.close()
        self._selector.close()
        self._listener.close()
