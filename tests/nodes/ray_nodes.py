"""A Ray cluster on a network of nodes: the head, without processors, and the driver are on this
machine.

Ray's own deadlines are those of every cluster (it calls a silent node dead after a minute), unless
a test asks for `QUICK`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autotune_workers.process.machine import free_port
from tests.nodes.network import Network, Node
from tests.ray_roles import AUTH, authenticated
from tests.workers.processes import CHECKOUT_PATH, until

QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""environment of a head that calls a silent node dead after some 5 s"""
START_S = 600.0
"""for the head to listen, and for a node to join; seconds on an idle machine"""
OBJECT_STORE_BYTES = 100 << 20


class RayNodes:
    """The cluster. `nodes` are those of the network: take one's power or link, and `join` it again
    after a new boot."""

    def __init__(
        self, network: Network, *, cpus: int, head: Mapping[str, str], labels: Sequence[str]
    ) -> None:
        """`cpus`: of each node; `head`: additional environment of the head; `labels`: of each node,
        as `ray start` takes them."""
        self.network, self.nodes, self._cpus, self._labels = network, network.nodes, cpus, labels
        self._log = Path(network.folder, "log").open("ab")  # noqa: SIM115 - closed by `close`
        # Ray's ports are shared: of two heads at one port, each gets half of the questions
        port = free_port("0.0.0.0")
        self.address = f"{network.address}:{port}"
        options = ["--head", f"--port={port}", "--include-dashboard=false"]
        self._start(
            options,
            at=network.address,
            folder=Path(network.folder, "head"),
            cpus=0,
            environment=head,
        )
        until(lambda: _listens(network.address, port), START_S, f"Ray's head: {self.said()}")
        for node in self.nodes:
            self.join(node, wait=False)
        self.wait_for(len(self.nodes))

    def join(self, node: Node, *, wait: bool = True) -> None:
        """The node joins the cluster, with a Ray that is started there."""
        there = len(self.living())
        options = [f"--address={self.address}", *self._labels_of(node)]
        self._start(options, at=node.address, folder=node.folder, cpus=self._cpus, on=node)
        if wait:
            self.wait_for(there + 1)

    def _labels_of(self, node: Node) -> list[str]:
        return [f"--labels={self._labels[self.nodes.index(node)]}"] if self._labels else []

    def _start(
        self,
        options: Sequence[str],
        *,
        at: str,
        folder: Path,
        cpus: int,
        on: Node | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        argv = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            f"--node-ip-address={at}",
        ]
        argv += [
            f"--temp-dir={folder}",
            f"--num-cpus={cpus}",
            "--num-gpus=0",
            "--disable-usage-stats",
        ]
        argv += [
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--include-log-monitor=false",
            *options,
        ]
        its = {**AUTH, "PYTHONPATH": CHECKOUT_PATH, **(environment or {})}
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": self._log}
        if on is not None:
            on.start(*argv, environment=its, **streams)
        else:
            subprocess.Popen(argv, env={**os.environ, **its}, start_new_session=True, **streams)

    def living(self) -> list[str]:
        """Addresses of the nodes with processors that the head takes for living."""
        from ray._raylet import GcsClient

        known = GcsClient(address=self.address).get_all_node_info(timeout=30).values()
        alive = [info.node_manager_address for info in known if info.state == 0]
        return sorted(address for address in alive if address != self.network.address)

    def wait_for(self, count: int, timeout_s: float = START_S) -> float:
        """Until the head takes so many nodes for living; returns how long that took, in seconds."""

        def are_there() -> bool:
            with contextlib.suppress(Exception):  # it listens before it answers
                return len(self.living()) == count
            return False

        return until(are_there, timeout_s, f"{count} nodes: {self.said()}")

    def said(self) -> str:
        """The last that Ray printed on the head and the nodes."""
        return Path(self._log.name).read_text(errors="replace")[-2000:]

    def close(self) -> None:
        """Closes the log; the network ends the rest."""
        self._log.close()


@contextlib.contextmanager
def ray_nodes(
    count: int = 2,
    *,
    cpus: int = 2,
    head: Mapping[str, str] | None = None,
    labels: Sequence[str] = (),
) -> Iterator[RayNodes]:
    """A cluster of so many nodes with so many processors each. Who is in this environment meanwhile
    may join it."""
    with authenticated(), Network(count) as network:
        cluster = RayNodes(network, cpus=cpus, head=head or {}, labels=labels)
        try:
            yield cluster
        finally:
            _leave()
            cluster.close()


def _leave() -> None:
    """Ends this process's own connection, if there is one, before its cluster is gone."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False
