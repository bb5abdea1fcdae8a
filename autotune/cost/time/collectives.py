"""Time of one collective: the latency of its steps plus its bytes over the slowest link of its
ring.

    n members on k domains, g = members per domain, S bytes of the whole (gathered) tensor per rank

A domain is a node, or the nodes that one NVLink switch joins: inside it the ring runs over the
intra_node link, also from node to node.

Ring algorithms move (n-1)/n * S per rank for all-gather and reduce-scatter, twice that for
all-reduce (Thakur et al., IJHPCA 2005). Between domains the ring crosses the border of each domain
once per group. The g members of a domain use one network port each, of which NCCL's channels reach
the bandwidth of g ** rails ports. The time per byte grows with each doubling of the domains, as in
NCCL's published measurements. The latency is proportional to log2 of the members inside a domain,
and to the number of domains between domains. Ranks that share a core wait for it once per member of
the ring. Neglected: contention between different groups.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, Group
from autotune.spec import ClusterSpec


def shared_by(crowd: Column, constants: Calibration) -> Column:
    """Return ranks per core, at least 1, when `crowd` ranks of a node compute at once."""
    if constants.full_speed_ranks == 0:
        return np.ones_like(crowd)
    return np.maximum(1.0, crowd / constants.full_speed_ranks)


def ring_bytes_s(
    group: Group, gathered_bytes: Column, cluster: ClusterSpec, constants: Calibration
) -> Column:
    """Return the seconds to move the bytes of one all-gather or reduce-scatter, without latency;
    zero for a group of one."""
    across = group.size > group.per_domain
    intra = cluster.intra_node.bytes_per_s * constants.intra_efficiency
    inter = (
        cluster.inter_node.bytes_per_s
        * constants.inter_efficiency
        * group.per_domain**constants.rails
    )
    slower = 1.0 + constants.inter_decay * np.log2(np.maximum(group.domains / 2.0, 1.0))
    bandwidth = np.where(across, np.minimum(inter, intra) / slower, intra)
    return (group.size - 1.0) / group.size * gathered_bytes / bandwidth


def ring_latency_s(group: Group, cluster: ClusterSpec, constants: Calibration) -> Column:
    """Return the latency of one all-gather or reduce-scatter, s; zero for a group of one."""
    local = (
        constants.latency_factor
        * cluster.intra_node.latency_s
        * np.log2(np.maximum(group.per_domain, 1.0))
    )
    local = local + constants.turn_s * (group.per_domain - 1.0) * (
        shared_by(group.crowd, constants) - 1.0
    )
    across = group.size > group.per_domain
    return local + np.where(
        across, cluster.inter_node.latency_s + constants.hop_s * group.domains, 0.0
    )


def ring_time_s(
    group: Group, gathered_bytes: Column, cluster: ClusterSpec, constants: Calibration
) -> Column:
    """Return the seconds of one all-gather or reduce-scatter of `gathered_bytes`; an all-reduce
    takes two. Zero for a group of one."""
    seconds = ring_latency_s(group, cluster, constants) + ring_bytes_s(
        group, gathered_bytes, cluster, constants
    )
    return np.where(group.size > 1, seconds, 0.0)


def all_to_all_time_s(
    group: Group, sent_bytes: Column, cluster: ClusterSpec, constants: Calibration
) -> Column:
    """Return the seconds of an all-to-all in which every rank sends `sent_bytes`; bytes that leave
    the domain use the rank's own network port."""
    intra = cluster.intra_node.bytes_per_s * constants.intra_efficiency
    inter = cluster.inter_node.bytes_per_s * constants.inter_efficiency
    inside = (group.per_domain - 1.0) / group.size * sent_bytes / intra
    outside = (group.size - group.per_domain) / group.size * sent_bytes / inter
    latency = constants.latency_factor * np.where(
        group.size > group.per_domain, cluster.inter_node.latency_s, cluster.intra_node.latency_s
    )
    return np.where(group.size > 1, latency + np.maximum(inside, outside), 0.0)


def send_time_s(
    inside: Column, sent_bytes: Column, cluster: ClusterSpec, constants: Calibration
) -> Column:
    """Return the seconds of one send between pipeline neighbors; `inside`: fraction of sends that
    stay in a domain."""
    intra = cluster.intra_node.latency_s + sent_bytes / (
        cluster.intra_node.bytes_per_s * constants.intra_efficiency
    )
    inter = cluster.inter_node.latency_s + sent_bytes / (
        cluster.inter_node.bytes_per_s * constants.inter_efficiency
    )
    return inside * intra + (1.0 - inside) * inter
