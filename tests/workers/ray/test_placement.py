"""Which nodes a placement group asks for; `test_program_nodes` and the tests with network
namespaces place real groups."""

from __future__ import annotations

from typing import Any

import pytest

from autotune_workers.ray.placement import DOMAIN, avoiding, domain_of, is_among, strategy


def node(domain: str = "", *, cpus: float = 8.0, alive: bool = True) -> dict[str, Any]:
    """As `ray.nodes()` lists it."""
    return {
        "Alive": alive,
        "Labels": {DOMAIN: domain} if domain else {},
        "Resources": {"CPU": cpus} if alive else {},
    }


def test_one_node_is_asked_for_as_one_bundle() -> None:
    assert strategy(1, in_domain=True) == {"strategy": "STRICT_PACK"}


def test_several_nodes_are_different_nodes_with_or_without_a_domain() -> None:
    assert strategy(2, in_domain=False) == {"strategy": "STRICT_SPREAD"}
    assert strategy(2, in_domain=True)["topology_strategy"] == {
        DOMAIN: "STRICT_PACK",
        "ray.io/node-id": "STRICT_SPREAD",
    }


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("a"), node("b"), node("b")], "b"),
        ([node("a"), node("b"), node()], ""),
        ([node("a"), node("a", cpus=1)], ""),
        ([node("a"), node("a", alive=False)], ""),
        ([], ""),
    ],
)
def test_a_domain_counts_its_living_nodes_that_are_large_enough(
    nodes: list[dict[str, Any]], expected: str
) -> None:
    assert domain_of(nodes, 2, {"CPU": 2.0}) == expected


def test_ray_spells_the_strategies_so() -> None:
    pytest.importorskip("ray", minversion="2.60")
    from ray.util.placement_group import validate_placement_group

    for in_domain in (False, True):
        # raises ValueError
        validate_placement_group(bundles=[{"CPU": 1}] * 2, **strategy(2, in_domain=in_domain))


def test_nodes_that_are_left_out_are_avoided_by_their_number_now() -> None:
    pytest.importorskip("ray", minversion="2.60")
    from ray.util.placement_group import validate_placement_group

    named = [
        {
            **node(),
            "NodeID": number,
            "NodeManagerHostname": f"{name}.cluster",
            "NodeManagerAddress": address,
        }
        for number, name, address in (
            ("aa", "n1", "10.0.0.1"),
            ("bb", "n2", "10.0.0.2"),
            ("cc", "n3", "10.0.0.3"),
        )
    ]
    assert avoiding(named, (), 2) == {}
    for names in (["n2", "10.0.0.3"], ["n2.cluster", "n3"]):
        where = avoiding(named, names, 2)
        assert where == {"bundle_label_selector": [{"ray.io/node-id": "!in(bb, cc)"}] * 2}
        for in_domain in (False, True):
            validate_placement_group(
                bundles=[{"CPU": 1}] * 2, **strategy(2, in_domain=in_domain), **where
            )
    assert not is_among(named[0], ["10", "n", "n11"])
