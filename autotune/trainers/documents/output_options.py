"""Recognizes options, variables and settings for output folders, and redirects them to a folder of
the trial's own.

Only names that always mean an output are listed: a `--checkpoint_dir` may be for loading. A
`--save` may be a flag, which its value shows. Settings are those in the files that are rendered for
a trial (`program_files`), at any depth.
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
"""value of `{trial_dir}`"""
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
"""names without leading dashes, with underscores instead of inner dashes; of dotted names the last
part"""
HYDRA = frozenset({"hydra.run.dir", "hydra.sweep.dir"})
"""complete dotted names"""
_CHOICES = frozenset(
    {"no", "none", "null", "steps", "epoch", "best", "true", "false", "auto", "always", "never"}
)
"""values of options with such names that set when, or whether, something is written"""
LIGHTNING_CLI = "--trainer.default_root_dir"
"""option of every LightningCLI, which by default writes its configuration and checkpoints into the
folder where it runs, and fails if they exist"""


def with_own_outputs(launch: Launch) -> Launch:
    """The launch with all such options in `argv`, variables in `env` and settings in `files` set to
    the trial's own folder. A note names them."""
    words, redirected = list(launch.argv), []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not equals:
            value = next(iter(words[place + 1 : place + 2]), "-")
            if not name.startswith("-") or value.startswith("-"):
                continue
        if _is_replaceable(name, value):
            words[place if equals else place + 1] = (
                f"{name}={_trial_path(name)}" if equals else _trial_path(name)
            )
            redirected.append(name)
    if (
        LIGHTNING_CLI not in redirected
        and "fit" in words
        and any(word.startswith("--trainer.") for word in words)
    ):
        words.append(f"{LIGHTNING_CLI}={TRIAL_DIR}")
        redirected.append(LIGHTNING_CLI)
    env = {
        name: _trial_path(name) if _is_replaceable(name.lower(), value) else value
        for name, value in launch.env.items()
    }
    redirected += [name for name, value in launch.env.items() if env[name] != value]
    files = dict(launch.files)
    for name, text in launch.files.items():
        files[name], inside = _with_own_settings(name, text)
        redirected += [f"{path} in {name}" for path in inside]
    if not redirected:
        return launch
    note = f"trials write into their own folders, which are removed afterwards: {', '.join(redirected)}"
    return replace(launch, argv=tuple(words), env=env, files=files, notes=(*launch.notes, note))


def _with_own_settings(name: str, text: str) -> tuple[str, list[str]]:
    """(the file with its output settings redirected, their paths); files in other formats are
    unchanged."""
    writer = WRITERS.get(PurePosixPath(name).suffix)
    if writer is None or not any(word in text for word in OUTPUT_OPTIONS | {"dir"}):
        return text, []
    try:
        document = parse_document(name, text)
    except SpecError:
        return text, []
    redirected: list[str] = []
    changed = _redirected(document, "", redirected)
    return (writer(changed), redirected) if redirected else (text, [])


def _redirected(node: Any, path: str, redirected: list[str]) -> Any:
    if isinstance(node, Mapping):
        return {
            key: _redirected(value, f"{path}.{key}" if path else str(key), redirected)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_redirected(value, path, redirected) for value in node]
    if isinstance(node, str) and _is_replaceable(path, node):
        redirected.append(path)
        return _trial_path(path)
    return node


def _is_replaceable(name: str, value: str) -> bool:
    """Whether it is an output with a value that a trial may replace: a path, not the word of a
    choice."""
    return FOLDER not in value and _is_path(name, value) and _is_output(name)


def _is_path(name: str, value: str) -> bool:
    if not value or value.lower() in _CHOICES or value.replace(".", "", 1).isdecimal():
        return False
    is_short = _plain(name).rsplit(".", 1)[-1] in ("output", "logs")
    return not is_short or bool({*"/\\.$"} & {*value}) or value.startswith(("out", "log", "run"))


def _trial_path(name: str) -> str:
    return f"{TRIAL_DIR}/{_plain(name)}"


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("-", "_")


def _is_output(name: str) -> bool:
    plain = _plain(name).lower()
    return plain in HYDRA or plain.rsplit(".", 1)[-1] in OUTPUT_OPTIONS
