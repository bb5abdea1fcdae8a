"""The trace of a dry run tells the layers that the training recomputes and shards, whatever longer lists of modules lie within them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from autotune.spec import ModelCode
from autotune_workers.dryrun.played_rank import dry_run
from autotune_workers.dryrun.stand_ins import stand_in
from tests.workers.dryrun.test_bad_models import workload
from tests.workers.trial_ranks import request

DEPTH, EXPERTS = 2, 5


class Layer(nn.Module):
    """The mean of its experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(EXPERTS))
        self.register_buffer("mask", torch.ones(7, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x + sum(expert(x) for expert in self.experts) / EXPERTS


class Network(nn.Module):
    """Fewer layers than a layer has experts. Its table has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(5))
        self.register_buffer("same_table", self.table)
        self.embed, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build() -> nn.Module:
    return Network()


def test_layers_are_those_of_the_model_and_not_their_experts() -> None:
    asked = workload("build")
    code = ModelCode(module=f"{__name__}:build", args=json.dumps({}), folder=str(Path(__file__).parents[3]))
    asked = replace(asked, model=replace(asked.model, num_layers=DEPTH, code=code))
    config = request("llama", "dp=2,accumulation_steps=2").config
    trace = dry_run(stand_in(asked, config).request, rank=0, traced=True).trace
    assert trace is not None
    assert {segment.layer for segment in trace.segments if segment.kind == "layer"} == set(range(DEPTH))
    owned = [weight.layer for weight in trace.weights]
    assert [owned.count(layer) for layer in range(DEPTH)] == [2 * EXPERTS] * DEPTH
    assert [size for size in trace.buffers if size[1] != 8] == [
        *((layer, 7 * 8 * 4) for layer in range(DEPTH)),
        (-1, 5 * 4),
    ]
