"""The calibration of several nodes names the one whose link is out of line. Three nodes of this
machine, one behind a slow link."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes.network import Network, limited, what_is_missing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing()),
]

PROGRAM = Path(__file__).parent / "programs" / "measure_each.py"


def strays(network: Network) -> list[dict[str, str]]:
    first = network.nodes[0].address
    several = {
        "MASTER_ADDR": first,
        "MASTER_PORT": "29544",
        "WORLD_SIZE": "3",
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    ranks = [
        node.start(
            sys.executable,
            str(PROGRAM),
            environment={**several, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, node in enumerate(network.nodes)
    ]
    out = [rank.communicate(timeout=600)[0] for rank in ranks]
    return json.loads(out[0].splitlines()[-1])


def test_a_node_behind_a_slow_link_is_named() -> None:
    with Network(3) as network:
        name = network.nodes[1].name
        with limited([network.nodes[1]], "40mbit"):
            found = [stray for stray in strays(network) if stray["what"] == "exchange"]
    assert [(stray["kind"], stray["node"]) for stray in found] == [("node", name)]
