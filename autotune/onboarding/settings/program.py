"""Programs that are started with a file of settings, any of which their command overrides:
LLaMA-Factory and axolotl.

    torchrun -m llamafactory.launcher sft.yaml per_device_train_batch_size=2 ...
    torchrun -m axolotl.cli.train sft.yml --micro_batch_size=2 ...

The file stays as it is. What the file alone decides (number format, sharding, degrees) is fixed.
LLaMA-Factory is three programs by its file: its own trainer, Megatron Core's (USE_MCA=1), and the
trainer of its next version (USE_V1=1). Facts of the programs: LLaMA-Factory 0.9.5 (hparams/,
v1/config/), axolotl 0.21 (cli/train.py, cli/config.py, utils/schemas/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    also: frozenset[str] = frozenset()
    """keys of which its file has one beside them; empty where the marks tell enough"""
    others: frozenset[str] = frozenset()
    """keys by which its file says that nothing is trained"""
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
    upcast: bool | None = None
    """whether the program casts embeddings and norms to fp32 when weights have 4 bits; None: as PEFT
    does (axolotl: loaders/model.py)"""
    more: tuple[str, ...]
    """settings of every trial"""
    optimizer: str = ""
    """its key"""
    optimizers: tuple[str, ...] = ()
    """flags that put an optimizer in the place of that one"""
    loads_in_bf16: bool = False
    """whether it loads the weights that it trains in the number format of the products (axolotl:
    `torch_dtype`, utils/config/__init__.py)"""
    pure: tuple[str, ...] = ()
    """flags of optimizers with which it keeps the weights in the type of the checkpoint"""
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """keys of what it trains for, with their values for plain training"""
    whole: tuple[str, ...] = ("", "none", "full")
    """values of the kind of adapters with which every weight is trained"""
    precision: str = "fp32"
    """number format where the file does not say"""
    degrees: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """keys of the degrees that its file alone decides, by knob"""
    whole_batch: str = ""
    """its key of the global batch, from which accumulation follows; empty: it has its own"""
    loop: str = ""
    """whose training loop it runs, unless its settings name DeepSpeed; empty: unknown"""
    env: Mapping[str, str] = field(default_factory=dict)
    """variables that make it this program"""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """patterns of its log, where no usual one reads it"""

    @property
    def own(self) -> frozenset[str]:
        """Names of settings of every trial, and of the option by which its command is told its
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
"""the programs by what starts them"""


def settings_program(document: Mapping[str, Any]) -> SettingsProgram | None:
    """The program whose file it is; None for none of these."""
    keys = document.keys()
    return next((p for p in PROGRAMS if p.marks & keys and (not p.also or p.also & keys)), None)
