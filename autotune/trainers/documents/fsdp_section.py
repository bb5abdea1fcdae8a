"""Reads `fsdp_config` of transformers, TRL and Accelerate, which a launch writes anew."""

from __future__ import annotations

from typing import Any

from autotune.spec.texts.fsdp import STAGE_KEYS, Fsdp, fsdp_of, stage_of
from autotune.trainers.present_configuration import KeyReader

_WRITTEN_ANEW = ("version", "transformer_layer_cls_to_wrap", "activation_checkpointing")


def read_fsdp_section(keys: KeyReader, fsdp: Any) -> Fsdp | None:
    """What `fsdp` and the section `fsdp_config` do; None if `fsdp` is off. Keys that a launch
    writes anew count as read. A strategy that FSDP does not have is remarked on."""
    found = fsdp_of(fsdp, keys.find("fsdp_config"))
    if found is not None:
        for prefix in ("fsdp_config.", "fsdp_config.fsdp_"):
            keys.drop(*(prefix + key for key in (*_WRITTEN_ANEW, *STAGE_KEYS)))
            for path in (prefix + key for key in STAGE_KEYS):
                if (value := keys.find(path)) is not None and stage_of(value) is None:
                    keys.remarks.append(
                        f"{keys.name}: {path}={value!r:.60} is not a sharding strategy of FSDP, so ZeRO stage {found.zero_stage} is assumed"
                    )
    return found
