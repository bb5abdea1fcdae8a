"""An engine that steps several inner optimizers for one step, and one of them for each of its
groups, as ZeRO does."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
inner = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]


class Engine:
    def step(self):
        for optimizer in inner:
            groups, optimizer.param_groups = optimizer.param_groups, []
            for parameter in groups[0]["params"]:
                optimizer.param_groups = [{**groups[0], "params": [parameter]}]
                optimizer.step()
            optimizer.param_groups = groups


engine = Engine()
for _ in range(5):
    for _ in range(2):
        model(torch.randn(3, 8)).mean().backward()
    engine.step()
