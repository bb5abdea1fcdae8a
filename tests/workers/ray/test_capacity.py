"""What a cluster has room for, now and at its largest."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.trainers.base.torchrun import Placement
from autotune_workers.ray.cluster import capacity as module
from autotune_workers.ray.cluster.capacity import ClusterCapacity


class Cluster:
    """The living nodes, as the head tells them."""

    is_silent = False

    def __init__(self, *cpus: int) -> None:
        self.cpus = list(cpus)

    def nodes(self) -> list[dict[str, float]]:
        return [{"CPU": float(count), "memory": 1e9} for count in self.cpus]


@pytest.fixture(autouse=True)
def asked_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_S", -1.0)


def seen(cluster: Any) -> ClusterCapacity:
    capacity = ClusterCapacity(cluster, bundle={"CPU": 1.0}, label="ours")
    capacity.count()
    return capacity


TWO_BY_TWO = Placement(nnodes=2, nproc_per_node=2)
FOUR = Placement(nnodes=1, nproc_per_node=4)


def test_ranks_of_one_node_may_lie_on_several_and_those_of_several_need_whole_ones() -> None:
    capacity = seen(Cluster(0, 1, 3))
    assert capacity.ranks == 4
    assert capacity.shortage(FOUR) == ""
    assert capacity.shortage(TWO_BY_TWO) == (
        "4 ranks can never be placed, because they need 2 nodes with 2 CPU each, but the cluster has 1 such nodes; "
        "use fewer ranks, or a larger cluster"
    )


def test_a_program_on_one_node_needs_that_node_whole() -> None:
    capacity = seen(Cluster(0, 2, 3))
    assert capacity.shortage(FOUR) == ""
    assert "they need one node with 4 CPU, but the cluster has no such node" in capacity.shortage(
        FOUR, whole=True
    )
    assert capacity.shortage(Placement(nnodes=1, nproc_per_node=3), whole=True) == ""


def test_a_part_of_a_processor_is_no_place_for_a_rank() -> None:
    capacity = ClusterCapacity(Cluster(3, 3), bundle={"CPU": 2.0}, label="ours")  # type: ignore[arg-type]
    assert capacity.ranks == 2


@pytest.mark.parametrize("placement", [FOUR, TWO_BY_TWO])
def test_what_the_cluster_was_large_enough_for_is_absent_and_never_short(
    placement: Placement,
) -> None:
    cluster = Cluster(0, 2, 2)
    capacity = seen(cluster)
    assert capacity.absence(placement) == ""
    cluster.cpus = [0, 2]
    assert capacity.shortage(placement) == ""
    assert capacity.absence(placement) == "one of the cluster's 2 nodes is unavailable"
    assert capacity.ranks == 2
    assert capacity.shortage(Placement(nnodes=1, nproc_per_node=5)) != ""
    cluster.cpus = [0, 2, 2]
    assert capacity.absence(placement) == ""


class Named(Cluster):
    """Nodes n0, n1, ... of which some are left out."""

    left_out: frozenset[str] = frozenset()

    def nodes(self) -> list[dict[str, float]]:
        return [
            {"CPU": float(count)}
            for at, count in enumerate(self.cpus)
            if f"n{at}" not in self.left_out
        ]


def test_a_node_is_done_without_where_the_others_have_room_as_well() -> None:
    cluster = Named(2, 2, 2)
    capacity = seen(cluster)
    assert capacity.has_room_without("n1", TWO_BY_TWO)
    assert (capacity.ranks, capacity.absence(TWO_BY_TWO)) == (4, ""), (
        "it is not away, it is left out"
    )
    assert not capacity.has_room_without("n0", TWO_BY_TWO)
    assert (cluster.left_out, capacity.ranks) == ({"n1"}, 4)


def test_the_only_node_that_is_large_enough_for_a_program_stays() -> None:
    cluster = Named(2, 2, 4)
    capacity = seen(cluster)
    assert not capacity.has_room_without("n2", FOUR)
    assert capacity.has_room_without("n0", FOUR)
