"""A launch script: the program that it starts, with the words before and behind it, and the nodes that it asks for.

srun accelerate launch --config_file fsdp.yaml train.py --batch-size 4
     ^ launcher and its words                  ^        ^ arguments
                                               program: a file, a module behind `-m`, or a command of a known program (`llamafactory-cli train`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autotune.onboarding.settings_program import COMMANDS
from autotune.spec.secrets import is_secret_name
from autotune.trainers.launcher_limits import MODULES
from autotune.trainers.readers.shell_words import Commands, commands_of

_LAUNCHERS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
}
_NODES = ("nnodes", "num_machines", "num_nodes")
_PER_NODE = ("nproc_per_node", "num_gpus")
_OF_THE_PLACE = re.compile(
    r"(MASTER_|WORLD_SIZE|(LOCAL_)?RANK$|N?NODE_?|NNODES|NGPU|GPUS_PER_NODE|CUDA_VISIBLE_DEVICES|SLURM_|FORCE_TORCHRUN|PATH$|LD_LIBRARY_PATH)"
)
"""variables that say where a job runs, which a trial is told by its launcher"""


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
    """torchrun, accelerate, deepspeed or python"""
    options: tuple[Argument, ...]
    """of the launcher"""
    program: str
    """the path of a .py file, a module, or a command"""
    is_module: bool
    """whether it stands behind `-m`"""
    arguments: tuple[Argument, ...]
    """of the program"""
    env: Mapping[str, str]
    """what the script exports, less what says where it runs and what is secret"""
    not_carried: tuple[str, ...]
    """names of variables that it exports with a secret or a value that only the shell can compute"""
    nodes: int
    """nodes that it asks for"""
    gpus_per_node: int | None
    """ranks of a node; None where it does not say"""

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


def started_by(text: str) -> Started | None:
    """What the script starts: of several programs the one behind a launcher, then the one with the most options; None where it starts none."""
    run = commands_of(text)
    best: tuple[tuple[bool, int], Started] | None = None
    for words, _ in run.commands:
        if (at := _program_at(words)) is None:
            continue
        found = _started(words, at, run, text)
        worth = (found.launcher != "python" or found.program in COMMANDS, len(found.arguments))
        if best is None or worth > best[0]:
            best = worth, found
    return best[1] if best else None


def arguments_of(words: Sequence[str]) -> Iterator[Argument]:
    """The words by their options: `--name value`, `--name=value`, `-n value`; and what stands before the first."""
    name, values, written = "", list[str](), list[str]()
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
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
    """Whether nothing in a word is left to the shell: no variable that the script does not set, no substitution."""
    return "$" not in word and "`" not in word


def value_of(arguments: Sequence[Argument], *names: str) -> str:
    """The first value of the last argument of one of these names; empty where there is none."""
    return next((a.values[0] for a in reversed(arguments) if a.name in names and a.values), "")


def _program_at(words: Sequence[str]) -> tuple[int, int] | None:
    """(place, length) of the program in a command."""
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if word == "-m" and following and following not in MODULES:
            return at + 1, 1
        if f"{word.rpartition('/')[2]} {following}" in COMMANDS:
            return at, 2
        if word.endswith(".py") and "=" not in word:
            return at, 1
    return None


def _started(words: Sequence[str], at: tuple[int, int], run: Commands, text: str) -> Started:
    place, length = at
    launcher, begins = "python", place
    for index, word in enumerate(words[:place]):
        module = MODULES.get(words[index + 1], "") if word == "-m" and index + 1 < place else ""
        if name := module or _LAUNCHERS.get(word.rpartition("/")[2], ""):
            launcher, begins = name, index + (2 if module or name == "accelerate" else 1)
    behind = list(words[place + length :])
    of_launcher = [word for word in words[begins:place] if word not in ("-m", "launch")]
    if "--" in behind:  # axolotl: what its launcher is told
        of_launcher += behind[behind.index("--") + 1 :]
        del behind[behind.index("--") :]
    options = tuple(arguments_of(of_launcher))
    told = {name: value for name, value in run.exported.items() if is_plain(value) and not is_secret_name(name)}
    of_program = [name for name in run.exported if _is_of_the_program(name, text)]
    ranks = _count(value_of(options, "num_processes"))
    nodes = (
        _count(value_of(options, *_NODES))
        or _count(told.get("NNODES"))
        or _count(run.of_slurm.get("SLURM_NNODES"))
        or 1
    )
    per_node = (
        _count(value_of(options, *_PER_NODE))
        or (max(1, ranks // nodes) if ranks else None)
        or _count(run.of_slurm.get("SLURM_GPUS_ON_NODE"))
    )
    return Started(
        launcher=launcher,
        options=options,
        program=" ".join((words[place].rpartition("/")[2], *words[place + 1 : place + length]))
        if length > 1
        else words[place],
        is_module=words[place - 1 : place] == ("-m",),
        arguments=tuple(arguments_of(behind)),
        env={name: told[name] for name in of_program if name in told},
        not_carried=tuple(name for name in of_program if name not in told),
        nodes=nodes,
        gpus_per_node=per_node,
    )


def _is_of_the_program(name: str, text: str) -> bool:
    """Whether the program is meant by an exported variable, not the script itself, which would name it again."""
    return not (_OF_THE_PLACE.match(name) or re.search(rf"\$\{{?{name}\b", text))


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and int(text) > 0 else None
