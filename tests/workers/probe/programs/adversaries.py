"""Two optimizers that take turns: a GAN."""

import torch
from torch import nn

generator, judge = nn.Linear(4, 8), nn.Linear(8, 1)
of_generator = torch.optim.Adam(generator.parameters())
of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
for _ in range(5):
    real, noise = torch.randn(6, 8), torch.randn(6, 4)
    judge(real).mean().backward()
    judge(generator(noise).detach()).mean().backward()
    of_judge.step()
    of_judge.zero_grad()
    judge(generator(noise)).mean().backward()
    of_generator.step()
    of_generator.zero_grad()
