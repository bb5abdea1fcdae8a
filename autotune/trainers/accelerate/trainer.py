"""Hugging Face accelerate 1.15: `accelerate.yaml` for `accelerate launch`, and a training program.

    ZeRO 0   MULTI_GPU (DDP)            ZeRO 2   FSDP2 that keeps weights gathered (fsdp_reshard_after_forward: false)
    ZeRO 1   DEEPSPEED, zero_stage 1    ZeRO 3   FSDP2

Gradient accumulation is set in the program, not in the YAML; the exported program takes it as an
argument. Tensor and context parallelism need a model that was loaded with a parallel plan: name
your own program with the option `script`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload, number_of
from autotune.spec.texts.as_text import notes_of
from autotune.trainers.base.bundled_program import (
    DATA,
    BundledTrainer,
    data_arguments,
    data_notes,
    long_options,
    program_files,
)
from autotune.trainers.base.effective import effective, whole_on_cpu, word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import without
from autotune.trainers.base.own_program import CWD, SCRIPT, SCRIPT_ARGS
from autotune.trainers.base.torchrun import Placement, meeting, place, tf32_environment
from autotune.trainers.base.trainer import SHARED_OPTIONS
from autotune.trainers.documents.file_formats import hf_layer_class, to_yaml
from autotune.trainers.launch_files import NODE_RANK, Launch
from autotune.trainers.present_configuration import SETTINGS, nested


class AccelerateTrainer(BundledTrainer):
    """accelerate around a Hugging Face model."""

    name = "accelerate"
    summary = "Hugging Face accelerate 1.15, accelerate.yaml with FSDP2 or DeepSpeed"
    checked_against = "accelerate 1.15.0"
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "compile",
        "dp_replicas",
    })  # fmt: skip
    cannot = without("dp_replicas")
    neutral: ClassVar = {
        "pp_schedule": "accelerate has no pipeline, so pp above 1 is rejected",
        "virtual_stages": "accelerate has no pipeline, so pp above 1 is rejected",
    }
    recognized_by = ("distributed_type", "compute_environment")
    settings_file = "accelerate.yaml"
    options = (
        *SHARED_OPTIONS,
        SETTINGS,
        SCRIPT,
        SCRIPT_ARGS,
        CWD,
        DATA,
    )

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Pipelines and experts; tensor and context parallelism without the option script; fp8;
        selective recomputation."""
        c = effective(config)
        unplanned = "accelerate needs a program that loads its model with a parallel plan"
        return (
            *word_limit(
                c, "precision", {"fp8": "bf16"}, "fp8 needs a recipe in addition to mixed_precision"
            ),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "accelerate recomputes either whole layers or nothing",
            ),
            *broken(
                workload,
                c,
                Rule(c.pp > 1, "pp", "accelerate has no pipeline for training"),
                Rule(c.ep > 1, "ep", "accelerate has no expert parallelism", 1),
                *(
                    Rule(
                        getattr(c, knob) > 1 and not options["script"],
                        knob,
                        unplanned,
                        remedy=f"use your own program with the `script` option, or use {knob}=1",
                    )
                    for knob in ("tp", "cp")
                ),
                Rule(
                    c.tp * c.cp > 1 and c.zero_stage < 2,
                    "zero_stage",
                    "with tp or cp, replicas must be sharded with FSDP2",
                    2,
                ),
                Rule(
                    c.dp_replicas > 1 and c.zero_stage < 2,
                    "dp_replicas",
                    "replicated shards need FSDP (zero_stage >= 2)",
                    1,
                ),
                Rule(
                    c.sequence_parallel,
                    "sequence_parallel",
                    "accelerate's tensor parallelism keeps whole sequences on every rank",
                    False,
                ),
            ),
            *whole_on_cpu(workload, c),
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """accelerate launch --config_file accelerate.yaml and the program."""
        c = effective(config)
        placement = place(workload.cluster, c)
        document = _document(workload, c, placement)
        files = {"accelerate.yaml": to_yaml(document)}
        start = (
            "accelerate",
            "launch",
            "--config_file",
            "accelerate.yaml",
            *_meeting(placement, options),
        )
        env = {
            **tf32_environment(c.precision),
            # its launcher would start the ranks, and each would train alone
            **({"ACCELERATE_USE_CPU": "true"} if workload.cluster.gpu.is_cpu else {}),
        }
        recomputes = c.recompute == "full" and c.zero_stage < 2  # FSDP does it by its own setting
        if options["script"]:
            notes = notes_of(
                (
                    True,
                    f"your program must accumulate {number_of(c.accumulation_steps, 'micro-batch', 'micro-batches')} of {number_of(c.micro_batch_size, 'sequence')}",
                ),
                (
                    recomputes,
                    "your program must recompute the layers, because accelerate.yaml can enable recomputation only for FSDP",
                ),
            )
            argv = (*start, options["script"], *map(str, options["script_args"]))
            return Launch(argv=argv, env=env, files=files, notes=notes)
        arguments = {
            "model": "model/config.json",
            "seq-len": workload.seq_len,
            "micro-batch-size": c.micro_batch_size,
            "accumulation-steps": c.accumulation_steps,
            "steps": options["steps"],
            "seed": options["seed"],
            "learning-rate": options["learning_rate"],
            "optimizer": workload.optimizer,
        }
        words = (*long_options(arguments), *data_arguments(options))
        return Launch(
            argv=(*start, "train.py", *words, *(("--recompute",) if recomputes else ())),
            env=env,
            files={**files, **program_files(self.name, workload)},
            notes=data_notes(options),
        )


def _meeting(placement: Placement, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Where the nodes meet, as arguments, because each node is told for itself; port 0 on one node:
    any free one."""
    if placement.nnodes == 1:
        return ("--main_process_port", "0")
    address, port = meeting(options)
    return ("--machine_rank", NODE_RANK, "--main_process_ip", address, "--main_process_port", port)


def _document(workload: Workload, c: ParallelConfig, placement: Placement) -> dict[str, Any]:
    kind = "MULTI_GPU" if c.world_size > 1 else "NO"
    kind = {1: "DEEPSPEED", 2: "FSDP", 3: "FSDP"}.get(c.zero_stage, kind)
    is_spread, compiler = placement.nnodes > 1, {"dynamo_backend": "INDUCTOR"}
    by_deepspeed = {
        "zero_stage": 1,
        "gradient_accumulation_steps": c.accumulation_steps,
        "gradient_clipping": 1.0,
        "zero3_init_flag": False,
        # each node starts its own
        **({"deepspeed_multinode_launcher": "standard"} if is_spread else {}),
    }
    by_fsdp = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": c.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": hf_layer_class(workload.model),
        "fsdp_offload_params": False,
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_activation_checkpointing": c.recompute == "full",
    }
    degrees = {
        "parallelism_config_dp_replicate_size": c.dp_replicas,
        "parallelism_config_dp_shard_size": c.dp // c.dp_replicas,
        "parallelism_config_tp_size": c.tp,
        "parallelism_config_cp_size": c.cp,
    }
    return nested({
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": c.precision if c.precision in ("bf16", "fp16") else "no",
        "num_machines": placement.nnodes,
        "num_processes": placement.world_size,
        "main_training_function": "main",
        "use_cpu": False,
        "same_network": True if is_spread else None,  # the static rendezvous of torchrun
        "deepspeed_config": by_deepspeed if kind == "DEEPSPEED" else None,
        "fsdp_config": by_fsdp if kind == "FSDP" else None,
        "parallelism_config": degrees if c.tp * c.cp * c.dp_replicas > 1 else None,
        "dynamo_config": compiler if c.compile else None,
    })  # fmt: skip


TRAINER = AccelerateTrainer()
