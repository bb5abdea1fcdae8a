"""The network between domains by its fabric: what NCCL reaches of the ports' bandwidth, from public measurements.

    efficiency   fraction of a port's bandwidth that the ring of a group with one member per domain reaches
    rails        exponent r: g members of a domain reach g ** r times that; 1 where every GPU has a port of its own
    decay        relative growth of the time per byte with each doubling of the domains beyond two
    hop_s        latency of a ring per domain that it joins, s
    most         bandwidth that all GPUs of a node reach together: over TCP the host's sockets are the limit, not its ports

Constants that a pair of GPU type and trainer was fitted to hold on the fabric of those runs alone; on another fabric these stand in their place. A cluster
that does not state its fabric has that of the pair's runs, or else the usual one of its GPU type. Assumption: the network is not shared with other
jobs and not oversubscribed; where yours is, state the bandwidth that a GPU really gets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from autotune.spec import ClusterSpec

if TYPE_CHECKING:
    from autotune.cost.calibration import Calibration

UNSURE = 0.3
"""least relative error of communication on a fabric that the pair of GPU type and trainer was not fitted on: the reached share of a port differs by as much between
clusters (`spreads` of `constants.json`). With 0.1 one trial left 80% of vTrain's runs on 8 to 64 nodes inside, whose pair was fitted on one node"""


@final
@dataclass(frozen=True, slots=True)
class Network:
    """What NCCL reaches on one fabric."""

    efficiency: float
    rails: float
    decay: float
    hop_s: float
    source: str
    """where the figures come from"""
    most_bytes_per_s: float = math.inf
    """bandwidth of all that leaves a node, whatever its ports, bytes/s"""


_INFINIBAND = Network(
    0.96, 1.0, 0.075, 14e-6,
    "46 to 48 of 50 GB/s per port (NVIDIA/nccl-tests issue 290), 192 of 200 GB/s on DGX A100 (NVIDIA/nccl issue 1576); reduce-scatter on 4 to 128 "
    "nodes of 8 H100: 360, 345, 320, 300, 280, 260 GB/s (NVIDIA/nccl issue 1229); latency of a ring's network step in NCCL's tuning.cc, 9.6 to 14 us",
)  # fmt: skip
NETWORKS: Mapping[str, Network] = {
    "efa": Network(
        1.0, 0.61, 0.14, 22e-6,
        "fitted to runs on 8 to 128 H100 of AWS p5 (nanotron_h100.csv); agrees with 182 GB/s of 400 in reduce-scatter over two such nodes "
        "(comm_measurements.csv)",
    ),
    "infiniband-edr": _INFINIBAND,
    "infiniband-hdr": _INFINIBAND,
    "infiniband-ndr": _INFINIBAND,
    "infiniband-xdr": _INFINIBAND,
    "roce": Network(
        0.82, 1.0, 0.10, 17e-6,
        "330 of 400 GB/s on two and 320 on four nodes of 8 H100 (NVIDIA/nccl issue 1221), 75 of 100 on two of 8 A100 (NVIDIA/nccl issue 495); a tuned "
        "fabric equals InfiniBand (Tolly report 225107). Decay and latency assumed between those of InfiniBand and EFA",
    ),
    "ethernet": Network(
        0.5, 1.0, 0.10, 50e-6,
        "NCCL over TCP sockets reached 4.7 of 12.5 GB/s (NVIDIA/nccl issue 398), 7 GB/s between two nodes of 4 A100 (published_open.csv); the rest assumed: order of magnitude of TCP",
        most_bytes_per_s=7e9,
    ),
    "nvlink": Network(
        0.84, 0.0, 0.0, 3.4e-6,
        "as inside a node: 835 GB/s of all-reduce over 72 GB200 (coreweave/nccl-tests pull request 43); latency of a ring's NVLink step in NCCL's "
        "tuning.cc",
    ),
}  # fmt: skip
"""by the words of `autotune.spec.cluster.FABRICS`"""


def on_fabric(constants: Calibration, cluster: ClusterSpec) -> Calibration:
    """The constants with those of the network replaced where they were not fitted on the cluster's fabric."""
    stated = cluster.inter_node.fabric
    if constants.fabric and stated in ("", constants.fabric):
        return constants
    network = NETWORKS.get(stated or cluster.gpu.usual_fabric)
    if network is None:
        return constants
    ports = cluster.inter_node.bytes_per_s * cluster.gpus_per_node
    return replace(
        constants,
        fabric="",
        inter_efficiency=min(network.efficiency, network.most_bytes_per_s / ports),
        rails=network.rails,
        inter_decay=network.decay,
        hop_s=network.hop_s,
        tensor_hop_s=0.0,
        comm_sigma=max(constants.comm_sigma, UNSURE),
    )
