"""Nodes of a Ray cluster as processes of this machine, which a test kills as if the node had
failed.

    python -m tests.ray_roles head                         starts a cluster, prints its address, stays
    python -m tests.ray_roles node ADDRESS CPUS FOLDER     joins it as a node at a loopback address of its own, says so, stays
    python -m tests.ray_roles janitor ADDRESS LABEL ABANDONED_S
                                                           joins it as a driver and starts the janitor of these groups, says so, stays
    python -m tests.ray_roles study ADDRESS [STEPS [ABANDONED_S [ATTEMPTS]]]
                                                           joins it as a driver and goes on with the trial that is there, or runs one; prints
                                                           what happens, and why it ends
    python -m tests.ray_roles program ADDRESS ABANDONED_S  joins it as a driver, and runs a program on two nodes; prints what happens

`ray start` will not do for the node: it takes a cluster on loopback for one at the machine's own
address. As it does, the node notes the cluster's address in its folder, where jobs that run on it
look for it; else they find whatever cluster was started last on the machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

from autotune_workers.process.machine import descendants, die_with_parent

AUTH = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 32}
"""of the environment, so that nothing is written to the user's home"""


def head() -> None:
    """The head of a cluster."""
    from autotune_workers.runners.ray import RayRunner

    die_with_parent(os.getppid())
    print(RayRunner(num_cpus=2).address, flush=True)
    signal.pause()


def node(address: str, num_cpus: str, folder: str) -> None:
    """A node beside the head."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams
    from ray._private.utils import write_ray_address

    parameters = RayParams(
        gcs_address=address,
        node_ip_address="127.0.0.2",
        num_cpus=int(num_cpus),
        num_gpus=0,
        object_store_memory=100 << 20,
        min_worker_port=0,
        max_worker_port=0,
        dashboard_agent_listen_port=0,
        temp_dir=folder,
    )
    die_with_parent(os.getppid())
    Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
    write_ray_address(address, folder)
    print("joined", flush=True)
    signal.pause()


def janitor(address: str, label: str, abandoned_s: str) -> None:
    """A driver that has a janitor, but sends no heartbeats."""
    from autotune_workers.ray.janitor import start_janitor
    from autotune_workers.runners.ray import RayRunner

    die_with_parent(os.getppid())
    runner = RayRunner(address=address)
    start_janitor(label, float(abandoned_s))
    print("started", runner.address, flush=True)
    signal.pause()


def study(address: str, steps: str = "500", abandoned_s: str = "3", attempts: str = "3") -> None:
    """A driver that tries a trial again while it is told that a worker was lost."""
    from autotune.errors import RunnerError
    from autotune.ports import AttemptEnded, StepsReported
    from autotune_workers.runners.ray import RayRunner
    from tests.workers.requests import DOUBLE, PATIENT, request

    many = int(steps)
    measure = replace(PATIENT, min_steps=many, max_steps=many)
    runner = RayRunner(address=address, trial=DOUBLE, abandoned_s=float(abandoned_s))
    try:
        for attempt in range(1, int(attempts) + 1):
            asked = request(0, attempt=attempt, measure=measure, trainer_options={"step_s": 0.5})
            if runner.adopt(asked.study, [asked.id]):
                print("adopted", flush=True)
            else:
                runner.start(asked)
            is_over = False
            while not is_over:
                for event in runner.poll(0.5):
                    said = ""
                    if isinstance(event, AttemptEnded):
                        is_over = True
                        said = (
                            f"{event.failure.kind}: {event.failure.message}"
                            if event.failure
                            else "measured"
                        )
                    if isinstance(event, StepsReported):
                        said = f"{event.first_step} to {event.first_step + len(event.step_times_s) - 1}"
                    print(type(event).__name__, said, flush=True)
    except RunnerError as error:
        print("RunnerError", error, flush=True)
    finally:
        runner.close()
        print("closed", flush=True)


def program(address: str, abandoned_s: str) -> None:
    """A driver that ends what an earlier one of its study left, and runs a program on two nodes
    without end."""
    from autotune_workers.runners.ray import RayRunner
    from tests.workers.program_requests import on_two_nodes

    runner = RayRunner(address=address, abandoned_s=float(abandoned_s))
    asked = on_two_nodes(0, endless=True)
    print("adopted", runner.adopt(asked.study, [asked.id]), flush=True)
    runner.start(asked)
    while True:
        for event in runner.poll(0.5):
            print(type(event).__name__, flush=True)


@contextlib.contextmanager
def played(
    *role: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process in that role, whose output can be read; killed at the end with all below it."""
    root = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(root), str(root / "workers")])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ray_roles", *role],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "RAY_USAGE_STATS_ENABLED": "0",
            **(environment or {}),
        },
        start_new_session=True,
    )
    try:
        yield process
    finally:
        go_away(process)
        process.communicate()


@contextlib.contextmanager
def authenticated() -> Iterator[None]:
    """This process and what it starts use one token. Ray keeps what its environment said when it
    was imported, so it is made to read it again."""
    with mock.patch.dict(os.environ, AUTH):
        _read_again()
        yield
    _read_again()


def _read_again() -> None:
    if "ray" in sys.modules:
        from ray._private.authentication_test_utils import reset_auth_token_state

        reset_auth_token_state()


@contextlib.contextmanager
def played_head() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A cluster of its own, and its address; who is in this environment meanwhile may join it."""
    with authenticated(), played("head") as head:
        assert head.stdout is not None
        said = ""
        for line in head.stdout:
            if line.startswith("127."):
                break
            said += line
        else:
            raise RuntimeError(f"the head did not start: {said}")
        yield head, line.strip()


@contextlib.contextmanager
def played_node(address: str, *, num_cpus: int) -> Iterator[subprocess.Popen[str]]:
    """A node of that cluster, which has joined it."""
    with (
        # the names of Ray's sockets are long
        tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as short,
        played(
            "node",
            address,
            str(num_cpus),
            short,
            environment={"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
        ) as process,
    ):
        assert process.stdout is not None
        if not any("joined" in line for line in process.stdout):
            raise RuntimeError("the second node did not join")
        yield process


def go_away(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the process and all below it, at once."""
    for pid in (process.pid, *descendants(process.pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    {"head": head, "node": node, "janitor": janitor, "study": study, "program": program}[
        sys.argv[1]
    ](*sys.argv[2:])
