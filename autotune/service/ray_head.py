"""A Ray cluster on this machine's loopback, for as long as the service lives: `python -m autotune.service.ray_head FOLDER`.

It prints one line, {"dashboard": "http://...", "address": "HOST:PORT"}, and ends when its standard input does: also a service that was killed leaves no cluster behind.
Token authentication is what the environment says (see `autotune.service.ray_jobs`).
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import sys
import warnings
from functools import partialmethod

OBJECT_STORE_BYTES = 100 << 20
"""trials pass no tensors through Ray: near the least that it takes"""
MIN_CPUS = 8
"""CPU ranks may be more than CPUs: slow, but every parallel layout can be tried on a small machine"""


def main(folder: str) -> None:
    """Starts the cluster, says where it is, and waits for the end of the input."""
    import ray

    _choose_agent_port()
    warnings.simplefilter("ignore")  # Ray's own, about its future defaults
    context = ray.init(
        address="local",
        num_cpus=max(MIN_CPUS, os.cpu_count() or 1),
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        object_store_memory=OBJECT_STORE_BYTES,
        namespace="autotune",
        log_to_driver=False,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when the service does
    address = ray.get_runtime_context().gcs_address
    _note_address(address, folder)
    where = {"dashboard": f"http://{context.dashboard_url}", "address": address}
    print(json.dumps(where), flush=True)
    sys.stdin.read()
    ray.shutdown()


def _choose_agent_port() -> None:
    """Lets the node's job agent take any free port: its default is one number, and a second cluster on the machine would have no jobs.

    `ray start` has an option for it (--dashboard-agent-listen-port), `ray.init` has none.
    """
    from ray._private.parameter import RayParams

    name = "dashboard_agent_listen_port"
    if name in inspect.signature(RayParams.__init__).parameters:
        RayParams.__init__ = partialmethod(RayParams.__init__, **{name: 0})


def _note_address(address: str, folder: str) -> None:
    """Leaves the address where the cluster's jobs look for it, as `ray start` does and `ray.init` does not: without it they join any cluster that
    they find on the machine (ray 2.60, `get_ray_address_from_environment`)."""
    with contextlib.suppress(ImportError):
        from ray._private.utils import write_ray_address

        write_ray_address(address, folder)


if __name__ == "__main__":
    main(sys.argv[1])
