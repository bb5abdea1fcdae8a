"""Ray on one node of an allocation: `python -m autotune_workers.ray.node_start FOLDER TEMP OPTIONS...`, started on each by one step of srun.

The first node (SLURM_NODEID 0) is the head: it takes a free port and writes `ADDRESS:PORT STEP` to FOLDER/head; the others read it there. TEMP, Ray's own files, is
removed when Ray has ended. How Ray ended is written to FOLDER/end-NUMBER.
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

from autotune_workers.ray import watchdog

HEAD = "head"
HEAD_S = 300.0
"""for the head's address to appear"""
KILLED_S = 3.0
"""for Ray to end by itself"""


def main(folder: Path, temp: str, options: list[str]) -> int:
    """Ray's exit status."""
    number, name = os.environ["SLURM_NODEID"], os.environ.get("SLURMD_NODENAME", socket.gethostname())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    Path(temp).mkdir(mode=0o700, exist_ok=True)
    argv = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--disable-usage-stats",
        f"--temp-dir={temp}",
    ]
    ray = None
    try:
        if number == "0":
            address = _own_address(os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""))
            with socket.socket() as free:
                free.bind((address, 0))
                port = free.getsockname()[1]
            argv += ["--head", f"--port={port}", "--include-dashboard=false"]
        else:
            head = _read_head(folder / HEAD)
            address = _address_towards(head.partition(":")[0])
            argv += [f"--address={head}"]
        ray = subprocess.Popen([*argv, f"--node-ip-address={address}", *_sizes(options), "--include-log-monitor=false"])
        if number == "0":
            _wait_until_it_listens(ray, address, port)
            part = folder / f"{HEAD}.part"
            part.write_text(f"{address}:{port} {os.environ.get('SLURM_STEP_ID', '')}")
            part.replace(folder / HEAD)
        return ray.wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = "" if ray is None else ray.poll()
        with contextlib.suppress(OSError):  # the job's folder may be gone
            (folder / f"end-{number}").write_text(f"{name} {code}")
        if ray is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                ray.wait(KILLED_S)
            ray.kill()
        watchdog.kill_all(temp)
        shutil.rmtree(temp, ignore_errors=True)


def _wait_until_it_listens(ray: subprocess.Popen[bytes], address: str, port: int) -> None:
    while ray.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
            return
        time.sleep(0.05)


def _sizes(options: list[str]) -> list[str]:
    """`--num-cpus` and `--num-gpus` of this node, unless they are among the options: by what Slurm says of it."""
    gpus = _count(os.environ.get("SLURM_GPUS_ON_NODE", "")) or len(
        list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    )
    cpus = _count(os.environ.get("SLURM_CPUS_ON_NODE", "")) or len(os.sched_getaffinity(0))
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
        os.listdir(file.parent)  # has a network file system look again
        time.sleep(0.1)
    sys.exit(
        f"{file} did not appear within {HEAD_S:g} s: the folder is not shared with this node, or Ray's head did not start"
    )


def _own_address(launcher: str) -> str:
    """This node's address for the others: what its name means, or where that is loopback, the one by which it reaches the node that started the step."""
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(socket.gethostname())
        if not address.startswith("127."):
            return address
    return _address_towards(launcher or "192.0.2.1")


def _address_towards(host: str) -> str:
    """The address of the interface by which packets to the host leave."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
