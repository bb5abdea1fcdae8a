"""A training that evaluates after every second step, saves in the way that is asked for after every
third. It may feed longer sequences from step to step, or compute its gradients by `grad`."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--save", choices=("torch", "safetensors", "distributed"), default="torch")
parser.add_argument("--grow", action="store_true")
parser.add_argument("--grad", action="store_true")
parser.add_argument("--steps", type=int, default=12)
arguments = parser.parse_args()


def save(state):
    if arguments.save == "torch":
        torch.save(state, "model.pt")
    elif arguments.save == "safetensors":
        from safetensors.torch import save_file

        save_file(state, "model.safetensors")
    else:
        import torch.distributed.checkpoint as checkpoints

        checkpoints.save(state, checkpoint_id="checkpoint", no_dist=True)


model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(arguments.steps):
    length = 16 + 4 * step if arguments.grow else 16
    tokens = torch.randint(0, 64, (8, length))
    model.train()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    if arguments.grad:
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            parameter.grad = gradient
    else:
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}", flush=True)
    if step % 2:
        model.eval()
        with torch.no_grad():
            for _ in range(20):
                model(torch.randint(0, 64, (64, 16)))
    if step % 3 == 2:
        save(model.state_dict())
