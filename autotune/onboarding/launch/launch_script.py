"""A launch script: the program that it starts, with the words before and behind it, and the nodes
that it asks for.

srun accelerate launch --config_file fsdp.yaml train.py --batch-size 4
     ^ launcher and its words                  ^        ^ arguments
                                               program: a file, a module behind `-m`, or a command of a known program (`llamafactory-cli train`)

The Python with which a launch script starts its program, where it is not simply that of PATH.

python3.12 train.py                  the interpreter's name in PATH, where `python` may be another or none
/envs/train/bin/python train.py      the interpreter
../venv/bin/torchrun train.py        the environment whose launcher it is
source venv/bin/activate             the environment
export PATH=/envs/train/bin:$PATH    likewise, where the path says that it is one
conda activate train                 an environment by its name, which only the shell can find
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from autotune.onboarding.launch.command_words import (
    LAUNCHERS,
    RANKS_OF_SWIFT,
    SWIFT,
    TASKS,
    CommandParts,
    Launcher,
    parts_of,
)
from autotune.onboarding.settings.program import COMMANDS
from autotune.spec.texts.secrets import FROM_ENVIRONMENT, is_secret_name
from autotune.spec.texts.usual_names import target_of
from autotune.trainers.documents.shell_folders import joined
from autotune.trainers.documents.shell_words import Commands, commands_of
from autotune.trainers.launch_files import INTERPRETER
from autotune.trainers.post_training.programs import program_of
from autotune.trainers.present_configuration import DOCUMENTS

_NODES = ("nnodes", "num_machines", "num_nodes")
_PER_NODE = ("nproc_per_node", "num_gpus", "num_accelerators")
_OF_TRAINING = (
    "micro_batch_size",
    "accumulation_steps",
    "global_batch_size",
    "seq_len",
    "steps",
    "precision",
    "model",
)
_LEAST_OF_TRAINING = 2
"""options by which a command that nobody here knows is taken for a training; a file of settings
counts as so many"""
_OF_THE_PLACE = re.compile(
    r"(MASTER_|WORLD_SIZE|(LOCAL_)?RANK$|N?NODE_?|NNODES|NGPU|GPUS_PER_NODE|CUDA_VISIBLE_DEVICES|SLURM_|FORCE_TORCHRUN|PATH$|LD_LIBRARY_PATH)"
)
"""variables that say where a job runs, which a trial is given by its launcher"""


SHELL_SCRIPTS = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".job", ".pbs"})
"""endings of scripts that start programs"""
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_OTHER_PROGRAM = re.compile(
    r"^(?!.*(train|tune))(.*[_.])?(prep(are|rocess)?|convert|download|tokenize|eval(uate)?|test|infer(ence)?|generate|sample|merge|export|upload)(_|\.|$)"
)
"""names of programs that do not train"""
_LAUNCHER = re.compile(r"torchrun|accelerate|deepspeed")
_BY_NAME = frozenset({"conda", "mamba", "micromamba", "pyenv"})


class ChosenPython(NamedTuple):
    """What a script says about it; empty where it says nothing."""

    path: str = ""
    """an interpreter, or the folder of an environment"""
    words: str = ""
    """the command that activates an environment by its name"""
    name: str = "python"
    """what the interpreter is called"""

    def found(self, folders: Iterable[Path]) -> Path | None:
        """The interpreter or environment, by its path in one of these folders."""
        path = os.path.expanduser(self.path)
        found = (folder / path for folder in folders) if path else ()
        return next(
            (Path(os.path.normpath(each.absolute())) for each in found if self._is_in(each)), None
        )

    def _is_in(self, path: Path) -> bool:
        """Whether trials find it there."""
        return ((path.parent if path.is_file() else path / "bin") / self.name).exists()


class Argument(NamedTuple):
    """An argument with its values."""

    name: str
    """without dashes, words joined by underscores; empty for what stands before the first option"""
    values: tuple[str, ...]
    """none for a flag"""
    words: tuple[str, ...]
    """as they are written"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a launch script starts."""

    launcher: str
    """torchrun, accelerate, deepspeed, python, or a launcher of tasks that starts one process for
    each rank"""
    options: tuple[Argument, ...]
    """of the launcher"""
    carried: tuple[str, ...] = ()
    """words between a launcher of tasks and the program, which stay"""
    program: str
    """the path of a .py file, a module, or a command"""
    is_known: bool = True
    """whether it is a Python program, or a command that autotune knows"""
    is_module: bool
    """whether it stands behind `-m`"""
    arguments: tuple[Argument, ...]
    """of the program"""
    env: Mapping[str, str]
    """what the script exports, less what says where it runs; what is secret comes from the
    environment"""
    not_carried: tuple[str, ...]
    """names of variables that it exports with a secret or a value that only the shell can
    compute"""
    nodes: int
    """nodes that it asks for"""
    gpus_per_node: int | None
    """ranks of a node; None where it does not say"""
    behind_python: tuple[str, ...] = ()
    """Python's own options, and the launcher's module if Python starts the launcher: `-m
    torch.distributed.run`"""
    wrapped: tuple[str, ...] = ()
    """words before the launcher that start it, such as `numactl -l`"""
    tasks: str = ""
    """the launcher of one task for each rank in whose place `launcher` is that of trials; empty:
    there is none"""
    starts_ranks: bool = False
    """whether the program starts its ranks itself, as Lightning does, though `launcher` is that of
    trials"""
    of_file: Mapping[str, Any] = field(default_factory=dict)
    """what the program's file of settings tells its parser beside the arguments, by name"""
    spelled_out: str = ""
    """the file, its only argument in the script, whose settings `arguments` has as options; empty:
    there is none"""
    python: ChosenPython = field(default_factory=ChosenPython)
    """the Python that it chooses"""
    folder: str = ""
    """where it runs by the script's `cd`, as `shell_folders` has it"""

    def by_torchrun(self, **changes: Any) -> Started:
        """The same launch with torchrun as its launcher. Torchrun passes no Python options to its
        ranks."""
        options = (word for word in self.carried if word.startswith("-"))
        left_out = [word for word in (*self.behind_python, *options) if word != "-u"]
        changes |= {"carried": (), "behind_python": (), "wrapped": (*self.wrapped, *left_out)}
        return replace(self, launcher="torchrun", **changes)

    def option(self, name: str) -> str:
        """The value of the launcher's option; empty where it has none."""
        return value_of(self.options, name)

    @property
    def file(self) -> str:
        """The path of its Python file, where it is one."""
        return f"{self.program.replace('.', '/')}.py" if self.is_module else self.program

    @property
    def words(self) -> tuple[str, ...]:
        """The arguments as they are written."""
        return tuple(word for argument in self.arguments for word in argument.words)

    @property
    def file_alone(self) -> str:
        """The file of settings that is the program's only argument; empty where there is none."""
        word = "".join(self.words)
        return (
            word
            if len(self.words) == 1 and word.endswith((".yaml", ".yml", ".json")) and is_plain(word)
            else ""
        )


def started_by(text: str, *, scripts: bool = False) -> Started | None:
    """The program that the script starts, or None. Among several programs the order of preference
    is: one that post-trains, one behind a launcher, one whose name is not that of a preparation or
    evaluation, the one with the most options. An unknown command counts if it has options of a
    training; `scripts`: and if it is a shell script."""
    run = commands_of(text)
    best: tuple[tuple[bool, bool, bool, int], Started] | None = None
    for place, (words, _, folder) in enumerate(run.commands):
        if (parts := parts_of(words)) is None:
            continue
        found = _started(parts, run, text, folder)
        before = [each.words for each in run.commands[:place]]
        found = replace(found, python=chosen_python(words, before, run.exported.get("PATH", "")))
        trains = sum(
            target_of(argument.name.rpartition(".")[2]) in _OF_TRAINING
            for argument in found.arguments
        )
        may_train = any(word.endswith(DOCUMENTS) for word in parts.arguments[:1])
        may_train |= scripts and Path(parts.program).suffix in SHELL_SCRIPTS
        trains += _LEAST_OF_TRAINING * may_train
        post_trains = program_of(words) is not None
        if (
            not (found.is_known or post_trains)
            and trains < _LEAST_OF_TRAINING
            and found.launcher == "python"
        ):
            continue
        is_launched = found.launcher != "python" or found.program in COMMANDS or not found.is_known
        is_other = _OTHER_PROGRAM.search(found.program.rpartition("/")[2]) is not None
        worth = (post_trains, is_launched, not is_other, len(found.arguments))
        if best is None or worth > best[0]:
            best = worth, found
    return best[1] if best else None


def script_of(words: Sequence[str]) -> tuple[str, Path] | None:
    """(text, path) of the shell script that a command runs, with the command's arguments for the
    script; None for any other command."""
    behind = words[1:] if words[0].rpartition("/")[2] in (*SHELLS, "sbatch") else words
    path = Path(next(iter(behind), ""))
    if path.suffix not in SHELL_SCRIPTS or not path.is_file():
        return None
    return f"set -- {shlex.join(behind[1:])}; {path.read_text(encoding='utf-8-sig')}", path


def arguments_of(words: Sequence[str]) -> Iterator[Argument]:
    """The words by their options: `--name value`, `--name=value`, `-n value`; and what stands
    before the first."""
    name, values, written = "", list[str](), list[str]()
    for word in words:
        if word == "--":  # it stays where it is, whatever becomes of the option before it
            if written:
                yield Argument(name, tuple(values), tuple(written))
            yield Argument("", (), ("--",))
            name, values, written = "", [], []
        elif re.match(r"--?[A-Za-z]", word):
            if written:
                yield Argument(name, tuple(values), tuple(written))
            name, sign, value = word.lstrip("-").partition("=")
            name, values, written = name.replace("-", "_"), [value] if sign else [], [word]
        else:
            values.append(word)
            written.append(word)
    if written:
        yield Argument(name, tuple(values), tuple(written))


def is_plain(word: str) -> bool:
    """Whether nothing in a word is left to the shell: no variable that the script does not set, no
    substitution."""
    return "$" not in word and "`" not in word


def value_of(arguments: Sequence[Argument], *names: str) -> str:
    """The first value of the last argument of one of these names; empty where there is none."""
    return next((a.values[0] for a in reversed(arguments) if a.name in names and a.values), "")


def _started(parts: CommandParts, run: Commands, text: str, folder: str) -> Started:
    inner = next(
        (each for each in reversed(parts.launchers) if each.name in LAUNCHERS.values()), None
    )
    tasks = next((each for each in reversed(parts.launchers) if each.name in TASKS), None)
    of_tasks = tuple(arguments_of(tasks.words)) if tasks else ()
    behind = list(parts.arguments)
    of_launcher = list(inner.words) if inner else []
    if "--" in behind and parts.program.startswith("axolotl"):  # what its own launcher is told
        of_launcher += behind[behind.index("--") + 1 :]
        del behind[behind.index("--") :]
    options = tuple(arguments_of(of_launcher))
    exported = {**run.exported, **dict(_of_tasks(of_tasks))}
    told = {
        name: value
        for name, value in exported.items()
        if is_plain(value) and not is_secret_name(name)
    }
    # what the script itself names again is meant for the script
    own = (name for name in exported if not re.search(rf"\$\{{?{name}\b", text))
    of_program = [name for name in own if not _OF_THE_PLACE.match(name)]
    nodes = (
        _count(value_of(options, *_NODES).partition(":")[0])
        or _count(told.get("NNODES"))
        or (_count(value_of(of_tasks, *TASKS[tasks.name].nodes)) if tasks else None)
        or _count(run.of_slurm.get("SLURM_NNODES"))
        or 1
    )
    launcher, per_node = "python", None
    if inner is not None:
        launcher, per_node = inner.name, _ranks_of(inner.name, options, nodes, told)
        if parts.program in SWIFT and not value_of(options, *_PER_NODE):
            per_node = _count(run.exported.get(RANKS_OF_SWIFT, "1"))
    elif tasks is not None:
        per_node = _tasks_of(tasks, of_tasks, nodes, run.of_slurm)
        if tasks.name != "srun" or nodes * (per_node or 1) > 1:
            launcher, options = tasks.name, of_tasks
    elif parts.program in COMMANDS:
        per_node = (
            _count(value_of(options, *_PER_NODE))
            or _count(run.of_slurm.get("SLURM_GPUS_ON_NODE"))
            or _visible(told)
        )
    return Started(
        launcher=launcher,
        options=options,
        carried=parts.carried if launcher in TASKS else (),
        program=parts.program,
        is_known=parts.is_known,
        is_module=parts.is_module,
        arguments=tuple(arguments_of(behind)),
        env={name: told.get(name, FROM_ENVIRONMENT) for name in of_program},
        not_carried=tuple(name for name in of_program if name not in told),
        nodes=nodes,
        gpus_per_node=per_node,
        behind_python=() if launcher in TASKS else parts.behind_python,
        wrapped=parts.wrapped,
        folder=joined(folder, chdir) if (chdir := value_of(of_tasks, "chdir", "D")) else folder,
    )


def _ranks_of(
    name: str, options: Sequence[Argument], nodes: int, env: Mapping[str, str]
) -> int | None:
    """Ranks of a node by a launcher's options; None where they do not say. On CPUs accelerate
    starts one process, whatever number it is told."""
    given = {option.name for option in options}
    if name == "accelerate" and "cpu" in given and "mpirun_hostfile" not in given:
        return 1
    if found := _count(value_of(options, *_PER_NODE)):
        return found
    if found := _count(value_of(options, "num_processes")):
        return max(1, found // nodes)
    if included := value_of(options, "include", "i"):
        slots = included.partition("@")[0].partition(":")[2]
        return len(slots.split(",")) if slots else None
    # it starts one, unless it is told otherwise, or by words that only the shell can compute
    if name == "torchrun":
        is_told = bool(value_of(options, *_PER_NODE)) or any(
            not is_plain(w) for o in options for w in o.words
        )
        return None if is_told else 1
    return _visible(env)


def _of_tasks(options: Sequence[Argument]) -> Iterator[tuple[str, str]]:
    """The variables that a launcher of tasks sets: `srun --export=ALL,NAME=value`, `mpirun -x
    NAME=value`."""
    for option in options:
        for word in option.values if option.name in ("export", "x") else ():
            yield from (
                (name, value)
                for name, sign, value in (part.partition("=") for part in word.split(","))
                if sign
            )


def _visible(env: Mapping[str, str]) -> int | None:
    """GPUs that the script lets its programs see."""
    listed = env.get("CUDA_VISIBLE_DEVICES") or env.get("HIP_VISIBLE_DEVICES") or ""
    return len(listed.split(",")) if re.fullmatch(r"[0-9]+(,[0-9]+)*", listed) else None


def _tasks_of(
    tasks: Launcher, options: Sequence[Argument], nodes: int, slurm: Mapping[str, str]
) -> int | None:
    """Processes of a node; None where it does not say."""
    names = TASKS[tasks.name]
    if found := _count(value_of(options, *names.per_node)):
        return found
    if found := _count(value_of(options, *names.total)):
        return max(1, found // nodes)
    if tasks.name != "srun":
        return None
    if found := _count(slurm.get("SLURM_NTASKS_PER_NODE")):
        return found
    # Slurm starts one on each node
    return max(1, (_count(slurm.get("SLURM_NTASKS")) or nodes) // nodes)


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and int(text) > 0 else None


def chosen_python(
    command: Sequence[str], before: Iterable[Sequence[str]], path: str
) -> ChosenPython:
    """By the command that starts the program, else by the last of the commands before it, else by
    the exported PATH."""
    names = (word.rpartition("/")[2] for word in command)
    name = next((name for name in names if INTERPRETER.fullmatch(name)), "python")
    for word in command:
        folder, _, last = word.rpartition("/")
        if folder and INTERPRETER.fullmatch(last):
            return ChosenPython(path=word, name=name)
        if folder.endswith("bin") and _LAUNCHER.fullmatch(last):
            return ChosenPython(path=folder.rpartition("/")[0] or ".")
    first = path.partition(":")[0]
    is_environment = first.endswith("/bin") and re.search(r"conda|env", first) is not None
    found = ChosenPython(path=first.removesuffix("/bin") if is_environment else "")
    for words in before:
        if words[0] in ("source", ".") and words[-1].endswith("/bin/activate"):
            found = ChosenPython(path=words[-1].removesuffix("/bin/activate"))
        elif words[0] in _BY_NAME and "activate" in words[1:2]:
            found = ChosenPython(words=" ".join(words))
        elif words[0] in ("source", ".") and len(words) == 3 and words[1].endswith("/bin/activate"):
            # conda's own script, with the name of an environment
            found = ChosenPython(words=" ".join(words))
    return found._replace(name=name)
