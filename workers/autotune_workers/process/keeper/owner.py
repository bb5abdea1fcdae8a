"""The owner's side of a keeper: starts it on this machine or connects to a remote one, sends
orders, renews its lease, receives its messages.

A detached keeper is not a child of this process (see `keeper`). Its end shows in its last message
and the closed channel, and it is killed by process number, which is valid while the channel is
open. Any other keeper is a child, reaped by `close`, because in a container process 1 may not reap
orphans.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import final

from autotune.trainers.launch_files import FOLDER, OUTPUTS
from autotune_workers.gang.wire import Message
from autotune_workers.probe.probe_folder import put_back_abandoned
from autotune_workers.process.children import rank_environment
from autotune_workers.process.message_channel import MessageChannel
from autotune_workers.process.program.environment import program_environment, program_user
from autotune_workers.process.program.places import ProgramOrder
from autotune_workers.speed_variables import speed_variables

LOST = "the process that watches the program was lost"


@final
class KeeperProcess:
    """One keeper, for one program. One thread receives; others may send."""

    def __init__(self, *, detached: bool = False, connection: socket.socket | None = None) -> None:
        """Starts the keeper; its program starts with `begin`. `detached`: whether it must outlive
        the direct children of this process. `connection`: socket of a keeper that already runs on
        another machine, instead of starting one."""
        self._pid = 0
        self._has_last_message = False
        """whether its last message has arrived"""
        self._inherited: dict[str, str] = {}
        """inherited variables that may change the program's speed"""
        self._starter: subprocess.Popen[bytes] | None = None
        if connection is not None:
            self._channel = MessageChannel(connection, send_timeout_s=5.0)
            return
        ours, theirs = socket.socketpair()
        self._channel = MessageChannel(ours, send_timeout_s=5.0)
        flags = ["--detach"] if detached else []
        try:
            with theirs:
                self._starter = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "autotune_workers.process.keeper.keeper",
                        "--fd",
                        str(theirs.fileno()),
                        *flags,
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=rank_environment({}, host="127.0.0.1"),
                )
        except BaseException:
            self._channel.close()
            raise

    def fileno(self) -> int:
        """For selectors: readable when there are messages or the keeper is gone; -1 once the
        channel has ended."""
        return self._channel.fileno()

    def begin(
        self,
        order: ProgramOrder,
        *,
        address: str,
        folder: str = "",
        is_folder_ours: bool = False,
        environment: Mapping[str, str] | None = None,
        inherited: Mapping[str, str] | None = None,
        lease_s: float | None = None,
    ) -> None:
        """Starts the program. `address`: of its node. `folder`: base of a relative `cwd`, deleted
        at the end if `is_folder_ours`. `environment`: variables of the node; the order's take
        precedence. `inherited`: the keeper's own environment, if it differs from this process's.
        `lease_s`: everything ends after this time without `renew`; None: no lease."""
        inherited_by_program = program_environment(order.argv, of=inherited)
        set_by_order = {**(environment or {}), **order.env}
        variables = {**inherited_by_program, "PYTHONUNBUFFERED": "1", **set_by_order}
        self._inherited = speed_variables(
            {name: text for name, text in inherited_by_program.items() if name not in set_by_order}
        )
        self._channel.send({
            "command": "start",
            "argv": list(order.argv),
            "env": variables,
            "meets_at": address if order.nodes > 1 else "",
            "cwd": os.path.join(folder, order.cwd) if order.cwd else "",
            "files": dict(order.files),
            "folder_word": FOLDER,
            "remove": [folder] if is_folder_ours else [],
            "user": program_user(),
            "trainer": order.trainer,
            "options": dict(order.options),
            "lease_s": lease_s,
            "outputs": OUTPUTS,
            "watched": order.watched,
            "keeps_files": order.keeps_files,
        })  # fmt: skip

    def renew(self) -> None:
        """Renews the lease."""
        self._channel.send({"command": "alive"})

    def end(self, *, hung: bool = False) -> None:
        """Ends the program; the message `ended` follows. `hung`: read NCCL's flight recorder first,
        to report the collectives that its ranks had begun."""
        self._channel.send({"command": "end", "hung": hung})

    def receive(self) -> list[Message]:
        """The messages that have arrived. The last one of all is `ended`, `refused`, or `gone` if
        the keeper was lost before."""
        if self._starter is not None:
            self._starter.poll()
        messages = self._channel.receive()
        for message in messages:
            if message["event"] == "keeper":
                self._pid = message["pid"]
            elif message["event"] == "started":
                message["environment"] = self._inherited
            self._has_last_message = self._has_last_message or message["event"] in (
                "ended",
                "refused",
                "gone",
            )
        if not self._channel.is_open and not self._has_last_message:
            self._has_last_message = True
            if self._starter is not None:
                put_back_abandoned()
            messages.append({"event": "gone", "why": LOST})
        return [message for message in messages if message["event"] != "keeper"]

    def close(self, timeout_s: float = 0.0) -> None:
        """Ends the program, waits up to `timeout_s` for its end, and kills the keeper if it has not
        ended."""
        self.end()
        end_s = time.monotonic() + timeout_s
        while self._channel.is_open and time.monotonic() < end_s:
            self.receive()
            time.sleep(0.01)
        if self._channel.is_open and self._pid and self._starter is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGKILL)
        self._channel.close()
        if self._starter is not None:
            self._starter.wait()
