"""Splits a command into its parts: wrappers, the launchers of its ranks with their options, the
program, and its arguments.

    numactl -l srun --label bind.sh python -u -m pkg.train --lr 1
    ^ wrapper  ^ launcher   ^ carried      ^ module        ^ arguments
    torchrun --nproc-per-node 8 train.py -- --lr 1           words after `--` are arguments, too
    litgpt pretrain --config job.py                          an unknown command: its program is `litgpt pretrain`, not the file after an option

Launchers of processes are torchrun, accelerate, deepspeed and those in `TASKS`. The latter start
one process per rank themselves, or one per node that is another launcher.

Console commands of libraries are rewritten to the equivalent launch of a module:

    trl sft --num_processes 8 --lr 1            accelerate launch --num_processes 8 -m trl.scripts.sft --lr 1
    trl sft --accelerate_config zero2 --lr 1    accelerate launch --num_processes 8 --use_deepspeed --zero_stage 2 -m trl.scripts.sft --lr 1
    NPROC_PER_NODE=8 swift sft --lr 1           NPROC_PER_NODE=8 torchrun --nproc-per-node 8 -m swift.cli.sft --lr 1
    tune run --nproc_per_node 8 full.py         torchrun --nproc_per_node 8 full.py

Sources: TRL 1.16 (`trl/cli`) and ms-swift 4 (`swift/cli/main.py`). ms-swift starts one process if
neither `NPROC_PER_NODE` nor `NNODES` is set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, final

from autotune.onboarding.settings.program import COMMANDS
from autotune.trainers.base.workload_limits import MODULES
from autotune.trainers.launch_files import INTERPRETER

LAUNCHERS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "ds": "deepspeed",
}
"""launchers of ranks by the name of their command"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """A launcher that starts any command in a given number of processes."""

    total: tuple[str, ...] = ()
    """options for the number of processes"""
    per_node: tuple[str, ...] = ()
    """options for the number of processes per node"""
    nodes: tuple[str, ...] = ()
    """options for the number of nodes"""
    elsewhere: tuple[str, ...] = ()
    """options for where processes run and where their output goes; trials leave them out and set
    their own"""
    start: tuple[str, ...] = ()
    """options with which a trial on one node sets the number of ranks; empty: autotune cannot set
    it"""


_SRUN = Tasks(
    total=("n", "ntasks"),
    per_node=("ntasks_per_node",),
    nodes=("N", "nodes"),
    elsewhere=(
        *("o", "output", "e", "error", "i", "input", "w", "nodelist", "x", "exclude", "jobid", "p", "partition", "A", "account", "t", "time"),
        *("J", "job_name", "D", "chdir", "q", "qos", "d", "dependency", "r", "relative", "reservation", "C", "constraint"),
    ),
    start=("--nodes=1", "--ntasks={world_size}"),
)  # fmt: skip
_MPI = Tasks(
    total=("n", "np", "c"),
    per_node=("npernode", "N", "ppn", "perhost"),
    elsewhere=(
        "H",
        "host",
        "hosts",
        "hostfile",
        "machinefile",
        "f",
        "map_by",
        "output_filename",
        "npersocket",
    ),
    start=("-n", "{world_size}"),
)
TASKS: Mapping[str, Tasks] = {
    "srun": _SRUN,
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "prterun"), _MPI),
    "horovodrun": Tasks(total=("np", "num_proc"), elsewhere=("H", "hosts", "hostfile", "output_filename"), start=("-np", "{world_size}")),
    "flux run": Tasks(total=("n", "ntasks"), per_node=("tasks_per_node",), nodes=("N", "nodes"), elsewhere=("output", "error", "t"), start=("-N1", "-n{world_size}")),
    "colossalai run": Tasks(per_node=("nproc_per_node",), nodes=("num_nodes",), elsewhere=("host", "hostfile", "H", "include", "exclude", "master_addr", "master_port"), start=("--nproc_per_node={nproc_per_node}",)),
    "composer": Tasks(per_node=("n", "nproc"), total=("world_size",), elsewhere=("node_rank", "base_rank", "master_addr", "master_port"), start=("-n", "{nproc_per_node}")),
    "jsrun": Tasks(total=("n", "nrs")),
    **{name: Tasks() for name in ("lrun", "aprun", "ibrun", "flux submit", "torchx run", "ray job", "sky launch", "msrun", "bsub", "lightning run", "fabric run")},
}  # fmt: skip
"""launchers of any command, by name. Sources of the options: srun of Slurm 24, mpirun of Open MPI 5
and mpiexec of MPICH 4, horovodrun 0.28, flux-core 0.70, colossalai 0.5, composer 0.28. jsrun and
the last ones count resource sets, components or jobs, from which the number of ranks does not
follow"""
_FLAGS = frozenset({
    "standalone", "no_python", "run_path", "no_ssh", "use_env", "multi_gpu", "cpu", "use_deepspeed",
    "use_fsdp", "tpu", "quiet", "q", "debug", "save_bytecode", "m", "module", "label", "l",
    "exclusive", "overlap", "u", "unbuffered", "v", "verbose", "pty", "exact", "no_kill",
    "allow_run_as_root", "tag_output", "oversubscribe", "report_bindings", "nv", "bind_to_core",
    "use_hwthread_cpus", "no_container_mount_home", "disable_status", "force_multi",
    "no_local_rank", "bind_cores_to_rank", "no_ssh_check", "save_pid", "elastic_training",
    "detect_nvlink_pairs", "virtual_local_rank", "use_xpu", "rdma", "use_megatron_lm",
    "dynamo_use_dynamic", "same_network", "no_capture_output", "live_stream", "frozen", "locked",
    "no_sync", "isolated", "offline", "",
})  # fmt: skip
"""options of launchers and wrappers that take no value"""
_WRAPPERS = frozenset({
    "env", "exec", "time", "nohup", "sudo", "nice", "ionice", "stdbuf", "numactl", "taskset",
    "timeout", "nsys", "ncu", "rocprof", "rocprofv3", "catchsegv", "strace", "conda", "mamba",
    "micromamba", "uv", "poetry", "pipenv", "pdm", "hatch", "pixi", "rye", "uvx", "dotenv",
    "direnv", "apptainer", "singularity", "docker", "podman", "enroot", "shifter", "xvfb-run",
    "setsid", "chrt", "unbuffer", "script", "command", "builtin", "watch", "ts", "dlprof",
    "scalene", "py-spy", "viztracer", "kernprof", "memray", "coverage", "gdb", "bash", "sh", "zsh",
    "source", ".", "eval",
})  # fmt: skip
"""programs that start another program"""
_OF_NO_EFFECT = frozenset({
    "env", "exec", "time", "nohup", "catchsegv", "setsid", "unbuffer", "script", "command",
    "builtin", "watch", "ts", "bash", "sh", "zsh", "source", ".", "eval",
})  # fmt: skip
"""wrappers that do not change how the program runs"""
_OF_THE_SHELL = re.compile(
    r":|echo|printf|cat|tee|cd|mkdir|rm|cp|mv|ln|ls|export|set|unset|sleep|pip3?|git|wget|curl|tar|unzip|touch|module|ulimit|trap|wait|kill|pkill|grep|sed|awk|"
    r"test|\[|\[\[|read|exit|return|apt(-get)?|yum|nvidia-smi|rocm-smi|huggingface-cli|hf|aws|gsutil|gcloud|ssh|scp|rsync|make|cmake|date|hostname|chmod|find|xargs|"
    r"declare|local|let|true|false|shift|getopts|sudo|wandb|tensorboard|ray|sbatch|scontrol|squeue|pdsh|dsh"
)
"""commands that are no training"""
_SUBSTITUTED = re.compile(
    r"^\$\((?:which|command -v) ([\w.-]+)\)$|^`(?:which|command -v) ([\w.-]+)`$"
)
_PYTHON_FLAGS = (
    "-u", "-O", "-OO", "-B", "-E", "-s", "-S", "-I", "-v", "-q", "-b", "-d", "-P", "-x",
)  # fmt: skip
_NAMED_PYTHON = re.compile(r"^\$\{?\w*PY\w*\}?$", re.IGNORECASE)
_OPEN = re.compile(r"^\$|^`")
"""matches a word that only the shell can compute"""


class Launcher(NamedTuple):
    """A launcher in a command."""

    name: str
    """a value of `LAUNCHERS` or a key of `TASKS`"""
    words: tuple[str, ...]
    """its options as they are written"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CommandParts:
    """The parts of a command."""

    launchers: tuple[Launcher, ...]
    """from the outermost to the innermost"""
    carried: tuple[str, ...]
    """words between the last launcher's options and the program: wrapper scripts, an interpreter"""
    program: str
    """a .py file, a module, or the words of a command"""
    is_module: bool
    is_known: bool
    """whether it is a Python program, or one of `COMMANDS`"""
    arguments: tuple[str, ...]
    behind_python: tuple[str, ...] = ()
    """words between the interpreter and the program: Python's own options, and `-m` with a
    launcher's module"""
    wrapped: tuple[str, ...] = ()
    """words before the launchers that change how the program runs: `numactl -l`, `conda run -n
    train`, `sudo -E`, `bind.sh`"""


def parts_of(words: Sequence[str]) -> CommandParts | None:
    """The parts of a command; None if it does not start a training program."""
    words = as_module(_submitted([_plain(word) for word in words]))
    found = _parts_of(words)
    if found is None:
        return None
    starts = (
        at
        for at, word in enumerate(words)
        if word in found.program.split() or _starts_ranks(words, at)
    )
    before = [word for word in words[: next(starts, 0)] if not re.match(r"[A-Za-z_]\w*\+?=", word)]
    names = {word.rpartition("/")[2] for word in before}
    has_effect = bool(names & _WRAPPERS - _OF_NO_EFFECT) or any(map(_is_script, before))
    return replace(found, wrapped=tuple(before)) if has_effect else found


def _submitted(words: list[str]) -> list[str]:
    """The command after `--` that a Python program submits: `python submit.py --gpus 8 --
    accelerate launch train.py`. Any other command is returned unchanged."""
    at = words.index("--") if "--" in words else len(words)
    after = words[at + 1 :]
    submits = after and _starts_ranks(after, 0) and any(word.endswith(".py") for word in words[:at])
    return after if submits else words


def _starts_ranks(words: Sequence[str], at: int) -> bool:
    """Whether a launcher or a Python interpreter is at this position."""
    base = words[at].rpartition("/")[2]
    return (
        base in LAUNCHERS
        or _is_python(base)
        or bool(_tasks(base, " ".join((base, *words[at + 1 : at + 2]))))
    )


def _parts_of(words: Sequence[str]) -> CommandParts | None:
    launchers: list[Launcher] = []
    carried: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        base = word.rpartition("/")[2]
        two_words = f"{base} {words[at + 1]}" if at + 1 < len(words) else ""
        if two_words in COMMANDS:
            return _parts(launchers, carried, two_words, words[at + 2 :])
        if two_words == "ray job" and words[at + 2 : at + 3] == ["submit"] and "--" in words[at:]:
            end = words.index("--", at)
            launchers.append(Launcher(two_words, tuple(words[at + 3 : end])))
            at = end + 1
            continue
        if name := _tasks(base, two_words):
            at, options = _options(words, at + len(name.split()), launched=True)
            split = [part for word in options for part in _short(word)]
            launchers.append(Launcher(name, tuple(split)))
            carried = []
        elif name := LAUNCHERS.get(base, ""):
            begin = at + (2 if name == "accelerate" and words[at + 1 : at + 2] == ["launch"] else 1)
            if base == "accelerate" and begin == at + 1:
                return None  # accelerate config, accelerate env
            return _launched(launchers, name, words, begin)
        elif _is_python(base):
            begin = at = at + 1
            while (
                at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-")
            ):
                at += 1 if words[at] in _PYTHON_FLAGS or len(words[at]) > 2 else 2
            flags = list(words[begin:at])
            carried += [word, *flags]
            found = None
            if words[at : at + 1] == ["-m"] and at + 1 < len(words):
                module = words[at + 1]
                if name := MODULES.get(module, ""):
                    flags += ["-m", module]
                    found = _launched(launchers, name, words, at + 2)
                elif module not in ("pip", "venv", "http.server", "pytest", "json.tool"):
                    found = _parts(launchers, carried, module, words[at + 2 :], is_module=True)
            elif at < len(words) and (words[at].endswith(".py") or _OPEN.match(words[at])):
                is_file = words[at].endswith(".py")
                found = _parts(launchers, carried, words[at], words[at + 1 :], is_known=is_file)
            return replace(found, behind_python=tuple(flags)) if found else None
        elif " " in word:
            return None  # a quoted command is parsed separately
        elif word.endswith(".py"):
            return _parts(launchers, carried, word, words[at + 1 :])
        elif re.match(r"[A-Za-z_]\w*\+?=", word) or word.startswith("-"):
            at += 1  # an assignment, or a wrapper's option
        elif (
            base in _WRAPPERS
            or _is_script(base)
            or base.endswith((".sif", ".sqsh", ".img"))
            or _may_be_value(words, at)
        ):
            is_script = _is_script(base)
            if is_script and not _has_program(words[at + 1 :]):
                return _parts(launchers, carried, word, words[at + 1 :], is_known=False)
            if is_script or launchers:
                carried.append(word)
            at += 1
        elif _has_program(words[at + 1 :]) and _OPEN.match(word):
            carried.append(word)
            at += 1
        elif _OF_THE_SHELL.fullmatch(base):
            return None
        else:
            named = [base, *(w for w in words[at + 1 : at + 2] if re.fullmatch(r"[a-z][\w-]*", w))]
            return _parts(
                launchers, carried, " ".join(named), words[at + len(named) :], is_known=False
            )
    return None


def _is_script(word: str) -> bool:
    """Whether a word is the name of a shell script."""
    return word.endswith((".sh", ".bash"))


def _may_be_value(words: Sequence[str], at: int) -> bool:
    """Whether the word may be the value of a wrapper's option: `numactl --membind 0`, `docker run
    --gpus all image`."""
    wrapped = any(word.rpartition("/")[2] in _WRAPPERS for word in words[:at])
    return wrapped and _has_program(words[at + 1 :])


def _has_program(words: Sequence[str]) -> bool:
    """Whether a launcher, an interpreter, or a Python file that is not the value of an option
    follows."""
    for at, word in enumerate(words):
        base = word.rpartition("/")[2]
        two_words = f"{base} {words[at + 1]}" if at + 1 < len(words) else ""
        before = words[at - 1] if at else ""
        is_value = before.startswith("-") and "=" not in before and _name(before) not in _FLAGS
        if (
            two_words in COMMANDS
            or base in LAUNCHERS
            or _is_python(base)
            or _tasks(base, two_words)
        ):
            return not is_value
        if word.endswith(".py") and not (is_value or word.startswith("-")):
            return True
    return False


def _launched(
    launchers: list[Launcher], name: str, words: Sequence[str], begin: int
) -> CommandParts | None:
    """The parts of a command after a launcher of ranks whose options begin at `begin`; None without
    a program."""
    at, options = _options(words, begin, launched=False)
    if at >= len(words):
        return None
    flags = {word.lstrip("-").replace("-", "_") for word in options}
    launchers.append(
        Launcher(name, tuple(word for word in options if word not in ("-m", "--module")))
    )
    program, is_module = words[at], bool({"m", "module"} & flags)
    is_python = not _OPEN.match(program) if is_module else program.endswith(".py")
    is_known = is_python and "no_python" not in flags
    return _parts(launchers, [], program, words[at + 1 :], is_module=is_module, is_known=is_known)


def _options(words: Sequence[str], at: int, *, launched: bool) -> tuple[int, tuple[str, ...]]:
    """(index after a launcher's options, these options). `launched`: whether the launcher starts
    any command, not only Python programs."""
    begin = at
    while at < len(words):
        word = words[at]
        if word == "--":
            return at + 1, tuple(words[begin:at])
        if not word.startswith("-"):
            if _OPEN.match(word) and _has_program(words[at + 1 :]) and not launched:
                at += 1  # `torchrun $ARGS train.py`: options that only the shell can compute
                continue
            break
        name = _name(word)
        following = words[at + 1] if at + 1 < len(words) else ""
        has_value = (
            "=" not in word
            and name not in _FLAGS
            and following
            and not following.startswith("-")
            and not _begins_command(following)
        )
        is_short_with_value = re.fullmatch(r"-[A-Za-z]\d+", word) is not None
        at += 2 if has_value and not is_short_with_value else 1
        if launched and has_value and name in ("env", "genv", "mca", "omca", "pmca", "gmca"):
            at += 1  # mpiexec -genv NAME VALUE, mpirun -mca NAME VALUE
    return at, tuple(words[begin:at])


def _name(option: str) -> str:
    """An option's name without dashes and value, words joined by underscores."""
    return option.lstrip("-").partition("=")[0].replace("-", "_")


def _short(word: str) -> tuple[str, ...]:
    """Splits a short option from a number written directly after it: `-n8`."""
    found = re.fullmatch(r"(-[A-Za-z])(\d+)", word)
    return (found[1], found[2]) if found else (word,)


def _begins_command(word: str) -> bool:
    """Whether a word begins the command after a launcher's options."""
    base = word.rpartition("/")[2]
    return (
        word.endswith((".py", ".sh"))
        or base in LAUNCHERS
        or _is_python(base)
        or base in TASKS
        or base in ("numactl", "bash", "apptainer", "singularity")
    )


def _tasks(base: str, two: str) -> str:
    """The key of `TASKS` that the one or two words are; empty if there is none."""
    return next((name for name in (base, two) if name in TASKS), "")


def _is_python(base: str) -> bool:
    """Whether a word is a Python interpreter, or a variable named like one: `$PYTHON`."""
    return INTERPRETER.fullmatch(base) is not None or _NAMED_PYTHON.match(base) is not None


def _plain(word: str) -> str:
    """The command name in `$(which torchrun)`; any other word unchanged."""
    found = _SUBSTITUTED.match(word)
    return (found[1] or found[2]) if found else word


def _parts(
    launchers: Sequence[Launcher],
    carried: Sequence[str],
    program: str,
    arguments: Sequence[str],
    *,
    is_module: bool = False,
    is_known: bool = True,
) -> CommandParts:
    return CommandParts(
        launchers=tuple(launchers),
        carried=tuple(carried),
        program=program,
        is_module=is_module,
        is_known=is_known,
        arguments=tuple(arguments),
    )


_MODULES: Mapping[str, str] = {
    **{f"trl {name}": f"trl.scripts.{name}" for name in ("sft", "dpo")},
    **{f"swift {name}": f"swift.cli.{name}" for name in ("sft", "pt")},
}
"""modules of libraries' console commands"""
SWIFT = frozenset(module for module in _MODULES.values() if module.startswith("swift."))
"""modules of ms-swift"""
RANKS_OF_SWIFT = "NPROC_PER_NODE"
"""variable for the number of ranks per node that ms-swift starts"""
_OF_ACCELERATE = re.compile(
    r"--(num_processes|num_machines|machine_rank|main_process_ip|main_process_port|mixed_precision)"
)


def as_module(words: Sequence[str]) -> list[str]:
    """The command with a library's console command replaced by the launch of its module; any other
    command unchanged."""
    for at, (word, following) in enumerate(pairwise(words)):
        if (word.rpartition("/")[2], following) == ("tune", "run"):
            return [*words[:at], "torchrun", *words[at + 2 :]]
        if (
            (word, following) == ("uv", "run")
            and "-m" in words
            and not _has_program(words[at + 2 :])
        ):
            by_module = words.index("-m")
            return [*words[:by_module], "python", *words[by_module:]]
        module = _MODULES.get(f"{word.rpartition('/')[2]} {following}")
        if module is not None:
            before, behind = list(words[:at]), list(words[at + 2 :])
            if module in SWIFT:
                return [*before, "torchrun", "-m", module, *behind]
            of_launcher, of_program = _split_accelerate(behind)
            return [*before, "accelerate", "launch", *of_launcher, "-m", module, *of_program]
    return list(words)


def _split_accelerate(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the words after TRL's command into (accelerate's options, arguments of the
    program)."""
    of_launcher: list[str] = []
    of_program: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        name, sign, value = word.partition("=")
        if name == "--accelerate_config":
            if not sign:
                value = queue.pop(0) if queue else ""
            # the command's own options come last, because the last one of a name counts
            of_launcher = [
                *_accelerate_options(value),
                *of_launcher,
            ]
        elif _OF_ACCELERATE.fullmatch(name):
            of_launcher += [word] if sign else [word, *queue[:1]]
            del queue[: 0 if sign else 1]
        else:
            of_program.append(word)
    return of_launcher, of_program


def _accelerate_options(name: str) -> list[str]:
    """accelerate's options for the value of `--accelerate_config`: one of the configurations
    bundled with TRL, or a file."""
    from autotune.trainers.trl.launchers import ACCELERATE

    if name not in ACCELERATE:
        return ["--config_file", name]
    stage, ranks = ACCELERATE[name]
    by_deepspeed = ["--use_deepspeed", "--zero_stage", str(stage)]
    shards = ["--use_fsdp"] if name.startswith("fsdp") else by_deepspeed
    return ["--num_processes", str(ranks), *(shards if stage else [])]
