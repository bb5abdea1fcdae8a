"""Placement: a group of whole nodes, one bundle with the resources of all its ranks for each node.

    nodes    bundles of the group, in the order of the node ranks
    bundle   resources of one node: {"CPU": ranks * CPUs of a rank, "GPU": ranks * GPUs of a rank}

Several bundles are placed on as many different nodes. Where the nodes carry the label
`ray.io/gpu-domain` (nodes joined by NVLink or the like) and one domain has enough of them, all are
placed in one domain; Ray offers this since 2.60. A group that has no room waits as PENDING.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

DOMAIN = "ray.io/gpu-domain"
"""label of nodes whose GPUs reach one another without the network"""
NODE = "ray.io/node-id"


def place_nodes(
    nodes: int,
    bundle: Mapping[str, float],
    *,
    name: str,
    lifetime: str | None,
    left_out: Collection[str] = (),
) -> Any:
    """Asks for a placement group and returns it at once, placed or not. `lifetime`: None, or
    "detached" for one that outlives its driver; `left_out`: nodes that it must not use.

    Needs the head of the cluster: call it through `RayCluster.ask`.
    """
    import ray
    from ray.util.placement_group import placement_group

    is_topology_known = "topology_strategy" in inspect.signature(placement_group).parameters
    living = ray.nodes() if left_out or (nodes > 1 and is_topology_known) else ()
    usable = [node for node in living if not is_among(node, left_out)] if is_topology_known else ()
    how = strategy(nodes, in_domain=domain_of(usable, nodes, bundle) != "") | avoiding(
        living, left_out, nodes
    )
    return placement_group([dict(bundle)] * nodes, name=name, lifetime=lifetime, **how)


def avoiding(
    living: Iterable[Mapping[str, Any]], left_out: Collection[str], bundles: int
) -> dict[str, Any]:
    """The argument of `placement_group` that keeps its bundles off the nodes of these names;
    `living`: as `ray.nodes()` lists them."""
    numbers = sorted(
        str(node["NodeID"]) for node in living if node["Alive"] and is_among(node, left_out)
    )
    return (
        {"bundle_label_selector": [{NODE: f"!in({', '.join(numbers)})"}] * bundles}
        if numbers
        else {}
    )


def is_among(node: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a node that `ray.nodes()` lists has one of these hostnames or addresses."""
    known = (
        str(node.get("NodeManagerAddress", "")),
        *names_of(str(node.get("NodeManagerHostname", ""))),
    )
    return bool(names) and bool(
        {*names, *(names_of(name)[0] for name in names if not _is_address(name))} & {*known}
    )


def names_of(hostname: str) -> tuple[str, str]:
    """The names under which a node may be meant."""
    return hostname.partition(".")[0], hostname


def _is_address(name: str) -> bool:
    return name.replace(".", "").isdigit() or ":" in name


def strategy(nodes: int, *, in_domain: bool) -> dict[str, Any]:
    """The arguments of `placement_group` that say where the bundles go. `in_domain`: whether one
    domain has enough nodes."""
    if nodes == 1:
        return {"strategy": "STRICT_PACK"}
    if in_domain:
        return {"topology_strategy": {DOMAIN: "STRICT_PACK", NODE: "STRICT_SPREAD"}}
    return {"strategy": "STRICT_SPREAD"}


def domain_of(living: Iterable[Mapping[str, Any]], nodes: int, bundle: Mapping[str, float]) -> str:
    """A domain with at least so many living nodes that are large enough for the bundle, whether
    they are free now or not; empty: there is none.

    `living`: as `ray.nodes()` lists them.
    """
    sizes = Counter(
        node["Labels"][DOMAIN]
        for node in living
        if node["Alive"]
        and node.get("Labels", {}).get(DOMAIN)
        and _holds(node["Resources"], bundle)
    )
    return next((domain for domain, size in sorted(sizes.items()) if size >= nodes), "")


def _holds(resources: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= amount for name, amount in bundle.items())
