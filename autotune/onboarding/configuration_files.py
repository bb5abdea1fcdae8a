"""A file, or a folder that `autotune export` wrote, as the current configuration of a program; and
the trainer that it belongs to.

A folder's launch.json tells command and environment, or its launch.sh where somebody edited that; a
single file is all that is known.

Whose a file is that autotune does not read: by the keys that it has and where they stand, never by
a word in its text.

Facts: llm-foundry 0.22 (scripts/train/yamls), OLMo 0.6 (configs), Primus 26 (examples), NeMo 2 and
its launcher (conf), NeMo-RL 0.4 (examples/configs), verl 0.6 (trainer/config), GPT-NeoX 2
(configs), torchtune 0.6 (recipes/configs), litgpt 0.5 (config_hub), fairseq 0.12 (config),
Megatron-LM (tests/functional_tests), TRL 1 and the alignment handbook (recipes), levanter 1.2
(config).

Knobs that a program's settings decide for a whole study: number format and ZeRO stage, by a file of
DeepSpeed or accelerate that they name.

A file that is not there is judged by its name: `ds_z3_config.json`, `zero2.yaml`, `fsdp.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from autotune.errors import SpecError
from autotune.onboarding.launch.launch_script import Started
from autotune.spec.checks import nearest_file
from autotune.spec.texts.json_text import read_json
from autotune.trainers import trainer, trainer_names
from autotune.trainers.accelerate.read import PRECISIONS
from autotune.trainers.documents.shell_words import command_of, commands_of
from autotune.trainers.hf_trainer.read import weights_on_host
from autotune.trainers.launch_files import MANIFEST, SCRIPT, digest_of
from autotune.trainers.present_configuration import (
    DOCUMENTS,
    PresentConfiguration,
    flat,
    parse_document,
)


class Foreign(NamedTuple):
    """A program that autotune does not know, and what its files have."""

    name: str
    marks: tuple[tuple[str, ...], ...]
    """paths of keys; all of one group are there"""


FOREIGN = (
    Foreign("OLMo", (("device_train_microbatch_size", "run_name", "evaluators"), ("device_train_microbatch_size", "model.d_model", "tokenizer.identifier"))),
    Foreign("llm-foundry (Composer)", (("device_train_microbatch_size",), ("global_train_batch_size",), ("train_loader", "max_duration"), ("variables", "train_loader"), ("max_duration", "eval_interval"))),
    Foreign("Primus", (("modules.pre_trainer",), ("modules.post_trainer",), ("modules.trainer.framework",), ("work_group", "exp_name", "modules"))),
    Foreign("NeMo 1", (("exp_manager", "trainer"), ("run", "exp_manager"), ("trainer.num_nodes", "model.encoder_seq_length"), ("model.megatron_amp_O2",))),
    Foreign("NeMo-RL without GRPO", (("policy", "dpo"), ("policy", "sft"), ("policy", "ppo"), ("policy.dtensor_cfg",), ("policy.megatron_cfg",))),
    Foreign("NeMo Automodel", (("step_scheduler", "model._target_"), ("recipe", "step_scheduler"))),
    Foreign("verl", (("actor_rollout_ref",), ("data.train_batch_size", "trainer.total_epochs"), ("actor", "rollout"), ("algorithm.adv_estimator",))),
    Foreign("GPT-NeoX", (("pipe_parallel_size",), ("pipe-parallel-size",), ("model_parallel_size", "train_micro_batch_size_per_gpu"), ("train-iters", "lr-decay-style"))),
    Foreign("torchtune", (("model._component_",), ("tokenizer._component_",), ("optimizer._component_",))),
    Foreign("litgpt", (("train.micro_batch_size", "train.log_interval"), ("train.global_batch_size", "out_dir"), ("checkpoint_dir", "train.global_batch_size"))),
    Foreign("fairseq", (("distributed_training", "optimization"), ("common", "optimization"), ("dataset.max_tokens", "optimization"))),
    Foreign("Megatron-LM's functional tests", (("MODEL_ARGS",), ("ENV_VARS", "TEST_TYPE"))),
    Foreign("levanter", (("trainer.train_batch_size", "trainer.num_train_steps"),)),
    Foreign("ms-swift", (("tuner_type",), ("train_type",), ("rlhf_type",), ("model", "dataset", "per_device_train_batch_size"))),
    Foreign("MaxText", (("per_device_batch_size", "base_emb_dim"), ("ici_fsdp_parallelism",), ("per_device_batch_size", "run_name", "dataset_path"))),
    Foreign("transformers' TrainingArguments in a file (TRL, alignment-handbook, ms-swift)", (("per_device_train_batch_size", "model_name_or_path"), ("per_device_train_batch_size", "output_dir"), ("per_device_train_batch_size", "learning_rate"))),
)  # fmt: skip


def foreign_program(document: Mapping[str, Any], *, is_json: bool = False) -> str:
    """The program that autotune does not know whose file it is; empty where none is recognized.
    `is_json`: TrainingArguments are read from JSON."""
    paths = frozenset(paths_of(document))
    candidates = FOREIGN[:-1] if is_json else FOREIGN
    return next(
        (each.name for each in candidates if any(paths.issuperset(group) for group in each.marks)),
        "",
    )


def paths_of(node: Any, before: str = "", depth: int = 3) -> Iterator[str]:
    """The paths of the keys of a document, from its top, joined by dots."""
    if isinstance(node, Mapping) and depth:
        for key, value in node.items():
            yield f"{before}{key}"
            yield from paths_of(value, f"{before}{key}.", depth - 1)


MAX_BYTES = 1 << 20
"""A file larger than this is no configuration."""


def read_present(path: Path) -> PresentConfiguration:
    """The present configuration in a file or an exported folder. Raises `SpecError` for what cannot
    be read."""
    if not path.is_dir():
        return PresentConfiguration(files={path.name: _text(path)})
    if not (path / MANIFEST).is_file():
        raise SpecError(
            f"the folder {str(path)!r} has no {MANIFEST}, so it was not written by `autotune export`",
            remedy="give the path of the trainer's own file in that folder",
            field="FILE",
        )
    try:
        launch = read_json(_text(path / MANIFEST))
        names, argv, env = list(launch["files"]), tuple(launch["argv"]), dict(launch["env"])
        cwd, digest = str(launch.get("cwd", "")), launch.get("sha256", {}).get(SCRIPT)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SpecError(
            f"{path / MANIFEST} is not a manifest that `autotune export` wrote", field="FILE"
        ) from None
    # the files themselves, not the manifest's copy: somebody may have edited them since
    if (path / SCRIPT).is_file() and digest_of((script := _text(path / SCRIPT)).encode()) != digest:
        argv, env = command_of(script).words, dict(commands_of(script).exported)
        argv = argv[1:] if argv[:1] == ("exec",) else argv
    return PresentConfiguration(
        files={name: _text(path / name) for name in names}, argv=argv, env=env, cwd=cwd
    )


def exported_folder(path: Path) -> Path:
    """The folder of an exported launch whose `launch.sh` it is, where its trainer's files say all;
    else the path itself."""
    folder = path.absolute().parent
    if path.name != SCRIPT or not (folder / MANIFEST).is_file():
        return path
    with suppress(SpecError):
        return folder if recognized(read_present(folder)) else path
    return path


def recognized(present: PresentConfiguration) -> str | None:
    """The trainer whose configuration it is: by the keys of its documents and the words of its
    command, each where that trainer has them; None where it is no trainer's."""
    found = frozenset(present.argv).union(
        *(_marks(name, text) for name, text in present.files.items())
    )
    known = {name: found.intersection(trainer(name).recognized_by) for name in importing_trainers()}
    best = max(known, key=lambda name: len(known[name]), default=None)
    return best if best is not None and known[best] else None


def document_of(name: str, text: str) -> dict[str, Any]:
    """The contents of a YAML, JSON or TOML file; empty for other files and for those that hold
    something else."""
    with suppress(SpecError):
        return parse_document(name, text) if PurePosixPath(name).suffix.lower() in DOCUMENTS else {}
    return {}


def text_in(path: Path) -> str | None:
    """The text of a file; None if it is not there or cannot be read."""
    with suppress(SpecError):
        return _text(path) if path.is_file() else None
    return None


def document_in(path: Path) -> dict[str, Any]:
    """The contents of a YAML, JSON or TOML file; empty also if it is not there or cannot be
    read."""
    return document_of(path.name, text_in(path) or "")


def importing_trainers() -> tuple[str, ...]:
    """Trainers whose present configuration can be read."""
    return tuple(name for name in trainer_names() if trainer(name).can_import)


def _marks(name: str, text: str) -> frozenset[str]:
    if PurePosixPath(name).suffix.lower() in DOCUMENTS:
        return frozenset(paths_of(document_of(name, text)))
    words = re.findall(r"[\w.-]+", text)
    return frozenset(word.replace("_", "-") if word.startswith("--") else word for word in words)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(
                f"{path} is larger than {MAX_BYTES >> 20} MiB, so it is not a configuration",
                field="FILE",
            )
        return path.read_text(encoding="utf-8-sig")  # editors of Windows begin files with a mark
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text", field="FILE") from None
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read: {error.strerror}", remedy=nearest_file(path), field="FILE"
        ) from None


ON = (True, "auto", "true", "True", "full")
"""values of a setting that is on; `auto`: where the GPU can"""
_HOST = ("cpu", "nvme")
"""where DeepSpeed offloads to"""
_FORMATS = {
    "fp8": ("fp8",),
    "bf16": ("bf16", "pure_bf16", "bfloat16"),
    "fp16": ("fp16", "float16"),
    "tf32": ("tf32",),
}
"""settings that switch a number format on, the narrowest first"""


def precision_of(settings: Mapping[str, Any], usual: str = "fp32") -> str:
    """The number format by the settings that switch one on; bf16 also where a program is to find
    out itself (`auto`). `usual`: where none says."""
    on = next(
        (name for name, keys in _FORMATS.items() if any(settings.get(key) in ON for key in keys)),
        "fp32",
    )
    said = any(settings.get(key) is not None for name in ("bf16", "fp16") for key in _FORMATS[name])
    return on if said or on == "fp8" or usual == "fp32" else usual


def is_pure_bf16(settings: Mapping[str, Any]) -> bool:
    """Whether the weights, too, are in bf16."""
    return any(settings.get(key) in ON for key in ("pure_bf16", "bfloat16"))


def sharding_of(settings: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The ZeRO stage, and whether the optimizer is on the host, by the settings `deepspeed` (a
    file; `base`: where its path begins), `fsdp`, `dist_config` and `use_distributed_optimizer`."""
    kind = settings.get("dist_config")
    kind = kind if isinstance(kind, Mapping) else {}
    named = settings.get("deepspeed") or kind.get("config_file")
    if isinstance(named, Mapping):
        inner = named.get("zero_optimization")
        return {"zero_stage": int(inner.get("stage", 0)) if isinstance(inner, Mapping) else 0}
    if named:
        found = decided_by("deepspeed", str(named), base)
        return {
            "zero_stage": 0,
            **{knob: found[knob] for knob in ("zero_stage", "offload") if knob in found},
        }
    inner = _fsdp_config(settings.get("fsdp_config"), base)
    shards = f"{settings.get('fsdp') or ''} {inner or ''}".lower()
    if shards.strip() or kind.get("name") == "fsdp2":
        is_gathered = isinstance(inner, Mapping) and inner.get("reshard_after_forward") is False
        recomputes = isinstance(inner, Mapping) and inner.get("activation_checkpointing") in ON
        return {
            "zero_stage": 2 if is_gathered or "shard_grad_op" in shards else 3,
            **({"recompute": "full"} if recomputes else {}),
        }
    return {"zero_stage": 1 if settings.get("use_distributed_optimizer") in ON else 0}


def _fsdp_config(value: Any, base: Path) -> Any:
    """`fsdp_config` of TrainingArguments: a mapping, JSON, or a file of it."""
    if not isinstance(value, str):
        return value
    is_json = value.lstrip().startswith("{")
    text = value if is_json else text_in(base / value) or ""
    return document_of("fsdp_config.json", text) or value


_FSDP_STAGES = {"2": 2, "SHARD_GRAD_OP": 2, "3": 0, "NO_SHARD": 0}
"""ZeRO stages of accelerate's --fsdp_sharding_strategy; the others shard all"""


def _settings(started: Started) -> dict[str, Any]:
    """The program's options by the last part of their names, True for a flag; DeepSpeed's file as
    `deepspeed`, whichever option names it."""
    told = {name.rpartition(".")[2]: value for name, value in started.of_file.items()}
    told |= {
        a.name.rpartition(".")[2]: a.values[0] if a.values else True for a in started.arguments
    }
    file = told.get("deepspeed_config") or told.get("ds_config")
    return {**told, "deepspeed": file} if isinstance(file, str) else told


def _of_accelerate(started: Started, name: str) -> str:
    """The value of an option of `accelerate launch`; empty where there is none."""
    return started.option(name) if started.launcher == "accelerate" else ""


def decided_for(started: Started, base: Path) -> dict[str, Any]:
    """Knobs that the launch of a script decides: by options of accelerate, and by the files that
    launcher and script are given."""
    settings, found = _settings(started), dict[str, Any]()
    if started.launcher == "accelerate":
        if file := started.option("config_file"):
            found |= decided_by("accelerate", file, base)
        if word := started.option("mixed_precision"):
            found["precision"] = PRECISIONS.get(word, "fp32")
        if stage := started.option("zero_stage"):
            found["zero_stage"] = int(stage) if stage in ("0", "1", "2", "3") else 0
        if file := started.option("deepspeed_config_file"):
            found |= decided_by("deepspeed", file, base)
        if started.option("offload_optimizer_device") in _HOST:
            found["offload"] = "optimizer"
        if any(option.name == "use_fsdp" for option in started.options):
            strategy = started.option("fsdp_sharding_strategy").upper()
            found["zero_stage"] = _FSDP_STAGES.get(strategy, 3)
    if str(settings.get("use_liger_kernel", "")) in map(str, ON):
        found["loss"] = "fused"
    if str(settings.get("adam_offload", "")) in map(str, ON):
        found["offload"] = "optimizer"
    if isinstance(named := settings.get("deepspeed"), str):
        found |= decided_by("deepspeed", named, base)
    elif settings.get("fsdp"):
        found |= sharding_of(settings, base)
    return found


def unread_files(started: Started, base: Path) -> Iterator[str]:
    """What is assumed of files that the launch names and that are not there, in words."""
    settings = _settings(started)
    of_launcher = _of_accelerate(started, "deepspeed_config_file")
    for name, file in (
        ("deepspeed", of_launcher or settings.get("deepspeed")),
        ("fsdp", settings.get("fsdp_config")),
        ("accelerate", _of_accelerate(started, "config_file")),
    ):
        endings = (*DOCUMENTS, ".conf") if name == "deepspeed" else DOCUMENTS
        is_file = isinstance(file, str) and PurePosixPath(file).suffix.lower() in endings
        if not is_file or (base / str(file)).is_file():
            continue
        if name == "fsdp":
            yield f"{UNREAD}{file} was not found, so activation checkpointing is assumed to be off"
        else:
            stage = decided_by(name, str(file), base).get("zero_stage", 0)
            why = ", as the file's name says" if stage else MAY_SHARD
            yield f"{UNREAD}{file} was not found, so ZeRO stage {stage} is assumed{why}"


def _by_plugin(document: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """What accelerate's DeepSpeed plugin decides beside the stage."""
    plugin = document.get("deepspeed_config")
    if document.get("distributed_type") != "DEEPSPEED":
        return {}
    if not isinstance(plugin, Mapping):
        return {"zero_stage": 2}  # accelerate's default
    if file := plugin.get("deepspeed_config_file"):
        return decided_by("deepspeed", str(file), base)
    return {"offload": "optimizer"} if plugin.get("offload_optimizer_device") in _HOST else {}


def _accelerate_file(started: Started, base: Path) -> Mapping[str, Any]:
    """The file of `accelerate launch --config_file`; empty if there is none."""
    return document_in(base / _of_accelerate(started, "config_file"))


def runs_deepspeed(started: Started, base: Path) -> bool:
    """Whether accelerate runs the steps by DeepSpeed, by its options or its file."""
    said = {option.name for option in started.options} & {"use_deepspeed", "deepspeed_config_file"}
    by_file = _accelerate_file(started, base).get("distributed_type") == "DEEPSPEED"
    return started.launcher == "accelerate" and (bool(said) or by_file)


def offloaded_weights(started: Started, base: Path) -> str:
    """The setting of accelerate, DeepSpeed or transformers' FSDP that keeps weights on the host;
    empty if none does."""
    settings = _settings(started)
    named = settings.get("deepspeed") or started.option("deepspeed_config_file")
    told = dict(flat(document_in(base / str(named or ""))))
    told |= flat(_accelerate_file(started, base))
    devices = {
        str(told.get("zero_optimization.offload_param.device")),
        str(told.get("deepspeed_config.offload_param_device")),
        started.option("offload_param_device"),
    }
    by_fsdp = (
        told.get("fsdp_config.fsdp_offload_params"),
        started.option("fsdp_offload_params").lower(),
    )
    if not devices.isdisjoint(_HOST):
        return "offload_param"
    if any(each in ON for each in by_fsdp):
        return "fsdp_offload_params"
    return weights_on_host(settings.get("fsdp"), _fsdp_config(settings.get("fsdp_config"), base))


MAY_SHARD = ", which needs the most memory; add the file, because its stage decides the memory"
"""how the words on a file end that may shard what is counted as whole"""
UNREAD = "not read: "
"""how such words begin"""


def ranks_asked(started: Started, base: Path) -> tuple[int, int | None]:
    """(nodes, ranks of a node) that the launch asks for, also by the file of `accelerate launch
    --config_file`; None where it does not say."""
    asked = _accelerate_file(started, base) if started.gpus_per_node is None else {}
    ranks, nodes = asked.get("num_processes"), asked.get("num_machines", 1)
    if isinstance(ranks, int) and isinstance(nodes, int) and ranks >= nodes > 0:
        return nodes, ranks // nodes
    return started.nodes, started.gpus_per_node


def decided_by(name: str, file: str, base: Path) -> dict[str, Any]:
    """Knobs that a file of the `deepspeed` trainer or `accelerate` decides, where it says them."""
    knobs = ("precision", "zero_stage", "recompute", "compile", "offload")
    path = base / file
    text = text_in(path)
    if text is not None:
        # JSON, as DeepSpeed takes any name
        own = path.name if path.suffix != ".conf" else f"{path.stem}.json"
        with suppress(SpecError):
            found = trainer(name).read_config(PresentConfiguration(files={own: text})).knobs
            told = {knob: found[knob] for knob in knobs if found.get(knob) is not None}
            plugin = _by_plugin(document_of(own, text), base) if name == "accelerate" else {}
            return told | plugin
    tail = path.name.lower()
    if stage := re.search(r"(?:z(?:ero)?[_-]?(?:stage)?|stage)[_-]?([0-3])", tail):
        offload = {"offload": "optimizer"} if "offload" in tail else {}
        return {"zero_stage": int(stage[1]), **offload}
    return {"zero_stage": 3} if "fsdp" in tail else {}
