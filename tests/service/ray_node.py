"""Another node of a Ray cluster on this machine, as a process: `python -m tests.service.ray_node ADDRESS IP CPUS FOLDER`. Says `joined` and stays.

`ray start` will not do: it takes a cluster on loopback for one at the machine's own address. As it does, this notes the cluster's address in the
node's folder, where jobs that run on the node look for it; else they find whatever cluster was started last on the machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from autotune_workers.keeper import descendants


def main(address: str, ip: str, num_cpus: str, folder: str) -> None:
    """The node, until it is killed."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams
    from ray._private.utils import write_ray_address

    parameters = RayParams(
        gcs_address=address,
        node_ip_address=ip,
        num_cpus=int(num_cpus),
        num_gpus=0,
        object_store_memory=100 << 20,
        min_worker_port=0,
        max_worker_port=0,
        dashboard_agent_listen_port=0,
        temp_dir=folder,
    )
    Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
    write_ray_address(address, folder)
    print("joined", flush=True)
    time.sleep(3600)


@contextlib.contextmanager
def joined(address: str, folder: str, *, num_cpus: int) -> Iterator[None]:
    """A node of that cluster at a loopback address of its own; `folder`: a short path."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(root / "workers")])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.service.ray_node", address, "127.0.0.2", str(num_cpus), folder],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": path,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "joined" in line:
                break
        else:
            raise RuntimeError("the second node did not join")
        yield
    finally:
        for pid in (process.pid, *descendants(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


if __name__ == "__main__":
    main(*sys.argv[1:])
