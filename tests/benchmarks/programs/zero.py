"""DeepSpeed's engine with a JSON of its own; prints a line for each step."""

import argparse
import json
import time

import deepspeed
import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()
    with open(args.deepspeed_config) as file:
        settings = json.load(file)

    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [
        nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)
    ]
    model = nn.Sequential(nn.Embedding(256, 128), *layers, nn.Linear(128, 256))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=settings
    )
    for step in range(args.steps):
        start = time.time()
        for _ in range(settings["gradient_accumulation_steps"]):
            x = torch.randint(256, (settings["train_micro_batch_size_per_gpu"], 33))
            loss = nn.functional.cross_entropy(engine(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
        if torch.distributed.get_rank() == 0:
            print(f"[{step}] loss={loss.item():.4f} time={time.time() - start:.4f}s", flush=True)


if __name__ == "__main__":
    main()
