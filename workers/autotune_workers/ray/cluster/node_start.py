"""Runs Ray on one node of an allocation: `python -m autotune_workers.ray.cluster.node_start FOLDER
TEMP OPTIONS...`, started on each node by one step of srun.

The first node (SLURM_NODEID 0) is the head: it takes a free port and writes `ADDRESS:PORT STEP` to
FOLDER/head, where the others read it. TEMP has Ray's files and is removed when Ray has ended. Ray's
exit status is written to FOLDER/end-NUMBER.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from autotune.detect import usable_cores
from autotune.spec.texts.as_text import format_duration
from autotune_workers.process.children import OF_A_JOB
from autotune_workers.process.machine import free_port
from autotune_workers.ray.cluster import watchdog

HEAD = "head"
HEAD_S = 300.0
"""longest wait for the head's address, seconds"""
START_S, RAYS_PATIENCE_S = 240.0, 120.0
"""longest time for starting Ray with all retries, and run time after which an end of Ray is not
retried, seconds: Ray gives up after 30 s on a busy machine or disk"""


def main(folder: Path, temp: str, options: list[str]) -> int:
    """Runs Ray on this node until it ends. Returns its exit status."""
    number, name = (
        os.environ["SLURM_NODEID"],
        os.environ.get("SLURMD_NODENAME", socket.gethostname()),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    argv = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--disable-usage-stats",
    ]
    argv += [
        f"--temp-dir={temp}",
        "--include-log-monitor=false",
        "--dashboard-agent-listen-port=0",
        *_sizes(options),
    ]
    code = 1
    Path(temp).mkdir(mode=0o700, exist_ok=True)
    try:
        if number == "0":
            address = _own_address(os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""))
            # the default port of the client server may be taken by another job's head on this node,
            # and a head without that server ends
            port, clients = free_port(address), free_port(address)
            argv += [
                "--head",
                f"--port={port}",
                f"--ray-client-server-port={clients}",
                "--include-dashboard=false",
            ]
            head = f"{address}:{port}"
        else:
            head = _read_head(folder / HEAD)
            address = _address_towards(head.partition(":")[0])
            argv += [f"--address={head}"]
        end_s = time.monotonic() + START_S
        while code and time.monotonic() < end_s:
            began_s = time.monotonic()
            code = _run(
                [*argv, f"--node-ip-address={address}"], folder, head if number == "0" else ""
            )
            if time.monotonic() - began_s > RAYS_PATIENCE_S:
                break  # it had started
            watchdog.kill_all(temp)
        return code
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # the job's folder may have been removed
            (folder / f"end-{number}").write_text(f"{name} {code}")
        watchdog.kill_all(temp)
        shutil.rmtree(temp, ignore_errors=True)


def _run(argv: list[str], folder: Path, head: str) -> int:
    """Runs Ray once. Returns its exit status. `head`: address to write to the folder once Ray
    listens; empty on other nodes."""
    # programs in Ray are not tasks of this step, for which Lightning, for example, would take them
    environment = {name: text for name, text in os.environ.items() if not name.startswith(OF_A_JOB)}
    with subprocess.Popen(argv, env=environment) as ray:
        try:
            if head:
                _wait_until_it_listens(ray, head)
                part = folder / f"{HEAD}.part"
                part.write_text(f"{head} {os.environ.get('SLURM_STEP_ID', '')}")
                part.replace(folder / HEAD)
            return ray.wait()
        except SystemExit:
            ray.kill()
            raise


def _wait_until_it_listens(ray: subprocess.Popen[bytes], address: str) -> None:
    host, _, port = address.rpartition(":")
    while ray.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        time.sleep(0.05)


def _sizes(options: list[str]) -> list[str]:
    """The options, with `--num-cpus` and `--num-gpus` of this node by Slurm's variables unless
    given."""
    gpus = _count(os.environ.get("SLURM_GPUS_ON_NODE", "")) or len(
        list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    )
    cpus = _count(os.environ.get("SLURM_CPUS_ON_NODE", "")) or usable_cores()
    sizes = {"--num-cpus": max(cpus, gpus), "--num-gpus": gpus}
    given = {option.partition("=")[0] for option in options}
    return [*options, *(f"{name}={size}" for name, size in sizes.items() if name not in given)]


def _count(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _read_head(file: Path) -> str:
    end_s = time.monotonic() + HEAD_S
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            return file.read_text().split()[0]
        os.listdir(file.parent)  # makes a network file system refresh its cache
        time.sleep(0.1)
    sys.exit(
        f"{file} did not appear within {format_duration(HEAD_S)}, because the folder is not shared with this node, or Ray's head did not start"
    )


def _own_address(launcher: str) -> str:
    """This node's address for the others: that of its hostname, or if that is loopback, the one by
    which it reaches the node that started the step."""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    return _address_towards(launcher or "192.0.2.1")


def _address_towards(host: str) -> str:
    """Address of the interface that sends packets to the host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
