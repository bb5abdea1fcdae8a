"""Links of three levels: a ring that stays in an NVLink domain runs at NVLink's speed, also from
node to node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, estimate
from autotune.cost.layout import Group, layout_of
from autotune.cost.time.collectives import all_to_all_time_s, ring_time_s
from autotune.spec import ConfigTable, ParallelConfig, Workload
from tests.cost.examples import cluster, workload

NODES = cluster(nodes=16, per_node=4)
RACKS = replace(NODES, gpus_per_domain=32)
ONE_NODE = cluster(nodes=2, per_node=32)


def on(where: object) -> Workload:
    return replace(workload(), cluster=where)


def groups(where: object, config: ParallelConfig) -> dict[str, Group]:
    layout = layout_of(on(where), ConfigTable.of([config]))
    return {name: getattr(layout, f"{name}_group") for name in ("tp", "cp", "data", "ep")}


def test_members_per_domain_follow_from_the_order_of_the_ranks() -> None:
    found = groups(RACKS, ParallelConfig(tp=8, dp=4, pp=2))
    assert {name: float(group.per_domain[0]) for name, group in found.items()} == {
        "tp": 8,
        "cp": 1,
        "data": 4,
        "ep": 1,
    }
    wide = groups(RACKS, ParallelConfig(dp=64))["data"]
    assert (float(wide.per_domain[0]), float(wide.domains[0])) == (32, 2)
    alone = groups(NODES, ParallelConfig(tp=8, dp=4, pp=2))
    assert float(alone["tp"].domains[0]) == 2


@pytest.mark.parametrize("seconds", [ring_time_s, all_to_all_time_s])
@pytest.mark.parametrize("ranks", [2, 8, 32, 64])
def test_collectives_see_a_domain_of_many_nodes_as_one_large_node(
    seconds: object, ranks: int
) -> None:
    constants, moved = Calibration(), np.array([1e9])
    config = ParallelConfig(dp=ranks)
    times = [
        float(seconds(groups(where, config)["data"], moved, where, constants)[0])  # type: ignore[operator]
        for where in (RACKS, ONE_NODE, NODES)
    ]
    assert times[0] == times[1]
    assert times[2] > times[0] or ranks <= 4


def test_a_step_with_tensor_parallelism_over_nodes_is_faster_in_one_domain() -> None:
    config = ParallelConfig(
        tp=8, dp=8, micro_batch_size=4, accumulation_steps=8, sequence_parallel=True
    )
    racks, nodes = (estimate(on(where), config) for where in (RACKS, NODES))
    assert float(racks.time_parts_s.tp_comm) < 0.5 * float(nodes.time_parts_s.tp_comm)
    assert float(racks.step_time_s) < float(nodes.step_time_s)


def test_a_domain_of_one_node_changes_nothing() -> None:
    config = ParallelConfig(tp=4, dp=16, micro_batch_size=4, accumulation_steps=4)
    same = [
        estimate(on(where), config).to_dict()
        for where in (NODES, replace(NODES, gpus_per_domain=4))
    ]
    assert same[0] == same[1]
