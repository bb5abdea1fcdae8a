"""Launches of post-training programs as users write them: the command, its overrides or flags, and
the files that it names.

    uv run examples/run_grpo.py --config grpo.yaml cluster.gpus_per_node=8
    ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1
    trl grpo --config grpo.yaml --num_processes 8
    accelerate launch --config_file zero3.yaml -m trl.scripts.grpo --config grpo.yaml

NeMo-RL's files build on base files, which are looked for in the same places as its program does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autotune.errors import SpecError
from autotune.onboarding.configuration_files import document_of, recognized, text_in
from autotune.onboarding.launch.launch_script import Started
from autotune.onboarding.launch.started_program import where_it_runs
from autotune.trainers.documents.shell_words import commands_of
from autotune.trainers.nemo_rl.bases import BASE, bases_of, with_bases
from autotune.trainers.post_training.programs import PROGRAMS, UNREAD, USUAL, program_of
from autotune.trainers.present_configuration import PresentConfiguration
from autotune.trainers.trl.launchers import LAUNCHERS_FILES, as_trl_grpo
from autotune.trainers.verl.read import OWN_GROUPS

NEMO_RL = "nemo_rl"
TRL = " ".join(USUAL["trl"])
_OTHER_ALGORITHMS = frozenset({"dpo", "sft", "ppo", "rm", "distillation"})
_OF_TESTS = re.compile(r"tests/test_suites/(.+)\.sh$")
"""NeMo-RL's own launch scripts, whose configuration has the same name
(tests/test_suites/llm/common.env)"""


def post_training_launch(
    text: str, path: Path, started: Started | None
) -> tuple[str, PresentConfiguration] | None:
    """(trainer, its configuration) of the post-training program that a shell text starts; None if
    it starts none. `path`: the file of the text, which need not exist; `started`: the program that
    it starts.

    Raises `SpecError` for a program that autotune does not support, and if a file is not found.
    """
    for words, _, folder in commands_of(text).commands:
        if (program := program_of(words)) is None:
            continue
        if program.name in UNREAD:
            raise SpecError(
                f"{path.name} starts {UNREAD[program.name]}, which autotune does not support",
                remedy=f"pass a launch of one of these post-training programs: {', '.join(PROGRAMS)}",
                field="FILE",
            )
        name = PROGRAMS[program.name]
        if name == "trl" and program.name != TRL:
            words = as_trl_grpo(words, program)
        present = PresentConfiguration(argv=words, cwd=_folder(path, started, folder, program.name))
        return name, _with_files(name, present, path)
    return None


def with_its_bases(present: PresentConfiguration, path: Path) -> PresentConfiguration:
    """The configuration with its base files, and with NeMo-RL's checkout as its folder."""
    if path.suffix not in (".yaml", ".yml"):
        return present
    read = _reader(path.parent)
    files = (
        with_bases(present.files, path.name, read) if _starts_from(present, path) else present.files
    )
    launchers = _launchers_files(present, read)
    if launchers and recognized(present) == "trl":  # other programs have such keys, too
        files = {**files, **launchers}
    program = USUAL[NEMO_RL][-1]
    checkout = next(
        (str(each) for each in path.resolve().parents if (each / program).is_file()), ""
    )
    return replace(present, files=files, cwd=present.cwd or checkout)


def inheriting_trainer(present: PresentConfiguration, path: Path) -> str | None:
    """ "nemo_rl" for a configuration with base files that configures a policy and no other algorithm
    than GRPO; None otherwise."""
    keys = {key for name, text in present.files.items() for key in document_of(name, text)}
    return (
        NEMO_RL
        if _starts_from(present, path) and "policy" in keys and not keys & _OTHER_ALGORITHMS
        else None
    )


def _starts_from(present: PresentConfiguration, path: Path) -> tuple[str, ...]:
    """The base files that a configuration names."""
    return bases_of(document_of(path.name, present.files.get(path.name, "")))


def _folder(path: Path, started: Started | None, folder: str, program: str) -> str:
    """The folder in which the program runs: where its file is found, or else where the text changes
    to; empty if unknown."""
    file = program if program.endswith(".py") else ""
    where = where_it_runs(path, started, file)
    if not where.is_known or (file and not (where.cwd / file).is_file()):
        return folder if os.path.isabs(folder) and "$" not in folder else str(where.cwd)
    return str(where.cwd)


def _with_files(name: str, present: PresentConfiguration, path: Path) -> PresentConfiguration:
    """The configuration with the file that `--config` names and its base files. Raises `SpecError`
    if the file is not found."""
    if name == "verl":
        return _with_file_of_hydra(present, path)
    config_file = present.option("config")
    if name == NEMO_RL:
        config_file = config_file or BASE.default
        if "$" in config_file and (of_tests := _OF_TESTS.search(path.resolve().as_posix())):
            recipe = f"examples/configs/recipes/{of_tests[1]}.yaml"
            position = present.argv.index(config_file)
            present = replace(
                present, argv=(*present.argv[:position], recipe, *present.argv[position + 1 :])
            )
            config_file = recipe
    read = _reader(Path(present.cwd))
    if config_file is None and name == "trl":
        return replace(present, files=_launchers_files(present, read))
    if config_file is None or name not in (NEMO_RL, "trl"):
        return present
    if (text := read(config_file)) is not None:
        inner = os.path.normpath(config_file)
        files = {inner: text}
        files |= _launchers_files(replace(present, files=files), read) if name == "trl" else {}
        return replace(present, files=with_bases(files, inner, read) if name == NEMO_RL else files)
    if name == "trl":
        raise SpecError(
            f"{path.name} starts `trl grpo` with {config_file}, which was not found in {present.cwd}",
            remedy="run this command where that file exists, or pass the file itself",
            field="FILE",
        )
    return present


def _with_file_of_hydra(present: PresentConfiguration, path: Path) -> PresentConfiguration:
    """The configuration with the file that `--config-name` names, in the folder of `--config-path`
    or `--config-dir`. Files that verl bundles need not be found. Raises `SpecError` if another is
    not."""
    config_name = (present.option("config-name") or "").removesuffix(".yaml")
    if not config_name or config_name in OWN_GROUPS:
        return present
    folders = [folder for flag in ("config-path", "config-dir") if (folder := present.option(flag))]
    candidates = [os.path.join(folder, f"{config_name}.yaml") for folder in folders]
    # Hydra resolves paths relative to the program's folder
    candidates += [os.path.join("verl/trainer", inner) for inner in candidates]
    start = Path(present.cwd).absolute()
    # `$(pwd)` is the checkout, which contains the script's folder
    for base in (
        start,
        *start.parents,
    ):
        for inner in map(os.path.normpath, candidates):
            if (text := _reader(base)(inner)) is not None:
                return replace(present, files={inner: text})
    raise SpecError(
        f"{path.name} starts verl with {config_name}.yaml in {' or '.join(folders) or 'its own folder'}, but this file was not found relative to {present.cwd}",
        remedy="run this command on the machine that has that file, because the file contains settings that the command omits",
        field="FILE",
    )


def _launchers_files(
    present: PresentConfiguration, read: Callable[[str], str | None]
) -> dict[str, str]:
    """Texts of the files of Accelerate and DeepSpeed that `trl grpo` uses, by name. Without files
    bundled with TRL, and those that are not found."""
    documents = [document_of(name, text) for name, text in present.files.items()]
    candidates = [
        each
        for key in LAUNCHERS_FILES
        for each in (present.option(key), *(one.get(key) for one in documents))
    ]
    texts = {os.path.normpath(name): read(name) for name in candidates if isinstance(name, str)}
    return {name: text for name, text in texts.items() if text is not None}


def _reader(folder: Path) -> Callable[[str], str | None]:
    """A function that reads a file relative to this folder; it returns None if the file is not
    found."""
    return lambda name: text_in(folder / name)
