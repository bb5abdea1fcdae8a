"""`autotune init` of a launch script: the draft of the program that it starts, as it starts it.

A program of settings (LLaMA-Factory, axolotl) has the draft of its settings. Any other has that of
its Python file, which is looked for beside the script and above; its options have the values that
the script gives them. Where it is not found, what the script gives is all that is known.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from autotune.errors import SpecError
from autotune.onboarding.configuration_files import (
    decided_for,
    document_in,
    read_present,
    runs_deepspeed,
)
from autotune.onboarding.draft import Draft, Entry, Place
from autotune.onboarding.launch.command_words import TASKS
from autotune.onboarding.launch.given_options import Said, named, with_given, with_said
from autotune.onboarding.launch.launch_script import (
    SHELL_SCRIPTS,
    Argument,
    Started,
    arguments_of,
    is_plain,
    started_by,
    value_of,
)
from autotune.onboarding.script.argv import OMITTED, before_module, start_of
from autotune.onboarding.script.draft import script_draft
from autotune.onboarding.script.library_options import (
    ACCUMULATION,
    BEYOND,
    MICRO_BATCH,
    OF_TRAINER,
    OWN_LOOP,
    PROGRAMS,
    TRAINER_ARGUMENTS,
    TRAINING_ARGUMENTS,
)
from autotune.onboarding.script.options import (
    ScriptOption,
    kind_of,
    option_of,
    overridden_by_file,
)
from autotune.onboarding.script.overridden import overriding
from autotune.onboarding.script.reading import Script, read_script
from autotune.onboarding.settings.draft import Settings, settings_draft
from autotune.onboarding.settings.file import settings_file, told_by_file, typed
from autotune.onboarding.settings.program import COMMANDS, settings_program
from autotune.spec.texts.as_text import number_of
from autotune.trainers.documents.placeholders import braced
from autotune.trainers.documents.shell_folders import OF_SCRIPT
from autotune.trainers.documents.shell_words import commands_of
from autotune.trainers.launch_files import INTERPRETER
from autotune.trainers.present_configuration import DOCUMENTS, flat, parse_document

SAY_IT = (
    "pass the program's settings as options: autotune review --model NAME --seq-len N --batch N --precision bf16 --config micro_batch_size=2,zero_stage=3 "
    "-- torchrun --nproc-per-node 8 train.py"
)
"""how to have a launch reviewed whose settings nobody here reads"""
_DEEPSPEED = ("deepspeed_config", "deepspeed", "ds_config")
"""options that name the file of DeepSpeed's settings"""
_ABOVE = 3
"""folders above the script in which its program is looked for"""
_FILES = (".yaml", ".yml", ".json")
_ONE_TASK_A_RANK = ("srun", "mpirun", "mpiexec")
"""launchers whose ranks torchrun can start, because programs that read their variables mostly read
torchrun's, too"""


def started_through(text: str, path: Path, depth: int = 0) -> Started | None:
    """What a text of commands starts (`started_by`), and what a shell script that it starts does in
    its place: `srun ./train.sh 8`, `NNODES=1 bash train.sh`. `path`: where the text lies."""
    started = started_by(text) or started_by(text, scripts=True)
    if started is None or started.is_known or depth == _ABOVE:
        return started
    beside = path.resolve().parent
    name = started.program.replace(OF_SCRIPT, str(beside))
    places = (base / name for base in (beside, *beside.parents[:_ABOVE]))
    file = next((each for each in places if each.suffix in SHELL_SCRIPTS and each.is_file()), None)
    if file is None:
        return started_by(text)
    told = commands_of(text).exported.items()
    begin = [f"export {name}={shlex.quote(value)}" for name, value in told if is_plain(value)]
    asked = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    given = "; ".join((*begin, f"set -- {shlex.join(started.words)}"))
    inner = started_through(
        "\n".join((f"{given}; {read_present(file).files[file.name]}", *asked)), file, depth + 1
    )
    if inner is None:
        return started_by(text)
    inner = placed(inner, file, beside)
    inner = replace(inner, folder=inner.folder.replace(OF_SCRIPT, str(file.parent)))
    if inner.launcher == "python" and started.launcher in TASKS:
        inner = replace(
            inner,
            launcher=started.launcher,
            options=started.options,
            carried=started.carried,
            gpus_per_node=started.gpus_per_node,
        )
    return replace(
        inner,
        nodes=max(inner.nodes, started.nodes),
        env={**started.env, **inner.env},
        wrapped=(*started.wrapped, *inner.wrapped),
    )


def started_draft(
    started: Started, path: Path, place: Place, *, model: str | None, folder: Path, said: Said = ()
) -> Draft:
    """The draft of what the script at `path` starts; `folder`: of the spec; `said`: what the
    program's parser said as it ran. Raises `SpecError` for a program that is no Python, and for a
    launcher that autotune cannot tell how many ranks a trial has."""
    started = _by_torchrun(started, place)
    _refuse_unknown(started, path, place)
    where = where_it_runs(path, started)
    started = placed(started, path, where.cwd)
    settings = _settings_of(started, path, place, where.cwd)
    if settings is None:
        script, launch = _script_of(started, path, where.cwd, said)
        draft = _draft(script, launch, place, path, where.cwd, model=model, folder=folder)
    else:
        draft = settings_draft(settings, place, model=model, folder=folder)
        if started.wrapped:
            draft = draft.noting(OMITTED.format(" ".join(started.wrapped)))
    draft = draft.noting(where.note) if where.note else draft
    if not where.is_known:
        draft = draft.asking("trainer.cwd")
        draft = draft.edited("trainer.cwd", comment="fill in: the folder where the program runs")
    words = (started.program, *started.carried, *started.words)
    if open_words := [word for word in words if not is_plain(word)]:
        named = ", ".join(open_words)
        draft = draft.noting(f"only the shell can compute {named}; write the values into argv")
        draft = draft.asking("trainer.argv")
    draft = _with_python(draft, started, path, where.cwd)
    if started.not_carried:
        named = ", ".join(started.not_carried)
        why = (
            f"{path.name} also exports {named}; export the same variables where you start autotune"
        )
        draft = draft.noting(why)
    return draft


def _with_python(draft: Draft, started: Started, path: Path, cwd: Path) -> Draft:
    """The draft with the Python that the script chooses, or a note where it cannot be found."""
    chosen = started.python
    if not (chosen.path or chosen.words):
        return draft
    if found := chosen.found((cwd, path.resolve().parent)):
        own = Entry(key="python", value=str(found), comment=f"the Python that {path.name} chooses")
        return draft.put("trainer.python", own)
    said = f"uses {chosen.path}, where no `{chosen.name}` was found"
    said = f"runs `{chosen.words}`" if chosen.words else said
    asked = "activate that environment where you start autotune, or set trainer.python"
    return draft.noting(f"{path.name} {said}, so trials use the first Python on PATH; {asked}")


def _by_torchrun(started: Started, place: Place) -> Started:
    """The launch with torchrun on each of several nodes, in place of a launcher that starts one
    task for each rank. What stands between it and the program (a container, a script that binds
    cores) would start torchrun, too, which nobody here can write."""
    is_plain = all(
        INTERPRETER.fullmatch(word.rpartition("/")[2]) or word.startswith("-")
        for word in started.carried
    )
    if started.launcher not in _ONE_TASK_A_RANK or not (
        place.is_spread and started.gpus_per_node and is_plain
    ):
        return started
    return started.by_torchrun(tasks=started.launcher, options=())


def _refuse_unknown(started: Started, path: Path, place: Place) -> None:
    """Raises `SpecError` for a command, or a launcher, that nobody here knows."""
    if not started.is_known:
        is_open = not is_plain(started.program)
        raise SpecError(
            f"only the shell can compute the program that {path.name} starts: {started.program}"
            if is_open
            else f"{path.name} starts `{started.program}`, which autotune does not recognize",
            remedy="write the program's path into the script"
            if is_open
            else f"pass a script that starts the underlying Python program (torchrun --nproc_per_node=8 train.py ..., or -m package.module), or {SAY_IT}",
            field="FILE",
        )
    tasks = TASKS.get(started.launcher)
    if tasks is None:
        return
    how = f"{path.name} starts {started.program} with {started.launcher}"
    if not tasks.start:
        raise SpecError(
            f"{how}, and autotune cannot set the number of ranks",
            remedy="pass a script that starts the ranks with torchrun (once per node), or with srun or mpirun on a single node",
            field="FILE",
        )
    if (
        started.gpus_per_node is None and started.launcher != "composer"
    ):  # it starts one on each GPU
        raise SpecError(
            f"{how}, but does not give the number of processes",
            remedy=f"write the number of processes into the script: {started.launcher} {' '.join(tasks.start[:1])}...",
            field="FILE",
        )
    if place.is_spread:
        raise SpecError(
            f"{how}, one process for each of {number_of(started.nodes * (started.gpus_per_node or place.ranks), 'rank')}, but across several nodes autotune starts a command once per node, "
            "so each would start all ranks again",
            remedy="start the ranks of a node with torchrun (srun --ntasks-per-node=1 torchrun ... PROGRAM) and pass the script that does so, "
            "or tune on one node: --cluster GPU-1x8",
            field="FILE",
        )


def _settings_of(started: Started, path: Path, place: Place, cwd: Path) -> Settings | None:
    """What a program of settings is told by its file and the command; None for any other program.
    `cwd`: where it runs, as its own file is found. Raises `SpecError` where the file of settings is
    not there."""
    file = next((word for word in started.words[:1] if word.endswith(_FILES)), "")
    beside = where_it_runs(path, started, file).cwd
    held: dict[str, Any] = {}
    if (beside / file).is_file():
        held = parse_document(file, read_present(beside / file).files[Path(file).name])
    flags = {argument.name: True for argument in started.arguments}
    program = COMMANDS.get(started.program) or settings_program(flags) or settings_program(held)
    if program is None:
        return None
    if file and not held:
        raise SpecError(
            f"{path.name} starts {started.program} with {file}, which sets the model, batch and precision but was not found in {beside}",
            remedy=f"pass the path of {file} itself, or put {file} into that folder",
            field="FILE",
        )
    told = {**held, **dict(_settings(started.arguments))}
    known = Settings(
        program=settings_program(told) or program,
        document=told,
        source=path,
        cwd=beside,
        file=file,
        arguments=tuple(arguments_of(started.words[1:])) if file else started.arguments,
        env=started.env,
    )
    if started.program in COMMANDS:
        return known
    decided = {k: v for k, v in decided_for(started, cwd).items() if k in ("zero_stage", "offload")}
    return replace(known, start=_start_of(started, place), decided=decided)


def _script_of(started: Started, path: Path, cwd: Path, said: Said) -> tuple[Script, Started]:
    """(the program's script with what its parser said, the launch with the settings of files that
    it reads as options)."""
    file = cwd / started.file
    script = Script(name=started.program, options=(), parser="", is_read=False)
    if file.is_file():
        text = read_present(file).files[file.name]
        script = with_said(read_script(file.name, text, file=file, base=cwd), said)
    if script.told_in is not None:
        script, started = _told_by_its_file(script, started, cwd)
    elif script.parser == "HfArgumentParser" and (alone := started.file_alone):
        arguments = tuple(_as_options(started, path, cwd / alone))
        started = replace(started, arguments=arguments, spelled_out=alone)
    elif script.parser == "HfArgumentParser" and (first := started.words[:1]):
        script, started = _with_defaults(script, started, cwd / first[0])
    started = _with_default_file(started, script, cwd)
    if script.parser == "configurator":
        script = replace(script, options=tuple(_with_files(script.options, started.words, cwd)))
    is_parsed = MICRO_BATCH in {option.name for option in script.options}
    if not is_parsed and (of_library := _of_library(started)) is not None:
        return of_library, started
    if not script.parser and MICRO_BATCH in {argument.name for argument in started.arguments}:
        is_trainers = _is_trainers(started) and (not script.is_read or _has_trainer(script))
        known = (each for each in TRAINING_ARGUMENTS if is_trainers or each[0] == ACCUMULATION)
        options = tuple(option_of(*each) for each in known)
        script = replace(script, parser="HfArgumentParser" if is_trainers else "", options=options)
    return script, started


def _draft(
    script: Script,
    started: Started,
    place: Place,
    source: Path,
    cwd: Path,
    *,
    model: str | None,
    folder: Path,
) -> Draft:
    """The draft of a script as it is started, also of one whose text gives a trainer what no option
    does."""

    def drafted(script: Script, started: Started) -> Draft:
        started = replace(started, arguments=tuple(named(started.arguments, script.options)))
        options = tuple(with_given(script.options, started.arguments))
        by_deepspeed = runs_deepspeed(started, cwd)
        script = replace(script, started=started, options=options, by_deepspeed=by_deepspeed)
        return script_draft(script, place, cwd=cwd, source=source, model=model, folder=folder)

    written = script.written
    if written is None:
        return drafted(script, started)
    with_options = replace(script, parser=written.parser, options=written.merged(script.options))
    given = replace(started, arguments=(*started.arguments, *written.arguments))
    if started.launcher == "python" and written.parser == "Lightning" and written.ranks != (1, 1):
        given = given.by_torchrun(starts_ranks=True)
        if written.ranks is not None:
            place = replace(place, nodes=written.ranks[0], gpus_per_node=written.ranks[1])
    as_options = drafted(with_options, given)
    whole = as_options.value("workload")
    told = {**whole, **written.workload, **{key: whole[key] for key in ("peft",) if key in whole}}
    # DeepSpeed keeps masters, and PEFT adapters, in fp32
    if told.get("loop") == "deepspeed" or "peft" in told:
        told.pop("pure_bf16", None)
        told.pop("shards_in_fp32", None)
    as_options = as_options.edited("workload", value=told)
    own = {option.name for option in script.options} | {
        argument.name for argument in started.arguments
    }
    tuned = overriding(as_options, written, braced(started.program), frozenset(own))
    names = frozenset(option.name for option in written.options)
    return replace(tuned, as_options=as_options, beside=written.beside, held=names)


def _with_default_file(started: Started, script: Script, cwd: Path) -> Started:
    """The launch with the file of DeepSpeed's settings that the program's parser has as a
    default."""
    given = {argument.name for argument in started.arguments}
    for option in script.options:
        is_file = isinstance(option.default, str) and (cwd / option.default).is_file()
        if option.name in _DEEPSPEED and is_file and option.name not in given:
            added = arguments_of([f"--{option.name}={option.default}"])
            return replace(started, arguments=(*started.arguments, *added))
    return started


def _told_by_its_file(script: Script, started: Started, cwd: Path) -> tuple[Script, Started]:
    """A script whose options a file of settings alone tells, and no argument: as that file tells
    them; without options where it is not there."""
    file = settings_file(replace(script, started=started), cwd)
    if file is None:
        files = [word for word in started.words if word.endswith(DOCUMENTS)]
        why = f"{' '.join(files) or 'the file of settings'}, which alone sets the arguments of {script.name} and was not found"
        return replace(script, options=(), parser="", told_in=None, unread=why), started
    held = {option.name: option for option in told_by_file(file)}
    part = f"{script.told_in}." if script.told_in else ""
    named = [replace(option, name=f"{part}{option.name}") for option in script.options]
    declared = [
        replace(
            option,
            prefix="",
            on=True,
            off=False,
            given=held.pop(option.name).given if option.name in held else None,
            is_required=False,
            file=file.given,
            names=(),
            takes=None,
        )
        for option in named
    ]
    script = replace(script, options=(*declared, *held.values()))
    return script, replace(started, of_file=dict(flat(file.document)))


def _with_defaults(script: Script, started: Started, file: Path) -> tuple[Script, Started]:
    """A script whose parser takes a file of settings before its options, with the file's values as
    their defaults."""
    document = document_in(file) if file.suffix in _FILES else {}
    values = dict(flat(document))
    own = {option.name for option in script.options}
    options = (replace(o, default=values.get(o.name, o.default)) for o in script.options)
    more = (option_of(name, kind_of(v), v) for name, v in values.items() if name not in own)
    return replace(script, options=(*options, *more)), replace(started, of_file=document)


def _as_options(started: Started, path: Path, file: Path) -> Iterator[Argument]:
    """The settings of that file as options, which mean the same to HfArgumentParser: beside a file
    it takes no option of a trial. Raises `SpecError` where the file is not there."""
    if not file.is_file():
        raise SpecError(
            f"{path.name} starts {started.program} with {file.name}, which sets the arguments but was not found in {file.parent}",
            remedy=f"put {file.name} into that folder",
            field="FILE",
        )
    for name, value in parse_document(file.name, read_present(file).files[file.name]).items():
        if isinstance(value, list):
            yield from arguments_of([f"--{name}", *map(str, value)])
        elif value is not None:
            yield from arguments_of(
                [f"--{name}={json.dumps(value) if isinstance(value, dict) else value}"]
            )


def _of_library(started: Started) -> Script | None:
    """The options of a library's own program, whose text need not be there; None for any other.
    Raises `SpecError` where a file has them."""
    known = next((each for end, each in PROGRAMS.items() if started.file.endswith(end)), None)
    if known is None:
        return None
    of_file = next(
        (word for word in started.words[:1] if word.endswith(_FILES)),
        value_of(started.arguments, "config"),
    )
    if of_file:
        raise SpecError(
            f"the command starts {started.program} with {of_file}, whose settings autotune does not read",
            remedy="write these settings as command-line options: --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 ...",
            field="FILE",
        )
    of, options = known
    return Script(
        name=started.program,
        options=tuple(option_of(*each) for each in options),
        parser="HfArgumentParser",
        beyond=of if of in BEYOND else "",
    )


def _start_of(started: Started, place: Place) -> tuple[str, ...]:
    """Launcher and program of a script that is not the module of its settings."""
    script = Script(
        name=started.program,
        options=(),
        parser="",
        is_read=False,
        started=started,
    )
    return (
        *start_of(script, place),
        *before_module(started),
        braced(started.program),
    )


def _is_trainers(started: Started) -> bool:
    """Whether the options of a program whose parser was not found, one of them `MICRO_BATCH`, are
    those of transformers' Trainer."""
    names = {argument.name for argument in started.arguments}
    is_own_loop = "no_trainer" in started.file or names & OWN_LOOP
    return not is_own_loop and bool(names & OF_TRAINER)


def _has_trainer(script: Script) -> bool:
    """Whether the program or a module that it imports names a trainer's arguments."""
    endings = tuple(ending for ending, _ in TRAINER_ARGUMENTS)
    return any(name.endswith(endings) for name in script.code.whole.names)


def _with_files(
    options: tuple[ScriptOption, ...], words: tuple[str, ...], cwd: Path
) -> tuple[ScriptOption, ...]:
    """The options with what the Python files set that the script is started with: each word without
    `=`."""
    for word in words:
        if "=" not in word and not word.startswith("-"):
            file = cwd / word
            text = read_present(file).files[file.name] if file.is_file() else None
            options = tuple(overridden_by_file(options, word, text))
    return options


@final
@dataclass(frozen=True, slots=True)
class WhereItRuns:
    """The folder of a program that a script starts."""

    start: Path
    """the folder in which the script itself is started"""
    cwd: Path
    """where the program runs"""
    is_known: bool = True
    """whether `cwd` is not only a stand-in"""
    note: str = ""
    """what is to be said of it"""


def where_it_runs(path: Path, started: Started | None, file: str | None = None) -> WhereItRuns:
    """Where the script starts its program: where its `cd` leads, from where the script lies, or
    above, as its program is found. `file`: what is looked for, if not the program."""
    beside = path.resolve().parent
    if file is None:
        file = started.file if started else ""
    # `pkg/train.py` is no other program's name, however far above it lies
    bases = (beside, *beside.parents[: _ABOVE + _ABOVE * ("/" in file)])
    told = started.folder if started else ""
    usual = next((base for base in bases if file and (base / file).is_file()), None)
    if not told:
        return WhereItRuns(usual or beside, usual or beside)
    folder = os.path.expanduser(
        re.sub(r"^\$(HOME\b|\{HOME\})", "~", told.replace(OF_SCRIPT, str(beside)))
    )
    if is_plain(folder):
        there = [(base, Path(os.path.normpath(base / folder))) for base in bases]
        there = [(base, cwd) for base, cwd in there if cwd.is_dir()]
        found = next(
            (each for each in there if file and (each[1] / file).is_file()),
            there[0] if there else None,
        )
        if found is not None:
            return WhereItRuns(*found)
    why = f"{path.name} changes to {told}, " + (
        f"which is not a folder here ({bases[0] / folder})"
        if is_plain(folder)
        else "which only the shell can compute"
    )
    if usual is None:
        return WhereItRuns(
            beside,
            beside,
            False,
            f"{why}; set trainer.cwd to the folder in which {file or 'the program'} runs",
        )
    return WhereItRuns(
        usual,
        usual,
        True,
        f"{why}, but {file} was found in {usual}; if {file} runs elsewhere, correct trainer.cwd",
    )


def placed(started: Started, path: Path, cwd: Path) -> Started:
    """The launch with the folder of the script, where it names that, as a path from `cwd`."""
    own = os.path.relpath(path.resolve().parent, cwd.resolve())

    def told(word: str) -> str:
        return word.replace(f"{OF_SCRIPT}/", "" if own == "." else f"{own}/").replace(
            OF_SCRIPT, own
        )

    def each(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        return tuple(
            Argument(a.name, tuple(map(told, a.values)), tuple(map(told, a.words)))
            for a in arguments
        )

    return replace(
        started,
        program=told(started.program),
        carried=tuple(map(told, started.carried)),
        options=each(started.options),
        arguments=each(started.arguments),
    )


def _settings(arguments: tuple[Argument, ...]) -> Iterator[tuple[str, Any]]:
    """Settings of a command: `--name value`, or `name=value`."""
    for argument in arguments:
        if argument.name:
            yield argument.name, typed(" ".join(argument.values)) if argument.values else True
        else:
            yield from (
                (name, typed(value))
                for name, sign, value in (w.partition("=") for w in argument.values)
                if sign
            )
