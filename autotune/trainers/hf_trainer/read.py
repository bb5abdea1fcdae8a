"""The TrainingArguments of a file (`training_args.json`) read back, and the arguments of the
program that is exported with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.trainers.documents.fsdp_section import read_fsdp_section
from autotune.trainers.documents.program_arguments import exported_program
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    batch_of,
    completed,
    parse_document,
)

BY_OPTIM = {
    "adamw_torch": "adamw", "sgd": "sgd", "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "adafactor": "adafactor",
}  # fmt: skip
"""ours, by `optim`"""
OF_THE_RUN = (
    *(
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "save_only_model",
        "load_best_model_at_end",
        "push_to_hub",
    ),
    *(
        "eval_strategy",
        "evaluation_strategy",
        "eval_steps",
        "do_eval",
        "eval_on_start",
        "report_to",
        "run_name",
    ),
    *("resume_from_checkpoint", "num_train_epochs"),
)
"""arguments about what a run keeps and tells, not about how it trains"""
REPEATED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "bf16",
    "fp16",
)
"""keys of the dictionary `deepspeed` that repeat what TrainingArguments say"""


def read(present: PresentConfiguration) -> Reading:
    """TrainingArguments, and the arguments of the program."""
    name = next((name for name in present.files if name.endswith("training_args.json")), "")
    name, text = (name, present.files[name]) if name else present.named(".json")
    keys = KeyReader(parse_document(name, text), name)
    program = exported_program(present)
    # the cluster says it; a launch logs every step
    keys.drop("use_cpu", "logging_steps", "logging_strategy")
    keys.drop(*OF_THE_RUN)
    if of_run := [
        key for key in OF_THE_RUN if keys.find(key) not in (None, False, "no", "none", [])
    ]:
        keys.remarks.append(
            f"{name}: {', '.join(of_run)} are left out, because autotune's launches do not save, evaluate or report"
        )
    stage, recompute = _sharding(keys)
    flags = {word: keys.flag(word) for word in ("bf16", "fp16", "tf32")}
    knobs: dict[str, Any] = {
        "micro_batch_size": keys.count("per_device_train_batch_size"),
        "accumulation_steps": keys.count("gradient_accumulation_steps"),
        "precision": next((word for word, on in flags.items() if on), "fp32"),
        "recompute": "full" if recompute else "none",
        "zero_stage": stage,
        "compile": keys.is_on("torch_compile"),
    }
    knobs = completed(knobs, ranks=present.ranks)
    optim = keys.text("optim") or ""
    options: dict[str, Any] = {
        "steps": keys.count("max_steps"),
        "learning_rate": keys.number("learning_rate"),
        "seed": keys.count("seed"),
        **program.options,
    }
    optimizer = BY_OPTIM.get(optim, "adamw" if optim.startswith("adamw") else "")
    # null: its default
    left = {key: value for key, value in keys.left.items() if value is not None}
    if optim and optim not in BY_OPTIM:
        left["optim"] = optim
    return Reading(
        knobs=knobs,
        model_file=program.model_file,
        seq_len=program.seq_len,
        global_batch_size=batch_of(knobs),
        optimizer=optimizer,
        options=options,
        settings=left,
        remarks=tuple(keys.remarks),
    )


def _sharding(keys: KeyReader) -> tuple[int, bool]:
    """(ZeRO stage, whether every layer is recomputed)"""
    recompute = keys.is_on("activation_checkpointing") | bool(keys.flag("gradient_checkpointing"))
    given = keys.find("deepspeed")
    if isinstance(given, Mapping):
        keys.drop(*(f"deepspeed.{key}" for key in REPEATED))
        return keys.count("deepspeed.zero_optimization.stage") or 0, recompute
    if given:
        keys.drop("deepspeed")
        if found := re.search(r"z(?:ero)?_?([0-3])", str(given).rpartition("/")[2]):
            keys.remarks.append(
                f"deepspeed={given!r}: zero_stage={found[1]} is taken from the name of this file; autotune ignores "
                f"the rest of this file"
            )
            return int(found[1]), recompute
        keys.remarks.append(
            f"deepspeed={given!r} contains the ZeRO stage, but was not imported; import this file too"
        )
    sharded = read_fsdp_section(keys, keys.find("fsdp"))
    keys.drop("fsdp")
    if sharded is None:
        return 0, recompute
    return sharded.zero_stage, recompute or sharded.recomputes
