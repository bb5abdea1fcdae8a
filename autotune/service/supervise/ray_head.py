"""A Ray cluster on loopback that lives as long as the service: `python -m
autotune.service.supervise.ray_head PLACE`.

It prints one line, {"dashboard": "http://...", "address": "HOST:PORT"}, and ends when its standard
input ends, so that even a killed service leaves no cluster behind. PLACE is the cluster's folder,
which is removed at the end, and the environment decides on token authentication (for both see
`autotune.service.supervise.ray_cluster`).
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shutil
import signal
import sys
import warnings
from functools import partialmethod
from pathlib import Path

from autotune.service.supervise.ray_cluster import OWNER, TEMP_DIR
from autotune.study.process_id import this_process

OBJECT_STORE_BYTES = 100 << 20
"""close to Ray's minimum: trials pass no tensors through Ray"""
MIN_CPUS = 8
"""more ranks than CPUs are allowed: slow, but every parallel layout can be tried on a small
machine"""


def main(place: str) -> None:
    """Starts the cluster, prints its addresses, and waits for the end of the input."""
    import ray

    Path(place, OWNER).write_text(this_process())
    folder = str(Path(place, TEMP_DIR))
    _choose_agent_port()
    warnings.simplefilter("ignore")  # Ray warns about its own future defaults
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
        signal.signal(number, signal.SIG_IGN)  # it ends with its input, when the service ends
    address = ray.get_runtime_context().gcs_address
    _note_address(address, folder)
    where = {"dashboard": f"http://{context.dashboard_url}", "address": address}
    print(json.dumps(where), flush=True)
    sys.stdin.read()
    ray.shutdown()
    shutil.rmtree(place, ignore_errors=True)


def _choose_agent_port() -> None:
    """Lets the node's job agent take any free port. Its default is a fixed port, so that a second
    cluster on the machine could run no jobs.

    `ray start` has an option for this (--dashboard-agent-listen-port), `ray.init` has none.
    """
    from ray._private.parameter import RayParams

    name = "dashboard_agent_listen_port"
    if name in inspect.signature(RayParams.__init__).parameters:
        RayParams.__init__ = partialmethod(RayParams.__init__, **{name: 0})


def _note_address(address: str, folder: str) -> None:
    """Writes the address to the file where the cluster's jobs look for it, as `ray start` does and
    `ray.init` does not.

    Without the file they would join any cluster that they find on the machine (ray 2.60,
    `get_ray_address_from_environment`).
    """
    with contextlib.suppress(ImportError):
        from ray._private.utils import write_ray_address

        write_ray_address(address, folder)


if __name__ == "__main__":
    main(sys.argv[1])
