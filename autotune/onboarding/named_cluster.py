"""The cluster that a draft names, and what follows from it: how many ranks there are, and how torchrun starts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from autotune.onboarding.draft import Entry
from autotune.spec import ClusterSpec, catalog

RANKS = 8
"""GPUs of a node, where nothing tells"""


def named_cluster(name: str | None) -> ClusterSpec | None:
    """The cluster of that name; None for this machine. Raises `CatalogError` for an unknown one."""
    return None if name in (None, "local") else catalog.cluster(str(name))


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs: on the cluster of that name; where none is named, on as many nodes and GPUs as its launch script asks for."""

    name: str | None
    """GPU-NODESxGPUS; None: not named"""
    nodes: int = 1
    """nodes that the launch asks for"""
    gpus_per_node: int | None = None
    """ranks of a node in the launch; None where it does not say"""

    @property
    def ranks(self) -> int:
        """Ranks of a job on the whole cluster. Raises `CatalogError` for an unknown one."""
        found = named_cluster(self.name)
        return found.num_gpus if found else self.nodes * (self.gpus_per_node or RANKS)

    @property
    def asked(self) -> int | None:
        """Ranks that the launch asks for; None where it does not say."""
        return self.nodes * self.gpus_per_node if self.gpus_per_node else None

    @property
    def is_spread(self) -> bool:
        """Whether there are several nodes."""
        found = named_cluster(self.name)
        return (found.num_nodes if found else self.nodes) > 1

    @property
    def is_cpu(self) -> bool:
        """Whether its ranks are said to be CPU processes."""
        found = named_cluster(self.name)
        return found is not None and found.gpu.is_cpu

    @property
    def torchrun(self) -> tuple[str, ...]:
        """torchrun and its options; over several nodes its environment tells it how they meet."""
        return ("torchrun", *(() if self.is_spread else ("--standalone",)), "--nproc-per-node={nproc_per_node}")

    @property
    def fill_in(self) -> tuple[str, ...]:
        """Whether the cluster is to be filled in: this machine is not it."""
        return ("cluster",) if self.name is None and self.nodes > 1 else ()

    @property
    def entries(self) -> tuple[Entry, Entry]:
        """The spec's cluster and runner."""
        usual = f"h100-sxm-{self.nodes}x{self.gpus_per_node or RANKS}"
        asks = f"fill in, e.g. {usual}: it asks for {self.nodes} nodes"
        comment = "" if self.name else asks if self.fill_in else f"this machine; else e.g. {usual}"
        return (
            Entry(key="cluster", value=self.name or "local", comment=comment),
            Entry(key="runner", value="ray" if self.is_spread else "local"),
        )
