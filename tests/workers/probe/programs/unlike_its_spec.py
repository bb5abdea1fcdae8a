"""A small training that does other things than a spec may say: it reads no option and no file, trains
adapters only, keeps an average of the weights, and asks a frozen reference."""

import copy
import time

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 1, bias=False), nn.Linear(1, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(64, 32).requires_grad_(False)
        self.inside, self.head = Adapted(32), nn.Linear(32, 64).requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.inside(self.tokens(tokens)))


model = Network()
average, reference = (copy.deepcopy(model).requires_grad_(False) for _ in range(2))
optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
for step in range(40):
    begin_s = time.perf_counter()
    for _ in range(2):
        tokens = torch.randint(0, 64, (2, 16))
        with torch.no_grad():
            wanted = reference(tokens).softmax(-1)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten(0, 1))
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time_s = time.perf_counter() - begin_s
    print(f'{{"step": {step}, "step_time_s": {time_s}, "loss": {loss.item()}}}', flush=True)
