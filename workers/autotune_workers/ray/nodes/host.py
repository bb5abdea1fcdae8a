"""The Ray actor of one node of a program: holds the node's resources, starts a keeper for each
attempt, and relays its messages to the runner.

The program belongs to the keeper, not to the actor (`process.keeper`): when the actor ends, the
keeper's channel closes and the keeper ends the program. The owner's heartbeats renew the keeper's
lease. Each message has the number of its `attempt`, counted by the owner.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Any

from autotune.temporary_folders import TemporaryFolder
from autotune_workers.gang.wire import Message
from autotune_workers.process.keeper.log import LeftOut
from autotune_workers.process.keeper.owner import KeeperProcess
from autotune_workers.process.machine import free_port
from autotune_workers.process.program.places import ProgramOrder
from autotune_workers.ray.nodes.environment import NodeEnvironment, forget_rays_threads, sort_gpus
from autotune_workers.ray.nodes.program_folder import unpack
from autotune_workers.ray.owned_actor import LISTEN_S, MessageLog, OwnedActor, remote_actor

MOST_UNHEARD = 256
"""largest number of unconfirmed messages; beyond it the keeper's messages are not read, so the
keeper holds the log back and leaves out what is too much"""
WAIT_S = 0.05
"""interval of checks whether the owner has confirmed messages, seconds"""
END_S = 30.0
"""longest wait for a program to end before its keeper is killed, seconds"""


class NodeHost(OwnedActor):
    """The actor's class. Has one keeper at a time, whose messages a thread reads."""

    def __init__(
        self,
        *,
        owner: str,
        environment: NodeEnvironment,
        package: list[Any],
        abandoned_s: float | None = None,
    ) -> None:
        """`package`: a reference to the packed folder of the program, or empty. `abandoned_s`: see
        `OwnedActor`; None if the actor ends with its driver."""
        import ray

        forget_rays_threads()
        sort_gpus()
        self._address: str = ray.util.get_node_ip_address()
        self._environment = environment.on(self._address)
        self._package = package
        self._lease_s = abandoned_s
        self._prepare(owner)
        self._watch_owner(abandoned_s)

    def _prepare(self, owner: str) -> None:
        super()._prepare(owner)
        self._log = MessageLog(keeps_trial=False)
        self._attempt = 0
        self._keeper: KeeperProcess | None = None
        self._folder: TemporaryFolder | None = None
        self._reader: threading.Thread | None = None

    def prepare(self, owner: str, attempt: int) -> None:
        """Prepares for another attempt: ends the program of the last one, then reports `ready`."""
        with self._lock:
            if not self._is_owner(owner):
                return
            self._attempt = attempt
        self._end_program()
        self._add_message(
            {"event": "ready", "address": self._address, "port": free_port(self._address)}, attempt
        )

    def begin(self, owner: str, attempt: int, order: ProgramOrder) -> None:
        """Starts the program of that attempt."""
        if not self._is_owner(owner) or attempt != self._attempt:
            return
        folder = ""
        try:
            folder = self._unpacked()
            keeper = KeeperProcess(detached=True)
        except OSError as error:
            self._remove_folder()
            self._add_message(
                {"event": "refused", "reason": f"node {self._address}: {error}"}, attempt
            )
            return
        with self._lock:  # together with its reader, so that `_end_program` finds both or neither
            self._keeper = keeper
            keeper.begin(
                order,
                address=self._address,
                folder=folder,
                is_folder_ours=bool(folder),
                environment=self._environment,
                lease_s=self._lease_s,
            )
            self._reader = threading.Thread(
                target=self._relay,
                args=(keeper, attempt),
                name="autotune-keeper-reader",
                daemon=True,
            )
            self._reader.start()

    def _unpacked(self) -> str:
        """Unpacks the program's files into a new folder and returns its path; empty if none were
        sent."""
        import ray

        if not self._package:
            return ""
        self._folder = TemporaryFolder("program")
        folder = str(self._folder.path)
        try:
            unpack(ray.get(self._package[0]), folder)
        except BaseException:
            self._remove_folder()
            raise
        return folder

    def _remove_folder(self) -> None:
        """Removes the program's folder, in case the keeper did not."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _relay(self, keeper: KeeperProcess, attempt: int) -> None:
        """Adds the keeper's messages to the log until its last one."""
        while keeper.fileno() >= 0:
            select.select([keeper.fileno()], [], [], LISTEN_S)
            while self._log.unheard > MOST_UNHEARD and self._attempt == attempt:
                time.sleep(WAIT_S)
            for message in keeper.receive():
                if message["event"] == "refused":
                    message["reason"] = f"node {self._address}: {message['reason']}"
                self._add_message(message, attempt)

    def _add_message(self, message: Message, attempt: int) -> None:
        self._log.add({**message, "attempt": attempt})

    def listen(self, owner: str, heard: int = 0) -> list[Message]:
        """See `OwnedActor.listen`. Consecutive messages with lines are merged into one."""
        merged: list[Message] = []
        for message in super().listen(owner, heard):
            last = merged[-1] if merged else {}
            if (
                message["event"] == last.get("event") == "lines"
                and message["attempt"] == last["attempt"]
            ):
                left_out = LeftOut.of(last) + LeftOut.of(message)
                merged[-1] = {**message, "lines": last["lines"] + message["lines"]}
                if left_out:
                    merged[-1]["left_out"] = left_out.plain()
            else:
                merged.append(message)
        return merged

    def end(self, owner: str, hung: bool = False) -> None:
        """Ends the program; the message `ended` follows."""
        with self._lock:
            if self._is_owner(owner) and self._keeper is not None:
                self._keeper.end(hung=hung)

    def heartbeat(self, owner: str) -> None:
        """Called by the owner while it is alive; renews the keeper's lease."""
        with self._lock:
            if self._is_owner(owner) and self._keeper is not None:
                self._keeper.renew()

    def _end_program(self) -> None:
        """Ends the program and waits for its end. The reader reads the keeper's messages to the
        last one, even if nobody listens."""
        with self._lock:
            keeper, reader = self._keeper, self._reader
            self._keeper = self._reader = None
        if keeper is not None and reader is not None:
            keeper.end()
            reader.join(END_S)
            keeper.close()
        self._remove_folder()

    def _abandon(self) -> None:
        self._attempt = 0
        self._end_program()

    def pid(self, owner: str) -> int:
        """Process number of the actor."""
        return os.getpid()


def remote_node_host() -> Any:
    """The Ray actor class."""
    return remote_actor(NodeHost, "AutotuneNode", ("prepare", "begin", "end", "pid"))
