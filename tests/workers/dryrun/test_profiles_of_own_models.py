"""Profiles of a module whose layers share tensors: they compose what dry runs at another depth, micro-batch and sequence find.

`tests/cost/test_profile_templates.py` holds these runs recorded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from autotune.cost.profile import Profile, profile_of
from autotune.cost.profile_runs import fitted_runs
from autotune.ports import DryRunLimits
from autotune.spec import ConfigTable, ModelCode, ModelSpec, ParallelConfig, Workload, catalog
from tests.benchmarks.profiles import HereRunner

WIDTH, VOCAB = 64, 128
pytestmark = pytest.mark.slow


class Block(nn.Module):
    """Attention by one head under an additive mask, and an MLP; both with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("causal", torch.ones(512, 512).tril())

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.mixed(self.norm(x)).chunk(3, dim=-1)
        mask = mask * self.causal[: x.shape[1], : x.shape[1]]
        x = x + self.out((q @ k.transpose(-1, -2) + mask).softmax(dim=-1).to(v.dtype) @ v)
        return x + self.down(torch.relu(self.up(x)))


class Network(nn.Module):
    """Makes the mask once for all layers, and holds its embeddings until the last layer is through, as classes of transformers do."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embed(tokens)
        mask = torch.ones(*tokens.shape, tokens.shape[1], device=tokens.device).tril().log()
        x = embedded
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x + 0.0 * embedded.mean())


def build(depth: int) -> nn.Module:
    return Network(depth)


def workload(depth: int, seq_len: int, config: ParallelConfig) -> Workload:
    code = ModelCode(module=f"{__name__}:build", args=f'{{"depth": {depth}}}', folder=str(Path(__file__).parents[3]))
    model = ModelSpec(
        name="own",
        num_layers=depth,
        hidden_size=WIDTH,
        num_attention_heads=1,
        vocab_size=VOCAB,
        ffn_hidden_size=128,
        code=code,
    )
    cluster = catalog.cluster("h100-sxm-1x8")
    return Workload(model=model, cluster=cluster, seq_len=seq_len, global_batch_size=config.global_batch_size)


SHORT, DEEP = 6, 9
"""layers of the runs from which the profile is read, and of those that it composes"""
SPACE = ConfigTable.of(
    [
        ParallelConfig(dp=2, zero_stage=stage, recompute=mode, precision="bf16", accumulation_steps=2)
        for stage in (0, 3)
        for mode in ("none", "full")
    ]
)


@pytest.fixture(scope="module")
def profile() -> Profile:
    runner, pairs = HereRunner(), []
    for run in fitted_runs(workload(SHORT, 64, SPACE[0]), SPACE):
        found = runner.run(
            run.workload, run.config, pp_rank=0, limits=DryRunLimits(), traced=True, recompute=run.recompute
        )
        pairs.append((run, found))
    return profile_of(pairs, "")


def test_it_composes_the_runs_from_which_it_is_read(profile: Profile) -> None:
    assert len(profile.checks) == 2
    for check in profile.checks:
        assert check.error == pytest.approx(0.0, abs=1e-3), check


@pytest.mark.parametrize("config", [*SPACE], ids=str)
def test_it_composes_other_depths_and_sizes(profile: Profile, config: ParallelConfig) -> None:
    config = replace(config, micro_batch_size=2, accumulation_steps=3)
    asked = workload(DEEP, 128, config)
    assert profile.why_not(asked, config) == ""
    found = HereRunner().run(asked, config, pp_rank=0, limits=DryRunLimits())
    assert profile.rank_peak(asked, config, 0).total_bytes == pytest.approx(found.peak.total_bytes, rel=1e-3)
