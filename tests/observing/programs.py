"""Trainings of a small model on the CPU, as people write them; each is written into a folder and
started by its own launcher."""

from __future__ import annotations

PLAIN = """
import argparse, os, sys, time
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--seq-len", type=int, default=32)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--then", default="")
args = parser.parse_args()
ranks = int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(args.steps):
    began = time.perf_counter()
    tokens = torch.randint(0, 64, (args.batch_size, args.seq_len))
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"step {step} loss {loss.item():.4f} time {time.perf_counter() - began:.4f} s", flush=True)
if args.then == "memory":
    hog = [torch.zeros(1 << 28) for _ in range(64)]
elif args.then == "wait":
    print("waits", flush=True)
    time.sleep(600)
elif args.then:
    sys.exit(int(args.then))
if ranks > 1:
    torch.distributed.destroy_process_group()
"""

ACCELERATE = """
import argparse, time
import torch
from accelerate import Accelerator
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
accelerator = Accelerator(cpu=True)
model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))
data = torch.utils.data.DataLoader(torch.randint(0, 64, (64, 32)), batch_size=args.batch_size)
model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
for step, tokens in enumerate(data):
    began = time.perf_counter()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.1)
    accelerator.print(f"step {step} loss {loss.item():.4f} time {time.perf_counter() - began:.4f} s", flush=True)
"""

HF_TRAINER = """
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 128, (32,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2))
args = TrainingArguments(
    output_dir="out", per_device_train_batch_size=4, max_steps=8, logging_steps=1, use_cpu=True, report_to=[], save_strategy="no"
)
trainer = Trainer(model=model, args=args, train_dataset=Tokens())
trainer.train()
"""

LIGHTNING = """
import lightning
import torch
from torch import nn


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64))

    def training_step(self, tokens, index):
        import time

        time.sleep(0.1)
        return nn.functional.cross_entropy(self.net(tokens).flatten(0, 1), tokens.flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


data = torch.utils.data.DataLoader(torch.randint(0, 64, (48, 32)), batch_size=4, num_workers=0)
trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False)
trainer.fit(Module(), data)
"""

LIGHTNING_OF_ITEMS = LIGHTNING.replace(
    "data = torch.utils.data.DataLoader(torch.randint(0, 64, (48, 32)), batch_size=4, num_workers=0)",
    """class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.randint(0, 64, (32,))


data = torch.utils.data.DataLoader(Items(), batch_size=4, num_workers=0)""",
)
"""the same, with data whose length nothing but a batch shows"""
