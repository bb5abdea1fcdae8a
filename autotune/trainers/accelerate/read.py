"""The file of `accelerate config` (accelerate.yaml), and the arguments of the program that is
exported with it.

    distributed_type   NO or MULTI_GPU: ZeRO 0; DEEPSPEED: its stage; FSDP: ZeRO 3, or 2 where weights stay gathered after the forward pass
    num_processes      the world size

FSDP1's sharding strategies are read as the ZeRO stages that they are. Micro-batch and accumulation
are the program's own arguments.
"""

from __future__ import annotations

from typing import Any

from autotune.trainers.documents.fsdp_section import read_fsdp_section
from autotune.trainers.documents.program_arguments import exported_program, own_program
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    batch_of,
    completed,
    parse_document,
)

KINDS = {
    "NO": "NO",
    "MULTI_GPU": "MULTI_GPU",
    "MULTI_CPU": "MULTI_GPU",
    "DEEPSPEED": "DEEPSPEED",
    "FSDP": "FSDP",
}
PRECISIONS = {"no": "fp32", False: "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
"""ours; YAML reads a bare `no` as false"""


def read(present: PresentConfiguration) -> Reading:
    """What the file and the command say."""
    keys = present.keys(".yaml", ".yml")
    program = own_program(present, "--config_file", "--rdzv_backend") or exported_program(present)
    stage, recompute = _sharding(keys)
    precision = keys.word("mixed_precision", PRECISIONS, "fp32")
    knobs: dict[str, Any] = {
        **{
            knob: keys.positive(f"parallelism_config.parallelism_config_{knob}_size")
            for knob in ("tp", "cp")
        },
        "precision": "tf32" if precision == "fp32" and present.tf32 else precision,
        "zero_stage": stage,
        "compile": keys.find("dynamo_config.dynamo_backend") == "INDUCTOR",
        **program.knobs,
    }
    keys.drop_equal({"dynamo_config.dynamo_backend": "INDUCTOR"})
    # in the file only where DeepSpeed runs it; there the program's own says the same
    accumulation = keys.count("deepspeed_config.gradient_accumulation_steps")
    knobs["accumulation_steps"] = knobs.get("accumulation_steps") or accumulation
    if recompute:
        knobs["recompute"] = "full"
    keys.drop(
        "parallelism_config.parallelism_config_dp_shard_size",
        *("num_machines", "machine_rank", "rdzv_backend", "same_network"),
    )
    if (replicas := keys.positive("parallelism_config.parallelism_config_dp_replicate_size")) > 1:
        knobs["dp_replicas"] = replicas
    options = dict(program.options)
    for option, key in (("master_addr", "main_process_ip"), ("master_port", "main_process_port")):
        value = keys.find(key)
        keys.drop(key)
        if value and not str(value).startswith("@"):
            options[option] = value
    knobs = completed(knobs, ranks=keys.count("num_processes"))
    return Reading(
        knobs=knobs,
        model_file=program.model_file,
        seq_len=program.seq_len,
        global_batch_size=batch_of(knobs),
        optimizer=program.optimizer,
        options=options,
        settings=keys.left,
        remarks=tuple(keys.remarks),
    )


def sharding_and_ranks(name: str, text: str) -> tuple[str, int, int | None]:
    """(how ranks share the model, of `KINDS`, ZeRO stage, ranks of all machines) of a configuration
    of Accelerate; None: it does not say how many."""
    keys = KeyReader(parse_document(name, text), name)
    kind = keys.word("distributed_type", KINDS) or "NO"
    return kind, _sharding(keys)[0], keys.count("num_processes")


def _sharding(keys: KeyReader) -> tuple[int, bool]:
    """(ZeRO stage, whether every layer is recomputed)"""
    kind = keys.word("distributed_type", KINDS) or "NO"
    if kind == "DEEPSPEED":
        return keys.count("deepspeed_config.zero_stage") or 0, False
    sharded = read_fsdp_section(keys, kind == "FSDP")
    return (sharded.zero_stage, sharded.recomputes) if sharded else (0, False)
