"""Megatron-LM's arguments: the command of a launch, a shell script that holds one, or a text file
of flags.

A script is read, never run: `VAR=value` and arrays `VAR=( ... )` are put in where `$VAR`, `${VAR}`
and `${VAR[@]}` stand. A variable that is not set in the script is named in a remark. dp follows
from the world size (`--nproc_per_node`, `--nnodes`), and accumulation from the global batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.spec.texts.as_text import notes_of, number_of
from autotune.trainers.documents.program_arguments import program_of
from autotune.trainers.documents.shell_words import command_of
from autotune.trainers.megatron.knobs import (
    STRATEGIES,
    read_knobs,
    read_recompute,
    stages_of_layout,
    with_optimizer,
)
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    batch_of,
    completed,
    flags_of,
)

MODEL = {
    "num_layers": "num-layers",
    "hidden_size": "hidden-size",
    "ffn_hidden_size": "ffn-hidden-size",
    "num_attention_heads": "num-attention-heads",
    "vocab_size": "vocab-size",
}
"""flags with a size, by our fields"""
OPTIMIZERS = {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
"""values of optimizer"""
_SIZE = re.compile(r"^num-|-(size|dim|rank|heads|groups|experts?)$")
"""what flags look like that may hold a size of the model"""
_NO_SIZE = re.compile(
    r"parallel|pipeline|mscale|in-bf16|offloaded|seqlen|worker|batch|thread|iters|samples|buffer|bucket|cache|router|token|padding|window|recompute|instances|init|distributed"
)
"""those among them that hold none"""
RECIPES = {"mxfp8": "mxfp8", "delayed": "fp8", "tensorwise": "fp8", "blockwise": "fp8"}
"""values of fp8-recipe"""
CHECKPOINTS = (
    "save",
    "load",
    "save-interval",
    "pretrained-checkpoint",
    "finetune",
    "no-load-optim",
    "no-load-rng",
)
"""flags that read and write checkpoints"""
LAUNCHER = frozenset(
    [
        "nnodes",
        "nproc-per-node",
        "node-rank",
        "master-addr",
        "master-port",
        "standalone",
        "rdzv-backend",
        "rdzv-endpoint",
        "rdzv-id",
        "max-restarts",
    ]
)
"""options of torchrun, which the launch writes anew"""


def read(present: PresentConfiguration) -> Reading:
    """What the command says."""
    argv, unset = (present.argv, ()) if present.argv else _of_script(present)
    present, program = replace(present, argv=argv), program_of(argv)
    flags = flags_of(program or argv, _typed)
    keys = KeyReader({_flag(name): value for name, value in flags.items()}, "the command")
    keys.drop(*LAUNCHER, "log-interval")  # a launch logs every step
    model = _model(keys)
    batch = keys.count("global-batch-size")
    knobs = _knobs(keys, tf32=present.tf32, num_layers=model.get("num_layers"))
    knobs = completed(knobs, ranks=present.ranks, batch=batch)
    steps, more = _length(keys, batch)
    if model.get("gated_mlp") and keys.find("normalization") is None:
        # its default, where a launch of a gated MLP asks for RMSNorm
        more["normalization"] = "LayerNorm"
    options = {
        "entrypoint": program[0] if program else None,
        "steps": steps,
        "learning_rate": keys.number("lr"),
        "seed": keys.count("seed"),
        "transformer_impl": keys.text("transformer-impl"),
        "overlap": _overlap(keys, knobs),
        **_data_options(keys),
    }
    seq_len, optimizer = keys.count("seq-length"), _optimizer(keys)
    keys.remarks += [f"{keys.name}: {remark}" for remark in _unread(keys)]
    return Reading(
        knobs=knobs,
        model=model,
        seq_len=seq_len,
        global_batch_size=batch or batch_of(knobs),
        optimizer=optimizer,
        unfused_attention=_is_unfused(keys),
        options=options,
        settings={**keys.left, **more},
        remarks=(*unset, *keys.remarks),
    )


def _of_script(present: PresentConfiguration) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the command in a script, what the script does not set, in words)."""
    name, text = next(iter(present.files.items()))
    argv, unset, _ = command_of(text)
    told = " ".join(program_of(argv) or argv)  # what the launcher is told, a launch writes anew
    used = [f"${variable}" for variable in unset if re.search(rf"\$\{{?{variable}\b", told)]
    its = "its value" if len(used) == 1 else "their values"
    return argv, notes_of((used, f"{name} does not set {', '.join(used)}; add {its} to the spec"))


def _data_options(keys: KeyReader) -> dict[str, str | None]:
    """The data, and its tokenizer; mock data need none."""
    if path := _data_path(keys):
        names = ("tokenizer_type", "tokenizer_model")
        return {"data_path": path, **{name: keys.text(_flag(name)) for name in names}}
    if keys.flag("mock-data"):
        keys.drop("tokenizer-type")
    return {}


def _optimizer(keys: KeyReader) -> str:
    kind = keys.find("optimizer")
    if optimizer := OPTIMIZERS.get(str(kind), ""):
        keys.drop("optimizer")
    elif kind is not None:
        keys.remarks.append(
            f"{keys.name}: --optimizer {kind} is kept, but counted as AdamW, because this optimizer's memory and time are unknown"
        )
    return optimizer


def _unread(keys: KeyReader) -> tuple[str, ...]:
    """What is left and may matter, in words."""
    sizes = [flag for flag in keys.left if _SIZE.search(flag) and not _NO_SIZE.search(flag)]
    named = ", ".join(f"--{flag}" for flag in sizes)
    return notes_of(
        (sizes, f"{named} may be model sizes, but autotune ignores them; check the spec's model"),
        (
            keys.find("deepspeed") or keys.find("deepspeed-config"),
            "--deepspeed belongs to Megatron-DeepSpeed, but exports launch Megatron-LM; `autotune init` keeps the program as it is",
        ),
    )


def _length(keys: KeyReader, batch: int | None) -> tuple[int | None, dict[str, Any]]:
    """(the run's length in steps, settings of the schedule in steps). Lengths in samples become
    lengths in steps: Megatron-LM takes no launch that has both.

    Where a run reads and writes its checkpoints belongs to the run, not to its configuration: a
    trial that loaded one would have nothing left to do.
    """
    kept = [flag for flag in CHECKPOINTS if keys.find(flag) is not None]
    if kept and keys.find("ckpt-format") is not None:
        kept.append("ckpt-format")
    keys.drop(*kept, "ckpt-format")  # sharding decides it in a trial, which writes none
    if kept:
        remark = f"{keys.name}: {', '.join(f'--{flag}' for flag in kept)} would make trials read or write checkpoints; pass these options to the exported launch.sh instead"
        keys.remarks.append(remark)
    if keys.find("rampup-batch-size") is not None:
        keys.drop("rampup-batch-size")
        keys.remarks.append(
            f"{keys.name}: --rampup-batch-size is left out, so every step has the full batch"
        )
    samples = {name: keys.count(f"{name}-samples") for name in ("train", "lr-decay", "lr-warmup")}
    steps: dict[str, Any] = {
        f"{name}-iters": max(1, count // batch)
        for name, count in samples.items()
        if count and batch
    }
    length = keys.count("train-iters") or steps.pop("train-iters", None)
    return length, steps


def _flag(field: str) -> str:
    """The flag of a field of Megatron Core's configurations."""
    return field.replace("_", "-")


def _typed(word: str) -> int | float | str:
    """A number that is written back as it was, as one; anything else as it is written."""
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", word):
        return int(word)
    is_plain = re.fullmatch(r"-?(0|[1-9][0-9]{0,9})\.[0-9]{1,9}", word) and str(float(word)) == word
    return float(word) if is_plain else word


def _data_path(keys: KeyReader) -> str | None:
    """The dataset, or weights and datasets in turn as one text."""
    value = keys.find("data-path")
    keys.drop("data-path")
    return " ".join(map(str, value)) if isinstance(value, list) else value


_RECOMPUTED_BEFORE = (
    *("checkpoint-activations", "checkpoint-num-layers", "distribute-checkpointed-activations"),
    *(
        "activations-checkpoint-method",
        "activations-checkpoint-num-layers",
        "activations-checkpoint-granularity",
    ),
)
"""what releases 1 to 3 of Megatron-LM and its forks call recomputation"""


def _knobs(keys: KeyReader, *, tf32: bool, num_layers: int | None) -> dict[str, Any]:
    pp = keys.positive("pipeline-model-parallel-size")
    stages = keys.count("num-virtual-stages-per-pipeline-rank")
    if layout := keys.find("pipeline-model-parallel-layout"):
        stages = max(1, stages_of_layout(layout) // pp)
    per_stage = keys.count("num-layers-per-virtual-pipeline-stage")
    if per_stage and num_layers:
        stages = num_layers // (pp * per_stage)
    granularity = keys.word(
        "recompute-granularity", {"selective": "selective", "full": "full"}, "none"
    )
    if keys.flag("recompute-activations"):  # its short form
        granularity = "selective"
    before = [keys.find(name) for name in _RECOMPUTED_BEFORE]
    if any(before):
        keys.drop(*_RECOMPUTED_BEFORE)
        granularity = "selective" if "selective" in before else "full"
    if granularity == "full" and (
        keys.find("recompute-method"),
        keys.count("recompute-num-layers"),
    ) == ("uniform", 1):
        keys.drop("recompute-method")
    elif granularity == "full" and keys.find("recompute-method") == "block":
        keys.drop("recompute-method")
        layers = keys.find("recompute-num-layers")
        keys.remarks.append(
            f"{keys.name}: --recompute-method block recomputes {number_of(layers, 'layer')} per stage, but plans assume all layers (recompute=full)"
        )
    replicas = keys.count("num-distributed-optimizer-instances")
    module = read_knobs(keys, _flag)
    away = keys.is_on("optimizer-cpu-offload")
    keys.drop(
        *(
            (
                "use-precision-aware-optimizer",
                "optimizer-offload-fraction",
                "overlap-cpu-optimizer-d2h-h2d",
            )
            if away
            else ()
        )
    )
    keys.drop(
        *(("no-check-for-nan-in-loss-and-grad",) if module.get("cuda_graph") == "step" else ())
    )
    return {
        **with_optimizer(module, away=away),
        **({"dp_replicas": replicas} if replicas else {}),
        "tp": keys.positive("tensor-model-parallel-size"),
        "pp": pp,
        "cp": keys.positive("context-parallel-size"),
        "ep": keys.positive("expert-model-parallel-size"),
        "micro_batch_size": keys.count("micro-batch-size"),
        "precision": _precision(keys, tf32=tf32),
        "recompute": read_recompute(keys, _flag, granularity),
        "zero_stage": _zero(keys),
        "sequence_parallel": keys.is_on("sequence-parallel"),
        "pp_schedule": "interleaved_1f1b" if (stages or 1) > 1 else "1f1b",
        "virtual_stages": stages or 1,
    }


def _precision(keys: KeyReader, *, tf32: bool) -> str:
    flags = {name: keys.flag(name) for name in ("bf16", "fp16")}
    if keys.word("fp4-format", {"e2m1": "nvfp4"}):
        keys.drop("fp4-recipe")
        return "nvfp4"
    if keys.word("fp8-format", {"hybrid": "fp8", "e4m3": "fp8"}):
        return "mxfp8" if keys.word("fp8-recipe", RECIPES) == "mxfp8" else "fp8"
    return next((name for name, on in flags.items() if on), "tf32" if tf32 else "fp32")


def _is_unfused(keys: KeyReader) -> bool:
    """Whether attention stores its scores; other backends stay settings."""
    if keys.find("attention-backend") not in ("unfused", "local"):
        return False
    keys.drop("attention-backend")
    return True


def _zero(keys: KeyReader) -> int:
    sharded = keys.flag("use-distributed-optimizer") or keys.find("optimizer") == "dist_muon"
    if keys.flag("use-megatron-fsdp"):
        keys.drop("no-gradient-accumulation-fusion", "ckpt-format")
        stage: int = keys.word("data-parallel-sharding-strategy", STRATEGIES, 0)
        return stage
    return 1 if sharded else 0


def _overlap(keys: KeyReader, knobs: Mapping[str, Any]) -> bool | None:
    """Whether communication overlaps; None where there is nothing to communicate."""
    flags = [keys.flag("overlap-grad-reduce"), keys.flag("overlap-param-gather")]
    return None if knobs.get("dp", 2) * knobs["cp"] == 1 else any(flags)


def _model(keys: KeyReader) -> dict[str, Any]:
    model: dict[str, Any] = {field: keys.count(flag) for field, flag in MODEL.items()}
    model = {field: value for field, value in model.items() if value is not None}
    if not model:
        return {}
    groups = keys.count("num-query-groups") if keys.flag("group-query-attention") else None
    channels = keys.count("kv-channels")
    latent = _latent(keys)
    if (
        channels
        and not latent
        and channels * model.get("num_attention_heads", 0) != model.get("hidden_size")
    ):
        model["attention_head_dim"] = channels
    gated = keys.is_on("swiglu")
    if gated and "hidden_size" in model:  # its default: two thirds of 4 x hidden, a multiple of 64
        model.setdefault("ffn_hidden_size", int(4 * model["hidden_size"] * 2 / 3 / 64) * 64)
    positions = keys.count("max-position-embeddings")
    learnt = keys.word(
        "position-embedding-type", {"rope": False, "learned_absolute": True, "none": False}
    )
    if learnt is not False and not gated:
        model["max_positions"] = positions or 0
    keys.drop("disable-bias-linear", "normalization") if gated else keys.drop("normalization")
    if keys.find("tokenizer-type") == "NullTokenizer" and "vocab_size" in model:
        model["vocab_size"] += 1  # it adds one token (end of document)
    model |= {
        "num_kv_heads": groups or 0,
        "gated_mlp": gated,
        "tied_embeddings": not keys.flag("untie-embeddings-and-output-weights"),
        **latent,
    }
    if experts := keys.count("num-experts"):
        width = keys.count("moe-ffn-hidden-size")
        model |= {"num_experts": experts, "experts_per_token": keys.count("moe-router-topk") or 2}
        if dense := _dense_layers(keys, model.get("num_layers", 0)):
            model |= {
                "num_dense_layers": dense,
                "dense_ffn_hidden_size": model.get("ffn_hidden_size", 0),
            }
        model |= {"ffn_hidden_size": width} if width else {}
        model["shared_ffn_hidden_size"] = keys.count("moe-shared-expert-intermediate-size") or 0
    model["mtp_layers"] = keys.count("mtp-num-layers") or 0
    return {
        field: value
        for field, value in model.items()
        if value or field in ("gated_mlp", "tied_embeddings")
    }


def _latent(keys: KeyReader) -> dict[str, Any]:
    """The sizes of latent attention; without a flag they are the defaults of Megatron-LM's
    arguments."""
    if not keys.flag("multi-latent-attention"):
        return {}
    sizes = {"kv-lora-rank": 32, "qk-head-dim": 128, "qk-pos-emb-head-dim": 64, "v-head-dim": 128}
    rank, plain, rotary, value = (keys.count(flag) or size for flag, size in sizes.items())
    return {
        "q_lora_rank": keys.count("q-lora-rank") or 0,
        "kv_lora_rank": rank,
        "attention_head_dim": plain + rotary,
        "qk_rope_head_dim": rotary,
        "v_head_dim": value,
    }


def _dense_layers(keys: KeyReader, num_layers: int) -> int:
    """Layers without experts by `--moe-layer-freq`: every how many layers has them, or 0 and 1 for
    each layer, such as `([0]*3+[1]*58)`.

    A pattern stays among the settings, which name the layers themselves, where those without
    experts are not the first.
    """
    said = keys.find("moe-layer-freq")
    if said == 1:
        keys.drop("moe-layer-freq")
    if isinstance(said, int):
        return num_layers - len(range(0, num_layers, said)) if said > 0 else 0
    pattern = [int(digit) for digit in re.findall(r"[01]", expanded_pattern(str(said or "")))]
    if len(pattern) != num_layers:
        return 0
    dense = pattern.count(0)
    if pattern == [0] * dense + [1] * (num_layers - dense):
        keys.drop("moe-layer-freq")
    return dense


def expanded_pattern(text: str) -> str:
    """Lists written out: `([0]*3+[1]*2)*2` as `00011` twice. At most 10,000 characters."""
    flat, before = re.sub(r"[\s,]", "", text).replace("[", "(").replace("]", ")"), ""
    while flat != before and len(flat) < 10_000:
        before = flat
        flat = re.sub(
            r"\(([01]{0,2000})\)\*(\d{1,3})", lambda found: f"({found[1] * int(found[2])})", flat
        )
        flat = re.sub(r"\(([01]*)\)\+\(([01]*)\)(?!\*)", r"(\1\2)", flat)
        flat = re.sub(r"\(\(([01]*)\)\)", r"(\1)", flat)
    return flat if re.fullmatch(r"\([01]*\)", flat) else ""
