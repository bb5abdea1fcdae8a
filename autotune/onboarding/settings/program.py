"""Programs that are configured by a settings file whose values the command can override:
LLaMA-Factory and axolotl.

    torchrun -m llamafactory.launcher sft.yaml per_device_train_batch_size=2 ...
    torchrun -m axolotl.cli.train sft.yml --micro_batch_size=2 ...

Trials do not change the file. Knobs that only the file sets (precision, sharding, degrees) are
fixed. LLaMA-Factory is three programs, by its file: its own trainer, Megatron Core's (USE_MCA=1),
and the trainer of its next version (USE_V1=1). Sources: LLaMA-Factory 0.9.5 (hparams/, v1/config/),
axolotl 0.21 (cli/train.py, cli/config.py, utils/schemas/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsProgram:
    """A program that is configured by a file, and the names of its settings."""

    name: str
    module: str
    """the module that torchrun starts"""
    commands: tuple[str, ...]
    """console commands and modules that users start"""
    marks: frozenset[str]
    """keys that identify a file of this program: it has at least one of them"""
    also: frozenset[str] = frozenset()
    """further keys, at least one of which is required; empty: `marks` are enough"""
    others: frozenset[str] = frozenset()
    """keys that mean that nothing is trained"""
    prefix: str
    """text before the name of a setting on the command line"""
    model: str
    micro_batch_size: tuple[str, int]
    """(key, default)"""
    accumulation_steps: tuple[str, int]
    seq_len: tuple[str, int]
    recompute: tuple[str, Mapping[str, str], str]
    """(key, words by the knob's values, default value of the knob)"""
    peft: tuple[str, str]
    """keys of the kind and of the rank of adapters"""
    upcast: bool | None = None
    """whether the program casts embeddings and norms to fp32 when weights have 4 bits; None: as
    PEFT does (axolotl: loaders/model.py)"""
    more: tuple[str, ...]
    """settings that every trial overrides"""
    optimizer: str = ""
    """key of the optimizer"""
    optimizers: tuple[str, ...] = ()
    """flags that replace that optimizer by another one"""
    loads_in_bf16: bool = False
    """whether trained weights are loaded in the number format of the computation (axolotl:
    `torch_dtype`, utils/config/__init__.py)"""
    pure: tuple[str, ...] = ()
    """flags of optimizers that keep the weights in the checkpoint's dtype"""
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """keys of the training method, with their values for plain training"""
    whole: tuple[str, ...] = ("", "none", "full")
    """kinds of adapters that mean that every weight is trained"""
    precision: str = "fp32"
    """number format if the file sets none"""
    degrees: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """keys of parallel degrees, which only the file sets, by knob"""
    whole_batch: str = ""
    """key of the global batch, from which the accumulation follows; empty: the accumulation has a
    key"""
    loop: str = ""
    """training loop, unless the settings name DeepSpeed; empty: unknown"""
    env: Mapping[str, str] = field(default_factory=dict)
    """environment variables that select this program"""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """patterns of its log, if no built-in format matches"""

    @property
    def own(self) -> frozenset[str]:
        """Names of settings that every trial overrides, and of the command's option for the
        launcher."""
        return frozenset({"launcher", *(word.partition("=")[0] for word in self.more)})


_FACTORY = SettingsProgram(
    name="LLaMA-Factory",
    module="llamafactory.launcher",
    commands=("llamafactory-cli train", "llamafactory.launcher"),
    marks=frozenset({"finetuning_type", "cutoff_len"}),
    others=frozenset({"export_dir", "infer_backend", "do_predict"}),
    prefix="",
    model="model_name_or_path",
    micro_batch_size=("per_device_train_batch_size", 8),
    accumulation_steps=("gradient_accumulation_steps", 1),
    seq_len=("cutoff_len", 2048),
    recompute=("disable_gradient_checkpointing", {"full": "false", "none": "true"}, "full"),
    peft=("finetuning_type", "lora_rank"),
    upcast=False,  # model/model_utils/checkpointing.py
    more=("max_steps={steps}", "logging_steps=1", "save_strategy='no'", "plot_loss=false"),
    optimizer="optim",
    optimizers=("use_muon", "use_galore", "use_apollo", "use_badam", "use_adam_mini"),
    pure=("use_badam",),
    methods={"stage": ("pt", "sft")},
    loop="hf_trainer",
)
PROGRAMS = (
    replace(
        _FACTORY,
        name="LLaMA-Factory with Megatron Core",
        commands=(),
        also=frozenset(
            {
                "tensor_model_parallel_size",
                "pipeline_model_parallel_size",
                "expert_model_parallel_size",
            }
        ),
        recompute=(
            "recompute_granularity",
            {"none": "null", "selective": "selective", "full": "full"},
            "none",
        ),
        degrees={
            "tp": ("tensor_model_parallel_size",),
            "pp": ("pipeline_model_parallel_size",),
            "cp": ("context_parallel_size",),
            "ep": ("expert_model_parallel_size",),
        },
        loop="megatron",
        env={"USE_MCA": "1"},
    ),
    replace(
        _FACTORY,
        name="LLaMA-Factory's next version",
        module="llamafactory.v1.launcher",
        commands=("llamafactory-cli sft", "llamafactory.v1.launcher"),
        marks=frozenset({"dist_config", "model_class", "batching_strategy"}),
        model="model",
        micro_batch_size=("micro_batch_size", 1),
        whole_batch="global_batch_size",
        recompute=("enable_activation_checkpointing", {"full": "true", "none": "false"}, "full"),
        peft=("peft_config.name", "peft_config.r"),
        more=("max_steps={steps}", "logging_steps=1"),
        optimizer="optim_config.name",
        optimizers=(),
        precision="bf16",
        degrees={"cp": ("dist_config.cp_size",)},
        loop="",
        env={"USE_V1": "1"},
        metrics={
            "loss": "loss: ([0-9.]+)",
            "grad_norm": "grad_norm: ([0-9.]+)",
            "step": "step: ([0-9]+)",
        },
    ),
    _FACTORY,
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
        optimizer="optimizer",
        methods={"rl": (), "reward_model": (), "process_reward_model": ()},
        precision="bf16",
        loads_in_bf16=True,
        degrees={
            "tp": ("tensor_parallel_size",),
            "cp": ("context_parallel_size", "sequence_parallel_degree"),
            "ep": ("expert_parallel_size",),
            "dp_replicas": ("dp_replicate_size",),
        },
        loop="hf_trainer",
    ),
)


COMMANDS = {command: program for program in PROGRAMS for command in program.commands}
"""programs by their commands"""


def settings_program(document: Mapping[str, Any]) -> SettingsProgram | None:
    """The program that the settings belong to; None if they are no known program's."""
    keys = document.keys()
    return next((p for p in PROGRAMS if p.marks & keys and (not p.also or p.also & keys)), None)
