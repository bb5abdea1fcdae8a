"""TRL's GRPO: `grpo.yaml`, read by `trl grpo --config`.

    per_device_train_batch_size     completions per rank and micro-batch, padded to the longest of them
    steps_per_generation            micro-batches per rank between two generations: accumulation times mini-batches
    num_iterations                  passes over them

Names and defaults are those of GRPOConfig in trl 1.16.0 (trainer/grpo_config.py, base_config.py) and of TrainingArguments in transformers 5; a command's flags count over the file
(cli/commands/training.py). ZeRO 0 is DDP, ZeRO 3 FSDP2, ZeRO 2 FSDP2 that keeps weights gathered; with the engine `deepspeed`, ZeRO 1 to 3 are the files of that name that TRL
brings for Accelerate. Without vLLM the ranks generate by transformers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from autotune.errors import SpecError
from autotune.spec import ParallelConfig, Workload
from autotune.spec.post_training import PostTraining
from autotune.trainers.accelerate.read import sharding_and_ranks
from autotune.trainers.base.effective import word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.documents.file_formats import hf_layer_class
from autotune.trainers.launch_files import FOLDER
from autotune.trainers.logs.formats import parse_loss_dictionary
from autotune.trainers.logs.step_metrics import StepMetrics
from autotune.trainers.post_training.adapters import read_adapters, written_modules
from autotune.trainers.post_training.logs import step_metrics_of
from autotune.trainers.post_training.programs import USUAL, Program, program_of
from autotune.trainers.post_training.trainer import PostTrainer, grid, rl_value, whole_nodes
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    completed,
    flags_of,
    flat,
    merged,
    parse_document,
)

DEFAULTS: Mapping[str, Any] = {
    "beta": 0.0,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": True,
    "learning_rate": 1e-6,
    "logging_steps": 10,
    "lora_r": 16,
    "lora_target_modules": ["q_proj", "v_proj"],  # PEFT's own, of Llama and Qwen
    "loss_type": "dapo",
    "max_completion_length": 512,
    "max_steps": -1,
    "num_generations": 8,
    "num_iterations": 1,
    "output_dir": "trainer_output",
    "per_device_train_batch_size": 8,
    "save_strategy": "steps",
    "seed": 42,
    "use_vllm": False,
    "vllm_enable_sleep_mode": False,
    "vllm_gpu_memory_utilization": 0.3,
    "vllm_mode": "colocate",
    "vllm_tensor_parallel_size": 1,
}
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
"""flags of `accelerate launch` that a launch writes itself, or that the program's own arguments decide"""


class Trl(PostTrainer):
    """Hugging Face's TRL."""

    name = "trl"
    summary = "TRL's GRPO, grpo.yaml for `trl grpo`"
    checked_against = "trl 1.16.0, transformers 5.23.0"
    engines = frozenset({"fsdp", "deepspeed"})
    carried = frozenset({"rollout_tp"})
    reads = frozenset(
        {
            "tp",
            "pp",
            "dp",
            "cp",
            "ep",
            "micro_batch_size",
            "accumulation_steps",
            "precision",
            "recompute",
            "zero_stage",
            "compile",
        }
    )
    cannot = NOT_SET
    neutral: ClassVar = {
        "pp_schedule": "it has no pipeline: pp above 1 is rejected",
        "virtual_stages": "it has no pipeline: pp above 1 is rejected",
        "sequence_parallel": "it has no tensor parallelism: tp above 1 is rejected",
    }
    recognized_by = (
        "per_device_train_batch_size",
        "num_generations",
        "steps_per_generation",
        "max_completion_length",
    )
    defaults = DEFAULTS
    peft_methods = frozenset({"lora"})
    no_adapters = "it does not load 4-bit weights"
    settings_file = "grpo.yaml"
    watching = (
        "output_dir", "max_steps", "num_train_epochs", "logging_*", "save_*", "load_best_model_at_end", "eval_*", "do_eval", "report_to", "run_name", "push_to_hub", "hub_*",
    )  # fmt: skip

    def engine_limits(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig
    ) -> Sequence[Limit]:
        """Data parallelism and sharding alone, and no engines of their own."""
        alone = "GRPOTrainer only uses data parallelism and sharding"
        generating, tokens = rl_value(rl, c, "rollout_gpus"), rl_value(rl, c, "micro_batch_tokens")
        return (
            *broken(
                workload,
                c,
                Rule(c.tp > 1, "tp", alone),
                Rule(c.pp > 1, "pp", alone),
                Rule(c.cp > 1, "cp", alone),
                Rule(c.ep > 1, "ep", alone, 1),
            ),
            *word_limit(c, "precision", {"fp8": "bf16"}, "GRPOConfig has bf16, fp16 and tf32"),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "it recomputes either whole layers or nothing",
            ),
            *broken(
                workload,
                c,
                Rule(
                    c.zero_stage == 1 and rl.engine == "fsdp",
                    "zero_stage",
                    "its launches shard with FSDP2 (2 or 3), or not at all (0)",
                    2,
                ),
                Rule(
                    rl.algorithm not in ("grpo", "dapo"),
                    "workload.rl.algorithm",
                    "`trl grpo` trains with GRPO and DAPO",
                    value=rl.algorithm,
                ),
                Rule(
                    generating,
                    "rollout_gpus",
                    "a vLLM server must be started separately (`trl vllm-serve`), which a launch of one command cannot do",
                    value=generating,
                ),
                Rule(
                    tokens,
                    "micro_batch_tokens",
                    "its micro-batches are counted in completions",
                    value=tokens,
                ),
            ),
        )

    def command(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> tuple[str, ...]:
        """`trl grpo`, which starts the ranks through Accelerate."""
        start = (
            *USUAL[self.name],
            "--config",
            f"{FOLDER}/{self.settings_file}",
            "--num_processes",
            str(c.world_size),
        )
        nodes, _ = grid(workload, c.world_size)
        return (*start, "--num_machines", str(nodes)) if nodes > 1 else start

    def document(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """By dotted paths."""
        found: dict[str, Any] = {
            "model_name_or_path": options["model"],
            "output_dir": "outputs",
            "max_steps": options["steps"] * rl.steps,
            "per_device_train_batch_size": c.micro_batch_size,
            "gradient_accumulation_steps": c.accumulation_steps,
            "steps_per_generation": c.accumulation_steps * rl.mini_batches,
            "num_generations": rl.responses,
            "num_iterations": rl.epochs,
            "max_completion_length": int(rl.response_lengths.longest),
            "beta": 0.04 if rl.reference else 0.0,
            "loss_type": "dapo" if rl.algorithm == "dapo" else "grpo",
            "learning_rate": options["learning_rate"],
            "seed": options["seed"],
            "bf16": c.precision == "bf16",
            "fp16": c.precision == "fp16",
            "gradient_checkpointing": c.recompute == "full",
            "torch_compile": c.compile,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
        }
        if workload.peft is not None:
            found |= {
                "use_peft": True,
                "lora_r": workload.peft.rank,
                "lora_target_modules": written_modules(workload.peft),
            }
        if workload.cluster.gpu.is_cpu:
            found["use_cpu"] = True
        else:
            found["tf32"] = c.precision == "tf32"
            found |= {
                "use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": rl.rollout is None or rl.rollout.sleeps, "vllm_tensor_parallel_size": int(rl_value(rl, c, "rollout_tp")),
                **({"vllm_gpu_memory_utilization": rl.rollout.memory_fraction} if rl.rollout and rl.rollout.memory_fraction else {}),
            }  # fmt: skip
        if rl.engine == "deepspeed":
            found["accelerate_config"] = _of_trl(c.zero_stage)
        elif c.zero_stage >= 2:
            found |= {
                "fsdp": True, "fsdp_config.version": 2, "fsdp_config.reshard_after_forward": c.zero_stage == 3,
                "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_config.transformer_layer_cls_to_wrap": [hf_layer_class(workload.model)],
            }  # fmt: skip
        return found

    def read_config(self, present: PresentConfiguration) -> Reading:
        """The file, and the ranks: of file or command, else all of a cluster."""
        found = super().read_config(present)
        knobs = completed(found.knobs, ranks=found.knobs.get("dp") or present.ranks_of_cluster)
        rl = {name: value for name, value in found.rl.items() if name not in ("steps", "sequences")}
        micro, accumulation, ranks = (
            knobs["micro_batch_size"],
            knobs["accumulation_steps"],
            knobs.get("dp"),
        )
        # of a step; else so many micro-batches of each rank
        batch, sequences = (
            None,
            found.rl.get("sequences"),
        )
        if ranks:
            batch, sequences = (
                micro * accumulation * ranks,
                sequences or micro * found.rl["steps"] * ranks,
            )
            rl |= {
                "prompts": max(sequences // rl["responses"], 1),
                "mini_batches": max(sequences // batch, 1),
            }
        return replace(found, knobs=knobs, global_batch_size=batch, rl=rl)

    def present_document(self, present: PresentConfiguration) -> tuple[str, dict[str, Any]]:
        """The file, over which the flags of the command count."""
        words = self.words(present)
        program = program_of(words)
        flags = flags_of(words[program.end :] if program else words)
        named = flags.pop("config", "")
        launcher = os.path.normpath(str(flags.get("accelerate_config", "")))
        name = next(
            (
                name
                for name in present.files
                if name.endswith((".yaml", ".yml")) and name != launcher
            ),
            "",
        )
        if not name and not flags:
            name, _ = present.named(".yaml", ".yml")
        document = parse_document(name, present.files[name]) if name else {}
        told = {
            key: {"true": True, "false": False}.get(str(value).lower(), value)
            for key, value in flags.items()
        }
        return name or named or "the command", _with_launchers(
            merged(document, told), present.files
        )

    def read_keys(self, keys: KeyReader) -> Reading:
        """GRPOConfig."""
        keys.drop(
            "use_cpu",
            "num_machines",
            "fsdp_config.version",
            "fsdp_config.transformer_layer_cls_to_wrap",
            "fsdp_config.auto_wrap_policy",
        )
        flags = {word: keys.flag(word) for word in ("fp16", "bf16", "tf32")}
        flags["bf16"] = not flags["fp16"] if flags["bf16"] is None else flags["bf16"]
        shards, kept = keys.find("fsdp"), keys.flag("fsdp_config.reshard_after_forward")
        launched = _launched(keys)
        stage = launched.stage
        keys.drop("fsdp")
        if shards:
            stage = 2 if kept is False or "grad_op" in str(shards) else 3
        processes = keys.count("num_processes") or launched.ranks  # those of all machines
        machines = keys.count("num_machines") or 1
        accumulation = keys.count("gradient_accumulation_steps")
        steps = keys.count("steps_per_generation") or accumulation
        beta, response, loss = (
            keys.number("beta"),
            keys.count("max_completion_length"),
            keys.text("loss_type"),
        )
        algorithm = "dapo" if loss == "dapo" else "grpo"
        keys.keep_unless("loss_type", algorithm)
        generates_by_vllm = keys.keep_unless("use_vllm", True)
        is_server = keys.keep_unless("vllm_mode", "colocate") == "server" and generates_by_vllm
        if is_server:
            keys.remarks.append(
                f"{keys.name}: vllm_mode=server: the vLLM server runs on GPUs outside this launch and must "
                f"be running during trials; "
                "plans only count its speed"
            )
        knobs = {
            "dp": processes,
            "micro_batch_size": keys.count("per_device_train_batch_size"),
            "accumulation_steps": accumulation,
            "precision": next((word for word, on in flags.items() if on), "fp32"),
            "recompute": "full" if keys.flag("gradient_checkpointing") else "none",
            "compile": keys.flag("torch_compile") or False,
            "zero_stage": stage,
        }
        rl = {
            "algorithm": algorithm, "engine": launched.engine, "responses": keys.count("num_generations"), "epochs": keys.count("num_iterations"), "reference": bool(beta),
            "response_lengths": response, "steps": steps, "sequences": keys.count("generation_batch_size"),
        }  # fmt: skip
        tp, share = (
            keys.count("vllm_tensor_parallel_size"),
            keys.number("vllm_gpu_memory_utilization"),
        )
        sleeps = keys.flag("vllm_enable_sleep_mode")
        rollout: dict[str, Any] = {"tp": 1}
        if generates_by_vllm and not is_server:
            rollout = {"tp": tp, "memory_fraction": share, **({} if sleeps else {"sleeps": False})}
        path = keys.text("model_name_or_path")
        options = {
            "model": path,
            "learning_rate": keys.number("learning_rate"),
            "seed": keys.count("seed"),
        }
        keys.keep("beta")
        for path in (
            "seed",
            "logging_steps",
            "max_steps",
            "output_dir",
            "save_strategy",
        ):  # what launches write otherwise
            keys.keep_unless(path, None)
        adapters = keys.count("lora_r") if keys.flag("use_peft") else 0
        modules = keys.keep_unless("lora_target_modules", None) if adapters else None
        if keys.find("load_in_4bit") or keys.find("load_in_8bit"):
            keys.remarks.append(
                "load_in_4bit, load_in_8bit: launches keep them; plans assume 16-bit weights"
            )
        return Reading(
            knobs={name: value for name, value in knobs.items() if value is not None},
            model_file=path or "",
            nodes=whole_nodes(processes // machines if processes else None, processes),
            options=options,
            rl=rl,
            rollout=rollout,
            peft=read_adapters(adapters, modules),
            missing=launched.missing,
            held=frozenset({"zero_stage"} if launched.is_held else ()),
        )

    step_marks = ("{", "'train_samples")

    def parse_line(self, line: str) -> StepMetrics | None:
        """The dictionary of a logged step: its `step_time`, which is that of all micro-batches; else as of any trainer of transformers."""
        return (step_metrics_of(line) if "'step_time'" in line else None) or parse_loss_dictionary(
            line
        )


@dataclass(frozen=True, slots=True)
class _Launched:
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


def _launched(keys: KeyReader) -> _Launched:
    launcher, of_deepspeed = keys.find("accelerate_config"), keys.find("deepspeed")
    keys.drop("accelerate_config", "deepspeed")
    if isinstance(of_deepspeed, Mapping):
        inner = of_deepspeed.get("zero_optimization")
        stage = int(inner.get("stage", 0)) if isinstance(inner, Mapping) else 0
        keys.remarks.append(
            f"{keys.name}: deepspeed: exports use TRL's own {_of_trl(stage)} instead"
        )
        keys.remarks += _not_counted("deepspeed", of_deepspeed)
        return _Launched("deepspeed", stage, is_held=True)
    if isinstance(launcher, Mapping):
        kind, stage = launcher["kind"], launcher["stage"]
        if kind not in ("DEEPSPEED", "FSDP"):
            return _Launched()
        instead = (
            f"TRL's own {_of_trl(stage)}"
            if kind == "DEEPSPEED"
            else f"FSDP2 in {Trl.settings_file}"
        )
        keys.remarks.append(
            f"{keys.name}: accelerate_config={launcher['file']}: exports use {instead} instead"
        )
        keys.remarks += _not_counted(launcher["file"], launcher["document"])
        return _Launched("deepspeed" if kind == "DEEPSPEED" else None, stage, is_held=True)
    if launcher in ACCELERATE:
        stage, ranks = ACCELERATE[launcher]
        if launcher.startswith("zero"):
            return _Launched("deepspeed", stage, ranks)
        if stage:
            keys.remarks.append(
                f"{keys.name}: accelerate_config={launcher}: exports use FSDP2 in {Trl.settings_file} instead"
            )
        return _Launched(None, stage, ranks, is_held=stage > 0)
    named = launcher or of_deepspeed
    return _Launched(is_held=True, missing=(str(named),)) if named else _Launched()


def _not_counted(file: str, document: Mapping[str, Any]) -> Iterator[str]:
    """What a file keeps in host memory, in words: launches do not, and plans count it on the GPU."""
    away = [
        path
        for path, value in flat(document)
        if "offload" in path and value in (True, "cpu", "nvme")
    ]
    if away:
        yield f"{file}: {', '.join(away)}: plans assume these are on the GPU, so the launch may need less memory"


def _of_trl(stage: int) -> str:
    """The file of TRL's accelerate_configs that has this ZeRO stage."""
    return f"zero{stage}" if stage else "multi_gpu"


def _with_launchers(document: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """A configuration with the contents of the files that tell Accelerate how to shard, in place of their names."""
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
    """`accelerate launch ... -m trl.scripts.grpo ...` as `trl grpo`, which starts Accelerate itself.

    Raises `SpecError` for flags of the launcher that decide how it trains and are not read.
    """
    behind = tuple(words[program.end :])
    before = [word for word in words[: program.end - 1] if word not in ("-m", "--module")]
    told = {name.replace("-", "_"): value for name, value in flags_of(before).items()}
    if unread := sorted(told.keys() - LAUNCHER.keys() - OF_ONE_MACHINE):
        raise SpecError(
            f"accelerate launch has --{', --'.join(unread)}, which autotune does not support",
            remedy="write that into the --config_file",
            field="FILE",
        )
    known = [(LAUNCHER[name], value) for name, value in told.items() if name in LAUNCHER]
    read = [word for name, value in known for word in (f"--{name}", str(value))]
    return (*USUAL["trl"], *behind, *read)


TRAINER = Trl()
