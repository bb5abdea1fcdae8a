"""Placement: a group of whole nodes, one bundle with the resources of all its ranks for each node.

    nodes    bundles of the group, in the order of the node ranks
    bundle   resources of one node: {"CPU": ranks * CPUs of a rank, "GPU": ranks * GPUs of a rank}

Several bundles are placed on as many different nodes. Where the nodes carry the label `ray.io/gpu-domain` (nodes joined by NVLink or the like)
and one domain has enough of them, all are placed in one domain; Ray offers this since 2.60. A group that has no room waits as PENDING.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

DOMAIN = "ray.io/gpu-domain"
"""label of nodes whose GPUs reach one another without the network"""
NODE = "ray.io/node-id"


def place_nodes(nodes: int, bundle: Mapping[str, float], *, name: str, lifetime: str | None) -> Any:
    """Asks for a placement group and returns it at once, placed or not. `lifetime`: None, or "detached" for one that outlives its driver.

    Needs the head of the cluster: call it through `RayCluster.ask`.
    """
    import ray
    from ray.util.placement_group import placement_group

    is_topology_known = "topology_strategy" in inspect.signature(placement_group).parameters
    living = ray.nodes() if nodes > 1 and is_topology_known else ()
    how = strategy(nodes, in_domain=domain_of(living, nodes, bundle) != "")
    return placement_group([dict(bundle)] * nodes, name=name, lifetime=lifetime, **how)


def strategy(nodes: int, *, in_domain: bool) -> dict[str, Any]:
    """The arguments of `placement_group` that say where the bundles go. `in_domain`: whether one domain has enough nodes."""
    if nodes == 1:
        return {"strategy": "STRICT_PACK"}
    if in_domain:
        return {"topology_strategy": {DOMAIN: "STRICT_PACK", NODE: "STRICT_SPREAD"}}
    return {"strategy": "STRICT_SPREAD"}


def domain_of(living: Iterable[Mapping[str, Any]], nodes: int, bundle: Mapping[str, float]) -> str:
    """A domain with at least so many living nodes that are large enough for the bundle, whether they are free now or not; empty: there is none.

    `living`: as `ray.nodes()` lists them.
    """
    sizes = Counter(
        node["Labels"][DOMAIN]
        for node in living
        if node["Alive"] and node.get("Labels", {}).get(DOMAIN) and _holds(node["Resources"], bundle)
    )
    return next((domain for domain, size in sorted(sizes.items()) if size >= nodes), "")


def _holds(resources: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in bundle.items())
