"""Mixture of experts: a router sends each token to its best experts, which may be on other ranks.

    n tokens on this rank    E experts    E' = E / ep experts on this rank    k experts per token

Routing is that of Mixtral (Jiang et al. 2024, arXiv:2401.04088, section 2.1): softmax over the k
best logits. No token is dropped and there is no balancing loss, so that the loss does not depend on
how experts are distributed. With ep > 1, there are two ways to dispatch tokens:

    alltoall    each token is sent to the ranks of its experts and back (Lepikhin et al. 2020, arXiv:2006.16668, section 3.2)
    allgather   every rank gathers the tokens of all ranks and runs its own experts; a reduce-scatter sums the results of each token
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autotune.spec import ModelSpec
from autotune_workers.training.model.decoder import Linear, Mlp
from autotune_workers.training.parallel.collective_ops import (
    Exchange,
    GatherFirst,
    ReduceScatterFirst,
)


class ExpertGroup(nn.Module):
    """The experts of one rank."""

    def __init__(self, spec: ModelSpec, numbers: range) -> None:
        super().__init__()
        for number in numbers:
            self.add_module(str(number), Mlp(spec))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows (m, h) sorted by expert -> (m, h). `counts`: rows of each expert. Experts without
        tokens run on an empty tensor, so that they have gradients."""
        parts = zip(self.children(), rows.split(counts), strict=True)
        return torch.cat([expert(part) for expert, part in parts])


class MixtureOfExperts(nn.Module):
    """The MLP of a layer with experts."""

    def __init__(
        self, spec: ModelSpec, *, group: dist.ProcessGroup | None, dispatcher: str
    ) -> None:
        """`group`: the ep ranks, which have different experts; None if this rank has all of them."""
        super().__init__()
        self._spec, self._group, self._dispatcher = spec, group, dispatcher
        ranks, rank = (1, 0) if group is None else (group.size(), group.rank())
        size = spec.num_experts // ranks
        self._numbers = range(rank * size, (rank + 1) * size)
        self.router = Linear(spec.hidden_size, spec.num_experts, bias=False)
        self.experts = ExpertGroup(spec, self._numbers)

    def extra_repr(self) -> str:
        """The dispatcher, for printing."""
        return "" if self._group is None else f"dispatcher={self._dispatcher}"

    @torch.compiler.disable  # the number of tokens per expert is known only at run time
    def forward(self, x: Tensor) -> Tensor:
        """(b, s, h) -> (b, s, h)."""
        flat = x.flatten(0, 1)
        logits, chosen = self.router(flat).float().topk(self._spec.experts_per_token, dim=-1)
        weights = logits.softmax(dim=-1)
        if self._group is not None and self._dispatcher == "allgather":
            gathered = [GatherFirst.apply(x, self._group) for x in (flat, weights, chosen)]
            out = ReduceScatterFirst.apply(self._run_local_experts(*gathered), self._group)
        else:
            out = self._run_all_experts(flat, weights, chosen)
        return out.to(x.dtype).view_as(x)

    def _run_all_experts(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Tokens (n, h), weights and numbers of their experts (n, k) -> weighted sums (n, h) over
        all experts, in fp32."""
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self._spec.num_experts)
        token = order // self._spec.experts_per_token
        rows = flat[token]
        if self._group is None:
            results = self.experts(rows, counts.tolist())
        else:
            results = self._exchange_and_run(rows, counts, self._group)
        return _weighted_sum(results, weights.flatten()[order], token, flat)

    def _run_local_experts(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """As `_run_all_experts`, with only the terms of this rank's experts."""
        num_local = len(self._numbers)
        numbers = chosen.flatten() - self._numbers.start
        numbers = numbers.where((numbers >= 0) & (numbers < num_local), num_local)
        counts = torch.bincount(numbers, minlength=num_local + 1).tolist()[:-1]
        order = numbers.argsort(stable=True)[: sum(counts)]
        token = order // self._spec.experts_per_token
        return _weighted_sum(
            self.experts(flat[token], counts), weights.flatten()[order], token, flat
        )

    def _exchange_and_run(self, rows: Tensor, counts: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Rows (m, h) sorted by expert -> results of their experts (m, h), computed on the ranks
        that have these experts."""
        ranks = group.size()
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts, group=group)
        sent = counts.view(ranks, -1).sum(dim=1).tolist()
        received = incoming.view(ranks, -1).sum(dim=1).tolist()
        arrived = Exchange.apply(rows, sent, received, group)
        # rows arrive sorted by sender and then by expert, and are sorted by expert
        expert = torch.arange(incoming.numel(), device=rows.device) % (incoming.numel() // ranks)
        by_expert = expert.repeat_interleave(incoming).argsort(stable=True)
        per_expert = incoming.view(ranks, -1).sum(dim=0).tolist()
        results = self.experts(arrived[by_expert], per_expert)
        return Exchange.apply(results[by_expert.argsort()], received, sent, group)


def _weighted_sum(rows: Tensor, weights: Tensor, token: Tensor, like: Tensor) -> Tensor:
    """Rows (m, h) times their weights (m,), summed by token (m,) -> (n, h) in fp32. `like`: provides
    the shape."""
    return torch.zeros_like(like, dtype=torch.float32).index_add(
        0, token, rows.float() * weights[:, None]
    )
