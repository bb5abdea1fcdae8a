"""The clusters of a spec: the one that runs trials, and with a target the larger one to plan
for."""

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
class PlannedJob:
    """The job whose configs are ranked."""

    cluster: ClusterSpec
    """the target's cluster, or without a target the one that runs trials"""
    seq_len: int
    """tokens per sequence"""
    global_batch_size: Any
    """sequences per optimizer step, as in the document"""
    at_hand: ClusterSpec | None = None
    """the cluster that runs proxies; None: trials run the job itself"""

    @property
    def name(self) -> str:
        """The name of its cluster, and of the cluster that runs proxies, if any."""
        return (
            self.cluster.name
            if self.at_hand is None
            else f"{self.cluster.name}-by-{self.at_hand.name}"
        )


def planned_job(spec: StudyDocument, at_hand: ClusterSpec) -> PlannedJob:
    """Return the job of a spec. A target with the GPUs of `at_hand` is run without proxies."""
    step = spec.workload
    if spec.target is None:
        return PlannedJob(
            cluster=at_hand, seq_len=step.seq_len, global_batch_size=step.global_batch_size
        )
    target = TargetDocument(cluster=spec.target) if isinstance(spec.target, str) else spec.target
    if target.cluster in (LOCAL, SLURM):
        raise SpecError(
            f"a target is the large cluster you plan for, not this machine, but target.cluster={target.cluster}",
            remedy="set target.cluster, e.g. to h100-sxm-32x8; the GPUs you have go under `cluster`",
            field="target.cluster",
        )
    cluster = find_cluster(target.cluster, None, field="target.cluster")
    is_here = cluster.gpu.name == at_hand.gpu.name and cluster.num_gpus == at_hand.num_gpus
    return PlannedJob(
        cluster=cluster,
        seq_len=target.seq_len or step.seq_len,
        global_batch_size=target.global_batch_size or step.global_batch_size,
        at_hand=None if is_here else at_hand,
    )


def find_cluster(
    value: str | ClusterDocument,
    local_cluster: Callable[[], ClusterSpec] | None,
    slurm_cluster: Callable[[], ClusterSpec] | None = None,
    *,
    field: str = "cluster",
) -> ClusterSpec:
    """Return the cluster of a catalog name, of inline fields, of this machine (`local`), or of the
    Slurm job (`slurm`). Raises `SpecError` or `CatalogError`."""
    if isinstance(value, ClusterDocument):
        return located(field, partial(_inline_cluster, value))
    if value == SLURM:
        if slurm_cluster is None:
            raise SpecError(
                "the cluster 'slurm' means the nodes of a Slurm job, which cannot be inspected here",
                remedy="specify the cluster, e.g. h100-sxm-2x8",
                field=field,
            )
        return slurm_cluster()
    if value != LOCAL:
        return located(field, partial(catalog.cluster, value))
    if local_cluster is None:
        raise SpecError(
            "the cluster 'local' is this machine, which cannot be inspected here",
            remedy="specify the cluster, e.g. h100-sxm-1x8",
            field=field,
        )
    return local_cluster()


def _inline_cluster(document: ClusterDocument) -> ClusterSpec:
    """Return the cluster of inline fields; links are the catalog's unless they are given."""
    gpu = (
        catalog.gpu(document.gpu)
        if isinstance(document.gpu, str)
        else GpuSpec(**document.gpu.model_dump(exclude_none=True))
    )
    if document.usd_per_hour is not None:
        gpu = replace(gpu, usd_per_hour=document.usd_per_hour)
    cluster = catalog.cluster_of(
        gpu, num_nodes=document.num_nodes, gpus_per_node=document.gpus_per_node
    )
    cluster = replace(cluster, name=document.name or cluster.name)
    if document.gpus_per_domain is not None:
        cluster = replace(cluster, gpus_per_domain=document.gpus_per_domain)
    if document.intra_node is not None:
        cluster = replace(cluster, intra_node=_link(document.intra_node, cluster.intra_node))
    if document.inter_node is not None:
        usual = cluster.intra_node if document.inter_node.fabric == "nvlink" else cluster.inter_node
        cluster = replace(cluster, inter_node=_link(document.inter_node, usual))
    return cluster


def _link(document: LinkDocument, usual: LinkSpec) -> LinkSpec:
    """Return the link. Omitted keys are those of the usual link, except that the fabric's name may
    determine the bandwidth."""
    port = FABRICS.get(document.fabric or "")
    return replace(
        usual, **({"bytes_per_s": port} if port else {}) | document.model_dump(exclude_none=True)
    )
