"""`autotune init` of a launch script: the draft of the program that it starts, as it starts it.

A program of settings (LLaMA-Factory, axolotl) has the draft of its settings. Any other has that of its Python file, which is looked for beside the script
and above; its options have the values that the script gives them. Where it is not found, what the script gives is all that is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.onboarding.command_words import TASKS
from autotune.onboarding.configuration_files import read_present
from autotune.onboarding.draft import Draft, Place
from autotune.onboarding.given_options import named, with_given
from autotune.onboarding.launch_script import Argument, Started, arguments_of, is_plain
from autotune.onboarding.library_options import TRAINING_ARGUMENTS
from autotune.onboarding.script import Script, read_script
from autotune.onboarding.script_options import ScriptOption, option_of, overridden_by_file
from autotune.onboarding.script_spec import script_draft
from autotune.onboarding.settings_draft import Settings, settings_draft
from autotune.onboarding.settings_file import typed
from autotune.onboarding.settings_program import COMMANDS, settings_program
from autotune.trainers.present_configuration import parse_document

_ABOVE = 3
"""folders above the script in which its program is looked for"""
_FILES = (".yaml", ".yml", ".json")


def started_draft(started: Started, path: Path, place: Place, *, model: str | None, folder: Path) -> Draft:
    """The draft of what the script at `path` starts; `folder`: of the spec. Raises `SpecError` for a program that is no Python, and for a launcher that
    autotune cannot tell how many ranks a trial has."""
    _refuse_unknown(started, path, place)
    draft = _draft(started, path, place, model=model, folder=folder)
    notes, fill_in = list(draft.notes), draft.fill_in
    if open_words := [word for word in (started.program, *started.carried, *started.words) if not is_plain(word)]:
        notes.append(f"only the shell can compute {', '.join(open_words)}: write the values into argv")
        fill_in = tuple(dict.fromkeys((*fill_in, "trainer.argv")))
    if started.not_carried:
        named = ", ".join(started.not_carried)
        notes.append(f"{path.name} also exports {named}: export them where you start autotune")
    return replace(draft, notes=tuple(notes), fill_in=fill_in)


def _refuse_unknown(started: Started, path: Path, place: Place) -> None:
    """Raises `SpecError` for a command, or a launcher, that nobody here knows."""
    if not started.is_known:
        is_open = not is_plain(started.program)
        raise SpecError(
            f"only the shell can compute the program that {path.name} starts: {started.program}"
            if is_open
            else f"{path.name} starts `{started.program}`, which autotune does not recognize",
            remedy="write its path into the script"
            if is_open
            else "give a script that starts the Python program behind it: torchrun --nproc_per_node=8 train.py ..., or -m package.module",
            field="FILE",
        )
    tasks = TASKS.get(started.launcher)
    if tasks is None:
        return
    how = f"{path.name} starts {started.program} by {started.launcher}"
    if not tasks.start:
        raise SpecError(
            f"{how}, and autotune cannot set its number of ranks",
            remedy="start the ranks with torchrun, once per node, and give that script; or with srun or mpirun on one node",
            field="FILE",
        )
    if started.gpus_per_node is None:
        raise SpecError(
            f"{how}, but the number of processes is not given",
            remedy=f"write their number into the script: {started.launcher} {' '.join(tasks.start[:1])}...",
            field="FILE",
        )
    if place.is_spread:
        raise SpecError(
            f"{how}, one process for each of {started.nodes * started.gpus_per_node} ranks; over several nodes autotune starts a command once on each node, "
            "so that each would start all ranks again",
            remedy="start the ranks of a node by torchrun (srun --ntasks-per-node=1 torchrun ... PROGRAM) and give that script, "
            "or tune on one node: --cluster GPU-1x8",
            field="FILE",
        )


def _draft(started: Started, path: Path, place: Place, *, model: str | None, folder: Path) -> Draft:
    program = COMMANDS.get(started.program) or settings_program({argument.name: True for argument in started.arguments})
    if program is not None:
        file = next((word for word in started.words[:1] if word.endswith(_FILES)), "")
        cwd = where_it_runs(path, file)
        told = dict(_settings(started.arguments))
        if file and (cwd / file).is_file():
            told = {**parse_document(file, read_present(cwd / file).files[Path(file).name]), **told}
            program = settings_program(told) or program
        arguments = tuple(arguments_of(started.words[1:])) if file else started.arguments
        settings = Settings(
            program=program, document=told, source=path, cwd=cwd, file=file, arguments=arguments, env=started.env
        )
        return settings_draft(settings, place, model=model, folder=folder)
    file = started.file
    cwd = where_it_runs(path, file)
    script = Script(
        name=started.program, options=(), parser="", imports=frozenset(), is_distributed=False, is_read=False
    )
    if (cwd / file).is_file():
        text = read_present(cwd / file).files[Path(file).name]
        script = read_script(Path(file).name, text, file=cwd / file, base=cwd)
    if script.parser == "configurator":
        script = replace(script, options=tuple(_with_files(script.options, started.words, cwd)))
    if not script.parser and "per_device_train_batch_size" in {argument.name for argument in started.arguments}:
        known = tuple(option_of(name, kind, default) for name, kind, default in TRAINING_ARGUMENTS)
        script = replace(script, parser="HfArgumentParser", options=known)
    started = replace(started, arguments=tuple(named(started.arguments, script.options)))
    script = replace(script, started=started, options=tuple(with_given(script.options, started.arguments)))
    return script_draft(script, place, cwd=cwd, source=path, model=model, folder=folder)


def _with_files(options: tuple[ScriptOption, ...], words: tuple[str, ...], cwd: Path) -> tuple[ScriptOption, ...]:
    """The options with what the Python files set that the script is started with: each word without `=`."""
    for word in words:
        if "=" not in word and not word.startswith("-"):
            file = cwd / word
            text = read_present(file).files[file.name] if file.is_file() else None
            options = tuple(overridden_by_file(options, word, text))
    return options


def where_it_runs(path: Path, file: str) -> Path:
    """The folder in which the script runs: where its program is found, beside it or above; else its own."""
    beside = path.resolve().parent
    return next((base for base in (beside, *beside.parents[:_ABOVE]) if file and (base / file).is_file()), beside)


def _settings(arguments: tuple[Argument, ...]) -> Iterator[tuple[str, Any]]:
    """Settings of a command: `--name value`, or `name=value`."""
    for argument in arguments:
        if argument.name:
            yield argument.name, typed(" ".join(argument.values)) if argument.values else True
        else:
            yield from (
                (name, typed(value)) for name, sign, value in (w.partition("=") for w in argument.values) if sign
            )
