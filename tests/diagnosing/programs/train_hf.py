"""A training by Hugging Face's Trainer; its options are faults."""

from __future__ import annotations

import argparse
import time

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--evaluate", type=int, default=0)
args = parser.parse_args()


class Tokens(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(args.sleep)
        tokens = torch.randint(0, 256, (64,))
        return {"input_ids": tokens, "labels": tokens}


torch.set_num_threads(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=4, n_head=4))
every = {"eval_strategy": "steps", "eval_steps": args.evaluate} if args.evaluate else {}
settings = TrainingArguments(
    output_dir="out", per_device_train_batch_size=8, max_steps=20, logging_steps=5, use_cpu=True, report_to=[], save_strategy="no", **every
)  # fmt: skip
Trainer(model=model, args=settings, train_dataset=Tokens(4000), eval_dataset=Tokens(64)).train()
