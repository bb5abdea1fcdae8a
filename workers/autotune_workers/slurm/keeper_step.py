"""One step of srun that runs a keeper on each node of an attempt.

start      srun on those nodes, in the job's container if it has one; each node connects, sends the step's number, and gets the keeper's code
end        its keepers end by themselves; after `END_S` the rest is ended by `scancel --signal=KILL JOB.STEP`, and after `END_S` more srun itself
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import final

import autotune_workers
from autotune import temporary_folders
from autotune.slurm.allocation import Allocation, in_container, step_environment
from autotune_workers.gang.wire import Message
from autotune_workers.process.keeper.owner import KeeperProcess
from autotune_workers.process.program.places import ProgramOrder
from autotune_workers.slurm import node_start

END_S = 8.0
"""longest wait for a step to end after its keepers were ordered to, seconds"""
STRAGGLER_S = 10.0
"""longest wait for the other nodes to connect once one has and srun has reported an error,
seconds"""
SLOW_S = 60.0
"""wait for nodes to connect before they are tested, seconds: loading a container image may take
minutes"""
LOOK_S = 20.0
"""longest wait for a node to answer a test, seconds"""
LOST_S = 12
"""seconds without TCP traffic from its machine after which a keeper counts as lost"""
TERMINATED = 128 + signal.SIGTERM
"""exit status of srun after Slurm has ordered the step to end"""
KEEPERS_CODE = (
    "__init__.py",
    "probe/__init__.py",
    "probe/probe_folder.py",
    "process/__init__.py",
    "process/failure/__init__.py",
    "process/failure/flight_recorder.py",
    "process/keeper/__init__.py",
    "process/keeper/keeper.py",
    "process/keeper/log.py",
    "process/machine.py",
    "process/program/__init__.py",
    "process/program/account.py",
)
"""files of `autotune_workers` that the keeper imports, besides the probe's `injected` files"""
_REST_OF_AUTOTUNE = "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n"
"""content of autotune/__init__.py on the node: also finds the package's other modules if the node
has them"""


@final
class SlurmNode:
    """The runner's handle of a node of a step; implements `NodeHandle`."""

    def __init__(self, name: str) -> None:
        """`name`: of the host; empty until the attempt has its nodes."""
        self.name, self.ready, self.is_lost = name, False, False
        self.address, self.port = "", 0
        self.keeper: KeeperProcess | None = None
        """None until the node has connected"""
        self._environment: Mapping[str, str] = {}

    def connect(self, connection: socket.socket, greeting: Mapping[str, object]) -> Message:
        """Takes the node's connection, sends it the keeper's code, and returns its message `ready`.
        `greeting`: the node's first message."""
        node_start.keep_alive(connection, LOST_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_S * 1000)
        connection.settimeout(LOOK_S)
        code = json.dumps(keepers_code()).encode()
        connection.sendall(b"%d\n" % len(code) + code)
        self.keeper = KeeperProcess(connection=connection)
        self.address, self.port, self.ready = (
            str(greeting["address"]),
            int(str(greeting["port"])),
            True,
        )
        given = greeting["environment"]
        self._environment = given if isinstance(given, dict) else {}
        return {"event": "ready", "address": self.address, "port": self.port}

    def begin(self, order: ProgramOrder) -> None:
        """Starts the program."""
        if self.keeper is not None:
            self.keeper.begin(order, address=self.address, inherited=self._environment)

    def end(self, *, hung: bool = False) -> None:
        """Ends the program."""
        if self.keeper is not None:
            self.keeper.end(hung=hung)


@final
class KeeperStep:
    """The step of one attempt. No method waits for Slurm."""

    def __init__(self, job: Allocation, num_nodes: int) -> None:
        """The step is started later, by `start`."""
        self._job, self.nodes = job, [SlurmNode("") for _ in range(num_nodes)]
        self._token, self._number = secrets.token_hex(32), ""
        self._process: subprocess.Popen[bytes] | None = None
        self._killer: subprocess.Popen[bytes] | None = None
        self._srun_errors = tempfile.TemporaryFile(prefix="autotune-srun-")  # noqa: SIM115 - closed by `close`
        self._connected_s: float | None = None
        self._ending_s: float | None = None
        self._tests: dict[str, NodeLook] = {}
        """running tests of nodes that have not connected, by host"""
        self._last_test_s = 0.0

    def start(self, hosts: Sequence[str], port: int) -> None:
        """Starts the step on these hosts, which connect to this machine's port."""
        for node, host in zip(self.nodes, hosts, strict=True):
            node.name = host
        self._last_test_s = time.monotonic()
        python = "python3" if in_container() else sys.executable
        program = [python, "-I", "-c", Path(node_start.__file__).read_text(), str(port)]
        self._process = subprocess.Popen(
            [
                *self._job.srun("--no-kill", f"--nodelist={','.join(hosts)}", nodes=len(hosts)),
                *program,
            ],
            env={**step_environment(), node_start.TOKEN: self._token},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._srun_errors,
            start_new_session=True,  # Ctrl-C must reach only this process
        )

    def node_of(self, greeting: Mapping[str, object]) -> SlurmNode | None:
        """The node that sent this greeting; None if it is not one of this step."""
        if not hmac.compare_digest(str(greeting.get("token")).encode(), self._token.encode()):
            return None
        self._number, self._connected_s = (
            str(greeting["step"]),
            self._connected_s or time.monotonic(),
        )
        return next(
            (node for node in self.nodes if node.name == greeting["node"] and node.keeper is None),
            None,
        )

    @property
    def is_started(self) -> bool:
        """Whether it has been started on nodes."""
        return self._process is not None

    @property
    def is_ready(self) -> bool:
        """Whether all nodes have connected."""
        return all(node.ready for node in self.nodes)

    @property
    def has_failed(self) -> bool:
        """Whether nodes that have not connected will not any more."""
        since_s = 0.0 if self._connected_s is None else time.monotonic() - self._connected_s
        return self.code is not None or (since_s > STRAGGLER_S and "error:" in self.words)

    @property
    def is_slow(self) -> bool:
        """Whether it is time to test the nodes that have not connected."""
        return time.monotonic() - self._last_test_s > SLOW_S

    def answers(self) -> dict[str, bool | None]:
        """Whether each node that has not connected answers, by host; None if unknown yet. Starts
        the tests."""
        self._tests = self._tests or {
            n.name: NodeLook(self._job, n.name) for n in self.nodes if not n.ready
        }
        return {name: look.answer() for name, look in self._tests.items()}

    def forget_answers(self) -> None:
        """Ends the tests, so that they can be run again later."""
        for look in self._tests.values():
            look.close()
        self._tests, self._last_test_s = {}, time.monotonic()

    @property
    def is_ending(self) -> bool:
        """Whether it was ordered to end."""
        return self._ending_s is not None

    @property
    def code(self) -> int | None:
        """Exit status of srun; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def words(self) -> str:
        """The last error output of srun and the nodes (500 bytes)."""
        size = os.fstat(self._srun_errors.fileno()).st_size
        return (
            os.pread(self._srun_errors.fileno(), 500, max(0, size - 500))
            .decode(errors="replace")
            .strip()
        )

    def give_back(self) -> None:
        """Ends srun and releases the nodes, so that the step can be started on others."""
        self.forget_answers()
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None
        self._srun_errors.truncate(0)
        for node in self.nodes:
            node.name = ""

    def end(self, end_s: float = 0.0) -> None:
        """Orders the step to end; `is_over` is true once it has. `end_s`: monotonic time until
        which programs may end."""
        for node in self.nodes:
            if node.keeper is not None:
                node.keeper.close(max(0.0, end_s - time.monotonic()))
        self._ending_s = time.monotonic()

    def is_over(self) -> bool:
        """Whether the step has ended. Continues to end it: call repeatedly."""
        if self._process is None or self._process.poll() is not None:
            return True
        assert self._ending_s is not None
        waited_s = time.monotonic() - self._ending_s
        if self._killer is None and (waited_s > END_S or not self._number):
            self._kill()
        if waited_s > 2 * END_S:
            self._process.kill()
        return False

    def _kill(self) -> None:
        """Kills the step by its number; if the number is unknown, srun ends the step itself."""
        assert self._process is not None
        if self._number:
            command = ["scancel", "--signal=KILL", f"{self._job.job}.{self._number}"]
            self._killer = subprocess.Popen(
                command, env=step_environment(), stderr=subprocess.DEVNULL
            )
        else:
            self._process.terminate()

    def close(self) -> None:
        """Frees its resources, once it is over."""
        for process in (self._process, self._killer):
            if process is not None:
                process.kill()
                process.wait()
        self.forget_answers()
        self._srun_errors.close()


@final
class NodeLook:
    """Test whether a node of the job answers, by an empty step on it."""

    def __init__(self, job: Allocation, host: str) -> None:
        """Starts the test."""
        self._end_s = time.monotonic() + LOOK_S
        self._process = subprocess.Popen(
            [*job.srun(f"--nodelist={host}", nodes=1, plain=True), "true"],
            env=step_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def answer(self) -> bool | None:
        """Whether the node answers; None if unknown yet."""
        code = self._process.poll()
        if code is None and time.monotonic() >= self._end_s:
            return False
        return None if code is None else code == 0

    def close(self) -> None:
        """Ends the test. srun ends the step, if it can."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        self._process.kill()
        self._process.wait()


@cache
def keepers_code() -> dict[str, str]:
    """The source files that the keeper needs, by path."""
    root = Path(autotune_workers.__path__[0])
    injected = sorted(
        path.relative_to(root).as_posix() for path in (root / "probe/injected").glob("*.py")
    )
    return {
        **{
            f"{root.name}/{path}": (root / path).read_text("utf-8")
            for path in (*KEEPERS_CODE, *injected)
        },
        "autotune/__init__.py": _REST_OF_AUTOTUNE,
        "autotune/temporary_folders.py": Path(temporary_folders.__file__).read_text("utf-8"),
    }
