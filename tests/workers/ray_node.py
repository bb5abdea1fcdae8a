"""A second Ray node on this machine, at a loopback address of its own: a process that can be killed like a machine that goes away.

    python -m tests.workers.ray_node ADDRESS IP NUM_CPUS

`ray start` will not do: it takes a cluster on loopback for one at the machine's own address.
"""

from __future__ import annotations

import sys
import time


def main(address: str, ip: str, num_cpus: str) -> None:
    """Joins and stays."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    parameters = RayParams(
        gcs_address=address,
        node_ip_address=ip,
        num_cpus=int(num_cpus),
        num_gpus=0,
        object_store_memory=100 << 20,
        min_worker_port=0,
        max_worker_port=0,
        include_log_monitor=False,
    )
    Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
    print("joined", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
