"""Lightning on one device: it calls the parts of its module, not the module, and its bar counts
batches."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)

    def training_step(self, ids, index):
        return nn.functional.cross_entropy(self.head(self.tokens(ids)).flatten(0, 1), ids.flatten())

    def train_dataloader(self):
        return DataLoader(torch.randint(0, 64, (64, 16)), batch_size=4)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


if __name__ == "__main__":
    L.Trainer(
        max_steps=4,
        accumulate_grad_batches=2,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    ).fit(Lit())
