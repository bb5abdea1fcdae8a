"""Megatron-LM: `pretrain_gpt.py` with command-line flags as in Megatron Core 0.16
(megatron/training/arguments.py, megatron/core).

The data-parallel degree and the accumulation steps are not flags but follow from others: dp = world
/ (tp * pp * cp), and accumulation = global_batch_size / (micro_batch_size * dp). ZeRO 1 is the
distributed optimizer; ZeRO 2 and 3 are Megatron-FSDP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from autotune.spec import KNOBS, ModelSpec, ParallelConfig, Workload
from autotune.spec.texts.as_text import notes_of
from autotune.trainers.base.effective import cpu_note, effective
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.own_program import CWD
from autotune.trainers.base.torchrun import ranks_started
from autotune.trainers.base.trained_families import MEGATRON
from autotune.trainers.base.trainer import SHARED_OPTIONS, Option, StepMetrics, Trainer, needs
from autotune.trainers.base.trainer_option import Reach
from autotune.trainers.launch_files import Launch
from autotune.trainers.megatron.core import (
    ITERATION_MARKS,
    NOT_IN_CORE,
    OVERLAP,
    SHARDING,
    core_limits,
    parse_iteration,
)
from autotune.trainers.megatron.knobs import (
    environment,
    has_grouped_gemm,
    model_fields,
    optimizer_fields,
)
from autotune.trainers.megatron.model import model_flags, model_limits, model_notes
from autotune.trainers.present_configuration import SETTINGS, PresentConfiguration

NARROW = {
    "fp8": {"fp8-format": "hybrid"},
    "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
    "nvfp4": {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"},
}
"""flags of precisions below 16 bits, beside bf16"""
OWN_DATA = frozenset({"train-data-path", "data-args-path", "per-split-data-args-path"})
"""flags that name data beside data-path"""
MOCK_NOTE = "the launch trains on mock data; set the options data_path, tokenizer_type and tokenizer_model to train on your own data"


class MegatronTrainer(Trainer):
    """Megatron-LM's GPT pretraining."""

    name = "megatron"
    families = MEGATRON
    shapes = frozenset({"num_dense_layers", "shared_ffn_hidden_size", "kv_lora_rank", "mtp_layers"})
    summary = "Megatron-LM 0.14 or later, pretrain_gpt.py with flags"
    checked_against = "Megatron-LM with Megatron Core 0.16.1, 0.17.0, 0.18.0"
    rotary_scalings = frozenset({"llama3", "yarn"})
    # interleaving: accumulation_steps is a multiple of pp
    limited_by = frozenset(KNOBS) - {"micro_batch_size"}
    no_adapters = "pretrain_gpt.py has none"
    has_own_attention = True
    has_unfused_attention = True
    optimizers = frozenset({"adamw", "sgd", "muon"})
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
        "dp_replicas", "pp_split", "loss", "cp_style", "offload", "async_tp", "cuda_graph", "dispatcher", "ep_overlap",
    })  # fmt: skip
    cannot: ClassVar = {**NOT_IN_CORE, "loss=full": "this is Megatron-LM's default; use loss=own"}
    can_import = True
    watching = (
        "profile", "profile-*", "use-pytorch-profiler", "record-memory-history", "memory-snapshot-path", "nvtx-ranges",
        "tensorboard-*", "log-*-to-tensorboard", "wandb-*", "timing-log-*",
    )  # fmt: skip
    recognized_by = (
        "--tensor-model-parallel-size",
        "--num-layers",
        "--micro-batch-size",
        "pretrain_gpt.py",
    )
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        Option(
            name="entrypoint",
            meaning="path of pretrain_gpt.py in a checkout of Megatron-LM",
            default="pretrain_gpt.py",
            reach=Reach.PROGRAM,
        ),
        CWD,
        Option(
            name="data_path",
            meaning="prefix of an indexed dataset, or alternating weights and prefixes; default: Megatron's mock data",
            default="",
            is_path=True,
            reach=Reach.FILES,
        ),
        Option(
            name="tokenizer_type",
            meaning="Megatron's tokenizer class, with data_path",
            default="",
            reach=Reach.NOTHING,
        ),
        Option(
            name="tokenizer_model",
            meaning="path or name of the tokenizer, with data_path",
            default="",
            is_path=True,
            reach=Reach.FILE,
        ),
        Option(
            name="transformer_impl",
            meaning="transformer_engine or local",
            default="transformer_engine",
            choices=("transformer_engine", "local"),
            reach=Reach.NOTHING,
        ),
        OVERLAP,
    )

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Megatron Core's rules (`megatron/core.py`), and fp8 without Transformer Engine."""
        c = effective(config)
        is_local = options["transformer_impl"] != "transformer_engine"
        needed = "it needs transformer_impl=transformer_engine"
        return (
            *core_limits(workload, c),
            *model_limits(workload, c),
            *(_muon_limits(workload, c) if workload.optimizer == "muon" else ()),
            *broken(
                workload,
                c,
                Rule(is_local and c.precision in NARROW, "precision", needed, "bf16"),
                Rule(is_local and c.async_tp, "async_tp", needed, False),
                Rule(is_local and c.cuda_graph == "layers", "cuda_graph", needed, "none"),
                Rule(is_local and c.offload in ("activations", "all"), "offload", needed, "none"),
            ),
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """torchrun, pretrain_gpt.py and its flags; no files."""
        c = effective(config)
        start = ranks_started(workload, c, options)
        flags: dict[str, Any] = {
            **model_flags(workload.model, workload.seq_len),
            **_parallel_flags(c, overlap=options["overlap"], optimizer=workload.optimizer),
            **_module_flags(workload, c),
            **_training_flags(workload, c, options),
            **_data_flags(workload.model, options),
        }
        given = {
            name: value for name, value in flags.items() if not (value is None or value is False)
        }
        if "pipeline-model-parallel-layout" in given:  # it names the stages of every rank
            given.pop("num-virtual-stages-per-pipeline-rank", None)
        notes = notes_of(
            (
                c.cuda_graph == "step" and c.ep > 1,
                "Megatron-LM 0.17 (but not 0.16 or 0.18) requires --moe-pad-experts-for-cuda-graph-inference here; add this flag to the `settings` option",
            ),
            (
                workload.optimizer == "muon",
                "Muon comes from NVIDIA's package emerging_optimizers, which must be installed",
            ),
            (
                options["entrypoint"] == "pretrain_gpt.py",
                "run the launch in a Megatron-LM checkout, or set the `entrypoint` option to the path of pretrain_gpt.py",
            ),
            (not options["data_path"], MOCK_NOTE),
        )
        return Launch(
            argv=(*start, options["entrypoint"], *_spell(given)),
            env=environment(c),
            notes=(*cpu_note(workload, "Megatron-LM"), *model_notes(workload.model), *notes),
        )

    def with_settings(self, launch: Launch, settings: Mapping[str, Any]) -> Launch:
        """The flags at the end of the command, where they count. Data that they name take the place
        of mock data, which Megatron-LM would take before them."""
        if not OWN_DATA & settings.keys():
            return replace(launch, argv=(*launch.argv, *_spell(settings)))
        named = {"tokenizer-type": "NullTokenizer"} if "tokenizer-type" in settings else {}
        mock = _spell({"mock-data": True, **named})
        kept = [word for word in launch.argv if word not in mock]
        notes = tuple(note for note in launch.notes if note != MOCK_NOTE)
        return replace(launch, argv=(*kept, *_spell(settings)), notes=notes)

    def present_of(self, settings: Mapping[str, Any]) -> PresentConfiguration:
        """The flags alone."""
        return PresentConfiguration(argv=("pretrain_gpt.py", *_spell(settings)))

    step_marks = ITERATION_MARKS

    def parse_line(self, line: str) -> StepMetrics | None:
        """Its line of each iteration, and its memory reports (`megatron/core.py`)."""
        return parse_iteration(line)


def _muon_limits(workload: Workload, c: ParallelConfig) -> list[Limit]:
    """What release 0.16 asserts of Muon, which updates whole matrices: its own form of ZeRO 1
    (dist_muon) gives each rank some of them."""
    unused = "this knob belongs to the distributed optimizer, which Muon does not use"
    return broken(
        workload,
        c,
        Rule(c.zero_stage > 1, "zero_stage", "Megatron-FSDP does not train with Muon", 1),
        Rule(c.dp_replicas > 1, "dp_replicas", unused, 1),
        Rule(c.offload not in ("none", "activations"), "offload", unused, "none"),
        Rule(c.precision == "fp16", "precision", "Muon does not scale the loss", "bf16"),
    )


def _parallel_flags(c: ParallelConfig, *, overlap: bool, optimizer: str) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "tensor-model-parallel-size": c.tp,
        "pipeline-model-parallel-size": c.pp,
        "context-parallel-size": c.cp,
        "expert-model-parallel-size": c.ep,
        "num-distributed-optimizer-instances": c.dp_replicas if c.dp_replicas > 1 else None,
        "num-virtual-stages-per-pipeline-rank": c.virtual_stages if c.virtual_stages > 1 else None,
        "sequence-parallel": c.sequence_parallel,
    }
    if optimizer == "muon":  # it takes neither the distributed optimizer nor the overlap
        return flags
    is_fsdp, overlaps = c.zero_stage >= 2, overlap and c.dp * c.cp > 1
    return {
        **flags,
        "use-megatron-fsdp": is_fsdp,
        "use-distributed-optimizer": c.zero_stage >= 1,
        "data-parallel-sharding-strategy": SHARDING.get(c.zero_stage),
        "no-gradient-accumulation-fusion": is_fsdp,
        "ckpt-format": "fsdp_dtensor" if is_fsdp else None,
        "overlap-grad-reduce": overlaps,
        "overlap-param-gather": overlaps and c.zero_stage >= 1,
    }


def _module_flags(workload: Workload, c: ParallelConfig) -> dict[str, Any]:
    """Fields of Megatron Core's configurations; those at Megatron's defaults are left out."""
    fields = {**model_fields(workload, c), **optimizer_fields(c)}
    fields["te_rng_tracker"] = fields.pop("use_te_rng_tracker")
    fields["no_check_for_nan_in_loss_and_grad"] = c.cuda_graph == "step"
    return {
        name.replace("_", "-"): value
        for name, value in fields.items()
        if value != "none" and value != []
    }


def _training_flags(
    workload: Workload, c: ParallelConfig, options: Mapping[str, Any]
) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "micro-batch-size": c.micro_batch_size,
        "global-batch-size": c.global_batch_size,
        "train-iters": options["steps"],
        "optimizer": _optimizer(workload, c),
        "lr": options["learning_rate"],
        "min-lr": f"{options['learning_rate'] / 10:g}",
        "lr-decay-style": "cosine",
        "clip-grad": 1.0,
        "weight-decay": 0.1,
        "init-method-std": 0.02,
        "seed": options["seed"],
        "log-interval": 1,
        "log-throughput": True,
        "eval-iters": 0,
        "transformer-impl": options["transformer_impl"],
        "bf16": c.precision in ("bf16", *NARROW),
        "fp16": c.precision == "fp16",
        **NARROW.get(c.precision, {}),
        "attention-backend": "unfused" if workload.unfused_attention else None,
        "moe-grouped-gemm": has_grouped_gemm(workload.model, c),
    }
    if c.recompute == "full":
        return {
            **flags,
            "recompute-granularity": "full",
            "recompute-method": "uniform",
            "recompute-num-layers": 1,
        }
    return {**flags, "recompute-granularity": None if c.recompute == "none" else "selective"}


def _optimizer(workload: Workload, c: ParallelConfig) -> str:
    if workload.optimizer == "muon":
        return "dist_muon" if c.zero_stage else "muon"
    return "adam" if workload.optimizer == "adamw" else "sgd"


def _data_flags(model: ModelSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    if not options["data_path"]:
        # NullTokenizer adds one token (end of document) to the vocabulary
        return {
            "mock-data": True,
            "tokenizer-type": "NullTokenizer",
            "vocab-size": max(1, model.vocab_size - 1),
        }
    because = "a dataset needs a tokenizer"
    return {
        "data-path": options["data_path"].split(),
        "split": "99,1,0",
        "tokenizer-type": needs(options, "tokenizer_type", because),
        "tokenizer-model": needs(options, "tokenizer_model", because),
    }


def _spell(flags: Mapping[str, Any]) -> tuple[str, ...]:
    argv: list[str] = []
    for name, value in flags.items():
        argv.append(f"--{name}")
        if value is not True:
            argv += map(str, value if isinstance(value, list | tuple) else [value])
    return tuple(argv)


TRAINER = MegatronTrainer()
