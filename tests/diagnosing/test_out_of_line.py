"""Which GPU, node or link of a cluster is out of line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.diagnosis.out_of_line import of_readings
from tests.matrix import examples


def cluster(
    nodes: int, per_node: int, seed: int, *, slow: dict[int, float] | None = None, links: Any = None
) -> list[dict[str, Any]]:
    dice = np.random.default_rng(seed)

    def wobble() -> float:
        return float(np.exp(0.01 * dice.standard_normal()))

    said = []
    for rank in range(nodes * per_node):
        node = rank // per_node
        leads = rank % per_node == 0
        to = (
            {
                f"n{other}": 0.01 * wobble() * (links(node, other) if links else 1.0)
                for other in range(nodes)
                if other != node
            }
            if leads
            else {}
        )
        rates = {"matmul": 1e12 * wobble() / (slow or {}).get(rank, 1.0), "memory": 1e11 * wobble()}
        said.append({"rank": rank, "node": f"n{node}", "rates": rates, "exchanges_s": to})
    return said


@given(nodes=st.integers(1, 6), per_node=st.integers(1, 8), seed=st.integers(0, 9999))
@settings(max_examples=examples(100), deadline=None)
def test_nothing_stands_out_of_likes(nodes: int, per_node: int, seed: int) -> None:
    assert of_readings(cluster(nodes, per_node, seed)) == ()


@given(
    nodes=st.integers(2, 6),
    seed=st.integers(0, 9999),
    which=st.integers(0, 11),
    times=st.floats(1.2, 5),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_slow_gpu_is_named(nodes: int, seed: int, which: int, times: float) -> None:
    which %= nodes * 2
    (found,) = of_readings(cluster(nodes, 2, seed, slow={which: times}))
    assert (found.kind, found.name, found.what) == (
        "gpu",
        f"rank {which} (node n{which // 2})",
        "matmul",
    )
    assert found.times == pytest.approx(times, rel=0.1)


@given(
    nodes=st.integers(3, 6),
    seed=st.integers(0, 9999),
    which=st.integers(0, 5),
    times=st.floats(2.5, 20),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_node_behind_a_slow_link_is_named_once(
    nodes: int, seed: int, which: int, times: float
) -> None:
    which %= nodes
    (found,) = of_readings(
        cluster(nodes, 2, seed, links=lambda a, b: times if which in (a, b) else 1.0)
    )
    assert (found.kind, found.node, found.what) == ("node", f"n{which}", "exchange")


def test_one_link_between_two_of_many_nodes() -> None:
    (found,) = of_readings(cluster(4, 1, 0, links=lambda a, b: 4.0 if (a, b) == (1, 2) else 1.0))
    assert (found.kind, found.name) == ("link", "n1 to n2")
    (of_two,) = of_readings(cluster(2, 1, 0, links=lambda a, b: 4.0 if a == 1 else 1.0))
    assert (of_two.kind, of_two.name) == ("link", "n1 to n0")


def test_a_whole_node_that_computes_slowly() -> None:
    (found,) = of_readings(cluster(4, 2, 0, slow={4: 1.5, 5: 1.5}))
    assert (found.kind, found.node) == ("node", "n2")
    assert found.text.startswith("node n2 is an outlier: matmul 1.")
