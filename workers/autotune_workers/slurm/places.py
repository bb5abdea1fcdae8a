"""Program places on the nodes of an allocation: whole nodes, each with a keeper that a step of srun
holds there for one attempt.

free    no attempt uses the node                   busy    until its step is over
lost    its keeper went silent, or its step could not be started there: no attempt gets it until Slurm starts a step on it again
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
"""between two looks at steps that start or end"""
LOOK_AGAIN_S = 15.0
"""between two looks at a lost node"""
HELLO_S, HELLO_BYTES, MOST_CALLERS = 20.0, 1 << 20, 256
"""what a caller gets to say who it is, and how many there may be"""


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection that has not said who it is."""

    connection: socket.socket
    since_s: float
    text: bytes = b""


@final
class SlurmPlaces:
    """The nodes of an allocation; `ProgramPlaces`."""

    is_local = False

    def __init__(
        self, job: Allocation, ranks_per_node: int, *, left_out: Sequence[str] = ()
    ) -> None:
        """`ranks_per_node`: that fit on each node; `left_out`: nodes that get none."""
        self._job, self._ranks_per_node = job, ranks_per_node
        self._hosts = [
            host for host in job.hosts() if not any(is_same_host(host, name) for name in left_out)
        ]
        self._busy: set[str] = set()
        self._lost: dict[str, NodeLook | float] = {}
        """a look that goes on, or when the next one is due"""
        self._steps: list[KeeperStep] = []
        """those that have nodes"""
        self._waiting: list[KeeperStep] = []
        """those for which there are not enough nodes now"""
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("0.0.0.0", 0), backlog=256)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def capacity(self) -> int:
        """Ranks that can be in use at once."""
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
        """So many nodes; None while other attempts use them. Where nodes are lost it waits for
        them, or for others."""
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
        """Messages of the nodes. Raises `JobEndedError` once Slurm has told a step to end, as at
        the beginning of a preemption."""
        restless = self._lost or any(step.is_ending or not step.is_ready for step in self._steps)
        received: list[tuple[Any, Message]] = []
        for key, _ in self._selector.select(min(timeout_s, LOOK_S) if restless else timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Caller):
                received += self._hear(key.data)
            else:
                received += self._receive(*key.data)
        for step in list(self._steps):
            received += self._look(step)
        self._look_at_lost()
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

    def _hear(self, caller: _Caller) -> list[tuple[Any, Message]]:
        """A caller says who it is, or a part of that. Who is none of ours is sent away."""
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
            said = json.loads(caller.text)
            for step in self._steps:
                node = None if step.is_ending else step.node_of(said)
                if node is None:
                    continue
                self._selector.unregister(caller.connection)
                ready = node.connect(caller.connection, said)
                assert node.keeper is not None
                self._selector.register(node.keeper, selectors.EVENT_READ, (step, node))
                return [(node, ready)]
        with contextlib.suppress(KeyError):  # it fell silent while it was admitted
            self._selector.unregister(caller.connection)
        caller.connection.close()
        return []

    def _receive(self, step: KeeperStep, node: SlurmNode) -> list[tuple[Any, Message]]:
        assert node.keeper is not None
        number, messages = node.keeper.fileno(), node.keeper.receive()
        if node.keeper.fileno() < 0:
            self._selector.unregister(number)
        for message in messages:
            if message["event"] == "gone" and message.get("terminated"):
                raise self._job_ended()
            if message["event"] == "gone":
                node.is_lost = True
                said = f": {step.words}" if step.words else ""
                message["why"] = (
                    f"node {node.name} ({node.address}) is lost, because the node stopped responding or its watching process was killed{said}"
                )
            elif message["event"] == "refused":
                message["reason"] = f"node {node.name}: {message['reason']}"
        return [(node, message) for message in messages]

    def _look(self, step: KeeperStep) -> list[tuple[Any, Message]]:
        """Goes on with a step that ends, or that could not be started."""
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
            self._take_back(step)
            return []
        said: list[tuple[Any, Message]] = []
        for node in [node for node in step.nodes if not node.ready and node.name in answers]:
            if not answers[node.name]:
                node.is_lost = True
                said.append(
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
                said.append(
                    (
                        node,
                        {
                            "event": "refused",
                            "reason": f"srun could not start the program on {node.name}: {why}",
                        },
                    )
                )
        step.forget_answers()
        return said

    def _take_back(self, step: KeeperStep) -> None:
        """Slurm can start nothing on any of its nodes, as while its controller restarts: the
        attempt waits, and has lost nothing."""
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

    def _look_at_lost(self) -> None:
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
        """Ends the step; its nodes are free once that is over, but for lost ones."""
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
        """Why such nodes can never be had."""
        if placement.nnodes > len(self._hosts):
            return f"the job must have as many nodes as a config needs, but this config needs {placement.nnodes} and job {self._job.job} has {len(self._hosts)}; use a smaller world size or request more nodes"
        return too_many(placement.nproc_per_node, self._ranks_per_node)

    def absence(self, placement: Placement) -> str:
        """Nodes that are lost, or that srun has not started yet."""
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
