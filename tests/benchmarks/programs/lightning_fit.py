"""Lightning's Trainer with the progress bar of tqdm; the script prints nothing itself."""

import argparse

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import nn
from torch.utils.data import DataLoader


class Decoder(LightningModule):
    def __init__(self):
        super().__init__()
        layers = [
            nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)
        ]
        self.model = nn.Sequential(nn.Embedding(256, 128), *layers, nn.Linear(128, 256))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(
            self.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
        )
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max_steps", type=int, default=200)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    data = DataLoader(
        torch.randint(256, (20000, 33)), batch_size=args.batch_size, num_workers=args.num_workers
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=args.devices,
        max_steps=args.max_steps,
        logger=False,
        enable_checkpointing=False,
        callbacks=[TQDMProgressBar()],
    )
    trainer.fit(Decoder(), data)


if __name__ == "__main__":
    main()
