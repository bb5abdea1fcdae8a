"""A loop with Hugging Face accelerate, as its documentation writes it; prints step and loss, and no
time."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_batch_size", type=int, default=2)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
    parser.add_argument("--max_train_steps", type=int, default=200)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    layers = [
        nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)
    ]
    model = nn.Sequential(nn.Embedding(256, 128), *layers, nn.Linear(128, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = DataLoader(
        torch.randint(256, (20000, 33)), batch_size=args.per_device_batch_size, shuffle=True
    )
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    step = 0
    for batch in data:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(
                model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
            )
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            accelerator.print(f"step {step}: loss {loss.item():.4f}", flush=True)
        if step == args.max_train_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
