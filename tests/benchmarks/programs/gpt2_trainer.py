"""The stock Hugging Face Trainer with its own arguments; prints what it prints."""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.randint(256, (8192, 32), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def main():
    with tempfile.TemporaryDirectory() as folder:
        (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([
            *("--output_dir", folder, "--save_strategy", "no", "--report_to", "none", "--use_cpu", "--ddp_backend", "gloo"),
            *sys.argv[1:],
        ])  # fmt: skip
        torch.set_num_threads(1)
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=256, n_positions=32, n_embd=96, n_layer=2, n_head=4)
        )
        Trainer(model=model, args=arguments, train_dataset=Tokens()).train()


if __name__ == "__main__":
    main()
