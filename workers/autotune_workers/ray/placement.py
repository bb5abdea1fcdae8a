"""Creates placement groups of whole nodes, with one bundle per node for the resources of all its
ranks.

    nodes    bundles of the group, in the order of the node ranks
    bundle   resources of one node: {"CPU": ranks * CPUs of a rank, "GPU": ranks * GPUs of a rank}

Each bundle is placed on a different node. If nodes have the label `ray.io/gpu-domain` (nodes joined
by NVLink or similar) and one domain has enough of them, all are placed in one domain, which Ray
supports since 2.60. A group without room waits as PENDING.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

DOMAIN = "ray.io/gpu-domain"
"""label of nodes whose GPUs communicate without the network"""
NODE = "ray.io/node-id"


def place_nodes(
    nodes: int,
    bundle: Mapping[str, float],
    *,
    name: str,
    lifetime: str | None,
    left_out: Collection[str] = (),
) -> Any:
    """Creates a placement group and returns it at once, placed or not. `lifetime`: None, or
    "detached" to outlive the driver. `left_out`: nodes that must not be used.

    Needs the head of the cluster: call it through `RayCluster.ask`.
    """
    import ray
    from ray.util.placement_group import placement_group

    is_topology_known = "topology_strategy" in inspect.signature(placement_group).parameters
    living = ray.nodes() if left_out or (nodes > 1 and is_topology_known) else ()
    usable = [node for node in living if not is_among(node, left_out)] if is_topology_known else ()
    placement_options = strategy(
        nodes, in_domain=domain_of(usable, nodes, bundle) != ""
    ) | avoiding(living, left_out, nodes)
    return placement_group(
        [dict(bundle)] * nodes, name=name, lifetime=lifetime, **placement_options
    )


def avoiding(
    living: Iterable[Mapping[str, Any]], left_out: Collection[str], bundles: int
) -> dict[str, Any]:
    """The argument of `placement_group` that excludes nodes with these names; empty if there are
    none. `living`: from `ray.nodes()`."""
    node_ids = sorted(
        str(node["NodeID"]) for node in living if node["Alive"] and is_among(node, left_out)
    )
    return (
        {"bundle_label_selector": [{NODE: f"!in({', '.join(node_ids)})"}] * bundles}
        if node_ids
        else {}
    )


def is_among(node: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a node from `ray.nodes()` has one of these hostnames or addresses."""
    own_names = (
        str(node.get("NodeManagerAddress", "")),
        *names_of(str(node.get("NodeManagerHostname", ""))),
    )
    return bool(names) and bool(
        {*names, *(names_of(name)[0] for name in names if not _is_address(name))} & {*own_names}
    )


def names_of(hostname: str) -> tuple[str, str]:
    """The short and the full hostname."""
    return hostname.partition(".")[0], hostname


def _is_address(name: str) -> bool:
    return name.replace(".", "").isdigit() or ":" in name


def strategy(nodes: int, *, in_domain: bool) -> dict[str, Any]:
    """The arguments of `placement_group` for the placement of bundles. `in_domain`: whether one
    domain has enough nodes."""
    if nodes == 1:
        return {"strategy": "STRICT_PACK"}
    if in_domain:
        return {"topology_strategy": {DOMAIN: "STRICT_PACK", NODE: "STRICT_SPREAD"}}
    return {"strategy": "STRICT_SPREAD"}


def domain_of(living: Iterable[Mapping[str, Any]], nodes: int, bundle: Mapping[str, float]) -> str:
    """A domain with at least `nodes` living nodes that are large enough for the bundle, free or
    not; empty if there is none.

    `living`: from `ray.nodes()`.
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
