"""Reads a file, or a folder that `autotune export` wrote, as a program's current configuration, and
recognizes the trainer that it belongs to.

An exported folder has command and environment in launch.json, or in launch.sh if that was edited. A
single file has no command.

Files of programs that autotune does not support are recognized by the paths of their keys, never by
a word in their text.

Sources: llm-foundry 0.22 (scripts/train/yamls), OLMo 0.6 (configs), Primus 26 (examples), NeMo 2
and its launcher (conf), NeMo-RL 0.4 (examples/configs), verl 0.6 (trainer/config), GPT-NeoX 2
(configs), torchtune 0.6 (recipes/configs), litgpt 0.5 (config_hub), fairseq 0.12 (config),
Megatron-LM (tests/functional_tests), TRL 1 and the alignment handbook (recipes), levanter 1.2
(config).

Also reads the knobs that a program's settings fix for a whole study, such as precision and ZeRO
stage, from the files of DeepSpeed or accelerate that they name. If such a file is not found, its
name tells: `ds_z3_config.json`, `zero2.yaml`, `fsdp.yaml`.
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
from autotune.spec.texts.fsdp import STAGE_KEYS, fsdp_of
from autotune.spec.texts.json_text import read_json
from autotune.trainers import trainer, trainer_names
from autotune.trainers.accelerate.read import PRECISIONS
from autotune.trainers.documents.shell_words import command_of, commands_of
from autotune.trainers.launch_files import MANIFEST, SCRIPT, digest_of
from autotune.trainers.present_configuration import (
    DOCUMENTS,
    PresentConfiguration,
    flat,
    parse_document,
)


class Foreign(NamedTuple):
    """A program that autotune does not support, and how its files are recognized."""

    name: str
    marks: tuple[tuple[str, ...], ...]
    """groups of paths of keys; a file that has all paths of one group is the program's"""


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
"""unsupported programs, the first match counts"""


def foreign_program(document: Mapping[str, Any], *, is_json: bool = False) -> str:
    """Name of the unsupported program that a file belongs to; empty if none is recognized.
    `is_json`: the file is JSON, from which autotune reads TrainingArguments."""
    paths = frozenset(paths_of(document))
    candidates = FOREIGN[:-1] if is_json else FOREIGN
    return next(
        (each.name for each in candidates if any(paths.issuperset(group) for group in each.marks)),
        "",
    )


def paths_of(node: Any, before: str = "", depth: int = 3) -> Iterator[str]:
    """Paths of a document's keys, joined by dots, down to `depth` levels."""
    if isinstance(node, Mapping) and depth:
        for key, value in node.items():
            yield f"{before}{key}"
            yield from paths_of(value, f"{before}{key}.", depth - 1)


MAX_BYTES = 1 << 20
"""size limit in bytes; a larger file is no configuration"""


def read_present(path: Path) -> PresentConfiguration:
    """The current configuration in a file or an exported folder. Raises `SpecError` if it cannot be
    read."""
    if not path.is_dir():
        return PresentConfiguration(files={path.name: _text(path)})
    if not (path / MANIFEST).is_file():
        raise SpecError(
            f"the folder {str(path)!r} has no {MANIFEST}, so it was not written by `autotune export`",
            remedy="pass the path of the trainer's own file in that folder",
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
    # the files count, not the manifest's copy, because they may have been edited since
    if (path / SCRIPT).is_file() and digest_of((script := _text(path / SCRIPT)).encode()) != digest:
        argv, env = command_of(script).words, dict(commands_of(script).exported)
        argv = argv[1:] if argv[:1] == ("exec",) else argv
    return PresentConfiguration(
        files={name: _text(path / name) for name in names}, argv=argv, env=env, cwd=cwd
    )


def exported_folder(path: Path) -> Path:
    """The folder of an exported launch for its `launch.sh`, if the files in it are a trainer's
    configuration; any other path unchanged."""
    folder = path.absolute().parent
    if path.name != SCRIPT or not (folder / MANIFEST).is_file():
        return path
    with suppress(SpecError):
        return folder if recognized(read_present(folder)) else path
    return path


def recognized(present: PresentConfiguration) -> str | None:
    """Name of the trainer that the configuration belongs to, by keys of its documents and words of
    its command; None if it is no trainer's."""
    marks = frozenset(present.argv).union(
        *(_marks(name, text) for name, text in present.files.items())
    )
    matches = {
        name: marks.intersection(trainer(name).recognized_by) for name in importing_trainers()
    }
    best = max(matches, key=lambda name: len(matches[name]), default=None)
    return best if best is not None and matches[best] else None


def document_of(name: str, text: str) -> dict[str, Any]:
    """The contents of a YAML, JSON or TOML file; empty for other files and for invalid ones."""
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
    """Names of the trainers whose current configuration can be imported."""
    return tuple(name for name in trainer_names() if trainer(name).can_import)


def _marks(name: str, text: str) -> frozenset[str]:
    """Key paths of a document, or else the words of a text, by which trainers are recognized."""
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
        return path.read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text", field="FILE") from None
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read: {error.strerror}", remedy=nearest_file(path), field="FILE"
        ) from None


ON = (True, "auto", "true", "True", "full")
"""values of a setting that is on; `auto`: on if the GPU supports it"""
_HOST = ("cpu", "nvme")
"""devices that DeepSpeed can offload to"""
_FORMATS = {
    "fp8": ("fp8",),
    "bf16": ("bf16", "pure_bf16", "bfloat16"),
    "fp16": ("fp16", "float16"),
    "tf32": ("tf32",),
}
"""settings that switch a number format on, the narrowest format first"""


def precision_of(settings: Mapping[str, Any], usual: str = "fp32") -> str:
    """The number format that the settings switch on; bf16 also for `auto`. `usual`: the format if
    no setting switches one on or off."""
    on = next(
        (name for name, keys in _FORMATS.items() if any(settings.get(key) in ON for key in keys)),
        "fp32",
    )
    is_set = any(
        settings.get(key) is not None for name in ("bf16", "fp16") for key in _FORMATS[name]
    )
    return on if is_set or on == "fp8" or usual == "fp32" else usual


def is_pure_bf16(settings: Mapping[str, Any]) -> bool:
    """Whether the settings keep the weights in bf16, too."""
    return any(settings.get(key) in ON for key in ("pure_bf16", "bfloat16"))


def sharding_of(settings: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """ZeRO stage, offloading and recomputation by the settings `deepspeed` (a file or a mapping),
    `fsdp`, `dist_config` and `use_distributed_optimizer`. `base`: the folder that paths are
    relative to."""
    dist_config = settings.get("dist_config")
    dist_config = dist_config if isinstance(dist_config, Mapping) else {}
    deepspeed = settings.get("deepspeed") or dist_config.get("config_file")
    if isinstance(deepspeed, Mapping):
        section = deepspeed.get("zero_optimization")
        return {"zero_stage": int(section.get("stage", 0)) if isinstance(section, Mapping) else 0}
    if deepspeed:
        found = decided_by("deepspeed", str(deepspeed), base)
        return {
            "zero_stage": 0,
            **{knob: found[knob] for knob in ("zero_stage", "offload") if knob in found},
        }
    section = _fsdp_config(settings.get("fsdp_config"), base)
    is_on = bool(section) or dist_config.get("name") == "fsdp2"
    if sharded := fsdp_of(settings.get("fsdp") or is_on, section):
        recomputes = {"recompute": "full"} if sharded.recomputes else {}
        return {"zero_stage": sharded.zero_stage, **recomputes}
    return {"zero_stage": 1 if settings.get("use_distributed_optimizer") in ON else 0}


def _fsdp_config(value: Any, base: Path) -> Any:
    """`fsdp_config` of TrainingArguments as a mapping, from a mapping, JSON text or a file; or else
    the value itself."""
    if isinstance(value, str):
        is_json = value.lstrip().startswith("{")
        text = value if is_json else text_in(base / value) or ""
        value = document_of("fsdp_config.json", text) or value
    return value


def _settings(started: Started) -> dict[str, Any]:
    """The program's options by the last part of their names, True for a flag. DeepSpeed's file is
    `deepspeed`, whichever option names it."""
    settings = {name.rpartition(".")[2]: value for name, value in started.of_file.items()}
    settings |= {
        a.name.rpartition(".")[2]: a.values[0] if a.values else True for a in started.arguments
    }
    file = settings.get("deepspeed_config") or settings.get("ds_config")
    return {**settings, "deepspeed": file} if isinstance(file, str) else settings


def _accelerate_option(started: Started, name: str) -> str:
    """The value of an option of `accelerate launch`; empty if it is not set."""
    return started.option(name) if started.launcher == "accelerate" else ""


def decided_for(started: Started, base: Path) -> dict[str, Any]:
    """Knobs that the launch fixes: options of accelerate, and the files that launcher and script
    name."""
    settings, knobs = _settings(started), dict[str, Any]()
    if started.launcher == "accelerate":
        if file := started.option("config_file"):
            knobs |= decided_by("accelerate", file, base)
        if precision := started.option("mixed_precision"):
            knobs["precision"] = PRECISIONS.get(precision, "fp32")
        if stage := started.option("zero_stage"):
            knobs["zero_stage"] = int(stage) if stage in ("0", "1", "2", "3") else 0
        if file := started.option("deepspeed_config_file"):
            knobs |= decided_by("deepspeed", file, base)
        if started.option("offload_optimizer_device") in _HOST:
            knobs["offload"] = "optimizer"
        if any(option.name == "use_fsdp" for option in started.options):
            options = {key: started.option(f"fsdp_{key}") for key in STAGE_KEYS}
            if sharded := fsdp_of(True, options):
                knobs["zero_stage"] = sharded.zero_stage
    if str(settings.get("use_liger_kernel", "")) in map(str, ON):
        knobs["loss"] = "fused"
    if str(settings.get("adam_offload", "")) in map(str, ON):
        knobs["offload"] = "optimizer"
    if isinstance(deepspeed := settings.get("deepspeed"), str):
        knobs |= decided_by("deepspeed", deepspeed, base)
    elif settings.get("fsdp"):
        knobs |= sharding_of(settings, base)
    return knobs


def unread_files(started: Started, base: Path) -> Iterator[str]:
    """Notes on what is assumed about files that the launch names but that were not found."""
    settings = _settings(started)
    of_launcher = _accelerate_option(started, "deepspeed_config_file")
    for name, file in (
        ("deepspeed", of_launcher or settings.get("deepspeed")),
        ("fsdp", settings.get("fsdp_config")),
        ("accelerate", _accelerate_option(started, "config_file")),
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


def _knobs_of_plugin(document: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Knobs that accelerate's DeepSpeed plugin fixes besides the stage."""
    plugin = document.get("deepspeed_config")
    if document.get("distributed_type") != "DEEPSPEED":
        return {}
    if not isinstance(plugin, Mapping):
        return {"zero_stage": 2}  # accelerate's default
    if file := plugin.get("deepspeed_config_file"):
        return decided_by("deepspeed", str(file), base)
    return {"offload": "optimizer"} if plugin.get("offload_optimizer_device") in _HOST else {}


def _accelerate_file(started: Started, base: Path) -> Mapping[str, Any]:
    """The contents of the file of `accelerate launch --config_file`; empty if there is none."""
    return document_in(base / _accelerate_option(started, "config_file"))


def runs_deepspeed(started: Started, base: Path) -> bool:
    """Whether accelerate trains with DeepSpeed, by its options or its file."""
    deepspeed_options = {option.name for option in started.options} & {
        "use_deepspeed",
        "deepspeed_config_file",
    }
    by_file = _accelerate_file(started, base).get("distributed_type") == "DEEPSPEED"
    return started.launcher == "accelerate" and (bool(deepspeed_options) or by_file)


def offloaded_weights(started: Started, base: Path) -> str:
    """The setting of accelerate, DeepSpeed or transformers' FSDP that keeps weights on the host;
    empty if none does."""
    settings = _settings(started)
    deepspeed_file = settings.get("deepspeed") or started.option("deepspeed_config_file")
    settings_by_path = dict(flat(document_in(base / str(deepspeed_file or ""))))
    settings_by_path |= flat(_accelerate_file(started, base))
    devices = {
        str(settings_by_path.get("zero_optimization.offload_param.device")),
        str(settings_by_path.get("deepspeed_config.offload_param_device")),
        started.option("offload_param_device"),
    }
    by_fsdp = (
        settings_by_path.get("fsdp_config.fsdp_offload_params"),
        started.option("fsdp_offload_params").lower(),
    )
    if not devices.isdisjoint(_HOST):
        return "offload_param"
    if any(each in ON for each in by_fsdp):
        return "fsdp_offload_params"
    sharded = fsdp_of(settings.get("fsdp"), _fsdp_config(settings.get("fsdp_config"), base))
    return sharded.weights_on_host if sharded else ""


MAY_SHARD = (
    ", which needs the most memory; add the file, because its ZeRO stage determines the memory"
)
"""end of a note about a missing file that may set a ZeRO stage"""
UNREAD = "not read: "
"""beginning of such notes"""


def ranks_asked(started: Started, base: Path) -> tuple[int, int | None]:
    """(nodes, ranks per node) that the launch requests, by its options or the file of `accelerate
    launch --config_file`; None if the number of ranks is not given."""
    config = _accelerate_file(started, base) if started.gpus_per_node is None else {}
    ranks, nodes = config.get("num_processes"), config.get("num_machines", 1)
    if isinstance(ranks, int) and isinstance(nodes, int) and ranks >= nodes > 0:
        return nodes, ranks // nodes
    return started.nodes, started.gpus_per_node


def decided_by(name: str, file: str, base: Path) -> dict[str, Any]:
    """Knobs that a file of DeepSpeed or accelerate sets. If the file is not found, those that its
    name tells. `name`: `deepspeed` or `accelerate`; `base`: the folder that its path is relative
    to."""
    knobs = ("precision", "zero_stage", "recompute", "compile", "offload")
    path = base / file
    text = text_in(path)
    if text is not None:
        # DeepSpeed accepts any file name for its JSON
        file_name = path.name if path.suffix != ".conf" else f"{path.stem}.json"
        with suppress(SpecError):
            found = trainer(name).read_config(PresentConfiguration(files={file_name: text})).knobs
            values = {knob: found[knob] for knob in knobs if found.get(knob) is not None}
            plugin = (
                _knobs_of_plugin(document_of(file_name, text), base) if name == "accelerate" else {}
            )
            return values | plugin
    lower_name = path.name.lower()
    if stage := re.search(r"(?:z(?:ero)?[_-]?(?:stage)?|stage)[_-]?([0-3])", lower_name):
        offload = {"offload": "optimizer"} if "offload" in lower_name else {}
        return {"zero_stage": int(stage[1]), **offload}
    return {"zero_stage": 3} if "fsdp" in lower_name else {}
