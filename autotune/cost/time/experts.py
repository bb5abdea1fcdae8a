"""Time of a layer with experts, except their matmuls: dispatch of tokens, sorting, routing and
launches.

    t tokens of a rank   h hidden   b bytes of an element   E experts, of which a token visits k   p = ep ranks, E/p experts on each
    d domains that the group spans (nodes, or racks that one NVLink switch joins), g = p/d ranks in each

How often a token's h*b bytes are sent in a forward pass, in each direction (`dispatcher`):

    alltoall    once for each expert that it visits: k times (Lepikhin et al., arXiv 2006.16668, section 3.2)
    allgather   to all p ranks, by one all-gather; outputs come back by one reduce-scatter
    flex        once to each domain and once to each rank that holds any of its experts (DeepEP: arXiv 2412.19437, section 3.2.2; Hybrid-EP).
                Of n places a token visits n * (1 - (1 - 1/n)^k), when its experts are drawn independently

`dispatch_efficiency` is the achieved fraction of the link's bandwidth inside a domain,
`inter_efficiency` between domains. Published (deepseek-ai/DeepEP: README.md, docs/legacy.md,
docs/README_Hybrid-EP.md; tokens of width 7,168 to 8 experts in bf16): 0.5 to 0.7 of NVLink on B200
and GB200, 0.96 on H800; 0.73 to 0.87 of InfiniBand between 2 to 8 nodes. With `ep_overlap` another
micro-batch computes meanwhile (arXiv 2412.19437, section 3.2.1).

Tokens are sorted by expert and back, the router's scores are read and written in fp32, and the
gradients of all experts on a rank are read and written once per micro-batch, however few tokens
they got. In the forward pass the host waits for the device to count the tokens of each expert, so
that it cannot launch the experts ahead: this part of its time is never hidden, except in a CUDA
graph (arXiv 2603.07685).

Assumptions: all experts get equally many tokens (`expert_imbalance` 1; the busiest expert has 0.04
more than the mean with a bias per expert and 0.7 more with a balancing loss: Wang et al., arXiv
2408.15664, table 2, and ranks with several experts lie between); no limit on the groups that a
token visits.
"""

from __future__ import annotations

import numpy as np

from autotune.cost.calibration import Calibration
from autotune.cost.layout import Column, Group, Layout
from autotune.cost.time.collectives import ring_time_s
from autotune.cost.traits import Traits
from autotune.spec import ClusterSpec, ConfigTable, ModelSpec, Workload

SORTS = {"alltoall": 4.0, "allgather": 2.0, "flex": 2.0}
"""times that a token's copy for one expert is moved in memory in a forward pass, by dispatcher:
with alltoall the sender sorts by rank and the receiver by expert, and both sort back; else only the
receiver sorts"""
ROUTER_PASSES = 6.0
"""reads and writes of the router's scores in a forward pass: matmul, softmax or sigmoid, choice of
the best, balancing loss"""
FORWARD_LAUNCHES = 0.4
"""share of a layer's kernels that are launched in its forward pass"""
OUTSIDE_LAYER_GRAPHS = 0.6
"""share of the kernels of router, dispatcher and experts that graphs of single layers leave out:
all but the router and what precedes the dispatch, because the shapes behind it change
(Megatron-Core's scopes attn, moe_router and moe_preprocess)"""


def expert_tokens(layout: Layout) -> Column:
    """Return the tokens of one micro-batch that a rank sends to the experts; the ranks of a
    tensor-parallel group share theirs."""
    return layout.tokens / layout.tp


def expert_rows(model: ModelSpec, layout: Layout) -> Column:
    """Return the rows of one micro-batch in the matmuls of all experts of a rank; the ranks that
    cut an expert compute the same rows."""
    return expert_tokens(layout) * layout.expert_tp * model.experts_per_token


def whole_expert_share(model: ModelSpec, layout: Layout) -> Column:
    """Return the share of the layers whose MLP has no tensor-parallel collective: all their experts
    are whole, and get each rank's own tokens from the dispatcher."""
    share = 0.0 if model.shared_ffn_hidden_size else model.expert_share
    return np.where(layout.expert_tp > 1, 0.0, share)


def rows_per_expert(model: ModelSpec, layout: Layout) -> Column:
    """Return the rows of one micro-batch in the matmuls of one expert."""
    return np.maximum(expert_rows(model, layout) * layout.ep / max(model.num_experts, 1), 1.0)


def expert_layer_s(
    workload: Workload,
    table: ConfigTable,
    layout: Layout,
    constants: Calibration,
    traits: Traits,
    again: Column,
    element_bytes: Column,
) -> Column:
    """Return the seconds to send the tokens of one micro-batch to the experts of one layer and
    back, without overlap. `again`: repeated share of the forward pass."""
    model, cluster, group = workload.model, workload.cluster, layout.ep_group
    # ranks that cut an expert need all of its tokens, so each sends them all
    sent = expert_tokens(layout) * layout.expert_tp
    once = (
        sent * model.hidden_size * element_bytes * model.expert_share * constants.expert_imbalance
    )
    k, ranks, domains = float(model.experts_per_token), group.size, group.domains
    each = once * k / ranks
    plain = _both_s(
        group,
        each * (group.per_domain - 1.0),
        each * (ranks - group.per_domain),
        cluster,
        constants,
    )
    inside = once * _visited(ranks, k) * (group.per_domain - 1.0) / group.per_domain
    outside = once * _visited(domains, k) * (domains - 1.0) / domains
    fewer = _both_s(group, inside, outside, cluster, constants)
    gathered = ring_time_s(group, once * ranks, cluster, constants)
    times = 2.0 * (2.0 + again)
    # outputs and gradients that are summed in fp32
    wider = 4.0 / element_bytes if traits.weighs_in_fp32 else np.ones_like(element_bytes)
    gathers = (1.0 + again) * (1.0 + wider) + 2.0 * wider
    seconds = times * np.where(table.is_word("dispatcher", "flex"), fewer, plain)
    seconds = np.where(table.is_word("dispatcher", "allgather"), gathers * gathered, seconds)
    return np.where(ranks > 1, seconds, 0.0)


def _visited(places: Column, k: float) -> Column:
    """Return the mean number of distinct places that a token visits with `k` independent choices
    among `places` equal ones."""
    return places * (1.0 - (1.0 - 1.0 / places) ** k)


def _both_s(
    group: Group, inside: Column, outside: Column, cluster: ClusterSpec, constants: Calibration
) -> Column:
    """Return the seconds to send `inside` bytes to ranks of the domain and `outside` bytes beyond
    it, each by its own link at the same time."""
    fast = inside / (cluster.intra_node.bytes_per_s * constants.dispatch_efficiency)
    slow = outside / (cluster.inter_node.bytes_per_s * constants.inter_efficiency)
    latency = np.where(
        group.domains > 1, cluster.inter_node.latency_s, cluster.intra_node.latency_s
    )
    return np.maximum(fast, slow) + constants.latency_factor * latency


def expert_moved_bytes(
    model: ModelSpec, table: ConfigTable, layout: Layout, element_bytes: Column
) -> Column:
    """Return the bytes read and written beside the matmuls in one layer's forward pass for one
    micro-batch: sorted tokens and the router's scores.

    A sort moves as much in the backward pass as in the forward pass, while two forward passes are
    counted for it: hence two thirds.
    """
    sorts = np.full_like(layout.tp, SORTS["flex"])
    for name, count in SORTS.items():
        sorts = np.where(table.is_word("dispatcher", name) & (layout.ep > 1), count, sorts)
    copies = 2.0 * sorts * model.experts_per_token * model.hidden_size * element_bytes * 2.0 / 3.0
    return (
        expert_tokens(layout)
        * model.expert_share
        * (copies + ROUTER_PASSES * 4.0 * model.num_experts)
    )


def gradient_bytes(model: ModelSpec, layout: Layout, traits: Traits) -> Column:
    """Return the bytes moved to add one micro-batch's weight gradients of one layer's experts to
    those of the step: a read and a write, without the write of a 16-bit result, which is part of
    the matmul (`half_size`)."""
    weights = (
        model.num_experts
        * model.mlp_parameters
        * model.expert_share
        / (layout.ep * layout.expert_tp)
    )
    return (2.0 * traits.gradient_bytes - 2.0) * weights


def expert_host_s(model: ModelSpec, table: ConfigTable, constants: Calibration) -> Column:
    """Return the host time, s, to launch the router, the dispatcher and the experts of one layer,
    forward and backward, for one micro-batch."""
    launched = np.where(table.is_word("cuda_graph", "layers"), OUTSIDE_LAYER_GRAPHS, 1.0)
    launched = np.where(table.is_word("cuda_graph", "step"), 0.0, launched)
    return model.expert_share * constants.expert_host_s * launched
