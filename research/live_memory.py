"""What a layer keeps for the backward pass, by architecture and beside PEFT's adapters: live tensors
of real steps on the CPU, beside the formulas.

    pip install -c constraints.txt peft bitsandbytes
    python -m research.live_memory architectures [--write]
    python -m research.live_memory adapters

A dispatch mode counts every storage that a step makes, until it is freed. `--write` keeps what was
seen of architectures for the tests (`SEEN`).

architectures  two batches, of models of one and of two layers of transformers, so that all that does not grow with tokens or layers cancels out. Weights are in
               bf16 (pure), or in fp32 under autocast (mixed)
adapters       a step of transformers' Trainer on a Llama of a few narrow layers. Differences between models of four and of two layers, and of two vocabularies,
               are at the peak, which is in the loss; with few logits it is in the backward pass, where gradients of trained weights count too

On a CPU a dropout's mask is as wide as its input, on a GPU a byte (`native_dropout`): masks are
counted as there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.cost import calibration_for
from autotune.cost.layout import (
    head_flops,
    layer_attention_flops,
    layer_matmul_flops,
    layout_of,
)
from autotune.cost.memory.activations import kept_bytes, layer_activations
from autotune.cost.memory.loss import logit_bytes
from autotune.cost.traits import traits_of
from autotune.spec import ClusterSpec, ConfigTable, ModelSpec, ParallelConfig, Peft, Workload

SEEN = Path(__file__).parents[1] / "tests/cost/data/live_memory.json"
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
    """lora, qlora, 'lora on fp32' or '' for all weights"""
    recompute: str

    @property
    def peft(self) -> Peft | None:
        """The adapters."""
        if not self.method:
            return None
        word, *rest = self.method.split()
        return Peft(method=word, rank=8, frozen_fp32=bool(rest))


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
    ).to(torch.float32 if case.peft and case.peft.frozen_fp32 else torch.bfloat16)  # fmt: skip
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


def predicted(
    where: Workload, config: ParallelConfig, *, experts: bool = False
) -> tuple[float, float, float]:
    """(bytes per token that a layer keeps, bytes per token while the backward pass of a layer runs,
    bytes per logit)."""
    table, model = ConfigTable.of([config]), where.model
    layout, traits = layout_of(where, table), traits_of("hf_trainer")
    layer = layer_activations(where, table, layout, calibration_for(where), traits, experts=experts)
    kept, once = kept_bytes(where, table, layout, traits, layer, experts=experts)
    running = model.num_layers * kept + once
    return float(kept[0]), float(running[0]), float(logit_bytes(where, table, traits)[0])


def workload(model: ModelSpec, seq_len: int = TOKENS, **asked: Any) -> Workload:
    """The workload of a step on one GPU under transformers' Trainer."""
    cluster = ClusterSpec.of("a100-80gb", num_nodes=1, gpus_per_node=1)
    return Workload(
        model=model,
        cluster=cluster,
        seq_len=seq_len,
        global_batch_size=1,
        trainer="hf_trainer",
        **asked,
    )


SIZES: Mapping[str, Any] = {
    "hidden_size": 192, "intermediate_size": 704, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT: Mapping[str, Any] = {**SIZES, "num_key_value_heads": 4, "intermediate_size": 768}
EXPERTS: Mapping[str, Any] = {
    **SIZES, "intermediate_size": 256, "num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 48,
}  # fmt: skip
LATENT: Mapping[str, Any] = {
    **SIZES, "num_key_value_heads": 4, "head_dim": 16, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "n_shared_experts": 1, "first_k_dense_replace": 0, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
HEADS: Mapping[str, Any] = {**SIZES, "head_dim": 48}
GEMMA: Mapping[str, Any] = {**HEADS, "query_pre_attn_scalar": 48}
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("llama", "qwen2", "mistral", "phi3", "olmo", "olmo2", "cohere"), SIZES),
    **dict.fromkeys(("qwen3", "glm4"), HEADS),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), GEMMA),
    **dict.fromkeys(("mixtral", "qwen3_moe", "olmoe", "gpt_oss"), EXPERTS),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), LATENT),
    **dict.fromkeys(("gpt_neox", "phi", "starcoder2", "nemotron"), GPT),
    "gpt2": {"n_embd": 192, "n_head": 4, "n_positions": 512, "vocab_size": 256, "attn_pdrop": 0.0},
    "opt": {**GPT, "ffn_dim": 768, "word_embed_proj_dim": 192},
    "bert": {**GPT, "attention_probs_dropout_prob": 0.0},
}
EAGER = frozenset({"gemma2", "gpt_oss", "deepseek_v2", "deepseek_v3"})
"""families for which transformers has no kernel of torch's, or for whose heads a CPU has none: they
store their scores"""
BATCH_TOKENS = 128
LAYERS = {"gpt2": "n_layer"}


def document(name: str, layers: int) -> dict[str, Any]:
    """The config.json of a narrow model of that family."""
    return {
        "model_type": name,
        **ARCHITECTURES[name],
        LAYERS.get(name, "num_hidden_layers"): layers,
    }


def narrow(name: str, layers: int = 2) -> ModelSpec:
    """The model of that family, as a study has it. An encoder is described by its shape."""
    if name == "bert":
        return ModelSpec(
            name=name,
            num_layers=layers,
            hidden_size=192,
            num_attention_heads=4,
            vocab_size=256,
        )
    written = document(name, layers)
    return replace(ModelSpec.from_hf(written, name=name), source=json.dumps(written))


@dataclass(frozen=True)
class Step:
    """What is observed of one architecture."""

    name: str
    mode: str
    """pure or mixed"""
    recompute: str = "none"

    @property
    def workload(self) -> Workload:
        """Beside the number of layers, as `observed_step` runs it."""
        return workload(
            narrow(self.name),
            BATCH_TOKENS,
            pure_bf16=self.mode == "pure",
            unfused_attention=self.name in EAGER,
        )


def forward_flops(step: Step) -> int:
    """FLOPs of the matrix products of two layers and one sequence, forward. Counting them keeps
    tensors, so it is a run of its own."""
    from torch.utils.flop_counter import FlopCounterMode

    network, ids = _network(step, 2, 1, 256)
    with FlopCounterMode(display=False) as flops, torch.no_grad():
        network(input_ids=ids, use_cache=False)
    return flops.get_total_flops()


def _network(step: Step, layers: int, batch: int, vocab: int) -> tuple[Any, torch.Tensor]:
    """A model with its gradients, and tokens for it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    torch.manual_seed(0)
    written = {**document(step.name, layers), "vocab_size": vocab}
    config = AutoConfig.for_model(**written)
    made: Any = AutoModelForMaskedLM if step.name == "bert" else AutoModelForCausalLM
    attention = "eager" if step.name in EAGER else "sdpa"
    network = made.from_config(config, attn_implementation=attention)
    network = network.to(torch.bfloat16 if step.mode == "pure" else torch.float32).train()
    if step.recompute == "full":
        network.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(3, 250, (batch, BATCH_TOKENS))
    for weight in network.parameters():
        weight.grad = torch.zeros_like(weight)
    return network, ids


def observed_step(step: Step, layers: int, batch: int, vocab: int = 256) -> tuple[int, int]:
    """(bytes until the loss, bytes at the peak)."""
    network, ids = _network(step, layers, batch, vocab)
    mixed = torch.autocast("cpu", torch.bfloat16) if step.mode == "mixed" else nullcontext()
    given = [*network.parameters(), *network.buffers()]
    given += [weight.grad for weight in network.parameters() if weight.grad is not None]
    until_loss: list[int] = []
    with LiveTensors(given) as live:
        network.get_output_embeddings().register_forward_pre_hook(
            lambda *_: until_loss.append(live.now)
        )
        with mixed:
            loss = network(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
    return until_loss[0], live.peak


def observed_layers(step: Step) -> dict[str, Any]:
    """What a row of the tests holds."""
    # where little is kept, gradients of weights are a peak of few tokens
    few = 8 if step.recompute == "full" else 2
    seen = {key: observed_step(step, *key) for key in product((1, 2), (few, 2 * few))}
    tokens = few * BATCH_TOKENS
    one, two = ((seen[n, 2 * few][0] - seen[n, few][0]) / tokens for n in (1, 2))
    backward = (seen[2, 2 * few][1] - seen[2, few][1]) / tokens
    peaks = [observed_step(step, 1, batch, vocab)[1] for batch in (1, 2) for vocab in (2048, 4096)]
    logit = (peaks[3] - peaks[2] - peaks[1] + peaks[0]) / BATCH_TOKENS / 2048
    return {
        "name": step.name,
        "mode": step.mode,
        "recompute": step.recompute,
        "config": document(step.name, 2),
        "kept": round(two - one),
        "backward": round(backward),
        "logit": round(logit, 2),
        "flops": round(forward_flops(step) / BATCH_TOKENS),
    }


def architectures(*, write: bool) -> None:
    """The table of architectures."""
    print("| architecture | weights | recompute | kept per token and layer | formula | in the backward pass | formula | per logit | formula | FLOPs per token | formula |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    steps = [Step(name, mode) for name in ARCHITECTURES for mode in ("pure", "mixed")]
    steps += [Step(name, "mixed", "full") for name in ("llama", "mixtral", "gpt2")]
    rows = []
    for step in steps:
        row, where = observed_layers(step), step.workload
        rows.append(row)
        model = where.model
        config = ParallelConfig(recompute=step.recompute)
        formulas = predicted(where, config, experts=model.num_experts > 0)
        # torch counts no attention kernel of CPUs
        scores = layer_attention_flops(model, BATCH_TOKENS, causal=False) * (step.name in EAGER)
        flops = model.num_layers * (layer_matmul_flops(model) + scores) + head_flops(model)
        print(f"| {step.name} | {step.mode} | {step.recompute} | {row['kept']} | {formulas[0]:.0f} ({formulas[0] / row['kept'] - 1:+.0%}) | {row['backward']} | {formulas[1]:.0f} ({formulas[1] / row['backward'] - 1:+.0%}) | {row['logit']} | {formulas[2]:.0f} | {row['flops'] / 1e6:.2f}M | {flops / 1e6:.2f}M |", flush=True)  # fmt: skip
    if write:
        SEEN.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n", encoding="utf-8")


def adapters() -> None:
    """The table of adapters."""
    print("| trained | recompute | kept per token and layer | formula | in the backward pass | formula | per logit | formula |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for method, recompute in product(("", "lora", "qlora", "lora on fp32"), ("none", "full")):
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
        where = workload(MODEL, peft=case.peft, pure_bf16=not method)
        formulas = predicted(where, ParallelConfig(recompute=recompute))
        print(f"| {method or 'all'} | {recompute} | {kept:.0f} | {formulas[0]:.0f} | {running:.0f} | {formulas[1]:.0f} | {logit:.2f} | {formulas[2]:.0f} |", flush=True)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=("architectures", "adapters"))
    parser.add_argument("--write", action="store_true", help="keep what was seen for the tests")
    options = parser.parse_args(arguments)
    if options.table == "adapters":
        adapters()
    else:
        architectures(write=options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
