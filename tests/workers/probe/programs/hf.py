"""transformers' Trainer: inputs are keywords, and it accumulates."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
)
data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (64, 16))]
Trainer(
    model=LlamaForCausalLM(config),
    args=TrainingArguments(
        output_dir=sys.argv[1],
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        max_steps=4,
        gradient_checkpointing=True,
        report_to=[],
        use_cpu=True,
        bf16=True,
    ),
    train_dataset=data,
).train()
