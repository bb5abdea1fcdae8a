"""The nodes themselves: they are machines of their own, their failures are what they are called,
and nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.network import BRIDGE, Network, Node, command, what_is_missing
from tests.workers.processes import owner_that_runs, until

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.alone,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing()),
]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(2) as network:
        yield network


def output(node: Node, *argv: str) -> str:
    return str(
        node.start(*argv, stdout=subprocess.PIPE, text=True).communicate(timeout=30)[0]
    ).strip()


def can_reach(node: Node, other: Node) -> bool:
    probe = f"import socket; socket.create_connection(('{other.address}', 4000), 1)"
    return node.start(sys.executable, "-c", probe, stderr=subprocess.DEVNULL).wait(30) == 0


def test_a_node_has_its_own_name_address_processes_and_shared_memory(network: Network) -> None:
    first, second = network.nodes
    assert output(first, "hostname") == first.name
    assert first.address in output(first, "ip", "-4", "addr", "show", "eth0")
    assert output(first, "sh", "-c", "echo $$") != "1"
    assert output(first, "getent", "hosts", second.name).split()[0] == second.address
    output(first, "touch", "/dev/shm/own")
    assert output(second, "ls", "/dev/shm") == ""
    assert output(first, "sh", "-c", "echo $TMPDIR") == str(first.folder)


def test_a_cut_node_is_not_reached_until_its_link_is_back(network: Network) -> None:
    first, second = network.nodes
    listening = "import socket; s = socket.create_server(('0.0.0.0', 4000)); print(flush=True)\nwhile True: s.accept()"
    server = second.start(sys.executable, "-c", listening, stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    assert can_reach(first, second)
    second.cut()
    assert not can_reach(first, second)
    second.heal()
    until(lambda: can_reach(first, second), 10)
    second.kill()
    assert server.wait(10) != 0
    server.stdout.close()
    second.boot()


def test_a_frozen_node_does_nothing_until_it_is_thawed(network: Network) -> None:
    node = network.nodes[0]
    clock = node.folder / "clock"
    ticking = node.start("sh", "-c", f"while true; do date +%N > {clock}; sleep 0.02; done")
    until(clock.exists, 10)
    node.freeze()
    time.sleep(0.2)
    before = clock.read_text()
    time.sleep(0.3)
    assert clock.read_text() == before
    node.thaw()
    until(lambda: clock.read_text() != before, 10)
    os.killpg(ticking.pid, signal.SIGKILL)
    ticking.wait()
    node.kill()
    node.boot()


def test_a_limited_link_carries_no_more_than_its_rate(network: Network) -> None:
    """4 MiB at 100 Mbit/s take a third of a second; unlimited, some milliseconds."""
    first, second = network.nodes
    source = f"import socket; s = socket.create_connection(('{second.address}', 4001)); s.sendall(bytes(4 << 20))"
    sink = (
        "import socket, time; s = socket.create_server(('0.0.0.0', 4001)); print(flush=True); c, _ = s.accept(); t = time.monotonic()\n"
        "while c.recv(1 << 16): pass\n"
        "print(time.monotonic() - t)"
    )

    def transfer_s() -> float:
        receiver = second.start(sys.executable, "-c", sink, stdout=subprocess.PIPE, text=True)
        assert receiver.stdout is not None
        receiver.stdout.readline()
        assert first.start(sys.executable, "-c", source).wait(30) == 0
        return float(receiver.communicate(timeout=30)[0])

    free_s = min(transfer_s() for _ in range(3))
    for node in network.nodes:
        node.limit("100mbit")
    slow_s = transfer_s()
    for node in network.nodes:
        node.limit(None)
    assert slow_s > 0.3, "4 MiB at 100 Mbit/s take a third of a second"
    assert slow_s > free_s


def test_what_a_killed_run_leaves_is_removed_by_the_next_one() -> None:
    script = (
        "from tests.nodes.network import Network; n = Network(1); n.nodes[0].start('sleep', '987');"
        "import time; print(n.bridge, n.folder, flush=True); time.sleep(60)"
    )
    with owner_that_runs(script) as (_, said):
        bridge, folder = next(said).split()
        assert bridge.startswith(BRIDGE)
        assert f"{bridge}:" in command("ip", "link")
    with Network(1):
        assert not Path(folder).exists()
    assert f" {bridge}:" not in command("ip", "link")
    assert "sleep 987" not in subprocess.run(["ps", "ax"], capture_output=True, text=True).stdout
