"""Host time of one layer by what is done beside a plain forward and backward pass: the constants of
`autotune.cost.time.layer`.

    python -m research.host_launches

A decoder of Llama's form (transformers), so narrow that its kernels take no time, on one thread of
this machine: processor time of one micro-batch, the median of twenty, of a model of eight layers
less that of one of two, per layer. FSDP runs beside a process group that moves nothing. Each row is
a process of its own. Needs `peft`, `bitsandbytes` and `deepspeed`, which no other part of the
project does; rows whose library is missing are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

ROWS = (
    ("plain", ""),
    ("fsdp", ""),
    ("lora", "peft"),
    ("qlora", "bitsandbytes"),
    ("zero2", "deepspeed"),
    ("zero3", "deepspeed"),
)
CHECKPOINTS = ("none", "reentrant", "hooks")
LAYERS = (8, 2)
TIMES, WARM_UP = 25, 5
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def layer_ms(what: str, checkpoint: str) -> float:
    """Milliseconds of the host for one layer's forward and backward pass."""
    long, short = (_micro_batch_s(what, checkpoint, layers) for layers in LAYERS)
    return 1e3 * (long - short) / (LAYERS[0] - LAYERS[1])


def _micro_batch_s(what: str, checkpoint: str, layers: int) -> float:
    torch = import_module("torch")
    model, backward = _built(what, checkpoint, layers)
    tokens, times = torch.randint(0, 64, (1, 8)), []
    for _ in range(TIMES):
        start = time.process_time()
        backward(model(input_ids=tokens, labels=tokens).loss)
        times.append(time.process_time() - start)
    return statistics.median(times[WARM_UP:])


def _built(what: str, checkpoint: str, layers: int) -> tuple[Any, Callable[[Any], Any]]:
    torch, transformers = import_module("torch"), import_module("transformers")
    torch.set_num_threads(1)
    shape = transformers.LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4, vocab_size=64, use_cache=False)  # fmt: skip
    model = transformers.LlamaForCausalLM(shape).to(torch.bfloat16).train()
    if checkpoint != "none":
        model.gradient_checkpointing_enable({"use_reentrant": checkpoint == "reentrant"})
    if what == "qlora":
        _quantize(model, torch)
    if what in ("lora", "qlora"):
        peft = import_module("peft")
        wanted = peft.LoraConfig(
            r=8, target_modules=list(LINEAR), lora_dropout=0.05, task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model, wanted)
        if checkpoint != "none":
            model.enable_input_require_grads()
    if what == "fsdp":
        _shard(model, torch)
    if what.startswith("zero"):
        settings = {
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1000, "bf16": {"enabled": True}, "steps_per_print": 10**6,
            "zero_optimization": {"stage": int(what[-1])}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
        }  # fmt: skip
        engine, *_ = import_module("deepspeed").initialize(
            model=model, model_parameters=model.parameters(), config=settings
        )
        return engine, engine.backward
    return model, lambda loss: loss.backward()


def _shard(model: Any, torch: Any) -> None:
    """Its layers under FSDP over eight ranks that are not there."""
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("fake", rank=0, world_size=8, store=store)
    mesh = import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (8,))
    fully_shard = import_module("torch.distributed.fsdp").fully_shard
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _quantize(model: Any, torch: Any) -> None:
    """Its layers' matrices as NF4 with double quantization."""
    nn = import_module("bitsandbytes").nn
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name in [n for n, _ in part.named_children() if n in LINEAR]:
                plain = getattr(part, name)
                narrow = nn.Linear4bit(
                    plain.in_features,
                    plain.out_features,
                    bias=False,
                    compute_dtype=torch.bfloat16,
                    quant_type="nf4",
                )
                weight = nn.Params4bit(
                    plain.weight.data.float(), requires_grad=False, quant_type="nf4"
                )
                narrow.weight = weight._quantize("cpu")
                setattr(part, name, narrow)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all rows, or one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--one", nargs=2, metavar=("WHAT", "CHECKPOINT"), help="print the time of one row as JSON"
    )
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(layer_ms(*options.one)))
        return 0
    one_rank = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}  # fmt: skip
    print(
        "| host time of a layer, ms | "
        + " | ".join(CHECKPOINTS)
        + " |\n|"
        + "---|" * (1 + len(CHECKPOINTS))
    )
    for what, library in ROWS:
        if not library or find_spec(library):
            cells = []
            for checkpoint in CHECKPOINTS:
                command = [
                    sys.executable,
                    "-m",
                    "research.host_launches",
                    "--one",
                    what,
                    checkpoint,
                ]
                out = subprocess.run(
                    command,
                    env=os.environ | one_rank,
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=300,
                ).stdout
                cells.append(f"{float(out.splitlines()[-1]):.2f}")
            print(f"| {what} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
