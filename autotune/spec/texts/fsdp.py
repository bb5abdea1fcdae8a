"""Settings of torch's FSDP as ZeRO stages: its sharding strategies, `reshard_after_forward`, and
`fsdp` and `fsdp_config` of transformers' `TrainingArguments`, which Accelerate and axolotl have in
their own files.

Rules of transformers 4 to 5.24 and Accelerate 1.6 (`TrainingArguments._process_fsdp_args`,
`FullyShardedDataParallelPlugin`): `fsdp` is true, or words such as `full_shard auto_wrap`. Keys of
`fsdp_config` may begin with `fsdp_`. `reshard_after_forward` overrides a strategy; FSDP1 has the
strategy under this key, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

_STRATEGIES = {
    "full_shard": 3,
    "shard_grad_op": 2,
    "no_shard": 0,
    "hybrid_shard": 3,
    "hybrid_shard_zero2": 2,
}
"""ZeRO stage by strategy, in the order of Accelerate's numbers, which begin at 1"""
_STAGES = {
    **_STRATEGIES,
    **{str(number): stage for number, stage in enumerate(_STRATEGIES.values(), start=1)},
    "true": 3,
    "false": 2,
}
STAGE_KEYS = ("reshard_after_forward", "sharding_strategy")
"""keys of `fsdp_config` that determine the stage; the first one that is set is used"""
_ON = ("true", "1", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fsdp:
    """The settings of FSDP."""

    zero_stage: int
    """0, 2 or 3"""
    recomputes: bool
    """whether every layer is recomputed"""
    weights_on_host: str
    """the setting that keeps the weights on the host; empty if none does"""


def stage_of(value: Any) -> int | None:
    """Return the ZeRO stage of a sharding strategy (its name in any case, with or without its
    class, Accelerate's number, or an enum member) or of `reshard_after_forward` (a bool or its
    text); None if the value is neither."""
    name = str(value.name if isinstance(value, Enum) else value).rpartition(".")[2]
    return _STAGES.get(name.lower().lstrip("_"))


def fsdp_of(fsdp: Any, fsdp_config: Any) -> Fsdp | None:
    """Return the FSDP settings in `TrainingArguments`; None if `fsdp` is off. `fsdp`: a bool, words
    in a text, or a sequence of words. `fsdp_config`: a mapping; other values are ignored."""
    words = _words(fsdp)
    if not words or words == ["false"]:
        return None
    given = fsdp_config if isinstance(fsdp_config, Mapping) else {}
    config = {str(key).removeprefix("fsdp_"): value for key, value in given.items()}
    stages = (stage_of(value) for value in (*map(config.get, STAGE_KEYS), *words))
    on_host = f"fsdp={fsdp}" if "offload" in words else ""
    for key in ("cpu_offload", "offload_params"):
        if not on_host and _is_on(config.get(key)):
            on_host = f"fsdp_config.{key}"
    return Fsdp(
        zero_stage=next((stage for stage in stages if stage is not None), 3),
        recomputes=_is_on(config.get("activation_checkpointing")),
        weights_on_host=on_host,
    )


def _words(fsdp: Any) -> list[str]:
    """Return the words of `fsdp` in lower case; empty if it is unset."""
    if isinstance(fsdp, str) or not isinstance(fsdp, Iterable):
        return str(fsdp).replace(",", " ").lower().split() if fsdp else []
    return [str(word.value if isinstance(word, Enum) else word).lower() for word in fsdp]


def _is_on(value: Any) -> bool:
    """Return whether a setting is true."""
    return str(value).lower() in _ON
