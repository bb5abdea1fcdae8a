"""Being connected to a Ray cluster: one that we join by its address, or one that we start on this machine and end again.

What we start listens on loopback only, sends no usage statistics, keeps its files in a folder of its own, and leaves token authentication
as Ray has it (on for new local clusters). Joining never guesses an address: it is given, or stands in RAY_ADDRESS.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from autotune.errors import RunnerError

OBJECT_STORE_BYTES = 100 << 20
"""trials pass no tensors through Ray: the least that it takes"""
NAMESPACE = "autotune"
_LONGEST_TEMP = 40
"""characters: Ray's socket paths below it must stay under the system's 107"""
_MOST_SPEAKING = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""the switch by which Ray keeps to loopback on other systems; on Linux it does the same"""


class RayCluster:
    """A connection, and what has to be undone when it ends."""

    def __init__(self, *, address: str | None, num_cpus: int | None, num_gpus: int | None, dashboard: bool) -> None:
        """Joins or starts. Raises `RunnerError` when Ray cannot be reached or started."""
        self._owned = False
        self._joined = False
        self._temp = ""
        address = address or os.environ.get("RAY_ADDRESS") or None
        if address is None and "ray" not in sys.modules:
            os.environ.setdefault(_MOST_SPEAKING, "0")  # read when ray is imported
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as error:
            raise RunnerError(f"ray cannot be imported: {error}", remedy="pip install 'ray[default]'") from error
        if ray.is_initialized():
            return
        try:
            if address is not None:
                self._connect(address=address)
                self._joined = True
            else:
                self._start(num_cpus, num_gpus, dashboard)
        except RunnerError:
            raise
        except Exception as error:
            self.close()
            what = f"joined at {address}" if address else "started"
            raise RunnerError(
                f"Ray cannot be {what}: {type(error).__name__}: {error}",
                remedy="`autotune doctor` checks Ray; runner: local needs none",
                field="runner",
            ) from error

    def _start(self, num_cpus: int | None, num_gpus: int | None, dashboard: bool) -> None:
        from ray._private import ray_constants

        root = tempfile.gettempdir()
        self._temp = tempfile.mkdtemp(prefix="at-", dir=root if len(root) <= _LONGEST_TEMP else "/tmp")
        os.chmod(self._temp, 0o700)
        self._owned = True
        before = ray_constants.ENABLE_RAY_CLUSTER
        ray_constants.ENABLE_RAY_CLUSTER = False  # for a ray that was imported before us
        try:
            self._connect(
                address="local",
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=dashboard,
                dashboard_host="127.0.0.1",
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                _temp_dir=self._temp,
            )
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = before

    def _connect(self, **options: Any) -> None:
        import ray

        with _own_signals(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's own, about its future defaults
            ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", **options)

    @property
    def address(self) -> str:
        """Where others join."""
        import ray

        return str(ray.get_runtime_context().gcs_address)

    def total(self, resource: str) -> float:
        """How much of CPU or GPU all living nodes have together."""
        import ray

        return float(ray.cluster_resources().get(resource, 0.0))

    def close(self) -> None:
        """Ends the connection, and the cluster when we started it."""
        if not (self._owned or self._joined):
            return
        import ray

        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray leaves sockets to the garbage collector
            ray.shutdown()
        if self._temp:
            shutil.rmtree(self._temp, ignore_errors=True)
        self._owned = self._joined = False


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the program's own answer to SIGTERM, which Ray would replace."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
