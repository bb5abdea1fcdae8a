"""`ds_config.json` read back, and the arguments of the program that it is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.trainers.documents.program_arguments import exported_program, own_program
from autotune.trainers.present_configuration import (
    AUTO,
    KeyReader,
    PresentConfiguration,
    Reading,
    batch_of,
    completed,
    dotted,
)

OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "sgd": "sgd"}
"""ours, by the type in small letters"""


def read(present: PresentConfiguration) -> Reading:
    """ds_config.json, and the arguments of the program."""
    keys = present.keys(".json")
    tp = keys.positive("tensor_parallel.autotp_size")
    knobs: dict[str, Any] = {
        "tp": tp,
        "micro_batch_size": keys.count("train_micro_batch_size_per_gpu"),
        "accumulation_steps": keys.count("gradient_accumulation_steps"),
        "precision": _precision(keys, tf32=present.tf32),
        "zero_stage": keys.count("zero_optimization.stage") or 0,
    }
    if keys.find("zero_optimization.offload_optimizer.device") == "cpu":
        knobs["offload"] = "optimizer"
        keys.drop(
            "zero_optimization.offload_optimizer.device",
            "zero_optimization.offload_optimizer.pin_memory",
        )
    batch, ranks = keys.count("train_batch_size"), present.ranks
    program = own_program(present, "--deepspeed_config") or exported_program(present)
    knobs = {**completed(knobs, batch=batch), **program.knobs}
    if ranks and "dp" in knobs:
        knobs["pp"] = max(1, ranks // (tp * knobs["dp"]))
    elif ranks:
        knobs = completed(knobs, ranks=ranks, batch=batch)
    options = dict(program.options)
    if (rate := keys.number("optimizer.params.lr")) is not None:
        options["learning_rate"] = rate
    kind = keys.find("optimizer.type")
    optimizer = OPTIMIZERS.get(str(kind).lower(), "")
    if optimizer:
        keys.drop("optimizer.type")
    settings = _told(keys.left)
    if filled := sorted(set(dotted(keys.left)) - set(dotted(settings))):
        keys.remarks.append(
            f"{keys.name}: {', '.join(filled)} are left out, because Hugging Face's Trainer fills in {AUTO!r}"
        )
    return Reading(
        knobs=knobs,
        model_file=program.model_file,
        seq_len=program.seq_len,
        global_batch_size=batch or batch_of(knobs),
        optimizer=optimizer,
        options=options,
        settings=settings,
        remarks=tuple(keys.remarks),
    )


def _told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that Hugging Face's integrations fill in, which DeepSpeed itself
    does not take."""
    inner = {
        key: _told(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
    }
    return {key: value for key, value in inner.items() if value not in (AUTO, {})}


def _precision(keys: KeyReader, *, tf32: bool) -> str | None:
    """The number format, by the sections `bf16` and `fp16`; None where the program fills one of
    them in."""
    is_open = AUTO in (keys.find("bf16.enabled"), keys.find("fp16.enabled"))
    if keys.flag("bf16.enabled") or keys.flag("bfloat16.enabled"):
        keys.flag("fp16.enabled")
        return "bf16"
    if keys.flag("fp16.enabled"):
        return "fp16"
    if is_open:
        return None
    return "tf32" if tf32 else "fp32"
