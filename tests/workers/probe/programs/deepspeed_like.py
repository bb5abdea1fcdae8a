"""A loop of DeepSpeed's make: an engine that is a module around the model, whose `backward` and
`step` are its own, and an optimizer of ZeRO's that is none of torch's.

No package of DeepSpeed's is needed: classes and call structure are those of its engine, with fp32
copies of bf16 weights, stepped at the end of an accumulation.
"""

import time

import torch
from torch import nn

ACCUMULATE, MICRO = 3, 4
torch.manual_seed(0)


class ZeroOptimizer:
    """Steps an inner optimizer, one group of weights after the other."""

    def __init__(self, inner):
        self.inner = inner
        self.groups = inner.param_groups
        self.weights = [group["params"] for group in self.groups]
        self.main = [
            [p.detach().float().clone().requires_grad_() for p in params] for params in self.weights
        ]

    def step(self):
        for weights, main in zip(self.weights, self.main, strict=True):
            for of_model, copy in zip(weights, main, strict=True):
                copy.grad = of_model.grad.float()
            self.inner.param_groups = [{**self.groups[0], "params": main}]
            self.inner.step()
            for of_model, copy in zip(weights, main, strict=True):
                of_model.data.copy_(copy.data)
                of_model.grad = None
        self.inner.param_groups = self.groups


class DeepSpeedEngine(nn.Module):
    def __init__(self, module, optimizer):
        super().__init__()
        self.module, self.optimizer, self.micro_steps = module, optimizer, 0

    def zero_optimization_stage(self):
        return 2

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)

    def backward(self, loss):
        (loss / ACCUMULATE).backward()

    def step(self):
        self.micro_steps += 1
        if self.micro_steps % ACCUMULATE == 0:
            self.optimizer.step()


model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64)).bfloat16()
groups = [{"params": [p]} for p in model.parameters()]
engine = DeepSpeedEngine(model, ZeroOptimizer(torch.optim.AdamW(groups, lr=1e-3)))
engine.train()
for _ in range(5 * ACCUMULATE):
    ids = torch.randint(0, 64, (MICRO, 16))
    loss = nn.functional.cross_entropy(engine(ids).float().flatten(0, 1), ids.flatten())
    engine.backward(loss)
    engine.step()
    time.sleep(0.005)
