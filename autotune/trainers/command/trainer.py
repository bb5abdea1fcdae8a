"""Any program: an argument list with placeholders, and regular expressions that read its log.

    trainer:
      kind: command
      argv: [torchrun, "--nproc-per-node={nproc_per_node}", train.py, "--tp={tp}", "--micro-batch={micro_batch_size}"]
      metrics: {step_time_s: 'step time: ([0-9.]+) s', loss: 'loss: ([0-9.]+)', step: '^step ([0-9]+)'}

Placeholders are the knobs of the config, including a study's own, the sizes of the model,
`{seq_len} {global_batch_size} {world_size} {nnodes} {nproc_per_node} {model} {seed} {steps}`, in
arguments and variables also `{node_rank} {master_addr} {master_port}` of the node that is started,
`{trial_dir}` into which a trial writes, and arithmetic over them (see `placeholders.py`); `values`
says what their values are written as. `files` are rendered for each trial (see
`documents/program_files.py`) into a folder of its own, `{files}`; `overrides` are values that the
program's own text sets (see `command/overrides.py`). No shell is involved. Without `metrics`, JSON
objects, loss dictionaries and progress bars are read (see `logs/formats.py`).

A knob that no placeholder mentions or determines must have one value in all configs, its default or
the one in `fixed`, else the program would train something else than the config says. A study's
`fixed` holds the knobs with one value in its space: such a program is started with that value
anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.spec import FIELDS, KNOBS, ModelSpec, ParallelConfig, Workload
from autotune.spec.checks import nearest
from autotune.spec.texts.as_text import value_word
from autotune.spec.workload import OPTIMIZERS, PEFT_METHODS
from autotune.trainers.base.effective import effective
from autotune.trainers.base.limit import Limit
from autotune.trainers.base.torchrun import meeting_variables, place
from autotune.trainers.base.trainer import (
    PYTHON,
    SAME_DATA,
    UNCOMMON_SHAPES,
    LineReader,
    LineTest,
    Option,
    StepMetrics,
    Trainer,
    needs,
)
from autotune.trainers.base.trainer_option import WORKING_DIR, Reach
from autotune.trainers.base.workload_limits import launcher_limits
from autotune.trainers.command.overrides import (
    check_overrides,
    in_argv,
    of_training,
    started_with,
    unsaid,
)
from autotune.trainers.command.overrides import expressions as overridden
from autotune.trainers.command.training import check_training, in_training
from autotune.trainers.documents.output_options import TRIAL_DIR
from autotune.trainers.documents.placeholders import Values, check_names, null_inside, parse
from autotune.trainers.documents.program_files import check_templates, expressions, render
from autotune.trainers.launch_files import FOLDER, MASTER_ADDR, MASTER_PORT, NODE_RANK, Launch
from autotune.trainers.logs.formats import STOCK_LINES, pattern_marks, pattern_reader, stock_reader
from autotune.trainers.logs.steplines import parse_step_line

MAX_ARGUMENTS = 512
MAX_CHARACTERS = 4096
_IMPLIED = {
    "dp": ("dp", "world_size", "nnodes", "nproc_per_node"),
    "accumulation_steps": ("accumulation_steps", "global_batch_size"),
}
"""knobs that other placeholders determine too: any of these suffices"""
_DIVIDES = frozenset({"global_batch_size", "accumulation_steps"})
"""placeholders of a program that divides the batch of all ranks by its ranks and accumulation:
together they determine the micro-batch"""
_SURROUNDINGS = frozenset(
    {
        *(f.name for f in fields(ModelSpec) if f.name not in ("name", "code")),
        *(
            "model",
            "head_dim",
            "seq_len",
            "global_batch_size",
            "world_size",
            "nnodes",
            "nproc_per_node",
            "steps",
            "seed",
            "files",
        ),
    }
)
"""placeholders that are not knobs"""
_NODE = ("node_rank", "master_addr", "master_port")
"""placeholders of the node that is started: known in arguments and variables, not in files, which
are the same on all nodes"""
_TRIAL = "trial_dir"
"""placeholder of the folder of a trial's own into which it writes; in an export, one beside its
`launch.sh`"""
_IN_FILES = "{files}"
"""`cwd` of a program that runs in the folder of its rendered files"""
_UNNAMED = "argv, env, files and overrides have no placeholder {{{}}}, so the program would not receive this knob"


class CommandTrainer(Trainer):
    """A program that the user names."""

    name = "command"
    shapes = frozenset(UNCOMMON_SHAPES)  # the program builds its own model
    limited_by = frozenset(KNOBS)  # whichever knob no placeholder carries
    summary = "any program, described by an argument list with placeholders"
    reads = frozenset(
        FIELDS
    )  # every knob has a placeholder as soon as it is declared, and is rejected where none is written
    optimizers = frozenset(OPTIMIZERS)  # the workload says what the program does by itself
    packs_documents = True
    peft_methods = frozenset(PEFT_METHODS)
    trains_pure_bf16 = True
    trains_rl = True
    has_unfused_attention = True
    runs_own_program = True
    options = (
        Option(
            name="argv",
            meaning="the command, one string per argument, with placeholders",
            default=(),
            reach=Reach.PROGRAM,
        ),
        Option(
            name="env",
            meaning="environment variables, with placeholders",
            default={},
            reach=Reach.ENVIRONMENT,
        ),
        Option(
            name="values",
            meaning="the text for each of a knob's values; null omits the argument",
            default={},
            reach=Reach.ARGUMENT,
        ),
        Option(
            name="cwd",
            meaning="folder in which the program runs, relative to the spec's folder",
            default="",
            reach=Reach.PROGRAM,
        ),
        PYTHON,
        Option(
            name="files",
            meaning="files to render, by name, each with a template or the template's path",
            default={},
            reach=Reach.ARGUMENT,
        ),
        Option(
            name="overrides",
            meaning="values in the program's source that trials override, by file and then by CALL.KEYWORD or NAME",
            default={},
            reach=Reach.ARGUMENT,
        ),
        Option(
            name="fixed",
            meaning="knobs with a fixed value in the program",
            default={},
            reach=Reach.NOTHING,
        ),
        Option(
            name="metrics",
            meaning="regular expressions with one group, by metric name",
            default={},
            reach=Reach.ARGUMENT,
        ),
        Option(
            name="counts",
            meaning="what a line, bar or number in the log counts, if the probe cannot observe the program: steps or micro-batches",
            default="unknown",
            reach=Reach.NOTHING,
            choices=("unknown", "steps", "micro-batches"),
        ),
        Option(
            name="steps",
            meaning="value of the placeholder {steps}",
            default=50,
            reach=Reach.NOTHING,
            least=1,
        ),
        Option(
            name="training",
            meaning="replacements for a trial's arguments in the exported launch, by argument in argv, variable in env, file in files, steps, seed or append; null omits the argument or variable",
            default={},
            reach=Reach.ARGUMENT,
        ),
        SAME_DATA,
        WORKING_DIR,
        Option(
            name="seed",
            meaning="value of the placeholder {seed}",
            default=1234,
            reach=Reach.NOTHING,
        ),
    )

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Knobs that no placeholder passes to the program, and configs that its launcher would
        start only in part."""
        if not options["argv"]:
            return ()
        named, fixed, default = self._named(options), options["fixed"], ParallelConfig()
        asked = effective(config)
        limits = list(
            launcher_limits(
                _arguments(options["argv"]), place(workload.cluster, config), workload.cluster
            )
        )
        for knob in FIELDS:
            if _is_told(knob, named):
                continue
            only = fixed.get(knob, getattr(default, knob))
            same = effective(replace(config, **{knob: only})) if knob in fixed else default
            if getattr(asked, knob) == getattr(same, knob):
                continue
            message = _UNNAMED.format(knob) + (
                f"; it is started with {knob}={value_word(only)}" if knob in fixed else ""
            )
            nearest_value = only if knob not in ("tp", "pp", "dp", "cp", "ep") else None
            remedy = f"use {{{knob}}} in trainer.argv, env, files or overrides, or set a fixed value under `fixed`"
            if knob == "accumulation_steps":
                remedy += "; a program that takes a rank's whole batch gets {micro_batch_size * accumulation_steps}"
            told = Limit(
                knob=knob,
                value=getattr(asked, knob),
                message=message,
                nearest=nearest_value,
                remedy=remedy,
            )
            limits.append(told)
        for knob, where in unsaid(options["overrides"], config.values()):
            message = f"trainer.overrides sets no {where} for this {knob}"
            limits.append(
                Limit(
                    knob=knob,
                    value=getattr(asked, knob),
                    message=message,
                    remedy="add the value there",
                )
            )
        return tuple(limits)

    def own_knob_refusal(self, name: str, options: Mapping[str, Any]) -> str:
        """A placeholder carries it, as it does every knob; its name must not be one that stands for
        something else."""
        if name in _SURROUNDINGS or name in _NODE or name == _TRIAL:
            return f"the placeholder {{{name}}} is reserved; rename the knob"
        is_told = not options["argv"] or name in options["fixed"] or name in self._named(options)
        return "" if is_told else _UNNAMED.format(name)

    def for_space(self, options: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
        """Adds to `fixed` what needs no placeholder, because the space has one value for it and the
        program is started with that."""
        values, default = self.checked(options), ParallelConfig()
        named = self._named(values)
        needless = {
            knob: value
            for knob, value in fixed.items()
            if not _is_told(knob, named) and value != getattr(default, knob, None)
        }
        found = {**needless, **values["fixed"]}
        return {**options, "fixed": found} if found else dict(options)

    def check_options(self, options: Mapping[str, Any], own_knobs: Iterable[str]) -> None:
        """Raises `SpecError` for unknown placeholders, values that cannot be written, and patterns
        that are not allowed."""
        known = frozenset({*FIELDS, *_SURROUNDINGS, *own_knobs}) - {"files"}
        written = _written(options["values"], known)
        for name in options["fixed"]:
            if name not in known:
                remedy = nearest(name, known)
                raise SpecError(
                    f"there is no knob {name!r}", remedy=remedy, field=f"trainer.fixed.{name}"
                )
        check_templates(options["files"], known | {_TRIAL})
        check_training(
            options["training"], _arguments(options["argv"]), options["files"], options["env"]
        )
        _check_files_of_training(options)
        of_launch = known | {_TRIAL, *(["files"] if options["files"] else [])}
        check_overrides(options["overrides"], _arguments(options["argv"]), of_launch)
        self._check_folders(options)
        for text in self._texts(options):
            template = parse(text)
            for expression in template.expressions:
                check_names(expression, of_launch | {*_NODE})
                may_be_null = None in written.get(expression.name, {}).values()
                if may_be_null and template.only is None:
                    raise null_inside(text)
        self.reader(options)

    def in_training(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """See `command.training`."""
        found = in_training(options, _arguments(options.get("argv", ())))
        return (
            {**found, "overrides": of_training(found["overrides"])}
            if found.get("overrides")
            else found
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """The command with its placeholders filled in. Arguments and variables whose value is
        written as null are left out."""
        needs(options, "argv", "the `command` trainer starts the program in argv")
        known = self._values(workload, config, options)
        placement = place(workload.cluster, config)
        node = _node(placement.nnodes)
        files = {"files": FOLDER} if options["files"] else {}
        has_files = bool(options["files"] or options["overrides"])
        values = Values(
            known={**known, **node, **files, _TRIAL: TRIAL_DIR},
            written=_written(options["values"], frozenset(known)),
        )
        of_files = replace(values, known={**known, **files, _TRIAL: TRIAL_DIR})
        filled = [
            values.fill(argument)
            for argument in in_argv(_arguments(options["argv"]), options["overrides"])
        ]
        variables = {name: values.fill(text) for name, text in _variables(options["env"]).items()}
        cwd = options["cwd"] or ("." if has_files else "")
        return Launch(
            argv=tuple(argument for argument in filled if argument is not None),
            env={
                **meeting_variables(placement),
                **{name: text for name, text in variables.items() if text is not None},
            },
            files={
                **render(options["files"], of_files),
                **started_with(options["overrides"], of_files),
            },
            cwd="" if cwd == _IN_FILES else cwd,
        )

    def parse_line(self, line: str) -> StepMetrics | None:
        """A JSON object per step; see `reader` for programs that print something else."""
        return parse_step_line(line)

    def reader(self, options: Mapping[str, Any] | None = None) -> LineReader:
        """The reader that `metrics` describes. Raises `SpecError` for names and patterns that are
        not allowed."""
        metrics = self.checked(options)["metrics"]
        return pattern_reader(metrics) if metrics else stock_reader()

    def step_line_test(self, options: Mapping[str, Any] | None = None) -> LineTest:
        """A progress bar's step depends on the bars before, so every bar is needed."""
        metrics = self.checked(options)["metrics"]
        return (
            replace(super().step_line_test(options), marks=pattern_marks(metrics))
            if metrics
            else STOCK_LINES
        )

    def _check_folders(self, options: Mapping[str, Any]) -> None:
        """Raises `SpecError` for a folder that depends on who reads the spec, and for files that
        the program cannot find."""
        cwd = options["cwd"]
        if cwd not in ("", ".", _IN_FILES) and not Path(cwd).is_absolute():
            raise SpecError(
                f"a relative folder can only be used if the spec is a file, but cwd is {cwd!r}",
                remedy=f"use an absolute path, or cwd: {_IN_FILES!r} to run in the folder of the rendered files",
                field="trainer.cwd",
            )
        if options["working_dir"] == "upload" and cwd == _IN_FILES:
            raise SpecError(
                "working_dir: upload sends the program's folder, but the program runs in the folder with its rendered files",
                remedy="set cwd to the program's folder, or omit working_dir",
                field="trainer.working_dir",
            )
        if cwd == _IN_FILES and not options["files"]:
            raise SpecError(
                "the program runs in the folder with its rendered files, but trainer.files is empty",
                field="trainer.cwd",
            )
        parts = [part for text in self._texts(options) for part in parse(text).expressions]
        told = {name for part in (*parts, *overridden(options["overrides"])) for name in part.names}
        if options["files"] and cwd != _IN_FILES and "files" not in told:
            raise SpecError(
                "each trial has its own folder for files, but no argument passes this folder to the program",
                remedy=f'add the argument "--config={{files}}/{next(iter(options["files"]))}", or set cwd: {_IN_FILES!r} to run the program there',
                field="trainer.files",
            )

    def _named(self, options: Mapping[str, Any]) -> set[str]:
        parts = [part for text in self._texts(options) for part in parse(text).expressions]
        elsewhere = (*expressions(options["files"]), *overridden(options["overrides"]))
        return {name for part in (*parts, *elsewhere) for name in part.names}

    @staticmethod
    def _texts(options: Mapping[str, Any]) -> list[str]:
        return [*_arguments(options["argv"]), *_variables(options["env"]).values()]

    @staticmethod
    def _values(
        workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        placement = place(workload.cluster, config)
        model = {
            f.name: getattr(workload.model, f.name)
            for f in fields(ModelSpec)
            if f.name not in ("name", "code")
        }
        return {
            **model,
            **config.values(),
            "model": workload.model.name,
            "head_dim": workload.model.head_dim,
            "seq_len": workload.seq_len,
            "global_batch_size": config.global_batch_size,
            "world_size": placement.world_size,
            "nnodes": placement.nnodes,
            "nproc_per_node": placement.nproc_per_node,
            "steps": options["steps"],
            "seed": options["seed"],
        }


def _check_files_of_training(options: Mapping[str, Any]) -> None:
    """Raises `SpecError` where the exported launch would write into the folder of a trial, because
    nothing in `training` takes its place in `files`."""
    for name, template in in_training(options, ())["files"].items():
        if any(_TRIAL in part.names for part in expressions({name: template})):
            raise SpecError(
                f"{name} uses {{{_TRIAL}}}, but `training` does not set the folder into which the exported launch writes",
                remedy=f"set the same key to your own folder under `training`, e.g. `{name}: {{output_dir: outputs}}`",
                field=f"trainer.training.{name}",
            )


def _is_told(knob: str, named: set[str]) -> bool:
    """Whether placeholders with these names determine the knob."""
    if knob == "micro_batch_size" and named >= _DIVIDES:
        return True
    return bool(named.intersection(_IMPLIED.get(knob, (knob,))))


def _arguments(asked: Sequence[Any]) -> list[str]:
    """The option `argv` as texts. Raises `SpecError`."""
    if len(asked) > MAX_ARGUMENTS:
        raise SpecError(
            f"argv must have at most {MAX_ARGUMENTS} arguments, but has {len(asked)}",
            field="trainer.argv",
        )
    return [_text(f"argument {place}", "argv", value) for place, value in enumerate(asked)]


def _variables(asked: Mapping[Any, Any]) -> dict[str, str]:
    """The option `env` as texts. Raises `SpecError`."""
    if len(asked) > MAX_ARGUMENTS:
        raise SpecError(
            f"env must have at most {MAX_ARGUMENTS} variables, but has {len(asked)}",
            field="trainer.env",
        )
    return {
        str(name): _text(f"the variable {name}", f"env.{name}", value)
        for name, value in asked.items()
    }


def _text(what: str, field: str, value: Any) -> str:
    """A number is meant as it is written; true, false and null are written in as many ways as there
    are programs."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value_word(value)
    if not isinstance(value, str):
        raise SpecError(
            f"{what} must be text or a number, but is {'null' if value is None else value_word(value)}",
            remedy="write the value in quotes, as the program expects it",
            field=f"trainer.{field}",
        )
    if len(value) > MAX_CHARACTERS:
        raise SpecError(
            f"{what} must have at most {MAX_CHARACTERS} characters, but has {len(value)}",
            remedy="pass a file to the program with trainer.files",
            field=f"trainer.{field}",
        )
    return value


def _node(nnodes: int) -> dict[str, str]:
    """The placeholders of the node that is started. One node alone is node 0 and meets nobody, but
    concurrent jobs need ports of their own."""
    if nnodes == 1:
        return dict(zip(_NODE, ("0", "127.0.0.1", MASTER_PORT), strict=True))
    return dict(zip(_NODE, (NODE_RANK, MASTER_ADDR, MASTER_PORT), strict=True))


def _written(asked: Mapping[str, Any], known: frozenset[str]) -> dict[str, dict[str, Any]]:
    """The option `values` with its keys as words, so that a spec in JSON means what it means in
    YAML. Raises `SpecError`."""
    for name, texts in asked.items():
        where = f"trainer.values.{name}"
        if name not in known:
            raise SpecError(
                f"there is no knob {name!r}", remedy=nearest(str(name), known), field=where
            )
        if not isinstance(texts, Mapping):
            raise SpecError(
                f"values must map each value of {name} to its text, but is {texts!r:.80}",
                remedy=f"use values: {{{name}: {{VALUE: TEXT}}}}",
                field=where,
            )
        for value, text in texts.items():
            if not isinstance(text, str | int | float | None):
                raise SpecError(
                    f"{name}={value_word(value)} must be written as text, a number, a flag or null, but is {text!r:.80}",
                    field=where,
                )
    return {
        name: {value_word(value): text for value, text in texts.items()}
        for name, texts in asked.items()
    }


TRAINER = CommandTrainer()
