"""The command of a script's first spec: launcher, script, the words of its options, and what those
words are by knob."""

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
from autotune.spec.texts.usual_names import OF_A_RUN
from autotune.trainers.base.workload_limits import DEEPSPEED_NODES, DEEPSPEED_ONE, MACHINES
from autotune.trainers.documents.output_options import OUTPUT_OPTIONS
from autotune.trainers.documents.placeholders import braced

FILL_IN = "FILL-IN"
"""value of an option that the script requires and that nobody but its owner knows"""
OMITTED = "trials omit {}, because autotune starts their ranks; if trials need one of these words, add it to trainer.argv before the program"
"""the note about the words in `left_out`"""
EACH_STEP = "--logging_steps=1"
_REQUIRED = "fill in: the script requires this option ({})"
OFF_IN_TRIALS = "off in trials; your value is under `training` below"
MAX_IDEAS = 4
"""options that are suggested as knobs of the study's own"""
_OF_RANKS = frozenset({
    "nnodes", "nproc_per_node", "num_gpus", "num_accelerators", "num_nodes", "num_processes",
    "num_machines", "machine_rank", "node_rank", "main_process_ip", "main_process_port",
    "master_addr", "master_port", "multi_gpu", "gpu_ids", "rdzv_backend", "rdzv_endpoint",
    "rdzv_id", "rdzv_conf", "standalone", "local_addr", "hostfile", "H", "include", "i", "exclude",
    "e", "force_multi", "no_ssh", "no_ssh_check", "ssh_port", "launcher", "min_elastic_nodes",
    "max_elastic_nodes", "same_network", "max_restarts", "use_env", "m", "module", "no_python",
    "run_path", "no_local_rank",
})  # fmt: skip
"""options of torchrun, accelerate and deepspeed about ranks, nodes and where they meet, which
trials have their own of"""
_OF_OUTPUT = frozenset({
    "log_dir", "redirects", "r", "tee", "t", "local_ranks_filter", "logs_specs", "role",
    "event_log_handler", "duplicate_stdout_filters", "duplicate_stderr_filters",
    "enable_each_rank_log", "save_pid", "autotuning", "elastic_training", "launcher_args",
    "venv_script",
})  # fmt: skip
"""their options about where the output of ranks goes, and others that a trial cannot have"""


def launcher_of(script: Script, place: Place) -> str:
    """The launcher of trials."""
    return "torchrun" if script.launcher == "accelerate" and place.is_cpu else script.launcher


def start_of(script: Script, place: Place) -> list[str]:
    """The words of the launcher, with its options that are not about ranks and nodes."""
    launcher, started = launcher_of(script, place), script.started
    kept = (
        [word for option in _of_launcher(started, launcher) for word in written(option, True)]
        if started
        else []
    )
    if started and launcher in TASKS:
        carried = map(braced, started.carried)
        return [*launcher.split(), *TASKS[launcher].start, *_kept_of_tasks(started), *carried]
    own = (
        [started.python.name, *map(braced, started.behind_python)]
        if started and started.behind_python and launcher == started.launcher
        else []
    )
    if launcher == "deepspeed":
        nodes = DEEPSPEED_NODES if place.is_spread else DEEPSPEED_ONE
        return [*(own or ["deepspeed"]), *nodes, *kept]
    if launcher == "accelerate":
        # on CPUs accelerate gives one process other threads where it is told that there is one
        ranks = () if starts_one(script) else ("--num_processes={world_size}",)
        machines = MACHINES if place.is_spread else ()
        return [*(own or ["accelerate", "launch"]), *ranks, *machines, *kept]
    if launcher == "torchrun":
        name, *options = place.torchrun
        return [*(own or [name]), *options, *kept]
    return own or [started.python.name if started else "python"]


def before_module(started: Started | None) -> tuple[str, ...]:
    """What the launcher is told before a module: DeepSpeed's has no `-m`."""
    if started is None or not started.is_module:
        return ()
    return ("--module",) if started.launcher == "deepspeed" else ("-m",)


def argv_of(found: OptionMatches, place: Place) -> Iterator[Item]:
    """The launcher, the script and its options."""
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
    if script.parser == "LightningCLI" and not started:  # a launch has its own subcommand
        yield Item("fit")
    if started:
        yield from map(Item, _kept(found))
    told = _told(found)
    places = dict(_places(script, told))
    yield from places.values()
    for meaning in told.values():
        if not meaning.option.is_positional:
            yield Item(f"{meaning.option.prefix}{meaning.placeholder}", _where(meaning))
    if found.precision_flags:
        flags = (meaning.option for meaning in found.precision_flags)
        named = ", ".join(f"{each.shown} ({each.place or 'as launched'})" for each in flags)
        yield Item("{precision}", named)
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
        said = _said(found.log_interval)
        yield from (
            Item(word, f"prints a line for every step ({said})") for word in trial_words(found)
        )
    for option in found.required:
        if option.name not in places:
            yield Item(f"{option.prefix}{FILL_IN}", _REQUIRED.format(option.place))


def _outputs_by_default(script: Script) -> Iterator[ScriptOption]:
    """Options that name where it writes and are not given: only one that is in the command can be a
    folder of the trial's own."""
    for option in script.options:
        is_output = option.name.rpartition(".")[2] in OUTPUT_OPTIONS and option.kind == "text"
        is_open = (
            option.given is None
            and isinstance(option.default, str)
            and option.default
            and not option.file
        )
        if is_output and is_open and option.prefix.startswith("--"):
            yield option


def trial_words(found: OptionMatches) -> list[str]:
    """The words that only trials have: a line for every step, and what switches saving, evaluation
    and trackers off."""
    if found.script.told_in is not None:
        return []  # its file has them
    if found.script.parser == "HfArgumentParser":
        given = {argument.name for argument in found.script.arguments}
        held = dict(found.script.started.of_file) if found.script.started else {}
        held |= found.settings.document if found.settings else {}
        given |= {name for name, off in OF_A_RUN.items() if str(held.get(name, off)) != off}
        given.add("save_strategy")  # by itself it saves at the end of each trial
        return [EACH_STEP, *(f"--{name}={off}" for name, off in OF_A_RUN.items() if name in given)]
    if found.log_interval is not None and not found.log_interval.is_in_file:
        return [f"{found.log_interval.prefix}1"]
    return []


def _told(found: OptionMatches) -> dict[str, Meaning]:
    """What the options stand for that a trial is told, by their names."""
    return {
        meaning.option.name: meaning
        for target, meaning in found.used.items()
        if target not in OF_MODEL
        and not meaning.option.is_in_file
        and (meaning.option.kind != "flag" or len(meaning.values) > 1)
    }


def _places(script: Script, told: Mapping[str, Meaning]) -> Iterator[tuple[str, Item]]:
    """(name, word) of the positionals that the launch does not have, up to the last one that a
    trial is told: those before it must be given, too."""
    places = [option for option in script.options if option.is_positional]
    while places and places[-1].name not in told:
        places.pop()
    for option in places:
        name = option.name
        if option.given is not None:
            continue
        if name in told:
            yield name, Item(told[name].placeholder, _where(told[name]))
        elif option.default is None:
            yield name, Item(FILL_IN, _REQUIRED.format(option.place))
        else:
            yield name, Item(braced(str(option.default)), f"{name}, {_said(option)}")


def _kept(found: OptionMatches) -> Iterator[str]:
    """The arguments that the script is started with today, without those that a trial is told."""
    by_trial = _told(found)
    told = {*by_trial, *(meaning.option.name for meaning in found.precision_flags)}
    told |= {option.name for option in (*found.finds_batch, *found.trackers)}
    told |= {f"no_{name}" for name in told} | {"local_rank"}
    if found.log_interval is not None:
        told.add(found.log_interval.name)
    if found.script.parser == "HfArgumentParser":
        told |= {"logging_steps", *OF_A_RUN}
    files = {file.given: file.name for file in (found.template, found.settings) if file}
    in_file = found.settings.words if found.settings else frozenset[str]()
    for argument in found.script.arguments:
        words = tuple(word for word in argument.words if word not in in_file)
        if not words or in_file.issuperset(argument.values or words):
            continue
        if argument.name in told:
            meaning = by_trial.get(argument.name)
            if meaning and meaning.option.is_positional and meaning.option.given is not None:
                yield meaning.placeholder
            continue
        argument = _by_long_name(argument._replace(words=words), found)
        for word in written(argument, found.script.is_read):
            head, sign, value = word.rpartition("=")
            if value in files:
                yield f"{head}{sign}{{files}}/{files[value]}"
            elif argument.name or head.lstrip("+") not in told:
                yield word


def _by_long_name(argument: Argument, found: OptionMatches) -> Argument:
    """A short option that names an output by its long name, by which each trial has its own."""
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
    """The words of an argument as a template has them; `is_joined`: whether an option may have its
    value behind `=`."""
    if is_joined and argument.words[0].startswith("--") and len(argument.words) == 2:
        yield braced(f"{argument.words[0]}={argument.words[1]}")
    else:
        yield from map(braced, argument.words)


def _of_launcher(started: Started, launcher: str) -> Iterator[Argument]:
    """What torchrun, accelerate or deepspeed is told beside ranks, nodes, where they meet and where
    their output goes. `launcher`: of the trials."""
    if launcher == started.launcher:
        replaced = _OF_RANKS | _OF_OUTPUT
        if "torch.distributed.launch" in started.behind_python:
            replaced -= {"use_env"}  # without it a program is given --local-rank
        yield from (each for each in started.options if each.name and each.name not in replaced)


def left_out(found: OptionMatches, place: Place) -> list[str]:
    """What the launcher is told and trials do without, as it is written; not what is about ranks,
    nodes and where they meet."""
    if (started := found.script.started) is None:
        return []
    if started.launcher in TASKS:
        elsewhere = {*TASKS[started.launcher].elsewhere} - {"D", "chdir"}  # `cwd` has it
        dropped = [each for each in started.options if each.name in elsewhere]
    else:
        kept = [*_of_launcher(started, launcher_of(found.script, place))]
        others = (each for each in started.options if each.name not in _OF_RANKS)
        dropped = [each for each in others if each not in kept]
    words = (started.wrapped, *(each.words for each in dropped))
    return [" ".join(each) for each in words if each]


def _kept_of_tasks(started: Started) -> Iterator[str]:
    """What a launcher of tasks is told beside the number of ranks and where they run."""
    tasks = TASKS[started.launcher]
    replaced = {*tasks.total, *tasks.per_node, *tasks.nodes, *tasks.elsewhere}
    for option in started.options:
        if option.name not in replaced:
            yield from map(braced, option.words)


def _where(meaning: Meaning) -> str:
    option, assumed = meaning.option, ""
    if meaning.target == "micro_batch_size":
        unit = "tokens" if meaning.in_tokens else "sequences"
        is_said = "per_device" in option.name or "per_gpu" in option.name
        taken = "" if is_said else "taken as "
        assumed = ", over all ranks" if meaning.over_ranks else f", {taken}{unit} per rank"
    elif meaning.target == "accumulation_steps" and meaning.expression:
        assumed = ", divided by the number of ranks"
    shown = "" if option.prefix else f"{option.shown}, "
    return f"{shown}{_said(option)}{assumed}"


def _said(option: ScriptOption) -> str:
    """Where the option is declared, and its value."""
    line = option.file or option.place
    default = "" if option.default is None else f"default {option.default}"
    if default and option.is_said and option.line:
        default += f" {SAID}"
    now = "" if option.given is None else f"currently {option.given}"
    return ", ".join(text for text in (line, default, now) if text)


def ideas_of(found: OptionMatches) -> Iterator[str]:
    """Comments: options that could be knobs of the study's own."""
    for option in found.ideas[:MAX_IDEAS]:
        name, where = (
            option.name.rpartition(".")[2],
            option.file or option.place or "a library option",
        )
        told = (
            f'in that file "{{{name}}}"'
            if option.is_in_file
            else f'here "{option.prefix}{{{name}}}"'
        )
        if option.kind == "flag":
            more = "" if option.file else " and values below"
            yield f"could be tuned ({where}) with knobs: {{{name}: [false, true]}}, {told}{more}"
        elif values := _values_to_try(option):
            text = ", ".join(map(str, values))
            yield f"could be tuned ({where}) with knobs: {{{name}: [{text}]}}, {told}"


def _values_to_try(option: ScriptOption) -> tuple[Any, ...]:
    """An option's choices; of a whole number without choices what it is now, and more."""
    if option.choices or option.kind != "int":
        return option.choices
    return (option.present, option.present * 2) if option.present else (0, 2, 4)


def values_of(found: OptionMatches) -> dict[str, dict[Any, Any]]:
    """The option `values`: the script's words by knob."""
    said: dict[str, dict[Any, Any]] = {
        target: {_key(value): word for value, word in meaning.words.items()}
        for target, meaning in found.used.items()
        if meaning.words and len(meaning.values) > 1
    }
    if found.precision_flags:
        said["precision"] = precision_words(found.precision_flags, found.plain_format)
    return said


def _key(value: str) -> Any:
    return {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)


def precision_words(flags: list[Meaning], plain: str) -> dict[Any, Any]:
    """The whole argument for each number format; `plain`: the one without any. Of flags that are on
    by default the first alone counts: one word cannot switch two."""
    for meaning in flags:
        if (option := meaning.option).default:
            off = {} if option.off is None else {plain: f"{option.prefix}{option.off}"}
            return {meaning.values[0]: None, **off}
    words = {each.values[0]: f"{each.option.prefix}{each.option.on}" for each in flags}
    return {**words, plain: None}
