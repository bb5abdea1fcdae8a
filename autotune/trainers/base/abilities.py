"""What a trainer can train: models, optimizers, adapters and data. Each trainer declares its
abilities, and `workload_limits` compares them with a workload."""

from __future__ import annotations

from typing import ClassVar

UNCOMMON_SHAPES = {
    "num_dense_layers": "model with experts in only some layers",
    "shared_ffn_hidden_size": "shared experts",
    "kv_lora_rank": "latent attention",
    "mtp_layers": "multi-token prediction layers",
}
"""Fields of `ModelSpec` that are set only for models that most trainers cannot build, with a
description."""


class Abilities:
    """What a trainer declares about itself. Undeclared abilities count as unsupported."""

    name: ClassVar[str]
    """its registered name"""
    optimizers: ClassVar[frozenset[str]] = frozenset({"adamw", "sgd"})
    """supported values of `Workload.optimizer`"""
    packs_documents: ClassVar[bool] = False
    """whether it supports sequences packed from documents that do not attend to each other
    (`Workload.document_len`)"""
    peft_methods: ClassVar[frozenset[str]] = frozenset()
    """supported methods of `Workload.peft`"""
    trains_pure_bf16: ClassVar[bool] = False
    """whether it supports weights, gradients and moments all in bf16 (`Workload.pure_bf16`)"""
    runs_own_program: ClassVar[bool] = False
    """whether the training loop is the user's own (`Workload.loop`)"""
    loop: ClassVar[str] = ""
    """the training loop that it runs, one of `autotune.spec.workload.LOOPS`, whose memory and times
    the cost model uses. Empty: its own loop, or an unknown one; the cost model then uses the facts
    of the native loop, and reports that"""
    has_unfused_attention: ClassVar[bool] = False
    """whether it can store the attention scores (`Workload.unfused_attention`)"""
    has_own_attention: ClassVar[bool] = False
    """whether the trainer, not the user, chooses the attention kernel
    (`Workload.attention_kernel`)"""
    trains_rl: ClassVar[bool] = False
    """whether it supports post-training steps or sequences of unequal length (`Workload.rl`)"""
    no_adapters: ClassVar[str] = "its launches do not set up adapters"
    """why it does not support other adapters"""

    shapes: ClassVar[frozenset[str]] = frozenset()
    """fields of `ModelSpec` among `UNCOMMON_SHAPES` that it can train"""

    trains_modules: ClassVar[bool] = False
    """whether it trains the module that a user's builder returns (`model: {module: ...}`)"""
    reads_config_json: ClassVar[bool] = False
    """whether it builds the model from the user's config.json, if there is one"""
    families: ClassVar[frozenset[str] | None] = None
    """values of `model_type` that it trains exactly as the config.json describes; None if it trains
    every family by its shape"""

    rotary_scalings: ClassVar[frozenset[str]] = frozenset()
    """kinds of rotary scaling in a config.json that launches pass on, if it does not read the file
    itself"""
    rotary_remedy: ClassVar[str] = "set it in the trainer"
    """the remedy for other kinds"""

    @property
    def has_own_model(self) -> bool:
        """Whether the trainer's program builds its own model, for any shape and family."""
        return self.families is None and UNCOMMON_SHAPES.keys() <= self.shapes

    def knows(self, family: str) -> bool:
        """Whether the trainer trains models of this `model_type` exactly as their config.json
        describes."""
        return self.families is None or family in self.families

    @property
    def known_families(self) -> str:
        """The families that it reproduces exactly, as text."""
        return ", ".join(sorted(self.families or ()))
