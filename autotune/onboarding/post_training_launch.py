"""Launches of programs that post-train, as people write them: the words that start the program, its
overrides or flags, and the files that it is told.

    uv run examples/run_grpo.py --config grpo.yaml cluster.gpus_per_node=8
    ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1
    trl grpo --config grpo.yaml --num_processes 8
    accelerate launch --config_file zero3.yaml -m trl.scripts.grpo --config grpo.yaml

NeMo-RL's files start from others, which are looked for where its program looks for them.
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
"""NeMo-RL's own launches, whose configuration has their name (tests/test_suites/llm/common.env)"""


def post_training_launch(
    text: str, path: Path, started: Started | None
) -> tuple[str, PresentConfiguration] | None:
    """(the trainer, what a text of commands tells it); None where it starts no program of
    post-training. `path`: where the text lies, or would lie; `started`: what it starts.

    Raises `SpecError` for a program whose configuration is not read, and for a file that is not
    there.
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
    """A configuration with the files that it starts from, and NeMo-RL's checkout in which it
    lies."""
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
    """NeMo-RL, where a configuration starts from files that say the rest and none of them is of
    another of its algorithms; None otherwise."""
    keys = {key for name, text in present.files.items() for key in document_of(name, text)}
    return (
        NEMO_RL
        if _starts_from(present, path) and "policy" in keys and not keys & _OTHER_ALGORITHMS
        else None
    )


def _starts_from(present: PresentConfiguration, path: Path) -> tuple[str, ...]:
    return bases_of(document_of(path.name, present.files.get(path.name, "")))


def _folder(path: Path, started: Started | None, folder: str, program: str) -> str:
    """Where the program runs: where its file is found, else where the text changes to; empty where
    that is not known."""
    file = program if program.endswith(".py") else ""
    where = where_it_runs(path, started, file)
    if not where.is_known or (file and not (where.cwd / file).is_file()):
        return folder if os.path.isabs(folder) and "$" not in folder else str(where.cwd)
    return str(where.cwd)


def _with_files(name: str, present: PresentConfiguration, path: Path) -> PresentConfiguration:
    """With the file that `--config` names, and those from which that one starts."""
    if name == "verl":
        return _with_file_of_hydra(present, path)
    told = present.option("config")
    if name == NEMO_RL:
        told = told or BASE.default
        if "$" in told and (of_tests := _OF_TESTS.search(path.resolve().as_posix())):
            named = f"examples/configs/recipes/{of_tests[1]}.yaml"
            at = present.argv.index(told)
            present = replace(present, argv=(*present.argv[:at], named, *present.argv[at + 1 :]))
            told = named
    read = _reader(Path(present.cwd))
    if told is None and name == "trl":
        return replace(present, files=_launchers_files(present, read))
    if told is None or name not in (NEMO_RL, "trl"):
        return present
    if (text := read(told)) is not None:
        inner = os.path.normpath(told)
        files = {inner: text}
        files |= _launchers_files(replace(present, files=files), read) if name == "trl" else {}
        return replace(present, files=with_bases(files, inner, read) if name == NEMO_RL else files)
    if name == "trl":
        raise SpecError(
            f"{path.name} starts `trl grpo` with {told}, which was not found in {present.cwd}",
            remedy="run this command where that file exists, or pass the file itself",
            field="FILE",
        )
    return present


def _with_file_of_hydra(present: PresentConfiguration, path: Path) -> PresentConfiguration:
    """With the file that `--config-name` names, in the folder of `--config-path` or `--config-dir`;
    verl's own are known."""
    named = (present.option("config-name") or "").removesuffix(".yaml")
    if not named or named in OWN_GROUPS:
        return present
    folders = [folder for flag in ("config-path", "config-dir") if (folder := present.option(flag))]
    told = [os.path.join(folder, f"{named}.yaml") for folder in folders]
    # Hydra: from the program's own folder
    told += [os.path.join("verl/trainer", inner) for inner in told]
    start = Path(present.cwd).absolute()
    # `$(pwd)` is the checkout's folder, in which the script lies
    for where in (
        start,
        *start.parents,
    ):
        for inner in map(os.path.normpath, told):
            if (text := _reader(where)(inner)) is not None:
                return replace(present, files={inner: text})
    raise SpecError(
        f"{path.name} starts verl with {named}.yaml in {' or '.join(folders) or 'its own folder'}, which was not found from {present.cwd}",
        remedy="run this command on the machine that has that file, because the file contains settings that the command omits",
        field="FILE",
    )


def _launchers_files(
    present: PresentConfiguration, read: Callable[[str], str | None]
) -> dict[str, str]:
    """The files of Accelerate and DeepSpeed that `trl grpo` is given, by command or configuration,
    by their names; without TRL's own and those that are not here."""
    documents = [document_of(name, text) for name, text in present.files.items()]
    told = [
        each
        for key in LAUNCHERS_FILES
        for each in (present.option(key), *(one.get(key) for one in documents))
    ]
    texts = {os.path.normpath(name): read(name) for name in told if isinstance(name, str)}
    return {name: text for name, text in texts.items() if text is not None}


def _reader(folder: Path) -> Callable[[str], str | None]:
    return lambda name: text_in(folder / name)
