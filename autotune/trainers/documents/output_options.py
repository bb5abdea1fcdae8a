"""Options, variables and settings that name where a program writes, by the names that trainers and
scripts give them: a trial has them name a folder of its own.

Only names that mean an output wherever they are met: a `--checkpoint_dir` may be what is loaded, a
`--save` may be a flag, which its value tells. Settings are those of the files that a trial has
rendered (`program_files`), at any depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from autotune.errors import SpecError
from autotune.trainers.documents.program_files import WRITERS
from autotune.trainers.launch_files import FOLDER, OUTPUTS, Launch
from autotune.trainers.present_configuration import parse_document

TRIAL_DIR = f"{FOLDER}/{OUTPUTS}"
"""what `{trial_dir}` stands for"""
OUTPUT_OPTIONS = frozenset({
    "output_dir", "out_dir", "outdir", "output_path", "output_folder", "outputs_dir",  # transformers, nanoGPT, accelerate's examples
    "output", "logs", "output_base_path", "output_root", "out_path", "out_root",  # timm, Swin Transformer; open_clip, CLAP; DeepSpeed's examples
    "save", "save_dir", "savedir", "save_path", "save_folder", "save_checkpoint_path", "save_root", "save_model",  # Megatron, fairseq, llm-foundry, OpenNMT
    "checkpoint_save_path", "checkpoint_save_dir", "save_checkpoint_dir", "ckpt_save_path", "ckpt_save_dir",
    "model_save_path", "model_save_dir", "save_model_path", "save_model_dir", "checkpoints_path", "dist_checkpoint_root_folder",  # nanotron, llama-recipes
    "default_root_dir", "weights_save_path", "dirpath",  # Lightning
    "logging_dir", "log_dir", "logdir", "logs_dir", "log_path", "log_folder", "wandb_dir", "summary_dir",
    "tensorboard_dir", "tensorboard_logdir", "tensorboard_path", "tensorboard_log_path", "tb_log_dir", "tb_dir",  # ms-swift, Megatron, MAE
    "results_dir", "result_dir", "results_folder", "result_path", "results_path", "work_dir", "workdir",  # DiT, mmengine
    "exp_dir", "exp_root", "experiment_dir", "experiment_path", "run_dir", "runs_dir", "dump_folder", "dump_dir",  # torchtitan, lingua
    "artifacts_dir", "artifact_dir",
})  # fmt: skip
"""their names without dashes before them, dashes within as underscores, and of a dotted name its
last part"""
HYDRA = frozenset({"hydra.run.dir", "hydra.sweep.dir"})
"""and these in whole"""
_CHOICES = frozenset(
    {"no", "none", "null", "steps", "epoch", "best", "true", "false", "auto", "always", "never"}
)
"""values of what is called like an output and says when, or whether, something is written"""
LIGHTNING_CLI = "--trainer.default_root_dir"
"""the option of every LightningCLI, which else writes its configuration and its checkpoints where
it runs, and refuses to run there again"""


def with_own_outputs(launch: Launch) -> Launch:
    """The launch with every such option in `argv`, variable in `env` and setting in `files` naming
    a folder of the trial's own."""
    words, told = list(launch.argv), []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not equals:
            value = next(iter(words[place + 1 : place + 2]), "-")
            if not name.startswith("-") or value.startswith("-"):
                continue
        if _is_own(name, value):
            words[place if equals else place + 1] = f"{name}={_own(name)}" if equals else _own(name)
            told.append(name)
    if (
        LIGHTNING_CLI not in told
        and "fit" in words
        and any(word.startswith("--trainer.") for word in words)
    ):
        words.append(f"{LIGHTNING_CLI}={TRIAL_DIR}")
        told.append(LIGHTNING_CLI)
    env = {
        name: _own(name) if _is_own(name.lower(), value) else value
        for name, value in launch.env.items()
    }
    told += [name for name, value in launch.env.items() if env[name] != value]
    files = dict(launch.files)
    for name, text in launch.files.items():
        files[name], inside = _with_own_settings(name, text)
        told += [f"{path} in {name}" for path in inside]
    if not told:
        return launch
    note = f"trials write into their own folders, which are removed afterwards: {', '.join(told)}"
    return replace(launch, argv=tuple(words), env=env, files=files, notes=(*launch.notes, note))


def _with_own_settings(name: str, text: str) -> tuple[str, list[str]]:
    """(the file with its settings of that kind, their paths); a file of another form stays as it
    is."""
    writer = WRITERS.get(PurePosixPath(name).suffix)
    if writer is None or not any(word in text for word in OUTPUT_OPTIONS | {"dir"}):
        return text, []
    try:
        document = parse_document(name, text)
    except SpecError:
        return text, []
    told: list[str] = []
    own = _told(document, "", told)
    return (writer(own), told) if told else (text, [])


def _told(node: Any, path: str, told: list[str]) -> Any:
    if isinstance(node, Mapping):
        return {
            key: _told(value, f"{path}.{key}" if path else str(key), told)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_told(value, path, told) for value in node]
    if isinstance(node, str) and _is_own(path, node):
        told.append(path)
        return _own(path)
    return node


def _is_own(name: str, value: str) -> bool:
    """Whether it names an output, by a value that a trial may replace: a path, not the word of a
    choice."""
    return FOLDER not in value and _is_path(name, value) and _is_output(name)


def _is_path(name: str, value: str) -> bool:
    if not value or value.lower() in _CHOICES or value.replace(".", "", 1).isdecimal():
        return False
    is_short = _plain(name).rsplit(".", 1)[-1] in ("output", "logs")
    return not is_short or bool({*"/\\.$"} & {*value}) or value.startswith(("out", "log", "run"))


def _own(name: str) -> str:
    return f"{TRIAL_DIR}/{_plain(name)}"


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("-", "_")


def _is_output(name: str) -> bool:
    plain = _plain(name).lower()
    return plain in HYDRA or plain.rsplit(".", 1)[-1] in OUTPUT_OPTIONS
