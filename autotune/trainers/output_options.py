"""Options that name where a program writes, by the names that trainers and scripts give them: a trial has them name a folder of its own.

Only names that mean an output wherever they are met: a `--checkpoint_dir` may be what is loaded, a `--save` may be a flag, which its value tells.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.trainers.launch_files import FOLDER, OUTPUTS, Launch

TRIAL_DIR = f"{FOLDER}/{OUTPUTS}"
"""what `{trial_dir}` stands for"""
OUTPUT_OPTIONS = frozenset({
    "output_dir", "out_dir", "outdir", "output_path", "output_folder", "outputs_dir",  # transformers, nanoGPT, accelerate's examples
    "save", "save_dir", "savedir", "save_path", "save_folder", "save_checkpoint_path",  # Megatron, fairseq, llm-foundry
    "default_root_dir", "weights_save_path", "dirpath",  # Lightning
    "logging_dir", "log_dir", "logdir", "tensorboard_dir", "tensorboard_logdir", "tb_log_dir", "wandb_dir",
    "results_dir", "result_dir", "work_dir", "workdir", "exp_dir", "experiment_dir", "run_dir", "runs_dir", "dump_folder",  # mmengine, torchtitan
})  # fmt: skip
"""their names without dashes before them, dashes within as underscores, and of a dotted name its last part"""
HYDRA = frozenset({"hydra.run.dir", "hydra.sweep.dir"})
"""and these in whole"""
LIGHTNING_CLI = "--trainer.default_root_dir"
"""the option of every LightningCLI, which else writes its configuration and its checkpoints where it runs, and refuses to run there again"""


def with_own_outputs(launch: Launch) -> Launch:
    """The launch with every such option in `argv` naming a folder of the trial's own."""
    words, told = list(launch.argv), []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not _is_output(name, is_option=name.startswith("-"), has_value=bool(equals)):
            continue
        if not equals:
            value = words[place + 1] if place + 1 < len(words) else "-"
            if value.startswith("-"):
                continue
        if not value or FOLDER in value:
            continue
        own = f"{TRIAL_DIR}/{_plain(name)}"
        if equals:
            words[place] = f"{name}={own}"
        else:
            words[place + 1] = own
        told.append(name)
    if LIGHTNING_CLI not in told and "fit" in words and any(word.startswith("--trainer.") for word in words):
        words.append(f"{LIGHTNING_CLI}={TRIAL_DIR}")
        told.append(LIGHTNING_CLI)
    if not told:
        return launch
    note = f"trials write into a folder of their own, which is removed after each: {', '.join(told)}"
    return replace(launch, argv=tuple(words), notes=(*launch.notes, note))


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("-", "_")


def _is_output(name: str, *, is_option: bool, has_value: bool) -> bool:
    plain = _plain(name)
    if not is_option and not has_value:
        return False
    return plain in HYDRA or plain.rsplit(".", 1)[-1] in OUTPUT_OPTIONS
