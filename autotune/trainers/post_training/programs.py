"""Programs that post-train, by the words that start them.

verl's are those of 0.9.1 and of its recipes, NeMo-RL's those of commit 7ea279a (examples/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

USUAL: Mapping[str, tuple[str, ...]] = {
    "verl": ("python3", "-m", "verl.trainer.main_ppo"),
    "nemo_rl": ("python", "examples/run_grpo.py"),
    "openrlhf": ("python3", "-m", "openrlhf.cli.train_ppo_ray"),
    "trl": ("trl", "grpo"),
}
"""the words by which launches start the program of a trainer"""
PROGRAMS: Mapping[str, str] = {
    **dict.fromkeys(("verl.trainer.main_ppo", "verl.trainer.main_ppo_sync", "recipe.dapo.main_dapo"), "verl"),
    **dict.fromkeys(("examples/run_grpo.py", "examples/run_vlm_grpo.py", "examples/run_grpo_sliding_puzzle.py"), "nemo_rl"),
    "openrlhf.cli.train_ppo_ray": "openrlhf",
    **dict.fromkeys(("trl grpo", "trl.scripts.grpo", "trl/scripts/grpo.py"), "trl"),
}  # fmt: skip
"""the trainer that reads the configuration of a program; a file is named by the end of its path"""
_APART = "which assigns GPUs to engines with its own keys"
UNREAD: Mapping[str, str] = {
    **{
        f"{package}.one_step_off_policy.{main}": f"verl's one_step_off_policy, {_APART}"
        for package in ("recipe", "verl.experimental")
        for main in ("main_ppo", "async_main_ppo")
    },
    **{
        f"{package}.fully_async_policy.fully_async_main": f"verl's fully_async_policy, {_APART}"
        for package in ("recipe", "verl.experimental")
    },
    "main_ppo_split.py": f"verl's split_placement, {_APART}",
    **{
        f"examples/run_{name}.py": f"NeMo-RL's {what}"
        for name, what in (
            ("dpo", "DPO"),
            ("sft", "SFT"),
            ("vlm_sft", "SFT of vision-language models"),
            ("rm", "reward models"),
            ("ppo", "PPO"),
            ("distillation", "distillation"),
            ("xtoken_off_policy_distillation", "distillation"),
            ("grpo_single_controller", "single controller"),
        )
    },
    **{f"trl {name}": f"TRL's {name}" for name in ("kto", "reward", "rloo")},
}
"""programs of these trainers whose configuration is another, with what they are"""


class Program(NamedTuple):
    """A program that a command starts."""

    name: str
    """a key of PROGRAMS or UNREAD"""
    end: int
    """how many words of the command start it"""


def program_of(words: Sequence[str]) -> Program | None:
    """The program of post-training that a command starts; None where it starts another. Files whose
    name alone says little are NeMo-RL's where their arguments are overrides or a file of YAML."""
    for at, word in enumerate(words):
        for name in (*PROGRAMS, *UNREAD):
            length = len(name.split())
            found = (
                " ".join((word.rpartition("/")[2], *words[at + 1 : at + 2]))
                if length == 2
                else word
            )
            is_file = name.endswith(".py")
            if found == name or (is_file and word.endswith(f"/{name}")):
                behind = words[at + length :]
                if not is_file or "verl" in UNREAD.get(name, "") or _is_told_by_keys(behind):
                    return Program(name, at + length)
    return None


def _is_told_by_keys(words: Sequence[str]) -> bool:
    return not words or any(
        word.partition("=")[0] == "--config" or "." in word.partition("=")[0] for word in words
    )
