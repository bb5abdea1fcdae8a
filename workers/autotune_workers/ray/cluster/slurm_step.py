"""Runs Ray on the nodes of a Slurm allocation, as one step that ends with the study (`node_start`
runs on each node).

The step's folder is in the working folder, which all nodes must see. It contains the token, which
only this user can read, the head's address, and each node's log.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.errors import JobEndedError, RunnerError
from autotune.slurm.allocation import Allocation, ask, in_container, step_environment
from autotune.spec.texts.as_text import format_duration
from autotune_workers.ray.cluster import node_start

READY_S = 300.0
"""longest wait for Ray to run on all nodes, seconds: minutes on a cold file system"""
END_S = 10.0
"""longest wait for the step to end after each signal, seconds"""


class RayStep:
    """The step. `close` removes everything of it from the nodes."""

    def __init__(
        self,
        job: Allocation,
        *,
        num_cpus: int | None,
        num_gpus: int | None,
        object_store_bytes: int,
        environment: dict[str, str],
    ) -> None:
        """Starts the step. `num_cpus`, `num_gpus`: per node; None: what the job has there.
        `environment`: further variables for Ray. Raises `RunnerError`."""
        self.job = job
        self._hosts = job.hosts()
        prefix = f".ray-{job.job}-{job.restarts}-"
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=Path.cwd()))
        except OSError as error:
            raise RunnerError(
                f"Ray's token and address are stored in the working folder {Path.cwd()}, which cannot be written: {error.strerror}",
                remedy="start from a writable folder that all nodes see",
                field="runner",
            ) from None
        self.token = self._folder / "token"
        with open(os.open(self.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        temp = f"/tmp/at-{job.job}-{job.restarts}-{self._folder.name[-4:]}"  # short, because it contains Ray's sockets
        sizes = {"--num-cpus": num_cpus, "--num-gpus": num_gpus}
        options = [f"{name}={size}" for name, size in sizes.items() if size is not None]
        command = job.srun(
            "--no-kill", f"--output={self._folder}/ray-%n.log", f"--chdir={Path.cwd()}"
        )
        command += [
            "python3" if in_container() else sys.executable,
            "-m",
            node_start.__name__,
            str(self._folder),
            temp,
        ]
        self._process = subprocess.Popen(
            [*command, *options, f"--object-store-memory={object_store_bytes}"],
            env={
                **step_environment(),
                **environment,
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(self.token),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach only this process
        )
        self.address = ""

    def wait_for_head(self) -> str:
        """Waits for the head and returns its address. Raises `RunnerError` if it does not start."""
        end_s = time.monotonic() + READY_S
        while not self.address:
            with contextlib.suppress(OSError):
                self.address = (self._folder / node_start.HEAD).read_text().split()[0]
            self._check_start()
            if time.monotonic() > end_s:
                raise self._failed(f"Ray's head did not start within {format_duration(READY_S)}")
            os.listdir(self._folder)  # makes a network file system refresh its cache
            time.sleep(0.05)
        return self.address

    def wait_for_nodes(self) -> None:
        """Waits until Ray runs on all nodes. Raises `RunnerError` with the missing ones."""
        from ray import _raylet

        of_ray: Any = _raylet  # compiled, without types

        began_s, hostnames = time.monotonic(), set[str]()
        while len(hostnames) < self.job.num_nodes:
            self._check_start()
            with contextlib.suppress(Exception):  # the head listens before it answers
                infos = of_ray.GcsClient(address=self.address).get_all_node_info(timeout=5).values()
                hostnames = {info.node_manager_hostname for info in infos if info.state == 0}
            waited_s = time.monotonic() - began_s
            if waited_s > READY_S:
                absent = [
                    host
                    for host in self._hosts
                    if not any(
                        name.partition(".")[0] == host.partition(".")[0] for name in hostnames
                    )
                ]
                raise self._failed(
                    f"Ray runs on {len(hostnames)} of {self.job.num_nodes} nodes after {format_duration(READY_S)}; {', '.join(absent)} did not join"
                )
            time.sleep(0.1)

    def _check_start(self) -> None:
        if self._process.poll() is not None:
            stderr_text = (
                self._process.stderr.read().decode(errors="replace").strip()
                if self._process.stderr
                else ""
            )
            if self._process.returncode < 0 or self._process.returncode >= 128:
                raise self.ended_error()
            raise self._failed(
                f"srun could not start Ray (exit code {self._process.returncode}): {stderr_text[-500:]}"
            )
        ended = {
            file.name.removeprefix("end-"): file.read_text().split()[0]
            for file in self._folder.glob("end-*")
        }
        if ended:
            raise self._failed(
                f"Ray ended on {', '.join(ended.values())} before it ran on all nodes"
            )

    def _failed(self, problem: str) -> RunnerError:
        tails = [
            f"{log.stem}: {text}"
            for log in sorted(self._folder.glob("ray-*.log"))
            if (text := _last_lines(log))
        ]
        return RunnerError(
            f"{problem}. {' | '.join(tails[:4])}".strip(),
            remedy="all nodes must see the working folder, the Python environment and each other; "
            "`srun --overlap -N NODES hostname` in the same job shows which nodes respond",
            field="runner",
        )

    def ended_error(self) -> JobEndedError:
        """The error for a step that ended before the study."""
        return JobEndedError(
            f"the Slurm step running Ray ended, for example because job {self.job.job} was preempted or cancelled",
            remedy="the study continues in the next job",
            field="runner",
        )

    @property
    def has_ended(self) -> bool:
        """Whether the step, or the head in it, has ended."""
        return self._process.poll() is not None or (self._folder / "end-0").exists()

    def close(self) -> None:
        """Ends the step by its number, so that each node can remove Ray's files, and removes the
        step's folder. srun itself would kill everything at once."""
        for end in (
            lambda: self._signal("TERM"),
            lambda: self._process.send_signal(signal.SIGTERM),
            lambda: self._signal("KILL"),
        ):
            if self._process.poll() is None:
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(END_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _signal(self, name: str) -> None:
        """Sends a signal to all processes of the step, if its number is known."""
        with contextlib.suppress(RunnerError, OSError, IndexError):
            step = (self._folder / node_start.HEAD).read_text().split()[1]
            ask("scancel", f"--signal={name}", f"{self.job.job}.{step}")


def _last_lines(log: Path) -> str:
    with contextlib.suppress(OSError):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
        return " / ".join(line for line in plain.strip().splitlines() if " INFO " not in line)[
            -400:
        ]
    return ""
