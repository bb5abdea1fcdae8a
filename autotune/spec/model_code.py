"""The code that builds a model, where it is not the decoder that ships: a function of the user's, or transformers' own class of a config.json."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCode:
    """Builds an `nn.Module`. Plain values: it crosses process and machine borders as JSON, and the code runs where the model is built."""

    module: str = ""
    """`package.module:function` of the user; empty for transformers' own class of `ModelSpec.source`"""
    args: str = "{}"
    """keyword arguments of the function, as JSON text"""
    folder: str = ""
    """folder from which the module is imported (that of the spec); empty where it is installed"""
    num_parameters: int = 0
    """of the built model; 0 where only its shape is known"""
    has_tensor_plan: bool = False
    """whether it comes with a plan for tensor parallelism"""
    has_pipeline_split: bool = False
    """whether it says where it can be cut into pipeline stages"""
    has_attention: bool = True
    """whether modules in its blocks are called attention, which can be recomputed by themselves"""
    num_cuts: int = 0
    """places where it can be cut: one less than the most stages of a pipeline"""
    guessed: tuple[str, ...] = ()
    """fields of `ModelSpec` that neither the module's config nor its `shapes` tell: they are those of a decoder with as many weights"""
    reads_tokens: bool = True
    """whether it is trained on tokens with their cross entropy; false where the builder brings an input or a loss of its own"""
    fingerprint: str = ""
    """digest of the code, its arguments and the versions of the packages that decide what it builds"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "guessed", tuple(self.guessed))
