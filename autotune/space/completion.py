"""Derives the knobs that a written config leaves out.

dp                   the cluster's GPUs / (tp * pp * cp)
accumulation_steps   global_batch_size / (micro_batch_size * dp), with the largest allowed batch that is divisible
precision            bf16, or fp16 or fp32 if the GPU has no bf16
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from autotune.errors import ConfigError
from autotune.spec import KNOBS, Knob, ParallelConfig, Workload
from autotune.spec.config import knobs_of, unknown_knob


def default_precision(workload: Workload) -> str:
    """The default precision: the first of bf16, fp16 and fp32 that the GPU supports."""
    return next(
        (p for p in ("bf16", "fp16", "fp32") if p in workload.cluster.gpu.peak_flops_per_s), "bf16"
    )


def complete(
    workload: Workload, asked: str | Mapping[str, Any], own: Iterable[Knob] = ()
) -> ParallelConfig:
    """Parse a config from `tp=2,pp=1,...`, `tp2 pp1 ...` or a mapping, and derive dp,
    accumulation_steps and precision if they are not given.

    `own`: the study's own knobs, which default to their first value. A knob that cannot be derived
    keeps its default, and a later check of the rules names the error. Raises `ConfigError` for an
    unknown knob or value.
    """
    declared = {knob.name: knob for knob in own}
    given = dict(knobs_of(asked, declared) if isinstance(asked, str) else asked)
    given_extra = given.pop("extra", {})
    if not isinstance(given_extra, Mapping):
        raise ConfigError(f"extra must map knobs to values, but is {given_extra!r}", field="extra")
    extra = {**given_extra, **{name: given.pop(name) for name in declared if name in given}}
    for name, value in extra.items():
        if name not in declared:
            raise unknown_knob(name, {**KNOBS, **declared})
        declared[name].check(value)
        # normalize to the declared type: 1.0 in a text is 1
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
    """The `varying` knobs that `asked` does not set, with their values in `config`, as text. Without
    dp and accumulation_steps, which are derived, and knobs that have no effect in this config."""
    own = {name: Knob.own(name, (value,)) for name, value in config.extra.items()}
    given = dict(knobs_of(asked, own) if isinstance(asked, str) else asked)
    is_set = {"dp", "accumulation_steps", *given, *given.get("extra", {})}
    knobs = {**KNOBS, **own}

    def counts(name: str) -> bool:
        depends_on = KNOBS[name].shown_beside if name in KNOBS else ""
        return not depends_on or config.value(depends_on) > 1

    filled = [name for name in varying if name not in is_set and counts(name)]
    return ", ".join(f"{name}={knobs[name].text(config.value(name))}" for name in filled)
