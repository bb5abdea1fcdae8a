"""What Accelerate is told outside of GRPOConfig: `--accelerate_config`, DeepSpeed's file, and the
flags of `accelerate launch`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.accelerate.read import sharding_and_ranks
from autotune.trainers.post_training.programs import USUAL, Program
from autotune.trainers.present_configuration import KeyReader, flags_of, flat, parse_document
from autotune.trainers.trl.knobs import SETTINGS_FILE, accelerate_config

ACCELERATE: Mapping[str, tuple[int, int]] = {
    **{f"zero{stage}": (stage, 8) for stage in (1, 2, 3)},
    **{f"fsdp{version}": (3, 8) for version in (1, 2)},
    "multi_gpu": (0, 8),
    "single_gpu": (0, 1),
}
"""(ZeRO stage, ranks) of what `--accelerate_config` names (trl/accelerate_configs)"""

LAUNCHERS_FILES = ("accelerate_config", "deepspeed")
"""keys and flags that may name a file which tells Accelerate how to shard"""
LAUNCHER = {
    "config_file": "accelerate_config",
    "num_processes": "num_processes",
    "num_machines": "num_machines",
}
"""flags of `accelerate launch`, by `trl grpo`'s names for them"""
OF_ONE_MACHINE = frozenset(
    {
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "mixed_precision",
        "multi_gpu",
        "gpu_ids",
        "rdzv_backend",
    }
)
"""flags of `accelerate launch` that a launch writes itself, or that the program's own arguments
decide"""


@dataclass(frozen=True, slots=True)
class Launched:
    """How Accelerate shards the model, as it is told outside of GRPOConfig's own `fsdp`."""

    engine: str | None = None
    """None: the usual one"""
    stage: int = 0
    """of ZeRO"""
    ranks: int | None = None
    is_held: bool = False
    """whether a file decides it that launches do not write"""
    missing: tuple[str, ...] = ()
    """that file, where it was not there"""


def read_launched(keys: KeyReader) -> Launched:
    launcher, of_deepspeed = keys.find("accelerate_config"), keys.find("deepspeed")
    keys.drop("accelerate_config", "deepspeed")
    if isinstance(of_deepspeed, Mapping):
        inner = of_deepspeed.get("zero_optimization")
        stage = int(inner.get("stage", 0)) if isinstance(inner, Mapping) else 0
        keys.remarks.append(
            f"{keys.name}: exports use TRL's own {accelerate_config(stage)} instead of deepspeed"
        )
        keys.remarks += _not_counted("deepspeed", of_deepspeed)
        return Launched("deepspeed", stage, is_held=True)
    if isinstance(launcher, Mapping):
        kind, stage = launcher["kind"], launcher["stage"]
        if kind not in ("DEEPSPEED", "FSDP"):
            return Launched()
        instead = (
            f"TRL's own {accelerate_config(stage)}"
            if kind == "DEEPSPEED"
            else f"FSDP2 in {SETTINGS_FILE}"
        )
        keys.remarks.append(
            f"{keys.name}: exports use {instead} instead of accelerate_config={launcher['file']}"
        )
        keys.remarks += _not_counted(launcher["file"], launcher["document"])
        return Launched("deepspeed" if kind == "DEEPSPEED" else None, stage, is_held=True)
    if launcher in ACCELERATE:
        stage, ranks = ACCELERATE[launcher]
        if launcher.startswith("zero"):
            return Launched("deepspeed", stage, ranks)
        if stage:
            keys.remarks.append(
                f"{keys.name}: exports use FSDP2 in {SETTINGS_FILE} instead of accelerate_config={launcher}"
            )
        return Launched(None, stage, ranks, is_held=stage > 0)
    named = launcher or of_deepspeed
    return Launched(is_held=True, missing=(str(named),)) if named else Launched()


def _not_counted(file: str, document: Mapping[str, Any]) -> Iterator[str]:
    """What a file keeps in host memory, in words: launches do not, and plans count it on the
    GPU."""
    away = [
        path
        for path, value in flat(document)
        if "offload" in path and value in (True, "cpu", "nvme")
    ]
    if away:
        yield f"{file}: plans ignore {', '.join(away)} and assume that everything is on the GPU, so the launch may need less memory and more time"


def with_launchers(document: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """A configuration with the contents of the files that tell Accelerate how to shard, in place of
    their names."""
    found = dict(document)
    launcher, of_deepspeed = (os.path.normpath(str(found.get(key, ""))) for key in LAUNCHERS_FILES)
    if launcher in files:
        kind, stage, ranks = sharding_and_ranks(launcher, files[launcher])
        document = parse_document(launcher, files[launcher])
        found["accelerate_config"] = {
            "file": launcher,
            "kind": kind,
            "stage": stage,
            "document": document,
        }
        found = {"num_processes": ranks} | found if ranks else found
    if of_deepspeed in files:
        found["deepspeed"] = parse_document(of_deepspeed, files[of_deepspeed])
    return found


def as_trl_grpo(words: Sequence[str], program: Program) -> tuple[str, ...]:
    """`accelerate launch ... -m trl.scripts.grpo ...` as `trl grpo`, which starts Accelerate
    itself.

    Raises `SpecError` for flags of the launcher that decide how it trains and are not read.
    """
    behind = tuple(words[program.end :])
    before = [word for word in words[: program.end - 1] if word not in ("-m", "--module")]
    told = {name.replace("-", "_"): value for name, value in flags_of(before).items()}
    if unread := sorted(told.keys() - LAUNCHER.keys() - OF_ONE_MACHINE):
        raise SpecError(
            f"accelerate launch has --{', --'.join(unread)}, which autotune does not support",
            remedy="set this option in the --config_file",
            field="FILE",
        )
    known = [(LAUNCHER[name], value) for name, value in told.items() if name in LAUNCHER]
    read = [word for name, value in known for word in (f"--{name}", str(value))]
    return (*USUAL["trl"], *behind, *read)
