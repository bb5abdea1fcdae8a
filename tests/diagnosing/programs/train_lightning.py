"""A training by Lightning; its options are faults."""

from __future__ import annotations

import argparse
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--lines", type=int, default=0)
args = parser.parse_args()


class Tokens(Dataset):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(args.sleep)
        return torch.randint(0, 256, (64,))


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        wide = [
            nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4)
        ]
        self.net = nn.Sequential(nn.Embedding(256, 128), *wide, nn.Linear(128, 256))

    def training_step(self, tokens: torch.Tensor, index: int) -> torch.Tensor:
        for line in range(args.lines):
            print(f"batch {index}: {line}", flush=True)
        return nn.functional.cross_entropy(self.net(tokens).flatten(0, 1), tokens.flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


torch.set_num_threads(1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=1, max_steps=60, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False
)  # fmt: skip
trainer.fit(Module(), DataLoader(Tokens(), batch_size=8))
