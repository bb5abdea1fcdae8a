"""Console commands of libraries, written as the launch of a module that they are.

    trl sft --num_processes 8 --lr 1            accelerate launch --num_processes 8 -m trl.scripts.sft --lr 1
    trl sft --accelerate_config zero2 --lr 1    accelerate launch --num_processes 8 --use_deepspeed --zero_stage 2 -m trl.scripts.sft --lr 1
    NPROC_PER_NODE=8 swift sft --lr 1           NPROC_PER_NODE=8 torchrun --nproc-per-node 8 -m swift.cli.sft --lr 1

Of TRL 1.16 (`trl/cli`) and ms-swift 4 (`swift/cli/main.py`), which starts one process where neither `NPROC_PER_NODE` nor `NNODES` is set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

_MODULES: Mapping[str, str] = {
    **{f"trl {name}": f"trl.scripts.{name}" for name in ("sft", "dpo")},
    **{f"swift {name}": f"swift.cli.{name}" for name in ("sft", "pt")},
}
SWIFT = frozenset(module for module in _MODULES.values() if module.startswith("swift."))
RANKS_OF_SWIFT = "NPROC_PER_NODE"
"""the variable that says how many ranks of a node ms-swift starts"""
_OF_ACCELERATE = re.compile(
    r"--(num_processes|num_machines|machine_rank|main_process_ip|main_process_port|mixed_precision)"
)


def as_module(words: Sequence[str]) -> list[str]:
    """The command with a library's console command replaced by the launch of its module; any other as it is."""
    for at, (word, following) in enumerate(pairwise(words)):
        module = _MODULES.get(f"{word.rpartition('/')[2]} {following}")
        if module is not None:
            before, behind = list(words[:at]), list(words[at + 2 :])
            if module in SWIFT:
                return [*before, "torchrun", "-m", module, *behind]
            of_launcher, of_program = _parted(behind)
            return [*before, "accelerate", "launch", *of_launcher, "-m", module, *of_program]
    return list(words)


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words behind TRL's command: (accelerate's, its program's)."""
    of_launcher: list[str] = []
    of_program: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, sign, value = word.partition("=")
        if name == "--accelerate_config":
            if not sign:
                value = queue.pop(0) if queue else ""
            # what the command says itself comes last, and counts
            of_launcher = [
                *_of_config(value),
                *of_launcher,
            ]
        elif _OF_ACCELERATE.fullmatch(name):
            of_launcher += [word] if sign else [word, *queue[:1]]
            del queue[: 0 if sign else 1]
        else:
            of_program.append(word)
    return of_launcher, of_program


def _of_config(name: str) -> list[str]:
    """accelerate's options for what `--accelerate_config` names: one of the configurations that TRL ships, or a file."""
    from autotune.trainers.trl.launchers import ACCELERATE

    if name not in ACCELERATE:
        return ["--config_file", name]
    stage, ranks = ACCELERATE[name]
    by_deepspeed = ["--use_deepspeed", "--zero_stage", str(stage)]
    shards = ["--use_fsdp"] if name.startswith("fsdp") else by_deepspeed
    return ["--num_processes", str(ranks), *(shards if stage else [])]
