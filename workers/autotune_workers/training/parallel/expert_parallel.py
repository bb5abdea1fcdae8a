"""Mixture of experts: a router sends each token to its best experts, which may live on other ranks.

    n tokens on this rank    E experts    E' = E / ep experts on this rank    k experts per token

Routing is Mixtral's (Jiang et al. 2024, arXiv:2401.04088, section 2.1): softmax over the k best
logits. No token is dropped and there is no balancing loss, so that the loss is that of the dense
computation whatever the cut. With ep > 1, tokens reach their experts in one of two ways:

    alltoall    each token travels to the ranks of its experts and back (Lepikhin et al. 2020, arXiv:2006.16668, section 3.2)
    allgather   every rank gathers the tokens of all and runs its own experts; a reduce-scatter sums what the ranks have for each token
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
        """Rows (m, h) sorted by expert, `counts` of each expert -> (m, h). An expert without tokens
        runs on none, so that it has a gradient."""
        parts = zip(self.children(), rows.split(counts), strict=True)
        return torch.cat([expert(part) for expert, part in parts])


class MixtureOfExperts(nn.Module):
    """The MLP of a layer with experts."""

    def __init__(
        self, spec: ModelSpec, *, group: dist.ProcessGroup | None, dispatcher: str
    ) -> None:
        """`group`: the ep ranks, which hold different experts; None when this rank holds all."""
        super().__init__()
        self._spec, self._group, self._dispatcher = spec, group, dispatcher
        ranks, rank = (1, 0) if group is None else (group.size(), group.rank())
        size = spec.num_experts // ranks
        self._numbers = range(rank * size, (rank + 1) * size)
        self.router = Linear(spec.hidden_size, spec.num_experts, bias=False)
        self.experts = ExpertGroup(spec, self._numbers)

    def extra_repr(self) -> str:
        """How tokens reach experts on other ranks, for printing."""
        return "" if self._group is None else f"dispatcher={self._dispatcher}"

    @torch.compiler.disable  # how many tokens an expert gets is known only when it runs
    def forward(self, x: Tensor) -> Tensor:
        """(b, s, h) -> (b, s, h)."""
        flat = x.flatten(0, 1)
        logits, chosen = self.router(flat).float().topk(self._spec.experts_per_token, dim=-1)
        weights = logits.softmax(dim=-1)
        if self._group is not None and self._dispatcher == "allgather":
            tokens, of_tokens, experts = (
                GatherFirst.apply(x, self._group) for x in (flat, weights, chosen)
            )
            out = ReduceScatterFirst.apply(self._here(tokens, of_tokens, experts), self._group)
        else:
            out = self._by_token(flat, weights, chosen)
        return out.to(x.dtype).view_as(x)

    def _by_token(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Tokens (n, h), weights and numbers of their experts (n, k) -> weighted sums (n, h) in
        fp32, of all experts."""
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self._spec.num_experts)
        token = order // self._spec.experts_per_token
        rows = flat[token]
        done = (
            self.experts(rows, counts.tolist())
            if self._group is None
            else self._elsewhere(rows, counts, self._group)
        )
        return _weighted_sum(done, weights.flatten()[order], token, flat)

    def _here(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The same of this rank's experts alone."""
        own = len(self._numbers)
        numbers = chosen.flatten() - self._numbers.start
        numbers = numbers.where((numbers >= 0) & (numbers < own), own)
        counts = torch.bincount(numbers, minlength=own + 1).tolist()[:-1]
        order = numbers.argsort(stable=True)[: sum(counts)]
        token = order // self._spec.experts_per_token
        return _weighted_sum(
            self.experts(flat[token], counts), weights.flatten()[order], token, flat
        )

    def _elsewhere(self, rows: Tensor, counts: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Rows (m, h) sorted by expert -> the same rows after their experts, by way of the ranks
        that hold these."""
        ranks = group.size()
        coming = torch.empty_like(counts)
        dist.all_to_all_single(coming, counts, group=group)
        sent = counts.view(ranks, -1).sum(dim=1).tolist()
        received = coming.view(ranks, -1).sum(dim=1).tolist()
        arrived = Exchange.apply(rows, sent, received, group)
        # rows arrive by sender and then by expert; experts want them by expert
        expert = torch.arange(coming.numel(), device=rows.device) % (coming.numel() // ranks)
        by_expert = expert.repeat_interleave(coming).argsort(stable=True)
        per_expert = coming.view(ranks, -1).sum(dim=0).tolist()
        done = self.experts(arrived[by_expert], per_expert)
        return Exchange.apply(done[by_expert.argsort()], received, sent, group)


def _weighted_sum(rows: Tensor, weights: Tensor, token: Tensor, like: Tensor) -> Tensor:
    """Rows (m, h), each times its weight (m,) and added to its token (m,) -> (n, h) in fp32."""
    return torch.zeros_like(like, dtype=torch.float32).index_add(
        0, token, rows.float() * weights[:, None]
    )
