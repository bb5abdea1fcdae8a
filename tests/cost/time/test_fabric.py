"""The network between nodes by its fabric: fitted constants hold on the fabric of their runs,
public figures on every other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, calibration_for, estimate
from autotune.cost.calibration import NETWORKS, known_constants, on_fabric
from autotune.cost.layout import Group
from autotune.cost.time.collectives import ring_bytes_s
from autotune.errors import SpecError
from autotune.spec import ClusterSpec, LinkSpec, ParallelConfig, Workload, catalog
from autotune.spec.cluster import FABRICS

NETWORK = ("inter_efficiency", "rails", "inter_decay", "hop_s")


def workload(trainer: str, cluster: str = "h100-sxm-16x8", **link: str | float) -> Workload:
    where = ClusterSpec.of(cluster)
    where = replace(where, inter_node=replace(where.inter_node, **link))
    return Workload(
        model=catalog.model("llama-8b"),
        cluster=where,
        seq_len=4096,
        global_batch_size=256,
        trainer=trainer,
    )


def network(constants: Calibration) -> tuple[float, ...]:
    return tuple(getattr(constants, name) for name in NETWORK)


def test_every_fabric_has_its_network_and_its_sources() -> None:
    assert set(NETWORKS) == set(FABRICS)
    for found in NETWORKS.values():
        assert 0 < found.efficiency <= 1
        assert 0 <= found.rails <= 1
        assert found.source


@pytest.mark.parametrize("stated", ["", "efa"])
def test_constants_that_were_fitted_on_the_fabric_stay_as_fitted(stated: str) -> None:
    found = calibration_for(workload("nanotron", fabric=stated))
    assert replace(found, attention_limit=0.0) == known_constants("h100-sxm", "nanotron")


def test_on_another_fabric_the_networks_constants_and_no_others_are_replaced() -> None:
    fitted, other = (
        known_constants("h100-sxm", "nanotron"),
        calibration_for(workload("nanotron", fabric="infiniband-ndr")),
    )
    infiniband = NETWORKS["infiniband-ndr"]
    assert network(other) == (
        infiniband.efficiency,
        infiniband.rails,
        infiniband.decay,
        infiniband.hop_s,
    )
    kept = {
        name: getattr(fitted, name)
        for name in (*NETWORK, "tensor_hop_s", "fabric", "comm_sigma", "attention_limit")
    }
    assert replace(other, **kept) == fitted
    assert other.comm_sigma > fitted.comm_sigma


@pytest.mark.parametrize("gpus_per_node", [1, 4, 8])
def test_over_tcp_all_gpus_of_a_node_together_reach_what_its_sockets_do(gpus_per_node: int) -> None:
    asked = workload("native", f"a100-80gb-2x{gpus_per_node}", fabric="ethernet")
    constants, port = calibration_for(asked), asked.cluster.inter_node.bytes_per_s
    together = constants.inter_efficiency * port * gpus_per_node
    assert together <= NETWORKS["ethernet"].most_bytes_per_s * 1.001
    slow = workload("native", f"a100-80gb-2x{gpus_per_node}", fabric="ethernet", bytes_per_s=0.2e9)
    assert calibration_for(slow).inter_efficiency == NETWORKS["ethernet"].efficiency


def test_runs_on_one_node_say_nothing_of_the_network_which_is_then_the_usual_one() -> None:
    usual = NETWORKS[catalog.gpu("a100-80gb").usual_fabric]
    assert network(calibration_for(workload("megatron", "a100-80gb-4x8")))[0] == usual.efficiency
    own = Workload(
        model=catalog.model("llama-8b"),
        cluster=ClusterSpec.of(
            replace(catalog.gpu("h100-sxm"), name="own", usual_fabric=""), num_nodes=2
        ),
        seq_len=4096,
        global_batch_size=256,
    )
    assert network(calibration_for(own)) == network(known_constants("own", "native"))


@pytest.mark.parametrize(
    ("nodes", "measured_gb_per_s"),
    [(4, 360), (8, 345), (16, 320), (32, 300), (64, 280), (128, 260)],
)
def test_reduce_scatter_over_infiniband_is_as_fast_as_it_was_measured(
    nodes: int, measured_gb_per_s: float
) -> None:
    where = ClusterSpec.of(f"h100-sxm-{nodes}x8")
    constants = on_fabric(Calibration(intra_efficiency=1.0), where)
    ranks = np.array([8.0 * nodes])
    group = Group(ranks, np.array([8.0]), np.array([8.0]))
    seconds = float(ring_bytes_s(group, np.array([8e9]), where, constants)[0])
    assert 8.0 * (8 * nodes - 1) / (8 * nodes) / seconds == pytest.approx(
        measured_gb_per_s, rel=0.04
    )


def test_a_slower_fabric_makes_the_same_step_slower() -> None:
    config = ParallelConfig(dp=128, zero_stage=3, micro_batch_size=2)
    steps = [
        float(estimate(workload("nanotron", fabric=fabric), config).step_time_s)
        for fabric in ("infiniband-ndr", "roce", "efa", "ethernet")
    ]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]


def test_an_unknown_fabric_is_refused_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean infiniband-ndr"):
        LinkSpec(latency_s=1e-5, bytes_per_s=50e9, fabric="infiniband-nrd")
