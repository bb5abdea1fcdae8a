"""The cluster that a draft names, and what follows from it: how many ranks there are, and how torchrun starts them."""

from __future__ import annotations

from autotune.spec import ClusterSpec, catalog

RANKS = 8
"""where no cluster is named"""


def named_cluster(name: str | None) -> ClusterSpec | None:
    """The cluster of that name; None for this machine. Raises `CatalogError` for an unknown one."""
    return None if name in (None, "local") else catalog.cluster(str(name))


def ranks_on(name: str | None) -> int:
    """Ranks of a job on the whole cluster."""
    found = named_cluster(name)
    return found.num_gpus if found else RANKS


def is_spread(name: str | None) -> bool:
    """Whether the cluster has several nodes."""
    found = named_cluster(name)
    return found is not None and found.num_nodes > 1


def torchrun_words(name: str | None) -> tuple[str, ...]:
    """torchrun and its options; over several nodes its environment tells it how they meet."""
    return ("torchrun", *(() if is_spread(name) else ("--standalone",)), "--nproc-per-node={nproc_per_node}")
