"""nanotron: one YAML file for `run_train.py`, as read by the main branch after release 0.4
(src/nanotron/config).

ZeRO is 0 or 1. Schedules are 1F1B and "afab" (all forward, all backward: GPipe). Sequence
parallelism is tp_mode REDUCE_SCATTER. Without a dataset it trains on generated tokens. Its log
rounds every number to three digits, so a step time has an error of up to half a percent. It states
every degree, so the file alone tells the whole config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.hugging_face.figures import figures_of
from autotune.spec.texts.as_text import notes_of
from autotune.trainers.base.effective import cpu_note, effective, word_limit
from autotune.trainers.base.limit import Limit, Rule, broken, next_multiple
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.base.own_program import CWD
from autotune.trainers.base.torchrun import ranks_started, tf32_environment
from autotune.trainers.base.trained_families import NANOTRON
from autotune.trainers.base.trainer import (
    SHARED_OPTIONS,
    Option,
    StepMetrics,
    Trainer,
    clean,
    needs,
    number,
)
from autotune.trainers.base.trainer_option import Reach
from autotune.trainers.documents.file_formats import to_yaml
from autotune.trainers.launch_files import Launch
from autotune.trainers.nanotron.read import RING
from autotune.trainers.present_configuration import SETTINGS

_ITERATION = re.compile(r"\biteration: (\d+) / \d+ \| ")
_FIELD = re.compile(
    r"\b(elapsed_time_per_iteration_ms|tokens_per_sec_per_gpu|lm_loss|grad_norm|cuda_max_memory_reserved): ([-0-9.eainf]+)([KMGTPE]?)\b"
)
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
NEVER = 1_000_000_000
"""checkpoint interval in steps that no run reaches"""


MODEL_CLASS = Option(
    name="model_class",
    meaning="nanotron's model class; auto: llama, or qwen2 for the family qwen2 and with cp > 1",
    default="auto",
    choices=("auto", "llama", "qwen2"),
    reach=Reach.NOTHING,
)


class NanotronTrainer(Trainer):
    """nanotron's pretraining of Llama and Qwen2."""

    name = "nanotron"
    has_own_attention = True
    families = NANOTRON
    rotary_remedy = "nanotron's models do not scale positions (they ignore rope_scaling); torchtitan and megatron scale positions"
    summary = "nanotron (main branch), one YAML and run_train.py"
    checked_against = "nanotron's main branch after 0.4"
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
    })  # fmt: skip
    cannot = NOT_SET
    can_import = True
    watching = ("profiler", "profiler.*")
    recognized_by = (
        "tokens.batch_accumulation_per_replica",
        "parallelism.pp_engine",
        "parallelism.tp_mode",
    )
    settings_file = "config.yaml"
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        Option(
            name="entrypoint",
            meaning="path of run_train.py in a checkout of nanotron",
            default="",
            reach=Reach.PROGRAM,
        ),
        CWD,
        Option(
            name="dataset",
            meaning="Hugging Face dataset; default: generated tokens",
            default="",
            reach=Reach.ADDRESS,
        ),
        Option(
            name="tokenizer",
            meaning="tokenizer's name or path; used only with `dataset`",
            default="",
            is_path=True,
            reach=Reach.FILE,
        ),
        MODEL_CLASS,
    )

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Models of other layers than Llama's, ZeRO 2 and 3, interleaving, fp16 and fp8, selective
        recomputation, torch.compile."""
        c, model, figures = effective(config), workload.model, figures_of(workload.model)
        window = figures.window if figures is not None else 0
        one_f_one_b = {"interleaved_1f1b": "1f1b", "interleaved_zero_bubble": "1f1b"}
        return (
            *word_limit(
                c,
                "precision",
                {"fp16": "bf16", "fp8": "bf16"},
                "nanotron's released loop trains only in bf16 or fp32",
            ),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "recompute_layer recomputes either whole layers or nothing",
            ),
            *word_limit(
                c,
                "pp_schedule",
                one_f_one_b,
                "nanotron's pipeline engines are 1f1b and afab (gpipe)",
            ),
            *broken(
                workload,
                c,
                Rule(
                    not model.gated_mlp,
                    "model.gated_mlp",
                    "nanotron's dense models have Llama's layers (gated MLP, RMSNorm, rotary positions)",
                    remedy="use megatron, lightning or native",
                ),
                Rule(
                    model.num_experts,
                    "model.num_experts",
                    "nanotron's experts are as wide as the dense layers and have no balancing loss",
                    remedy="use megatron",
                ),
                Rule(
                    model.head_dim * model.num_attention_heads != model.hidden_size,
                    "model.attention_head_dim",
                    f"nanotron's head width is hidden_size / num_attention_heads = {model.hidden_size / model.num_attention_heads:g}",
                    remedy="use megatron or torchtitan",
                    value=model.head_dim,
                ),
                Rule(
                    0 < window < workload.seq_len,
                    "workload.seq_len",
                    f"nanotron attends over whole sequences, but in this model each token attends only to the last {window} tokens",
                    window,
                    "or use megatron",
                ),
                Rule(
                    c.cp > 1 and options["model_class"] == "llama",
                    "cp",
                    "nanotron's Llama attends only to a rank's own tokens",
                    remedy="omit model_class, or use cp=1",
                ),
                Rule(
                    c.virtual_stages > 1, "virtual_stages", "a nanotron rank has only one stage", 1
                ),
                Rule(c.zero_stage > 1, "zero_stage", "nanotron shards only the optimizer", 1),
                Rule(c.ep > 1, "ep", "a dense model has no experts", 1),
                Rule(c.compile, "compile", "nanotron has no switch for torch.compile", False),
                Rule(
                    c.cp > 1 and workload.seq_len % c.cp,
                    "cp",
                    f"cp must divide seq_len={workload.seq_len}",
                    remedy=f"use cp=1, or seq_len={next_multiple(workload.seq_len, c.cp)}",
                ),
            ),
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """torchrun run_train.py --config-file config.yaml."""
        c = effective(config)
        entrypoint = needs(
            options, "entrypoint", "nanotron is started with run_train.py from its checkout"
        )
        start = ranks_started(workload, c, options)
        notes = notes_of((
            not options["dataset"],
            "the launch trains on generated tokens; set the options dataset and tokenizer to train on your own data",
        ))  # fmt: skip
        return Launch(
            argv=(*start, entrypoint, "--config-file", "config.yaml"),
            env={"CUDA_DEVICE_MAX_CONNECTIONS": "1", **tf32_environment(c.precision)},
            files={"config.yaml": to_yaml(_document(workload, c, options))},
            notes=(*cpu_note(workload, "nanotron"), *notes),
        )

    step_marks = ("iteration:",)

    def parse_line(self, line: str) -> StepMetrics | None:
        """`... iteration: 12001 / 17500 | ... | elapsed_time_per_iteration_ms: 28.2K | ... |
        lm_loss: 2.3 | ... | grad_norm: 0.15`."""
        text = clean(line)
        iteration = _ITERATION.search(text)
        if not iteration:
            return None
        values: dict[str, float] = {}
        for found in _FIELD.finditer(text):
            value = number(found[2])
            if value is not None:
                values[found[1]] = value * _SCALE[found[3]]
        milliseconds = values.get("elapsed_time_per_iteration_ms")
        return StepMetrics(
            step=int(iteration[1]),
            step_time_s=None if milliseconds is None else milliseconds / 1e3,
            tokens_per_s_per_gpu=values.get("tokens_per_sec_per_gpu"),
            loss=values.get("lm_loss"),
            grad_norm=values.get("grad_norm"),
            peak_memory_bytes=values.get("cuda_max_memory_reserved"),
        )


def _document(workload: Workload, c: ParallelConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    steps, rate = options["steps"], options["learning_rate"]
    warmup = max(1, steps // 10)
    adam = {
        "name": "adamW",
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_eps": 1e-8,
        "torch_adam_is_fused": True,
    }
    document: dict[str, Any] = {
        "general": {
            "project": "autotune",
            "run": "tuned",
            "seed": options["seed"],
            "ignore_sanity_checks": True,
        },
        "parallelism": {
            "dp": c.dp,
            "pp": c.pp,
            "tp": c.tp,
            "pp_engine": "afab" if c.pp_schedule == "gpipe" else "1f1b",
            "tp_mode": "REDUCE_SCATTER" if c.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": c.sequence_parallel,
            "recompute_layer": c.recompute == "full",
            "expert_parallel_size": 1,
            "context_parallel_size": c.cp,
        },
        "model": {
            "dtype": "bfloat16" if c.precision == "bf16" else "float32",
            "make_vocab_size_divisible_by": 1,
            "ddp_bucket_cap_mb": 25,
            "init_method": {"std": 0.02},
            "model_config": _model(workload, c, options),
        },
        "tokens": {
            "sequence_length": workload.seq_len,
            "micro_batch_size": c.micro_batch_size,
            "batch_accumulation_per_replica": c.accumulation_steps,
            "train_steps": steps,
            "val_check_interval": -1,
            "limit_val_batches": 0,
            "limit_test_batches": 0,
        },
        "optimizer": {
            "optimizer_factory": adam if workload.optimizer == "adamw" else {"name": "sgd"},
            "zero_stage": c.zero_stage,
            "weight_decay": 0.1,
            "clip_grad": 1.0,
            "accumulate_grad_in_fp32": c.precision == "bf16",
            "learning_rate_scheduler": {
                "learning_rate": rate,
                "lr_warmup_steps": warmup,
                "lr_warmup_style": "linear",
                "lr_decay_style": "cosine",
                "lr_decay_steps": max(1, steps - warmup),
                "min_decay_lr": float(f"{rate / 10:g}"),
            },
        },
        "data_stages": [
            {
                "name": "training",
                "start_training_step": 1,
                "data": {
                    "dataset": _dataset(options),
                    "seed": options["seed"],
                    "num_loading_workers": 1,
                },
            }
        ],
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": NEVER},
        "logging": {
            "log_level": "info",
            "log_level_replica": "info",
            "iteration_step_info_interval": 1,
        },
    }
    if options["dataset"]:
        because = "a dataset must be tokenized"
        document["tokenizer"] = {"tokenizer_name_or_path": needs(options, "tokenizer", because)}
    return document


def _dataset(options: Mapping[str, Any]) -> dict[str, Any] | None:
    if not options["dataset"]:
        return None
    return {
        "hf_dataset_or_datasets": options["dataset"],
        "hf_dataset_splits": "train",
        "text_column_name": "text",
        "dataset_processing_num_proc_per_process": 1,
        "dataset_overwrite_cache": False,
    }


def _model(workload: Workload, c: ParallelConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """Its Llama, or its Qwen2, which without biases is a Llama too and knows attention over several
    ranks."""
    model, figures = workload.model, figures_of(workload.model)
    asked = options["model_class"]
    is_qwen = asked == "qwen2" or (
        asked == "auto" and (c.cp > 1 or (figures is not None and figures.family == "qwen2"))
    )
    kind: dict[str, Any] = {"is_llama_config": True}
    if is_qwen:
        kind = {"is_qwen2_config": True, "attention_bias": figures is not None and figures.qkv_bias}
        kind |= {"_attn_implementation": RING} if c.cp > 1 else {}
    return {
        **kind,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_kv_heads,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": workload.seq_len,
        "tie_word_embeddings": model.tied_embeddings,
        "rms_norm_eps": 1e-5,
        **_figures(model),
        "initializer_range": 0.02,
        "use_cache": False,
        "bos_token_id": 0,
        "eos_token_id": model.vocab_size - 1,
    }


def _figures(model: ModelSpec) -> dict[str, Any]:
    figures = figures_of(model)
    given = (
        {"rope_theta": figures.rotary_base, "rms_norm_eps": figures.norm_epsilon} if figures else {}
    )
    return {name: value for name, value in given.items() if value is not None}


TRAINER = NanotronTrainer()
