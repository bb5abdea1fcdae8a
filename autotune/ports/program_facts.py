"""What the probe's facts of a program say in the words of a spec: number format, optimizer, ZeRO
stage, recomputation, compilation.

Each is None where the facts do not tell it: fp8 kernels, recomputation within compiled code, an
optimizer whose memory autotune does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from autotune.spec import FIELDS

RECOMPUTED = 0.02
"""share of the modules' calls that are repeated within backward passes, above which something is
recomputed"""
MOSTLY = 0.5
"""the same, above which whole blocks are"""
NARROW = ("fp8", "mxfp8", "nvfp4")
"""number formats whose kernels no type of a weight tells"""
_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_OPTIMIZERS = (
    ("adamw_8bit", ("8bit",)),
    ("adafactor", ("adafactor",)),
    ("muon", ("muon",)),
    ("adamw", ("adam",)),
    ("sgd", ("sgd",)),
)
"""by what the name of an optimizer's class holds, in lower case; the first one counts"""
_DEGREES = ("tp", "pp", "cp", "ep")


@final
@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The facts of one process that trains."""

    values: Mapping[str, Any]
    """as the probe reports them"""

    @property
    def world(self) -> int:
        """Processes that train together."""
        return int(self.values.get("world") or 1)

    @property
    def parameters(self) -> int | None:
        """Weights of the whole model."""
        found = self.values.get("parameters")
        return int(found) if found is not None and self.values.get("stages", 1) == 1 else None

    @property
    def weights(self) -> str:
        """The format of most weights; empty if not observed."""
        types = self.values.get("types") or self.values.get("stepped_types") or {}
        return _format(max(types, key=lambda name: types[name])) if types else ""

    @property
    def computes(self) -> str:
        """The format that it computes in, where something other than its weights' says so:
        autocast, or FSDP's mixed precision."""
        return _TYPES.get(self.values.get("autocast", ""), "") or _TYPES.get(
            self.values.get("sharded_type", ""), ""
        )

    @property
    def precision(self) -> str:
        """The precision; empty if not observed."""
        found = self.computes or self.weights
        has_tf32 = (
            self.values.get("device") == "cuda"
            and self.values.get("matmul", "highest") != "highest"
        )
        return "tf32" if found == "fp32" and has_tf32 else found

    @property
    def is_pure_bf16(self) -> bool:
        """Whether weights and what the optimizer steps are in bf16, and nothing in fp32."""
        return self.weights == "bf16" and {
            _format(name) for name in self.values.get("stepped_types", ())
        } == {"bf16"}

    @property
    def optimizers(self) -> str:
        """Classes of its optimizers."""
        return " and ".join(
            str(name).rsplit(".", 1)[-1] for name in self.values.get("optimizers", ())
        )

    @property
    def optimizer(self) -> str | None:
        """The optimizer by the name that `workload.optimizer` has for it; None for one whose memory
        autotune does not know."""
        names = self.optimizers.lower()
        return next(
            (name for name, words in _OPTIMIZERS if any(word in names for word in words)), None
        )

    @property
    def zero_stage(self) -> int | None:
        """The ZeRO stage of the wrapper that shards it; None without a known one."""
        stage = self.values.get("zero_stage")
        return None if stage is None else int(stage)

    @property
    def is_compiled(self) -> bool:
        """Whether its model is compiled."""
        return bool(self.values.get("compiled"))

    @property
    def recomputed(self) -> float:
        """Share of the modules' calls that are repeated within backward passes."""
        return float(self.values.get("recomputed") or 0.0)

    @property
    def recompute(self) -> str | None:
        """None in compiled code, where nothing is called twice to be seen."""
        if self.is_compiled:
            return None
        share = self.recomputed
        if share <= RECOMPUTED:
            return "none"
        return "full" if share > MOSTLY else "selective"

    @property
    def degrees(self) -> dict[str, int]:
        """Degrees above 1 that the program's own meshes tell."""
        told = self.values.get("degrees") or {}
        return {
            name: int(told[name])
            for name in _DEGREES
            if name in FIELDS and int(told.get(name) or 1) > 1
        }


def _format(name: str) -> str:
    return _TYPES.get(name, name)
