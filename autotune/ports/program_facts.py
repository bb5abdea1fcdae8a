"""Translates the probe's observations of a program to settings of a spec: precision, optimizer, ZeRO
stage, recomputation, compilation.

A setting is None if it cannot be observed (fp8 kernels, recomputation within compiled code) or is
unknown to autotune (an optimizer with unknown memory).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from autotune.spec import FIELDS

RECOMPUTED = 0.02
"""share of module calls repeated in backward passes above which recomputation is selective"""
MOSTLY = 0.5
"""share above which recomputation is full"""
NARROW = ("fp8", "mxfp8", "nvfp4")
"""precisions that the types of weights do not show"""
_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_OPTIMIZERS = (
    ("adamw_8bit", ("8bit",)),
    ("adafactor", ("adafactor",)),
    ("muon", ("muon",)),
    ("adamw", ("adam",)),
    ("sgd", ("sgd",)),
)
"""optimizers of specs, with parts of their lower-case class names; the first match counts"""
_DEGREES = ("tp", "pp", "cp", "ep")


@final
@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """Observations of one training process."""

    values: Mapping[str, Any]
    """the probe's report of kind `facts`"""

    @property
    def world(self) -> int:
        """Number of processes that train together."""
        return int(self.values.get("world") or 1)

    @property
    def parameters(self) -> int | None:
        """Number of weights of the whole model; None if unknown, also if ranks have different parts of
        it."""
        count = self.values.get("parameters")
        return int(count) if count is not None and not self.is_split else None

    @property
    def is_split(self) -> bool:
        """Whether the weights of ranks differ after a step, although no library shards them."""
        return bool(self.values.get("is_split"))

    @property
    def trained(self) -> int | None:
        """Number of weights that are trained; None if unknown, as `parameters`."""
        count = self.values.get("trainable")
        return int(count) if count is not None and self.parameters is not None else None

    @property
    def weights(self) -> str:
        """Precision of most weights; empty if not observed."""
        types = self.values.get("types") or self.values.get("stepped_types") or {}
        return _precision_of_type(max(types, key=lambda name: types[name])) if types else ""

    @property
    def computes(self) -> str:
        """Precision of autocast or of FSDP's mixed precision; empty without either."""
        return _TYPES.get(self.values.get("autocast", ""), "") or _TYPES.get(
            self.values.get("sharded_type", ""), ""
        )

    @property
    def precision(self) -> str:
        """Precision of the computation; empty if not observed."""
        observed = self.computes or self.weights
        has_tf32 = (
            self.values.get("device") == "cuda"
            and self.values.get("matmul", "highest") != "highest"
        )
        return "tf32" if observed == "fp32" and has_tf32 else observed

    @property
    def is_pure_bf16(self) -> bool:
        """Whether the weights and all tensors that the optimizer updates are in bf16."""
        return self.weights == "bf16" and {
            _precision_of_type(name) for name in self.values.get("stepped_types", ())
        } == {"bf16"}

    @property
    def optimizers(self) -> str:
        """Class names of its optimizers, as text."""
        return " and ".join(
            str(name).rsplit(".", 1)[-1] for name in self.values.get("optimizers", ())
        )

    @property
    def optimizer(self) -> str | None:
        """The optimizer as named in `workload.optimizer`; None for an unknown one."""
        names = self.optimizers.lower()
        return next(
            (name for name, words in _OPTIMIZERS if any(word in names for word in words)), None
        )

    @property
    def zero_stage(self) -> int | None:
        """ZeRO stage of the wrapper that shards the model, or of torch's sharded optimizer; None
        without either."""
        stage = self.values.get("zero_stage")
        is_sharded = not stage and "ZeroRedundancyOptimizer" in self.optimizers
        return None if stage is None and not is_sharded else int(stage or is_sharded)

    @property
    def is_compiled(self) -> bool:
        """Whether the model is compiled."""
        return bool(self.values.get("compiled"))

    @property
    def recomputed(self) -> float:
        """Share of module calls that are repeated in backward passes."""
        return float(self.values.get("recomputed") or 0.0)

    @property
    def recompute(self) -> str | None:
        """none, selective or full; None in compiled code, where repeated calls are not observed."""
        if self.is_compiled:
            return None
        share = self.recomputed
        if share <= RECOMPUTED:
            return "none"
        return "full" if share > MOSTLY else "selective"

    @property
    def degrees(self) -> dict[str, int]:
        """Degrees above 1 of the program's device meshes."""
        observed = self.values.get("degrees") or {}
        return {
            name: int(observed[name])
            for name in _DEGREES
            if name in FIELDS and int(observed.get(name) or 1) > 1
        }


def _precision_of_type(name: str) -> str:
    return _TYPES.get(name, name)
