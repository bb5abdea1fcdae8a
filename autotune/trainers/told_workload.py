"""What a trainer cannot be told of the workload and its model, whatever the config: from what the trainer declares of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from autotune.spec import Workload
from autotune.spec.hugging_face_families import FAMILIES
from autotune.spec.model_figures import figures_of
from autotune.trainers.limit import Limit
from autotune.trainers.own_model_limits import module_limits
from autotune.trainers.trained_families import OWN_PROGRAM, who_trains

if TYPE_CHECKING:
    from autotune.trainers.trainer import Trainer

UNCOMMON_SHAPES = {
    "num_dense_layers": "model whose layers have experts only in part",
    "shared_ffn_hidden_size": "experts that every token visits",
    "kv_lora_rank": "latent attention",
    "mtp_layers": "layers of multi-token prediction",
}
"""Fields of `ModelSpec` that are set only for models that most trainers cannot build, each with what it stands for."""
OTHERS = f"a trainer that reads the config.json itself (accelerate, deepspeed, hf_trainer, lightning, megatron_bridge, native), or {OWN_PROGRAM}"
"""who may train a model that a trainer does not build"""


def workload_limits(trainer: Trainer, workload: Workload) -> Iterator[Limit]:
    """Optimizer, packed documents, weights in bf16 alone, stored scores, and adapters."""
    if workload.optimizer not in trainer.optimizers:
        message = f"the trainer {trainer.name} can be told {', '.join(sorted(trainer.optimizers))}"
        yield Limit(knob="workload.optimizer", value=workload.optimizer, message=message, nearest="adamw")
    if workload.document_len and not trainer.packs_documents:
        message = f"the trainer {trainer.name} attends over whole sequences"
        yield Limit(knob="workload.document_len", value=workload.document_len, message=message, nearest=0)
    if workload.rl is not None and not trainer.trains_rl:
        what = "sequences of unequal length" if workload.rl.algorithm == "sft" else "a step of post-training"
        message = f"the trainer {trainer.name} cannot be told {what}"
        remedy = "trainers that can: verl, nemo_rl, openrlhf, trl, and command with a program of yours"
        yield Limit(knob="workload.rl", value=workload.rl.algorithm, message=message, remedy=remedy)
    if workload.pure_bf16 and not trainer.trains_pure_bf16:
        message = f"launches of the trainer {trainer.name} keep weights or moments in fp32"
        remedy = "those of torchtitan, lightning, and command with a program of yours need not"
        yield Limit(knob="workload.pure_bf16", value=True, message=message, nearest=False, remedy=remedy)
    if workload.unfused_attention and not trainer.has_unfused_attention:
        message = f"launches of the trainer {trainer.name} attend by kernels that never store the scores"
        remedy = "leave unfused_attention out, or use megatron, or command with a program of yours"
        yield Limit(knob="workload.unfused_attention", value=True, message=message, nearest=False, remedy=remedy)
    if workload.peft is not None and workload.peft.method not in trainer.peft_methods:
        message = (
            f"the trainer {trainer.name} cannot be told to train adapters alone in this way ({trainer.no_adapters})"
        )
        remedy = "trainers that can: command with a program of yours, and native for lora"
        yield Limit(knob="workload.peft", value=workload.peft.method, message=message, remedy=remedy)


def shape_limits(trainer: Trainer, workload: Workload) -> Iterator[Limit]:
    """A module of the user's, a family that it would train as another, and shapes that it does not build."""
    model = workload.model
    if not (trainer.trains_modules or trainer.has_own_model):
        yield from module_limits(model, trainer.name)
    if model.code is not None and trainer.trains_modules:
        return  # its code builds it, whatever its shape
    figures = figures_of(model)
    if model.mtp_layers and "mtp_layers" not in trainer.shapes:
        message = f"the trainer {trainer.name} builds no {UNCOMMON_SHAPES['mtp_layers']}"
        remedy = f"use megatron, megatron_bridge, or {OWN_PROGRAM}"
        yield Limit(knob="model.mtp_layers", value=model.mtp_layers, message=message, nearest=0, remedy=remedy)
    if figures is not None and trainer.reads_config_json:
        known = FAMILIES.get(figures.family)  # not of a model that its class was built to describe
        if known is not None and not known.has_class:
            message = f"launches of the trainer {trainer.name} build the class that transformers has for a config.json, and it has none for this one"
            remedy = f"use {who_trains(figures.family)}"
            yield Limit(knob="model.family", value=figures.family, message=message, remedy=remedy)
        return
    who = f"megatron, {OTHERS}" if figures is None else who_trains(figures.family, but=trainer.name)
    if figures is not None and model.source and not trainer.knows(figures.family):
        message = f"the trainer {trainer.name} would train another model than this config.json means; it knows {trainer.known_families}"
        remedy = f"where a plain model of the same sizes will do, give them in the place of the file; else use {who}"
        yield Limit(knob="model.family", value=figures.family, message=message, remedy=remedy)
    for name, what in UNCOMMON_SHAPES.items():
        value = getattr(model, name)
        if value and name not in trainer.shapes and name != "mtp_layers":
            message = f"the trainer {trainer.name} builds no {what}"
            yield Limit(knob=f"model.{name}", value=value, message=message, remedy=f"use {who}")
