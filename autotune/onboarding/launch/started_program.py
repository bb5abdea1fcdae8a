"""The draft that `autotune init` writes for a launch script, by the program that the script starts.

For a program that is configured by a settings file (LLaMA-Factory, axolotl) it is the draft of its
settings. For any other program it is that of its Python file, which is looked for next to the
script and in the folders above; its options have the values that the script passes. If the file is
not found, only the options that the script passes are known.
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
"""remedy for a program whose settings autotune cannot read"""
_DEEPSPEED = ("deepspeed_config", "deepspeed", "ds_config")
"""options that name DeepSpeed's settings file"""
_ABOVE = 3
"""number of folders above the script in which its program is looked for; also the depth to which
scripts that start scripts are followed"""
_FILES = (".yaml", ".yml", ".json")
_ONE_TASK_A_RANK = ("srun", "mpirun", "mpiexec")
"""launchers that torchrun can replace, because programs that read their variables mostly read
torchrun's, too"""


def started_through(text: str, path: Path, depth: int = 0) -> Started | None:
    """The program that a shell text starts (`started_by`). If that is another shell script, the
    program that this script starts, with the arguments and variables passed to it: `srun ./train.sh
    8`, `NNODES=1 bash train.sh`. `path`: the file with the text. None if the text starts no
    program."""
    started = started_by(text) or started_by(text, scripts=True)
    if started is None or started.is_known or depth == _ABOVE:
        return started
    folder_of_text = path.resolve().parent
    name = started.program.replace(OF_SCRIPT, str(folder_of_text))
    places = (base / name for base in (folder_of_text, *folder_of_text.parents[:_ABOVE]))
    file = next((each for each in places if each.suffix in SHELL_SCRIPTS and each.is_file()), None)
    if file is None:
        return started_by(text)
    exported = commands_of(text).exported.items()
    exports = [f"export {name}={shlex.quote(value)}" for name, value in exported if is_plain(value)]
    slurm_lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    preamble = "; ".join((*exports, f"set -- {shlex.join(started.words)}"))
    inner = started_through(
        "\n".join((f"{preamble}; {read_present(file).files[file.name]}", *slurm_lines)),
        file,
        depth + 1,
    )
    if inner is None:
        return started_by(text)
    inner = placed(inner, file, folder_of_text)
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
    """The draft for the program that the script at `path` starts. `folder`: the folder of the spec;
    `said`: option defaults reported by the program's own parser. Raises `SpecError` for a program
    that is not Python, and for a launcher whose number of ranks autotune cannot set."""
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
        listed = ", ".join(open_words)
        draft = draft.noting(f"only the shell can compute {listed}; write the values into argv")
        draft = draft.asking("trainer.argv")
    draft = _with_python(draft, started, path, where.cwd)
    if started.not_carried:
        listed = ", ".join(started.not_carried)
        note = (
            f"{path.name} also exports {listed}; export the same variables where you start autotune"
        )
        draft = draft.noting(note)
    return draft


def _with_python(draft: Draft, started: Started, path: Path, cwd: Path) -> Draft:
    """The draft with the Python that the script chooses as `trainer.python`, or with a note if that
    Python is not found."""
    chosen = started.python
    if not (chosen.path or chosen.words):
        return draft
    if found := chosen.found((cwd, path.resolve().parent)):
        entry = Entry(
            key="python", value=str(found), comment=f"the Python that {path.name} chooses"
        )
        return draft.put("trainer.python", entry)
    choice = f"uses {chosen.path}, where no `{chosen.name}` was found"
    choice = f"runs `{chosen.words}`" if chosen.words else choice
    remedy = "activate that environment where you start autotune, or set trainer.python"
    return draft.noting(f"{path.name} {choice}, so trials use the first Python on PATH; {remedy}")


def _by_torchrun(started: Started, place: Place) -> Started:
    """The launch with torchrun on each node, if it spans several nodes and its launcher starts one
    task per rank. Unchanged if words between launcher and program, such as a container or a script
    that binds cores, would have to start torchrun instead of the program."""
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
    """Raises `SpecError` for a command that autotune does not recognize, or a launcher that it
    cannot use here."""
    if not started.is_known:
        is_computed = not is_plain(started.program)
        raise SpecError(
            f"only the shell can compute the program that {path.name} starts: {started.program}"
            if is_computed
            else f"{path.name} starts `{started.program}`, which autotune does not recognize",
            remedy="write the program's path into the script"
            if is_computed
            else f"pass a script that starts the underlying Python program (torchrun --nproc_per_node=8 train.py ..., or -m package.module), or {SAY_IT}",
            field="FILE",
        )
    tasks = TASKS.get(started.launcher)
    if tasks is None:
        return
    problem = f"{path.name} starts {started.program} with {started.launcher}"
    if not tasks.start:
        raise SpecError(
            f"{problem}, and autotune cannot set the number of ranks",
            remedy="pass a script that starts the ranks with torchrun (once per node), or with srun or mpirun on a single node",
            field="FILE",
        )
    if (
        started.gpus_per_node is None and started.launcher != "composer"
    ):  # composer starts one per GPU by default
        raise SpecError(
            f"{problem}, but does not give the number of processes",
            remedy=f"write the number of processes into the script: {started.launcher} {' '.join(tasks.start[:1])}...",
            field="FILE",
        )
    if place.is_spread:
        raise SpecError(
            f"{problem}, one process for each of {number_of(started.nodes * (started.gpus_per_node or place.ranks), 'rank')}, but across several nodes autotune starts a command once per node, "
            "so each would start all ranks again",
            remedy="start the ranks of a node with torchrun (srun --ntasks-per-node=1 torchrun ... PROGRAM) and pass the script that does so, "
            "or tune on one node: --cluster GPU-1x8",
            field="FILE",
        )


def _settings_of(started: Started, path: Path, place: Place, cwd: Path) -> Settings | None:
    """The settings of a program that is configured by a settings file, from that file and the
    command; None for any other program. `cwd`: where the program runs, to find its files. Raises
    `SpecError` if the settings file is not found."""
    file = next((word for word in started.words[:1] if word.endswith(_FILES)), "")
    folder = where_it_runs(path, started, file).cwd
    file_settings: dict[str, Any] = {}
    if (folder / file).is_file():
        file_settings = parse_document(file, read_present(folder / file).files[Path(file).name])
    passed = {argument.name: True for argument in started.arguments}
    program = (
        COMMANDS.get(started.program) or settings_program(passed) or settings_program(file_settings)
    )
    if program is None:
        return None
    if file and not file_settings:
        raise SpecError(
            f"{path.name} starts {started.program} with {file}, which sets the model, batch and precision but was not found in {folder}",
            remedy=f"pass the path of {file} itself, or put {file} into that folder",
            field="FILE",
        )
    settings = {**file_settings, **dict(_settings(started.arguments))}
    result = Settings(
        program=settings_program(settings) or program,
        document=settings,
        source=path,
        cwd=folder,
        file=file,
        arguments=tuple(arguments_of(started.words[1:])) if file else started.arguments,
        env=started.env,
    )
    if started.program in COMMANDS:
        return result
    decided = {k: v for k, v in decided_for(started, cwd).items() if k in ("zero_stage", "offload")}
    return replace(result, start=_start_of(started, place), decided=decided)


def _script_of(started: Started, path: Path, cwd: Path, said: Said) -> tuple[Script, Started]:
    """(the program's script with defaults reported by its parser, the launch with the values of
    settings files that the script reads as options)"""
    file = cwd / started.file
    script = Script(name=started.program, options=(), parser="", is_read=False)
    if file.is_file():
        text = read_present(file).files[file.name]
        script = with_said(read_script(file.name, text, file=file, base=cwd), said)
    if script.told_in is not None:
        script, started = _with_file_options(script, started, cwd)
    elif script.parser == "HfArgumentParser" and (alone := started.file_alone):
        arguments = tuple(_as_options(started, path, cwd / alone))
        started = replace(started, arguments=arguments, spelled_out=alone)
    elif script.parser == "HfArgumentParser" and (first := started.words[:1]):
        script, started = _with_defaults(script, started, cwd / first[0])
    started = _with_default_file(started, script, cwd)
    if script.parser == "configurator":
        script = replace(script, options=tuple(_with_files(script.options, started.words, cwd)))
    declares_batch = MICRO_BATCH in {option.name for option in script.options}
    if not declares_batch and (of_library := _library_program(started)) is not None:
        return of_library, started
    if not script.parser and MICRO_BATCH in {argument.name for argument in started.arguments}:
        has_trainer_options = _is_trainers(started) and (not script.is_read or _has_trainer(script))
        declared = (
            each for each in TRAINING_ARGUMENTS if has_trainer_options or each[0] == ACCUMULATION
        )
        options = tuple(option_of(*each) for each in declared)
        script = replace(
            script, parser="HfArgumentParser" if has_trainer_options else "", options=options
        )
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
    """The draft of a script as it is launched. If the code itself passes arguments to a trainer,
    they are treated as options that the draft overrides."""

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
    with_code_arguments = replace(started, arguments=(*started.arguments, *written.arguments))
    if started.launcher == "python" and written.parser == "Lightning" and written.ranks != (1, 1):
        with_code_arguments = with_code_arguments.by_torchrun(starts_ranks=True)
        if written.ranks is not None:
            place = replace(place, nodes=written.ranks[0], gpus_per_node=written.ranks[1])
    as_options = drafted(with_options, with_code_arguments)
    whole = as_options.value("workload")
    workload = {
        **whole,
        **written.workload,
        **{key: whole[key] for key in ("peft",) if key in whole},
    }
    # DeepSpeed keeps master weights in fp32, and PEFT the adapters
    if workload.get("loop") == "deepspeed" or "peft" in workload:
        workload.pop("pure_bf16", None)
        workload.pop("shards_in_fp32", None)
    as_options = as_options.edited("workload", value=workload)
    option_names = {option.name for option in script.options} | {
        argument.name for argument in started.arguments
    }
    tuned = overriding(as_options, written, braced(started.program), frozenset(option_names))
    names = frozenset(option.name for option in written.options)
    return replace(tuned, as_options=as_options, beside=written.beside, held=names)


def _with_default_file(started: Started, script: Script, cwd: Path) -> Started:
    """The launch with DeepSpeed's settings file added, if the program's parser has one as a default
    and the launch passes none."""
    given = {argument.name for argument in started.arguments}
    for option in script.options:
        is_file = isinstance(option.default, str) and (cwd / option.default).is_file()
        if option.name in _DEEPSPEED and is_file and option.name not in given:
            added = arguments_of([f"--{option.name}={option.default}"])
            return replace(started, arguments=(*started.arguments, *added))
    return started


def _with_file_options(script: Script, started: Started, cwd: Path) -> tuple[Script, Started]:
    """For a script that takes its options only from a settings file: the script with that file's
    values, the launch with the file. Without options if the file is not found."""
    file = settings_file(replace(script, started=started), cwd)
    if file is None:
        files = [word for word in started.words if word.endswith(DOCUMENTS)]
        unread = f"{' '.join(files) or 'the file of settings'}, which alone sets the arguments of {script.name} and was not found"
        return replace(script, options=(), parser="", told_in=None, unread=unread), started
    file_options = {option.name: option for option in told_by_file(file)}
    section = f"{script.told_in}." if script.told_in else ""
    prefixed = [replace(option, name=f"{section}{option.name}") for option in script.options]
    declared = [
        replace(
            option,
            prefix="",
            on=True,
            off=False,
            given=file_options.pop(option.name).given if option.name in file_options else None,
            is_required=False,
            file=file.given,
            names=(),
            takes=None,
        )
        for option in prefixed
    ]
    script = replace(script, options=(*declared, *file_options.values()))
    return script, replace(started, of_file=dict(flat(file.document)))


def _with_defaults(script: Script, started: Started, file: Path) -> tuple[Script, Started]:
    """For a script whose parser takes a settings file before its options: the script with the
    file's values as defaults, the launch with the file."""
    document = document_in(file) if file.suffix in _FILES else {}
    values = dict(flat(document))
    option_names = {option.name for option in script.options}
    options = (replace(o, default=values.get(o.name, o.default)) for o in script.options)
    undeclared = (
        option_of(name, kind_of(v), v) for name, v in values.items() if name not in option_names
    )
    return replace(script, options=(*options, *undeclared)), replace(started, of_file=document)


def _as_options(started: Started, path: Path, file: Path) -> Iterator[Argument]:
    """The settings of a file as options, which HfArgumentParser treats alike. Trials need options,
    because it takes either a file or options. Raises `SpecError` if the file is not found."""
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


def _library_program(started: Started) -> Script | None:
    """A library's own program with its known options, whether or not its code is found; None for
    any other program. Raises `SpecError` if a settings file sets the options."""
    match = next((each for end, each in PROGRAMS.items() if started.file.endswith(end)), None)
    if match is None:
        return None
    settings_file = next(
        (word for word in started.words[:1] if word.endswith(_FILES)),
        value_of(started.arguments, "config"),
    )
    if settings_file:
        raise SpecError(
            f"the command starts {started.program} with {settings_file}, whose settings autotune does not read",
            remedy="write these settings as command-line options: --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 ...",
            field="FILE",
        )
    library, options = match
    return Script(
        name=started.program,
        options=tuple(option_of(*each) for each in options),
        parser="HfArgumentParser",
        beyond=library if library in BEYOND else "",
    )


def _start_of(started: Started, place: Place) -> tuple[str, ...]:
    """The words that start a program that is configured by a settings file: launcher, interpreter
    and program."""
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
    """Whether the options, which include `MICRO_BATCH`, are those of transformers' Trainer. For a
    program whose parser was not found."""
    names = {argument.name for argument in started.arguments}
    has_own_loop = "no_trainer" in started.file or names & OWN_LOOP
    return not has_own_loop and bool(names & OF_TRAINER)


def _has_trainer(script: Script) -> bool:
    """Whether the script or a module that it imports mentions a trainer's class of arguments."""
    endings = tuple(ending for ending, _ in TRAINER_ARGUMENTS)
    return any(name.endswith(endings) for name in script.code.whole.names)


def _with_files(
    options: tuple[ScriptOption, ...], words: tuple[str, ...], cwd: Path
) -> tuple[ScriptOption, ...]:
    """The options with the values set by Python files that the launch passes to nanoGPT's
    configurator: words without `=`."""
    for word in words:
        if "=" not in word and not word.startswith("-"):
            file = cwd / word
            text = read_present(file).files[file.name] if file.is_file() else None
            options = tuple(overridden_by_file(options, word, text))
    return options


@final
@dataclass(frozen=True, slots=True)
class WhereItRuns:
    """The folder in which a script runs its program."""

    start: Path
    """the folder in which the script itself is started"""
    cwd: Path
    """the folder in which the program runs"""
    is_known: bool = True
    """False if `cwd` is only a placeholder"""
    note: str = ""
    """a note about `cwd` for the user; empty if there is none"""


def where_it_runs(path: Path, started: Started | None, file: str | None = None) -> WhereItRuns:
    """The folder to which the script's `cd` leads, starting in the script's folder or one above it,
    where the program is found. Without `cd`, the folder where the program is found. `file`: the
    file to look for instead of the program."""
    script_folder = path.resolve().parent
    if file is None:
        file = started.file if started else ""
    # a path such as `pkg/train.py` is unambiguous, so it is looked for further up
    bases = (script_folder, *script_folder.parents[: _ABOVE + _ABOVE * ("/" in file)])
    changed_to = started.folder if started else ""
    found_in = next((base for base in bases if file and (base / file).is_file()), None)
    if not changed_to:
        return WhereItRuns(found_in or script_folder, found_in or script_folder)
    folder = os.path.expanduser(
        re.sub(r"^\$(HOME\b|\{HOME\})", "~", changed_to.replace(OF_SCRIPT, str(script_folder)))
    )
    if is_plain(folder):
        candidates = [(base, Path(os.path.normpath(base / folder))) for base in bases]
        candidates = [(base, cwd) for base, cwd in candidates if cwd.is_dir()]
        found = next(
            (each for each in candidates if file and (each[1] / file).is_file()),
            candidates[0] if candidates else None,
        )
        if found is not None:
            return WhereItRuns(*found)
    reason = f"{path.name} changes to {changed_to}, " + (
        f"which is not a folder here ({bases[0] / folder})"
        if is_plain(folder)
        else "which only the shell can compute"
    )
    if found_in is None:
        return WhereItRuns(
            script_folder,
            script_folder,
            False,
            f"{reason}; set trainer.cwd to the folder in which {file or 'the program'} runs",
        )
    return WhereItRuns(
        found_in,
        found_in,
        True,
        f"{reason}, but {file} was found in {found_in}; if {file} runs elsewhere, correct trainer.cwd",
    )


def placed(started: Started, path: Path, cwd: Path) -> Started:
    """The launch with the script's folder (`OF_SCRIPT`) replaced by its path relative to `cwd`."""
    script_folder = os.path.relpath(path.resolve().parent, cwd.resolve())

    def with_folder(word: str) -> str:
        return word.replace(
            f"{OF_SCRIPT}/", "" if script_folder == "." else f"{script_folder}/"
        ).replace(OF_SCRIPT, script_folder)

    def replaced_in(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
        return tuple(
            Argument(a.name, tuple(map(with_folder, a.values)), tuple(map(with_folder, a.words)))
            for a in arguments
        )

    return replace(
        started,
        program=with_folder(started.program),
        carried=tuple(map(with_folder, started.carried)),
        options=replaced_in(started.options),
        arguments=replaced_in(started.arguments),
    )


def _settings(arguments: tuple[Argument, ...]) -> Iterator[tuple[str, Any]]:
    """(name, value) of the settings on a command line: `--name value`, or `name=value`."""
    for argument in arguments:
        if argument.name:
            yield argument.name, typed(" ".join(argument.values)) if argument.values else True
        else:
            yield from (
                (name, typed(value))
                for name, sign, value in (w.partition("=") for w in argument.values)
                if sign
            )
