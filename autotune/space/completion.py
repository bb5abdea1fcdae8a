"""A config as people write it: what they leave out follows from the laws where it can.

dp                   cluster's GPUs / (tp * pp * cp)
accumulation_steps   global_batch_size / (micro_batch_size * dp), of the largest allowed batch that divides
precision            bf16, or fp16 or fp32 where the GPU has no bf16
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from autotune.errors import ConfigError
from autotune.spec import KNOBS, Knob, ParallelConfig, Workload
from autotune.spec.config import knobs_of, unknown_knob


def default_precision(workload: Workload) -> str:
    """What a config computes in when nothing is said: bf16, or the next best that the GPU has."""
    return next(
        (p for p in ("bf16", "fp16", "fp32") if p in workload.cluster.gpu.peak_flops_per_s), "bf16"
    )


def complete(
    workload: Workload, asked: str | Mapping[str, Any], own: Iterable[Knob] = ()
) -> ParallelConfig:
    """The config of `tp=2,pp=1,...`, of `tp2 pp1 ...` (or of a mapping) with dp, accumulation_steps
    and precision derived when they are not given.

    `own`: the study's own knobs; those left out take their defaults. What cannot be derived keeps
    its default: the laws then say what is wrong. Raises `ConfigError` for an unknown knob or value.
    """
    declared = {knob.name: knob for knob in own}
    given = dict(knobs_of(asked, declared) if isinstance(asked, str) else asked)
    inside = given.pop("extra", {})
    if not isinstance(inside, Mapping):
        raise ConfigError(f"extra must map knobs to values, but is {inside!r}", field="extra")
    extra = {**inside, **{name: given.pop(name) for name in declared if name in given}}
    for name, value in extra.items():
        if name not in declared:
            raise unknown_knob(name, {**KNOBS, **declared})
        declared[name].check(value)
        # as it is declared: 1, where a text says 1.0
        extra[name] = declared[name].decode(declared[name].encode(value))
    given["extra"] = {**{name: knob.default for name, knob in declared.items()}, **extra}
    config = ParallelConfig.from_dict({"precision": default_precision(workload), **given})
    if "dp" not in given:
        config = replace(
            config, dp=max(1, workload.cluster.num_gpus // (config.tp * config.pp * config.cp))
        )
    if "accumulation_steps" not in given:
        per_micro_batch = config.micro_batch_size * config.dp
        fitting = [size for size in workload.global_batch_sizes if size % per_micro_batch == 0]
        if fitting:
            config = replace(config, accumulation_steps=max(fitting) // per_micro_batch)
    return config


def filled_in(
    asked: str | Mapping[str, Any], config: ParallelConfig, varying: Collection[str]
) -> str:
    """Which of the `varying` knobs `asked` left out that count in `config`, with the values that
    they got; dp and accumulation_steps follow from the others."""
    own = {name: Knob.own(name, (value,)) for name, value in config.extra.items()}
    given = dict(knobs_of(asked, own) if isinstance(asked, str) else asked)
    said = {"dp", "accumulation_steps", *given, *given.get("extra", {})}
    beside = {name: KNOBS[name].shown_beside if name in KNOBS else "" for name in varying}
    left = [
        name
        for name in varying
        if name not in said and (not beside[name] or config.value(beside[name]) > 1)
    ]
    return ", ".join(f"{name}={({**KNOBS, **own})[name].text(config.value(name))}" for name in left)
