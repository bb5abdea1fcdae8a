"""Parses a launch script: the program that it starts, the launcher and arguments of that program,
and the nodes that it requests.

srun accelerate launch --config_file fsdp.yaml train.py --batch-size 4
     ^ launcher and its options                ^        ^ arguments
                                               program: a file, a module after `-m`, or a known command (`llamafactory-cli train`)

Also finds the Python that the script chooses, if it is not the default one on PATH:

python3.12 train.py                  an interpreter by name; `python` may be another one or missing
/envs/train/bin/python train.py      an interpreter by path
../venv/bin/torchrun train.py        the environment that contains the launcher
source venv/bin/activate             an environment by path
export PATH=/envs/train/bin:$PATH    likewise, if the path looks like that of an environment
conda activate train                 an environment by name, which only the shell can find
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
from autotune.spec.texts.usual_names import setting_of
from autotune.trainers.documents.shell_folders import joined
from autotune.trainers.documents.shell_words import Commands, commands_of
from autotune.trainers.launch_files import INTERPRETER
from autotune.trainers.post_training.programs import program_of
from autotune.trainers.present_configuration import DOCUMENTS

_NODES = ("nnodes", "num_machines", "num_nodes")
"""launchers' options for the number of nodes"""
_PER_NODE = ("nproc_per_node", "num_gpus", "num_accelerators")
"""launchers' options for the number of ranks per node"""
_OF_TRAINING = (
    "micro_batch_size",
    "accumulation_steps",
    "global_batch_size",
    "seq_len",
    "steps",
    "precision",
    "model",
)
"""meanings of options that indicate a training"""
_LEAST_OF_TRAINING = 2
"""number of such options from which an unknown command counts as a training; a settings file counts
as that many"""
_OF_THE_PLACE = re.compile(
    r"(MASTER_|WORLD_SIZE|(LOCAL_)?RANK$|N?NODE_?|NNODES|NGPU|GPUS_PER_NODE|CUDA_VISIBLE_DEVICES|SLURM_|FORCE_TORCHRUN|PATH$|LD_LIBRARY_PATH)"
)
"""variables that describe where a job runs; the launcher of a trial sets its own"""


SHELL_SCRIPTS = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".job", ".pbs"})
"""suffixes of scripts that start programs"""
SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
"""names of shells"""
_OTHER_PROGRAM = re.compile(
    r"^(?!.*(train|tune))(.*[_.])?(prep(are|rocess)?|convert|download|tokenize|eval(uate)?|test|infer(ence)?|generate|sample|merge|export|upload)(_|\.|$)"
)
"""names of programs that do not train"""
_LAUNCHER = re.compile(r"torchrun|accelerate|deepspeed")
_BY_NAME = frozenset({"conda", "mamba", "micromamba", "pyenv"})
"""commands that activate environments by name"""


class ChosenPython(NamedTuple):
    """The Python that a script chooses; empty if it chooses none."""

    path: str = ""
    """path of an interpreter, or folder of an environment"""
    words: str = ""
    """command that activates an environment by name"""
    name: str = "python"
    """file name of the interpreter"""

    def found(self, folders: Iterable[Path]) -> Path | None:
        """The absolute path of the interpreter or environment, if `path` leads to it from one of
        these folders; or else None."""
        path = os.path.expanduser(self.path)
        found = (folder / path for folder in folders) if path else ()
        return next(
            (Path(os.path.normpath(each.absolute())) for each in found if self._is_in(each)), None
        )

    def _is_in(self, path: Path) -> bool:
        """Whether the interpreter exists at this path."""
        return ((path.parent if path.is_file() else path / "bin") / self.name).exists()


class Argument(NamedTuple):
    """An option with its values, or a run of positional arguments."""

    name: str
    """without dashes, words joined by underscores; empty for positional arguments"""
    values: tuple[str, ...]
    """empty for a flag"""
    words: tuple[str, ...]
    """the argument as written"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The program that a launch script starts, and how."""

    launcher: str
    """torchrun, accelerate, deepspeed, python, or a launcher that starts one process per rank
    (`TASKS`)"""
    options: tuple[Argument, ...]
    """options of the launcher"""
    carried: tuple[str, ...] = ()
    """words between a launcher in `TASKS` and the program; trials keep them"""
    program: str
    """path of a .py file, a module, or a command"""
    is_known: bool = True
    """whether it is a Python program, or a command that autotune knows"""
    is_module: bool
    """whether it follows `-m`"""
    arguments: tuple[Argument, ...]
    """arguments of the program"""
    env: Mapping[str, str]
    """variables that the script exports, without those that describe where it runs; secrets are
    references to the environment"""
    not_carried: tuple[str, ...]
    """names of exported variables whose value is secret, or can be computed only by the shell"""
    nodes: int
    """number of nodes that it requests"""
    gpus_per_node: int | None
    """ranks per node; None if the script does not say"""
    behind_python: tuple[str, ...] = ()
    """Python's own options, and the launcher's module if Python starts the launcher: `-m
    torch.distributed.run`"""
    wrapped: tuple[str, ...] = ()
    """words before the launcher that start it, such as `numactl -l`"""
    tasks: str = ""
    """the launcher of one task per rank that torchrun replaces in trials; empty: none is
    replaced"""
    starts_ranks: bool = False
    """whether the program starts its own ranks, as with Lightning; `launcher` is then that of
    trials"""
    of_file: Mapping[str, Any] = field(default_factory=dict)
    """values that the program's parser reads from a settings file, by option name"""
    spelled_out: str = ""
    """the settings file that was the program's only argument, if `arguments` now has its settings
    as options; or else empty"""
    python: ChosenPython = field(default_factory=ChosenPython)
    """the Python that the script chooses"""
    folder: str = ""
    """where the program runs after the script's `cd`, in the notation of `shell_folders`"""

    def by_torchrun(self, **changes: Any) -> Started:
        """The same launch with torchrun as its launcher. Python's options move to `wrapped`,
        because torchrun does not pass them to its ranks."""
        python_options = (word for word in self.carried if word.startswith("-"))
        omitted = [word for word in (*self.behind_python, *python_options) if word != "-u"]
        changes |= {"carried": (), "behind_python": (), "wrapped": (*self.wrapped, *omitted)}
        return replace(self, launcher="torchrun", **changes)

    def option(self, name: str) -> str:
        """The value of an option of the launcher; empty if it is not set."""
        return value_of(self.options, name)

    @property
    def file(self) -> str:
        """The path of the program's Python file, if it is one."""
        return f"{self.program.replace('.', '/')}.py" if self.is_module else self.program

    @property
    def words(self) -> tuple[str, ...]:
        """The program's arguments as written."""
        return tuple(word for argument in self.arguments for word in argument.words)

    @property
    def file_alone(self) -> str:
        """The settings file that is the program's only argument; empty if there is none."""
        word = "".join(self.words)
        return (
            word
            if len(self.words) == 1 and word.endswith((".yaml", ".yml", ".json")) and is_plain(word)
            else ""
        )


def started_by(text: str, *, scripts: bool = False) -> Started | None:
    """The program that a shell text starts; None if it starts no training. Of several programs, the
    order of preference is: one for post-training, one with a launcher, one whose name is not that
    of a preparation or evaluation, the one with the most options. An unknown command counts if it
    has options of a training; with `scripts`, also if it is a shell script."""
    run = commands_of(text)
    best: tuple[tuple[bool, bool, bool, int], Started] | None = None
    for index, (words, _, folder) in enumerate(run.commands):
        if (parts := parts_of(words)) is None:
            continue
        found = _started(parts, run, text, folder)
        before = [each.words for each in run.commands[:index]]
        found = replace(found, python=chosen_python(words, before, run.exported.get("PATH", "")))
        training_options = sum(
            setting_of(argument.name.rpartition(".")[2]) in _OF_TRAINING
            for argument in found.arguments
        )
        may_train = any(word.endswith(DOCUMENTS) for word in parts.arguments[:1])
        may_train |= scripts and Path(parts.program).suffix in SHELL_SCRIPTS
        training_options += _LEAST_OF_TRAINING * may_train
        post_trains = program_of(words) is not None
        if (
            not (found.is_known or post_trains)
            and training_options < _LEAST_OF_TRAINING
            and found.launcher == "python"
        ):
            continue
        is_launched = found.launcher != "python" or found.program in COMMANDS or not found.is_known
        is_other = _OTHER_PROGRAM.search(found.program.rpartition("/")[2]) is not None
        rank = (post_trains, is_launched, not is_other, len(found.arguments))
        if best is None or rank > best[0]:
            best = rank, found
    return best[1] if best else None


def script_of(words: Sequence[str]) -> tuple[str, Path] | None:
    """(text, path) of the shell script that a command runs, with the command's arguments set for
    it; None for any other command."""
    after_shell = words[1:] if words[0].rpartition("/")[2] in (*SHELLS, "sbatch") else words
    path = Path(next(iter(after_shell), ""))
    if path.suffix not in SHELL_SCRIPTS or not path.is_file():
        return None
    return f"set -- {shlex.join(after_shell[1:])}; {path.read_text(encoding='utf-8-sig')}", path


def arguments_of(words: Sequence[str]) -> Iterator[Argument]:
    """The words grouped by option: `--name value`, `--name=value`, `-n value`; words before the
    first option have an empty name."""
    name, values, written = "", list[str](), list[str]()
    for word in words:
        if (
            word == "--"
        ):  # an argument of its own, so that it stays if the option before it is dropped
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
    """Whether a word contains nothing for the shell to compute: no unset variable, no
    substitution."""
    return "$" not in word and "`" not in word


def value_of(arguments: Sequence[Argument], *names: str) -> str:
    """The first value of the last argument with one of these names; empty if there is none."""
    return next((a.values[0] for a in reversed(arguments) if a.name in names and a.values), "")


def _started(parts: CommandParts, run: Commands, text: str, folder: str) -> Started:
    rank_launcher = next(
        (each for each in reversed(parts.launchers) if each.name in LAUNCHERS.values()), None
    )
    tasks = next((each for each in reversed(parts.launchers) if each.name in TASKS), None)
    task_options = tuple(arguments_of(tasks.words)) if tasks else ()
    arguments = list(parts.arguments)
    launcher_words = list(rank_launcher.words) if rank_launcher else []
    if "--" in arguments and parts.program.startswith(
        "axolotl"
    ):  # axolotl passes these to its launcher
        launcher_words += arguments[arguments.index("--") + 1 :]
        del arguments[arguments.index("--") :]
    options = tuple(arguments_of(launcher_words))
    exported = {**run.exported, **dict(_variables_of_tasks(task_options))}
    plain_values = {
        name: value
        for name, value in exported.items()
        if is_plain(value) and not is_secret_name(name)
    }
    # variables that the script itself uses are for the script, not for the program
    unreferenced = (name for name in exported if not re.search(rf"\$\{{?{name}\b", text))
    of_program = [name for name in unreferenced if not _OF_THE_PLACE.match(name)]
    nodes = (
        _count(value_of(options, *_NODES).partition(":")[0])
        or _count(plain_values.get("NNODES"))
        or (_count(value_of(task_options, *TASKS[tasks.name].nodes)) if tasks else None)
        or _count(run.of_slurm.get("SLURM_NNODES"))
        or 1
    )
    launcher, per_node = "python", None
    if rank_launcher is not None:
        launcher, per_node = (
            rank_launcher.name,
            _ranks_per_node(rank_launcher.name, options, nodes, plain_values),
        )
        if parts.program in SWIFT and not value_of(options, *_PER_NODE):
            per_node = _count(run.exported.get(RANKS_OF_SWIFT, "1"))
    elif tasks is not None:
        per_node = _tasks_per_node(tasks, task_options, nodes, run.of_slurm)
        if tasks.name != "srun" or nodes * (per_node or 1) > 1:
            launcher, options = tasks.name, task_options
    elif parts.program in COMMANDS:
        per_node = (
            _count(value_of(options, *_PER_NODE))
            or _count(run.of_slurm.get("SLURM_GPUS_ON_NODE"))
            or _visible(plain_values)
        )
    return Started(
        launcher=launcher,
        options=options,
        carried=parts.carried if launcher in TASKS else (),
        program=parts.program,
        is_known=parts.is_known,
        is_module=parts.is_module,
        arguments=tuple(arguments_of(arguments)),
        env={name: plain_values.get(name, FROM_ENVIRONMENT) for name in of_program},
        not_carried=tuple(name for name in of_program if name not in plain_values),
        nodes=nodes,
        gpus_per_node=per_node,
        behind_python=() if launcher in TASKS else parts.behind_python,
        wrapped=parts.wrapped,
        folder=joined(folder, chdir) if (chdir := value_of(task_options, "chdir", "D")) else folder,
    )


def _ranks_per_node(
    name: str, options: Sequence[Argument], nodes: int, env: Mapping[str, str]
) -> int | None:
    """Ranks per node by a launcher's options; None if they do not say. accelerate starts one
    process on CPUs, whatever number is set."""
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
    # torchrun starts one by default, unless the number is among words that only the shell can compute
    if name == "torchrun":
        is_set = bool(value_of(options, *_PER_NODE)) or any(
            not is_plain(w) for o in options for w in o.words
        )
        return None if is_set else 1
    return _visible(env)


def _variables_of_tasks(options: Sequence[Argument]) -> Iterator[tuple[str, str]]:
    """(name, value) of variables that a launcher of tasks sets: `srun --export=ALL,NAME=value`,
    `mpirun -x NAME=value`."""
    for option in options:
        for word in option.values if option.name in ("export", "x") else ():
            yield from (
                (name, value)
                for name, sign, value in (part.partition("=") for part in word.split(","))
                if sign
            )


def _visible(env: Mapping[str, str]) -> int | None:
    """Number of GPUs that the script makes visible; None if it does not restrict them."""
    listed = env.get("CUDA_VISIBLE_DEVICES") or env.get("HIP_VISIBLE_DEVICES") or ""
    return len(listed.split(",")) if re.fullmatch(r"[0-9]+(,[0-9]+)*", listed) else None


def _tasks_per_node(
    tasks: Launcher, options: Sequence[Argument], nodes: int, slurm: Mapping[str, str]
) -> int | None:
    """Processes per node that a launcher of tasks starts; None if it does not say."""
    names = TASKS[tasks.name]
    if found := _count(value_of(options, *names.per_node)):
        return found
    if found := _count(value_of(options, *names.total)):
        return max(1, found // nodes)
    if tasks.name != "srun":
        return None
    if found := _count(slurm.get("SLURM_NTASKS_PER_NODE")):
        return found
    # by default Slurm starts one per node
    return max(1, (_count(slurm.get("SLURM_NTASKS")) or nodes) // nodes)


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and int(text) > 0 else None


def chosen_python(
    command: Sequence[str], before: Iterable[Sequence[str]], path: str
) -> ChosenPython:
    """The Python of the command that starts the program, or else of the last activating command
    before it, or else of the exported PATH."""
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
