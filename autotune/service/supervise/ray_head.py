"""A Ray cluster on loopback that runs as long as the service: `python -m
autotune.service.supervise.ray_head FOLDER`.

It prints one line, {"dashboard": "http://...", "address": "HOST:PORT"}, and ends when its standard
input ends, so that even a killed service leaves no cluster behind. FOLDER is the cluster's folder,
which is deleted at the end. The environment enables token authentication (for both, see
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
"""size of the object store, bytes; close to Ray's minimum, because trials pass no tensors through
Ray"""
MIN_CPUS = 8
"""minimum number of CPUs to declare to Ray; more ranks than CPUs are slow, but allow every parallel
layout on a small machine"""


def main(cluster_folder: str) -> None:
    """Start the cluster, print its addresses, and wait for the end of the input."""
    import ray

    Path(cluster_folder, OWNER).write_text(this_process())
    folder = str(Path(cluster_folder, TEMP_DIR))
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
        signal.signal(
            number, signal.SIG_IGN
        )  # the process ends when its input ends, with the service
    address = ray.get_runtime_context().gcs_address
    _write_address(address, folder)
    addresses = {"dashboard": f"http://{context.dashboard_url}", "address": address}
    print(json.dumps(addresses), flush=True)
    sys.stdin.read()
    ray.shutdown()
    shutil.rmtree(cluster_folder, ignore_errors=True)


def _choose_agent_port() -> None:
    """Let the node's job agent use any free port. Its default port is fixed, so that a second
    cluster on the machine could run no jobs.

    `ray start` has an option for this (--dashboard-agent-listen-port), `ray.init` has none.
    """
    from ray._private.parameter import RayParams

    name = "dashboard_agent_listen_port"
    if name in inspect.signature(RayParams.__init__).parameters:
        RayParams.__init__ = partialmethod(RayParams.__init__, **{name: 0})


def _write_address(address: str, folder: str) -> None:
    """Write the address to the file where the cluster's jobs look for it, as `ray start` does and
    `ray.init` does not.

    Without the file, jobs would join any cluster that they find on the machine (ray 2.60,
    `get_ray_address_from_environment`).
    """
    with contextlib.suppress(ImportError):
        from ray._private.utils import write_ray_address

        write_ray_address(address, folder)


if __name__ == "__main__":
    main(sys.argv[1])
