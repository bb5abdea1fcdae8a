"""A loop of Megatron's make: the model is a list of chunks behind a wrapper, a schedule calls
forward and backward itself, and a wrapper steps the optimizer.

No package of Megatron's is needed: classes and call structure are those of its loop
(`forward_backward_no_pipelining`, `MegatronOptimizer`), with fp32 copies of bf16 weights.
"""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch-size", type=int, default=2)
parser.add_argument("--num-microbatches", type=int, default=4)
parser.add_argument("--train-iters", type=int, default=5)
parser.add_argument("--recompute", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(hidden)))


class GPTModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.output_layer = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, input_ids, position_ids, attention_mask, labels=None):
        hidden = self.embedding(input_ids).transpose(0, 1).contiguous()  # sequence first
        for layer in self.layers:
            hidden = (
                torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=False)
                if args.recompute
                else layer(hidden)
            )
        logits = self.output_layer(hidden).transpose(0, 1)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), reduction="none"
        )


class Float16Module(nn.Module):
    """Weights in bf16 behind a wrapper."""

    def __init__(self, module):
        super().__init__()
        self.module = module.bfloat16()

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)


class MixedPrecisionOptimizer:
    """No torch optimizer itself: it steps one over fp32 copies, and copies them back."""

    def __init__(self, parameters):
        self.model = list(parameters)
        self.main = [p.detach().float().clone().requires_grad_() for p in self.model]
        self.optimizer = torch.optim.AdamW(self.main, lr=1e-3)

    def step(self):
        for main, of_model in zip(self.main, self.model, strict=True):
            main.grad = of_model.grad.float()
        self.optimizer.step()
        for main, of_model in zip(self.main, self.model, strict=True):
            of_model.data.copy_(main.data)

    def zero_grad(self):
        for parameter in self.model:
            parameter.grad = None


def forward_backward(model):
    total = 0.0
    for _ in range(args.num_microbatches):
        ids = torch.randint(0, 64, (args.micro_batch_size, 16))
        loss = (
            model[0](input_ids=ids, position_ids=None, attention_mask=None, labels=ids).mean()
            / args.num_microbatches
        )
        torch.autograd.backward(loss, grad_tensors=None)
        total += loss.item()
    return total


model = [Float16Module(GPTModel())]
optimizer = MixedPrecisionOptimizer(model[0].parameters())
for chunk in model:
    chunk.train()
for iteration in range(args.train_iters):
    optimizer.zero_grad()
    loss = forward_backward(model)
    optimizer.step()
    time.sleep(0.01)
    print(
        f" iteration {iteration + 1:8d}/{args.train_iters:8d} | lm loss: {loss:.6E} |", flush=True
    )
