"""Programs that are started with a file of settings, any of which their command overrides: LLaMA-Factory and axolotl.

    torchrun -m llamafactory.launcher sft.yaml per_device_train_batch_size=2 ...
    torchrun -m axolotl.cli.train sft.yml --micro_batch_size=2 ...

The file stays as it is. What the file alone decides (number format, sharding) is fixed. Facts of the programs: LLaMA-Factory 0.9.5 (hparams/parser.py),
axolotl 0.21 (cli/train.py, cli/config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsProgram:
    """A program that is told by a file, and the names of its settings."""

    name: str
    module: str
    """what torchrun starts"""
    commands: tuple[str, ...]
    """what people start"""
    marks: frozenset[str]
    """keys of which a file of this program has one, and files of others none"""
    prefix: str
    """before the name of a setting in the command"""
    model: str
    micro_batch_size: tuple[str, int]
    """its key, and its value where the file does not say"""
    accumulation_steps: tuple[str, int]
    seq_len: tuple[str, int]
    recompute: tuple[str, Mapping[str, str], str]
    """key, its words by the knob's values, and the knob's value where the file does not say"""
    peft: tuple[str, str]
    """keys of the kind and of the rank of adapters"""
    more: tuple[str, ...]
    """settings of every trial"""

    @property
    def own(self) -> frozenset[str]:
        """Names of settings of every trial, and of the option by which its command is told its launcher."""
        return frozenset({"launcher", *(word.partition("=")[0] for word in self.more)})


PROGRAMS = (
    SettingsProgram(
        name="LLaMA-Factory",
        module="llamafactory.launcher",
        commands=("llamafactory-cli train", "llamafactory.launcher"),
        marks=frozenset({"finetuning_type", "cutoff_len"}),
        prefix="",
        model="model_name_or_path",
        micro_batch_size=("per_device_train_batch_size", 8),
        accumulation_steps=("gradient_accumulation_steps", 1),
        seq_len=("cutoff_len", 2048),
        recompute=("disable_gradient_checkpointing", {"full": "false", "none": "true"}, "full"),
        peft=("finetuning_type", "lora_rank"),
        more=("max_steps={steps}", "logging_steps=1", "save_strategy='no'", "plot_loss=false"),
    ),
    SettingsProgram(
        name="axolotl",
        module="axolotl.cli.train",
        commands=("axolotl train", "axolotl.cli.train"),
        marks=frozenset({"base_model", "sample_packing", "sequence_len"}),
        prefix="--",
        model="base_model",
        micro_batch_size=("micro_batch_size", 1),
        accumulation_steps=("gradient_accumulation_steps", 1),
        seq_len=("sequence_len", 512),
        recompute=("gradient_checkpointing", {"none": "False", "full": "True"}, "none"),
        peft=("adapter", "lora_r"),
        more=("max_steps={steps}", "logging_steps=1"),
    ),
)


COMMANDS = {command: program for program in PROGRAMS for command in program.commands}
"""the programs by what starts them"""


def settings_program(document: Mapping[str, Any]) -> SettingsProgram | None:
    """The program whose file it is; None for none of these."""
    return next((program for program in PROGRAMS if program.marks & document.keys()), None)
