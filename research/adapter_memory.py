"""What a layer keeps for the backward pass beside PEFT's adapters, and what embeddings, output
projection and loss hold: live tensors of a real Trainer step, beside the formulas.

    pip install -c constraints.txt peft bitsandbytes
    python -m research.adapter_memory

One step of transformers' Trainer on a Llama of a few narrow layers, on the CPU, under autocast to
bf16. A dispatch mode counts every storage that the step makes, until it is freed. Differences
between models of four and of two layers, and of two vocabularies, are at the peak, which is in the
loss; with few logits it is in the backward pass, where gradients of trained weights count too. On a
CPU a dropout's mask is as wide as its input, on a GPU a byte (`native_dropout`): masks
are counted as there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.cost import calibration_for
from autotune.cost.layout import layout_of
from autotune.cost.memory.activations import kept_bytes, layer_activations
from autotune.cost.memory.loss import logit_bytes
from autotune.cost.traits import traits_of
from autotune.spec import ClusterSpec, ConfigTable, ModelSpec, ParallelConfig, Peft, Workload

TOKENS = 512
MODEL = ModelSpec(
    name="narrow", num_layers=2, hidden_size=192, num_attention_heads=4, num_kv_heads=2,
    ffn_hidden_size=704, vocab_size=8192, gated_mlp=True, tied_embeddings=False,
)  # fmt: skip
MASK = "aten.empty_like.default"
"""makes the mask of a dropout on a CPU"""


class LiveTensors(TorchDispatchMode):
    """Bytes of the storages that operators make while it is active, beside those of `given`."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live = {tensor.untyped_storage()._cdata: 0 for tensor in given}
        self.now = self.peak = 0

    def _gone(self, key: int) -> None:
        self.now -= self.live.pop(key)

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = operator(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in self.live:
                continue
            size = tensor.numel() if str(operator) == MASK else storage.nbytes()
            self.live[storage._cdata] = size
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, storage._cdata)
        return out


@dataclass(frozen=True)
class Case:
    """What is trained, and what is recomputed."""

    method: str
    """lora, qlora or '' for all weights"""
    recompute: str


def _quantized(module: torch.nn.Module) -> None:
    """Replaces the linear modules of the layers by those of 4 bits."""
    import bitsandbytes

    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear) and name != "lm_head":
            narrow = bitsandbytes.nn.Linear4bit(
                child.in_features, child.out_features, bias=False, compute_dtype=torch.bfloat16
            )
            narrow.weight = bitsandbytes.nn.Params4bit(child.weight.data, requires_grad=False)
            setattr(module, name, narrow.to("cpu"))
        else:
            _quantized(child)


def observed_bytes(case: Case, model: ModelSpec) -> int:
    """Bytes at the peak of the third step, beside weights, gradients and optimizer states."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    network = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=model.hidden_size, intermediate_size=model.ffn_hidden_size, num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_attention_heads, num_key_value_heads=model.num_kv_heads, vocab_size=model.vocab_size,
            tie_word_embeddings=False,
        )
    ).to(torch.bfloat16)  # fmt: skip
    if case.method == "qlora":
        _quantized(network)
        network = prepare_model_for_kbit_training(network, use_gradient_checkpointing=False)
    if case.method:
        network = get_peft_model(
            network, LoraConfig(r=8, lora_dropout=0.05, target_modules="all-linear")
        )
    peaks: list[int] = []

    class Watched(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            with LiveTensors(self.model.parameters()) as live:
                out = super().training_step(*args, **kwargs)
            peaks.append(live.peak)
            return out

    rows = [{n: torch.randint(0, 64, (TOKENS,)) for n in ("input_ids", "labels")}] * 8
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=1, max_steps=3, bf16=True, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
            gradient_checkpointing=case.recompute == "full", gradient_checkpointing_kwargs={"use_reentrant": False},
        )  # fmt: skip
        Watched(model=network, args=arguments, train_dataset=rows).train()
    return peaks[-1]


def predicted(case: Case, model: ModelSpec) -> tuple[float, float, float]:
    """(bytes per token that a layer keeps, bytes per token while the backward pass of a layer runs,
    bytes per logit)."""
    peft = Peft(method=case.method, rank=8) if case.method else None
    where = Workload(
        model=model, cluster=ClusterSpec.of("a100-80gb", num_nodes=1, gpus_per_node=1), seq_len=TOKENS, global_batch_size=1, trainer="hf_trainer",
        peft=peft, pure_bf16=not case.method,
    )  # fmt: skip
    table = ConfigTable.of([ParallelConfig(recompute=case.recompute)])
    layout, traits = layout_of(where, table), traits_of("hf_trainer")
    layer = layer_activations(where, table, layout, calibration_for(where), traits, experts=False)
    kept, once = kept_bytes(where, table, layout, traits, layer, experts=False)
    running = model.num_layers * kept + once
    return float(kept[0]), float(running[0]), float(logit_bytes(where, table, traits)[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    print("| trained | recompute | kept per token and layer | formula | in the backward pass | formula | per logit | formula |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for method in ("", "lora", "qlora"):
        for recompute in ("none", "full"):
            case = Case(method, recompute)
            least = observed_bytes(case, MODEL)
            deeper = observed_bytes(case, replace(MODEL, num_layers=4))
            wider = observed_bytes(case, replace(MODEL, vocab_size=2 * MODEL.vocab_size))
            kept = (deeper - least) / 2.0 / TOKENS
            # the projection's copy in 16 bits and its gradient grow with the vocabulary too
            copied = 2.0 * MODEL.hidden_size / TOKENS * (method != "lora")
            logit = (wider - least) / TOKENS / MODEL.vocab_size - copied
            # with few logits the peak is in the backward pass of a layer
            running = observed_bytes(case, replace(MODEL, vocab_size=256)) / TOKENS
            formulas = predicted(case, MODEL)
            print(f"| {method or 'all'} | {recompute} | {kept:.0f} | {formulas[0]:.0f} | {running:.0f} | {formulas[1]:.0f} | {logit:.2f} | {formulas[2]:.0f} |")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
