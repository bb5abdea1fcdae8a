"""Describes in one line what a review has read of a launch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.reviews.target import Target
from autotune.spec import ParallelConfig, Study, Workload, config_label
from autotune.spec.texts.as_text import format_count

_LOOPS = {
    "accelerate": "accelerate",
    "deepspeed": "DeepSpeed",
    "hf_trainer": "Hugging Face Trainer",
    "lightning": "Lightning",
    "megatron": "Megatron-LM",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
}
"""names of training loops for users"""


def _batch_words(workload: Workload, config: ParallelConfig) -> str:
    """The batch in words."""
    if workload.rl is None:
        return f"{config.global_batch_size} x {workload.seq_len}"
    return f"{workload.rl.prompts} x {workload.rl.responses} sequences of {workload.rl.tokens / workload.rl.sequences:,.0f}"


def whole(study: Study, config: ParallelConfig) -> str:
    """The launch of a complete spec in words."""
    workload = study.workload
    tokens = config.global_batch_size * workload.tokens_per_sequence
    lora = (
        f" with {workload.peft.method} r{workload.peft.rank} ({workload.peft.targets})"
        if workload.peft
        else ""
    )
    return (
        f"{'a model' if workload.model.name == 'imported' else workload.model.name} ({format_count(workload.model.num_parameters)}){lora} on {workload.cluster.num_gpus} x {workload.cluster.gpu.name}, "
        f"{_batch_words(workload, config)} = {format_count(tokens)} tokens a step, {config_label(config)}, {_trainer_words(study)}"
    )


def _trainer_words(study: Study) -> str:
    """The trainer in words; for the user's own script with the library whose training loop it
    runs."""
    if study.trainer != "command":
        return f"trainer {study.trainer}"
    return (
        f"your own script ({_LOOPS[study.workload.loop]})"
        if study.workload.loop
        else "your own script"
    )


def part(document: Mapping[str, Any], found: Target) -> str:
    """The launch of an incomplete spec in words."""
    trainer_entry = document.get("trainer")
    kind = trainer_entry.get("kind", "") if isinstance(trainer_entry, Mapping) else trainer_entry
    if found.started:
        started = f"starts {found.started.program} with {found.started.launcher}"
    else:
        started = "a Python program" if kind == "command" else f"a configuration for {kind}"
    ranks = f" on {found.asked[0]} x {found.asked[1]} ranks" if found.asked else ""
    known = str(document.get("baseline", ""))
    if "space.precision" in found.fill_in:  # a placeholder, not the launch's precision
        known = re.sub(r",?precision=\w+", "", known).removeprefix(",")
    if (
        found.started and found.asked is None and kind == "command"
    ):  # the number of ranks is assumed
        known = re.sub(r",?\bdp=\d+", "", known).removeprefix(",")
    return f"{started}{ranks}{'; ' if known else ''}{known}"
