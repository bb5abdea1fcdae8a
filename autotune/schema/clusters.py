"""Clusters of a spec: the one at hand, and the one of the target where the job that is meant will have more GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

from autotune.errors import SpecError
from autotune.schema.source_text import located
from autotune.schema.spec_models import ClusterDocument, LinkDocument, StudyDocument, TargetDocument
from autotune.spec import ClusterSpec, GpuSpec, LinkSpec, catalog
from autotune.spec.cluster import FABRICS

LOCAL, SLURM = "local", "slurm"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    """The job whose configs are ranked."""

    cluster: ClusterSpec
    """the target's, or without one the cluster at hand"""
    seq_len: int
    """tokens per sequence"""
    global_batch_size: Any
    """sequences per optimizer step, as the document holds them"""
    at_hand: ClusterSpec | None = None
    """the cluster that runs proxies of it; None: the trials run the job itself"""

    @property
    def name(self) -> str:
        """Its cluster, and the one at hand where that is another."""
        return (
            self.cluster.name
            if self.at_hand is None
            else f"{self.cluster.name}-by-{self.at_hand.name}"
        )


def asked_job(asked: StudyDocument, at_hand: ClusterSpec) -> AskedJob:
    """The job of a spec. A target with as many GPUs as are at hand is run as it is."""
    step = asked.workload
    if asked.target is None:
        return AskedJob(
            cluster=at_hand, seq_len=step.seq_len, global_batch_size=step.global_batch_size
        )
    meant = TargetDocument(cluster=asked.target) if isinstance(asked.target, str) else asked.target
    if meant.cluster in (LOCAL, SLURM):
        raise SpecError(
            f"a target is the large cluster you plan for, not this machine, but target.cluster={meant.cluster}",
            remedy="set target.cluster, e.g. to h100-sxm-32x8; the GPUs you have go under `cluster`",
            field="target.cluster",
        )
    cluster = asked_cluster(meant.cluster, None, field="target.cluster")
    is_here = cluster.gpu.name == at_hand.gpu.name and cluster.num_gpus == at_hand.num_gpus
    return AskedJob(
        cluster=cluster,
        seq_len=meant.seq_len or step.seq_len,
        global_batch_size=meant.global_batch_size or step.global_batch_size,
        at_hand=None if is_here else at_hand,
    )


def asked_cluster(
    asked: str | ClusterDocument,
    local_cluster: Callable[[], ClusterSpec] | None,
    slurm_cluster: Callable[[], ClusterSpec] | None = None,
    *,
    field: str = "cluster",
) -> ClusterSpec:
    """The cluster of a name, of inline fields, of this machine, or of the nodes of this job. Raises `SpecError` or `CatalogError`."""
    if isinstance(asked, ClusterDocument):
        return located(field, partial(_inline_cluster, asked))
    if asked == SLURM:
        if slurm_cluster is None:
            raise SpecError(
                "the cluster 'slurm' means the nodes of a Slurm job, which cannot be inspected here",
                remedy="specify the cluster, e.g. h100-sxm-2x8",
                field=field,
            )
        return slurm_cluster()
    if asked != LOCAL:
        return located(field, partial(catalog.cluster, asked))
    if local_cluster is None:
        raise SpecError(
            "the cluster 'local' is this machine, which cannot be inspected here",
            remedy="specify the cluster, e.g. h100-sxm-1x8",
            field=field,
        )
    return local_cluster()


def _inline_cluster(asked: ClusterDocument) -> ClusterSpec:
    gpu = (
        catalog.gpu(asked.gpu)
        if isinstance(asked.gpu, str)
        else GpuSpec(**asked.gpu.model_dump(exclude_none=True))
    )
    if asked.usd_per_hour is not None:
        gpu = replace(gpu, usd_per_hour=asked.usd_per_hour)
    cluster = catalog.cluster_of(gpu, num_nodes=asked.num_nodes, gpus_per_node=asked.gpus_per_node)
    cluster = replace(cluster, name=asked.name or cluster.name)
    if asked.gpus_per_domain is not None:
        cluster = replace(cluster, gpus_per_domain=asked.gpus_per_domain)
    if asked.intra_node is not None:
        cluster = replace(cluster, intra_node=_link(asked.intra_node, cluster.intra_node))
    if asked.inter_node is not None:
        usual = cluster.intra_node if asked.inter_node.fabric == "nvlink" else cluster.inter_node
        cluster = replace(cluster, inter_node=_link(asked.inter_node, usual))
    return cluster


def _link(asked: LinkDocument, usual: LinkSpec) -> LinkSpec:
    """The link as asked; what is left out is the bandwidth of the fabric's port, where its name fixes one, else that of the usual link."""
    port = FABRICS.get(asked.fabric or "")
    return replace(
        usual, **({"bytes_per_s": port} if port else {}) | asked.model_dump(exclude_none=True)
    )
