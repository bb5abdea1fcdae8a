"""The command of a script's first spec: launcher, script, its options with placeholders, and the
option values that stand for each knob's values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.onboarding.draft import Item, Place
from autotune.onboarding.launch.command_words import TASKS
from autotune.onboarding.launch.launch_script import Argument, Started
from autotune.onboarding.script.option_matches import OptionMatches
from autotune.onboarding.script.option_names import OF_MODEL, Meaning
from autotune.onboarding.script.options import SAID, ScriptOption
from autotune.onboarding.script.reading import Script, starts_one
from autotune.spec.texts.usual_names import DISABLED_OPTIONS
from autotune.trainers.base.workload_limits import DEEPSPEED_NODES, DEEPSPEED_ONE, MACHINES
from autotune.trainers.documents.output_options import OUTPUT_OPTIONS
from autotune.trainers.documents.placeholders import braced

FILL_IN = "FILL-IN"
"""value of a required option that autotune cannot know"""
OMITTED = "trials omit {}, because autotune starts their ranks; if trials need one of these words, add it to trainer.argv before the program"
"""the note about words in `left_out`"""
EACH_STEP = "--logging_steps=1"
"""option of transformers' Trainer that logs every step"""
_REQUIRED = "fill in: the script requires this option ({})"
OFF_IN_TRIALS = "off in trials; your value is under `training` below"
"""comment of options that trials switch off"""
MAX_IDEAS = 4
"""maximum number of options suggested as custom knobs"""
_OF_RANKS = frozenset({
    "nnodes", "nproc_per_node", "num_gpus", "num_accelerators", "num_nodes", "num_processes",
    "num_machines", "machine_rank", "node_rank", "main_process_ip", "main_process_port",
    "master_addr", "master_port", "multi_gpu", "gpu_ids", "rdzv_backend", "rdzv_endpoint",
    "rdzv_id", "rdzv_conf", "standalone", "local_addr", "hostfile", "H", "include", "i", "exclude",
    "e", "force_multi", "no_ssh", "no_ssh_check", "ssh_port", "launcher", "min_elastic_nodes",
    "max_elastic_nodes", "same_network", "max_restarts", "use_env", "m", "module", "no_python",
    "run_path", "no_local_rank",
})  # fmt: skip
"""options of torchrun, accelerate and deepspeed for ranks, nodes and rendezvous; trials set their
own"""
_OF_OUTPUT = frozenset({
    "log_dir", "redirects", "r", "tee", "t", "local_ranks_filter", "logs_specs", "role",
    "event_log_handler", "duplicate_stdout_filters", "duplicate_stderr_filters",
    "enable_each_rank_log", "save_pid", "autotuning", "elastic_training", "launcher_args",
    "venv_script",
})  # fmt: skip
"""their options for the output of ranks, and others that trials cannot use"""


def launcher_of(script: Script, place: Place) -> str:
    """The launcher of trials: that of the script, but torchrun instead of accelerate on CPUs."""
    return "torchrun" if script.launcher == "accelerate" and place.is_cpu else script.launcher


def start_of(script: Script, place: Place) -> list[str]:
    """The words of the launcher, with its options that do not concern ranks and nodes."""
    launcher, started = launcher_of(script, place), script.started
    launcher_options = (
        [word for option in _launcher_options(started, launcher) for word in written(option, True)]
        if started
        else []
    )
    if started and launcher in TASKS:
        carried = map(braced, started.carried)
        return [*launcher.split(), *TASKS[launcher].start, *_task_options(started), *carried]
    by_python = (
        [started.python.name, *map(braced, started.behind_python)]
        if started and started.behind_python and launcher == started.launcher
        else []
    )
    if launcher == "deepspeed":
        nodes = DEEPSPEED_NODES if place.is_spread else DEEPSPEED_ONE
        return [*(by_python or ["deepspeed"]), *nodes, *launcher_options]
    if launcher == "accelerate":
        # with --num_processes=1, accelerate changes the number of threads of a process on CPUs
        ranks = () if starts_one(script) else ("--num_processes={world_size}",)
        machines = MACHINES if place.is_spread else ()
        return [*(by_python or ["accelerate", "launch"]), *ranks, *machines, *launcher_options]
    if launcher == "torchrun":
        name, *options = place.torchrun
        return [*(by_python or [name]), *options, *launcher_options]
    return by_python or [started.python.name if started else "python"]


def before_module(started: Started | None) -> tuple[str, ...]:
    """The launcher's option before a module: `-m`, or `--module` for DeepSpeed; empty for a
    file."""
    if started is None or not started.is_module:
        return ()
    return ("--module",) if started.launcher == "deepspeed" else ("-m",)


def argv_of(found: OptionMatches, place: Place) -> Iterator[Item]:
    """The items of `argv`: launcher, script and options, each with a comment."""
    script, launcher = found.script, launcher_of(found.script, place)
    started = script.started
    reasons = {
        "torchrun": "the script expects torchrun's environment",
        "accelerate": "the script imports accelerate; for CPU ranks set the cluster: autotune init --cluster cpu-1x2",
        "deepspeed": "the script reads --local_rank, which DeepSpeed's launcher sets",
        "python": "",
    }
    if started:
        reasons |= dict.fromkeys(("torchrun", "accelerate", "deepspeed"), "as launched")
    if started and started.tasks:
        reasons["torchrun"] = f"instead of one {started.tasks} task per rank"
    if started and started.starts_ranks:
        reasons["torchrun"] = "the program launches its own ranks; trials use torchrun instead"
    if launcher != script.launcher:
        reasons["torchrun"] = "on CPUs `accelerate launch` starts only one process"
    first, *more = start_of(script, place)
    yield Item(first, reasons.get(launcher, f"as launched, one process per rank with {launcher}"))
    yield from (Item(word) for word in more)
    yield from map(Item, before_module(started))
    yield Item(braced(started.program) if started else script.name)
    if script.parser == "LightningCLI" and not started:  # a launch already has a subcommand
        yield Item("fit")
    if started:
        yield from map(Item, _kept(found))
    by_option = _set_by_argument(found)
    positionals = dict(_positionals(script, by_option))
    yield from positionals.values()
    for meaning in by_option.values():
        if not meaning.option.is_positional:
            yield Item(f"{meaning.option.prefix}{meaning.placeholder}", _option_comment(meaning))
    if found.precision_flags:
        flags = (meaning.option for meaning in found.precision_flags)
        shown_flags = ", ".join(f"{each.shown} ({each.place or 'as launched'})" for each in flags)
        yield Item("{precision}", shown_flags)
    if script.parser == "HfArgumentParser":
        yield from (
            Item(word, OFF_IN_TRIALS if word != EACH_STEP else "logs a loss for every step")
            for word in trial_words(found)
        )
    if found.settings and not started:
        yield Item(
            f"--{found.settings.option}={{files}}/{found.settings.name}",
            "each trial has its own copy, see `files` below",
        )
    for option in _outputs_by_default(script):
        yield Item(
            braced(f"{option.prefix}{option.default}"),
            f"{option.place}, default; each trial has its own folder",
        )
    if found.log_interval is not None and script.parser != "HfArgumentParser":
        declaration = _declaration(found.log_interval)
        yield from (
            Item(word, f"prints a line for every step ({declaration})")
            for word in trial_words(found)
        )
    for option in found.required:
        if option.name not in positionals:
            yield Item(f"{option.prefix}{FILL_IN}", _REQUIRED.format(option.place))


def _outputs_by_default(script: Script) -> Iterator[ScriptOption]:
    """Options for output folders that the launch does not pass. They are added to the command,
    because only then each trial gets its own folder."""
    for option in script.options:
        is_output = option.name.rpartition(".")[2] in OUTPUT_OPTIONS and option.kind == "text"
        has_default = (
            option.given is None
            and isinstance(option.default, str)
            and option.default
            and not option.file
        )
        if is_output and has_default and option.prefix.startswith("--"):
            yield option


def trial_words(found: OptionMatches) -> list[str]:
    """Arguments that only trials have: log every step, and switch saving, evaluation and trackers
    off."""
    if found.script.told_in is not None:
        return []  # the trial's file sets them
    if found.script.parser == "HfArgumentParser":
        passed = {argument.name for argument in found.script.arguments}
        settings = dict(found.script.started.of_file) if found.script.started else {}
        settings |= found.settings.document if found.settings else {}
        passed |= {
            name for name, off in DISABLED_OPTIONS.items() if str(settings.get(name, off)) != off
        }
        passed.add("save_strategy")  # by default it saves at the end of each trial
        return [
            EACH_STEP,
            *(f"--{name}={off}" for name, off in DISABLED_OPTIONS.items() if name in passed),
        ]
    if found.log_interval is not None and not found.log_interval.is_in_file:
        return [f"{found.log_interval.prefix}1"]
    return []


def _set_by_argument(found: OptionMatches) -> dict[str, Meaning]:
    """The options that set a knob of a trial by an argument, by name."""
    return {
        meaning.option.name: meaning
        for target, meaning in found.used.items()
        if target not in OF_MODEL
        and not meaning.option.is_in_file
        and (meaning.option.kind != "flag" or len(meaning.values) > 1)
    }


def _positionals(script: Script, by_option: Mapping[str, Meaning]) -> Iterator[tuple[str, Item]]:
    """(name, item) of the positional arguments that the launch does not pass, up to the last one
    that sets a knob. Those before it are required by their position."""
    positionals = [option for option in script.options if option.is_positional]
    while positionals and positionals[-1].name not in by_option:
        positionals.pop()
    for option in positionals:
        name = option.name
        if option.given is not None:
            continue
        if name in by_option:
            yield name, Item(by_option[name].placeholder, _option_comment(by_option[name]))
        elif option.default is None:
            yield name, Item(FILL_IN, _REQUIRED.format(option.place))
        else:
            yield name, Item(braced(str(option.default)), f"{name}, {_declaration(option)}")


def _kept(found: OptionMatches) -> Iterator[str]:
    """The launch's arguments, without those that a trial sets itself."""
    by_trial = _set_by_argument(found)
    replaced = {*by_trial, *(meaning.option.name for meaning in found.precision_flags)}
    replaced |= {option.name for option in (*found.finds_batch, *found.trackers)}
    replaced |= {f"no_{name}" for name in replaced} | {"local_rank"}
    if found.log_interval is not None:
        replaced.add(found.log_interval.name)
    if found.script.parser == "HfArgumentParser":
        replaced |= {"logging_steps", *DISABLED_OPTIONS}
    files = {file.given: file.name for file in (found.template, found.settings) if file}
    in_file = found.settings.words if found.settings else frozenset[str]()
    for argument in found.script.arguments:
        words = tuple(word for word in argument.words if word not in in_file)
        if not words or in_file.issuperset(argument.values or words):
            continue
        if argument.name in replaced:
            meaning = by_trial.get(argument.name)
            if meaning and meaning.option.is_positional and meaning.option.given is not None:
                yield meaning.placeholder
            continue
        argument = _by_long_name(argument._replace(words=words), found)
        for word in written(argument, found.script.is_read):
            head, sign, value = word.rpartition("=")
            if value in files:
                yield f"{head}{sign}{{files}}/{files[value]}"
            elif argument.name or head.lstrip("+") not in replaced:
                yield word


def _by_long_name(argument: Argument, found: OptionMatches) -> Argument:
    """The argument with its long name if it is a short option for an output, because trials
    recognize outputs by their long names."""
    long = next(
        (
            o.prefix
            for o in found.script.options
            if o.name == argument.name and o.prefix.startswith("--")
        ),
        "",
    )
    if argument.name in OUTPUT_OPTIONS and long and len(argument.values) == 1:
        return argument._replace(words=(f"{long}{argument.values[0]}",))
    return argument


def written(argument: Argument, is_joined: bool) -> Iterator[str]:
    """The words of an argument as a template has them, with braces doubled. `is_joined`: whether an
    option and its value may be joined by `=`."""
    if is_joined and argument.words[0].startswith("--") and len(argument.words) == 2:
        yield braced(f"{argument.words[0]}={argument.words[1]}")
    else:
        yield from map(braced, argument.words)


def _launcher_options(started: Started, launcher: str) -> Iterator[Argument]:
    """Options of torchrun, accelerate or deepspeed that do not concern ranks, nodes, rendezvous and
    output. `launcher`: that of trials."""
    if launcher == started.launcher:
        replaced = _OF_RANKS | _OF_OUTPUT
        if "torch.distributed.launch" in started.behind_python:
            replaced -= {"use_env"}  # without it the program gets --local-rank
        yield from (each for each in started.options if each.name and each.name not in replaced)


def left_out(found: OptionMatches, place: Place) -> list[str]:
    """Launcher options and wrappers that trials omit, as written; without those about ranks, nodes
    and rendezvous."""
    if (started := found.script.started) is None:
        return []
    if started.launcher in TASKS:
        elsewhere = {*TASKS[started.launcher].elsewhere} - {"D", "chdir"}  # these set `cwd`
        dropped = [each for each in started.options if each.name in elsewhere]
    else:
        kept = [*_launcher_options(started, launcher_of(found.script, place))]
        others = (each for each in started.options if each.name not in _OF_RANKS)
        dropped = [each for each in others if each not in kept]
    words = (started.wrapped, *(each.words for each in dropped))
    return [" ".join(each) for each in words if each]


def _task_options(started: Started) -> Iterator[str]:
    """Options of a launcher of tasks that do not concern the number of ranks and where they run."""
    tasks = TASKS[started.launcher]
    replaced = {*tasks.total, *tasks.per_node, *tasks.nodes, *tasks.elsewhere}
    for option in started.options:
        if option.name not in replaced:
            yield from map(braced, option.words)


def _option_comment(meaning: Meaning) -> str:
    """The comment of an option: its declaration, its current value, and what a batch is assumed to
    count."""
    option, assumption = meaning.option, ""
    if meaning.target == "micro_batch_size":
        unit = "tokens" if meaning.in_tokens else "sequences"
        names_unit = "per_device" in option.name or "per_gpu" in option.name
        assumed = "" if names_unit else "taken as "
        assumption = ", over all ranks" if meaning.over_ranks else f", {assumed}{unit} per rank"
    elif meaning.target == "accumulation_steps" and meaning.expression:
        assumption = ", divided by the number of ranks"
    shown = "" if option.prefix else f"{option.shown}, "
    return f"{shown}{_declaration(option)}{assumption}"


def _declaration(option: ScriptOption) -> str:
    """Where the option is declared, its default and its current value."""
    line = option.file or option.place
    default = "" if option.default is None else f"default {option.default}"
    if default and option.is_said and option.line:
        default += f" {SAID}"
    current = "" if option.given is None else f"currently {option.given}"
    return ", ".join(text for text in (line, default, current) if text)


def ideas_of(found: OptionMatches) -> Iterator[str]:
    """Comments that suggest options as custom knobs."""
    for option in found.ideas[:MAX_IDEAS]:
        name, where = (
            option.name.rpartition(".")[2],
            option.file or option.place or "a library option",
        )
        edit = (
            f'in that file "{{{name}}}"'
            if option.is_in_file
            else f'here "{option.prefix}{{{name}}}"'
        )
        if option.kind == "flag":
            suffix = "" if option.file else " and values below"
            yield f"could be tuned ({where}) with knobs: {{{name}: [false, true]}}, {edit}{suffix}"
        elif values := _values_to_try(option):
            text = ", ".join(map(str, values))
            yield f"could be tuned ({where}) with knobs: {{{name}: [{text}]}}, {edit}"


def _values_to_try(option: ScriptOption) -> tuple[Any, ...]:
    """An option's choices; for an integer without choices its current value and its double."""
    if option.choices or option.kind != "int":
        return option.choices
    return (option.present, option.present * 2) if option.present else (0, 2, 4)


def values_of(found: OptionMatches) -> dict[str, dict[Any, Any]]:
    """The trainer's option `values`: by knob, the script's words for the knob's values."""
    words: dict[str, dict[Any, Any]] = {
        target: {_key(value): word for value, word in meaning.words.items()}
        for target, meaning in found.used.items()
        if meaning.words and len(meaning.values) > 1
    }
    if found.precision_flags:
        words["precision"] = precision_words(found.precision_flags, found.plain_format)
    return words


def _key(value: str) -> Any:
    return {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)


def precision_words(flags: list[Meaning], plain: str) -> dict[Any, Any]:
    """The whole argument for each number format. `plain`: the format without any flag. If flags are
    on by default, only the first one counts, because one argument cannot change two."""
    for meaning in flags:
        if (option := meaning.option).default:
            off = {} if option.off is None else {plain: f"{option.prefix}{option.off}"}
            return {meaning.values[0]: None, **off}
    words = {each.values[0]: f"{each.option.prefix}{each.option.on}" for each in flags}
    return {**words, plain: None}
