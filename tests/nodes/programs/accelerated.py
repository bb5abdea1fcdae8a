"""A training loop with Hugging Face accelerate; the main process prints a dictionary for each
step."""

from __future__ import annotations

import argparse
import json
import time

import torch
from accelerate import Accelerator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(256, 64), torch.nn.Linear(64, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(arguments.steps):
        began_s = time.perf_counter()
        tokens = torch.randint(256, (arguments.batch_size, 33))
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if accelerator.is_main_process:
            line = {"step": step, "loss": loss.item(), "step_time_s": time.perf_counter() - began_s}
            print(json.dumps(line), flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
