"""What releases 0.2 and 0.3 of torchtitan call the same: degrees, batch, precision, and how a model
is cut into pipeline stages.

    stages = pp * virtual_stages, of ceil(num_layers / stages) layers each

With a pipeline, local_batch_size is the batch of a whole step of one data-parallel rank, and
pipeline_parallel_microbatch_size the micro-batch. Without one, the accumulation is
global_batch_size / (local_batch_size * dp). Replicas are either copies
(data_parallel_replicate_degree, ZeRO 0) or shards (FSDP2): FSDP2 that keeps weights gathered after
the forward pass is ZeRO 2, and FSDP2 that reshards them is ZeRO 3. There is no ZeRO 1. With both
degrees above 1 the copies are of shards (HSDP). With pp_split=edges the first and the last stage
have one layer less each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.hugging_face.figures import llama3_scaling
from autotune.trainers.base.limit import Limit

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
}
"""names as in `torch.distributed.pipelining.schedules.get_schedule_class`"""


def stage_limits(model: ModelSpec, c: ParallelConfig) -> tuple[Limit, ...]:
    """Numbers of stages that the layers cannot be cut into."""
    if c.pp == 1:
        return ()
    stages = c.pp * c.virtual_stages
    interleaved = c.pp_schedule.startswith("interleaved")
    if interleaved and c.virtual_stages < 2:
        message = f"{SCHEDULES[c.pp_schedule]} needs at least two stages per rank"
        return (Limit(knob="virtual_stages", value=c.virtual_stages, message=message, nearest=2),)
    if not _can_cut(model, c, c.virtual_stages):
        message = f"{model.num_layers} layers cannot be split evenly into {stages} stages"
        possible = [
            count
            for count in range(2 if interleaved else 1, c.virtual_stages)
            if _can_cut(model, c, count)
        ]
        remedy = f"use virtual_stages={possible[-1]}" if possible else "use a smaller pp"
        return (
            Limit(knob="virtual_stages", value=c.virtual_stages, message=message, remedy=remedy),
        )
    return ()


def _can_cut(model: ModelSpec, c: ParallelConfig, virtual_stages: int) -> bool:
    asked = replace(c, virtual_stages=virtual_stages)
    counted = model.num_layers + (2 if c.pp_split == "edges" else 0)
    return c.pp * virtual_stages <= counted and layers_per_stage(model, asked) != 0


def layers_per_stage(model: ModelSpec, c: ParallelConfig) -> int | None:
    """Layers per stage that give pp * virtual_stages stages. None: torchtitan's default (1 or 2
    stages per rank); 0: impossible."""
    if c.virtual_stages <= 2:
        return None
    stages = c.pp * c.virtual_stages
    counted = model.num_layers + (2 if c.pp_split == "edges" else 0)
    layers = math.ceil(counted / stages)
    return layers if math.ceil(counted / layers) == stages else 0


def training_settings(workload: Workload, c: ParallelConfig, steps: int) -> dict[str, Any]:
    """What both releases call the same in [training]."""
    return {
        "local_batch_size": c.micro_batch_size * (c.accumulation_steps if c.pp > 1 else 1),
        "global_batch_size": c.global_batch_size,
        "seq_len": workload.seq_len,
        "steps": steps,
        "max_norm": 1.0,
        "dtype": "bfloat16" if workload.pure_bf16 else "float32",
        "mixed_precision_param": "float32" if c.precision in ("fp32", "tf32") else "bfloat16",
        "mixed_precision_reduce": "float32",
    }


def data_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """The dataset, and its path where it is told."""
    names = ("dataset", "dataset_path") if options["dataset_path"] else ("dataset",)
    return {name: options[name] for name in names}


def parallelism_settings(model: ModelSpec, c: ParallelConfig) -> dict[str, Any]:
    """What both releases call the same in [parallelism]."""
    settings: dict[str, Any] = {
        "data_parallel_replicate_degree": c.dp_replicas if c.zero_stage else c.dp,
        "data_parallel_shard_degree": c.dp // c.dp_replicas if c.zero_stage else 1,
        "fsdp_reshard_after_forward": "always" if c.zero_stage == 3 else "never",
        "tensor_parallel_degree": c.tp,
        "pipeline_parallel_degree": c.pp,
        "context_parallel_degree": c.cp,
    }
    if c.pp == 1:
        return settings
    edge = int(c.pp_split == "edges")  # layers that embedding and output projection stand for
    settings |= {
        "pipeline_parallel_schedule": SCHEDULES[c.pp_schedule],
        "pipeline_parallel_microbatch_size": c.micro_batch_size,
        "pipeline_parallel_first_stage_less_layers": edge,
        "pipeline_parallel_last_stage_less_layers": edge,
    }
    if layers := layers_per_stage(model, c):
        settings["pipeline_parallel_layers_per_stage"] = layers
    return settings


def rotary_scaling(model: ModelSpec) -> dict[str, float] | None:
    """The model's rotary scaling by torchtitan's names; None where its config.json asks for none,
    or for another kind than Llama 3.1's."""
    scaling = llama3_scaling(model)
    return scaling and {
        ("scaling_factor" if name == "factor" else name): value for name, value in scaling.items()
    }
