"""What trainers of post-training share: knobs of a step that generates, one configuration file,
logs by phase.

A subclass writes and reads its file. Keys that nobody reads are its `settings`, which every launch
writes again; data, rewards and prompts are among them, for a config says nothing about these.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Any, ClassVar

from autotune.spec import KNOBS, ParallelConfig, Workload
from autotune.spec.post_training import RL_KNOBS, PostTraining
from autotune.spec.texts.as_text import notes_of
from autotune.trainers.base.effective import effective
from autotune.trainers.base.limit import Limit, broken
from autotune.trainers.base.trainer import Trainer, needs
from autotune.trainers.base.trainer_option import PYTHON, SHARED_OPTIONS, Option, Reach
from autotune.trainers.base.workload_limits import step_rule
from autotune.trainers.documents.file_formats import to_yaml
from autotune.trainers.documents.shell_words import commands_of
from autotune.trainers.launch_files import INTERPRETER, Launch
from autotune.trainers.logs.step_metrics import StepMetrics
from autotune.trainers.post_training.logs import step_metrics_of
from autotune.trainers.post_training.programs import USUAL, program_of
from autotune.trainers.present_configuration import (
    ONLY_THE_SHELL,
    SETTINGS,
    KeyReader,
    PresentConfiguration,
    Reading,
    completed,
    merged,
    nested,
    parse_document,
)

MODEL = Option(
    name="model",
    meaning="initial weights, as the path or hub name of a transformers model",
    default="",
    is_path=True,
    reach=Reach.FILE,
)
LEARNING_RATE = Option(
    name="learning_rate",
    meaning="peak learning rate; default: the program's own",
    default=1e-6,
    reach=Reach.NOTHING,
)
START = Option(
    name="start",
    meaning="command that starts the program, if not the usual command, e.g. [uv, run, examples/run_grpo.py]",
    default=(),
    reach=Reach.PROGRAM,
)
EXPERT_TP = "expert_tensor_parallel_size"
"""Megatron-Core's key"""
_TAKEN = ("nearest", "steps", "seed")
OPTIONS = (
    *(option for option in SHARED_OPTIONS if option.name in _TAKEN),
    *(LEARNING_RATE, PYTHON, MODEL, START, SETTINGS),
)


class PostTrainer(Trainer):
    """A program that post-trains by reinforcement learning."""

    trains_rl = True
    reads_config_json = True
    can_import = True
    options = OPTIONS
    engines: ClassVar[frozenset[str]]
    """what may train in it"""
    carried: ClassVar[frozenset[str]]
    """knobs of post-training that its launches pass on"""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """what the program takes for keys that its configuration lacks, by dotted path, of the keys
    that are read; a launch writes the values themselves"""
    resolves: ClassVar[bool] = False
    """whether OmegaConf reads its file, which resolves `${oc.env:NAME}`"""
    limited_by = frozenset(KNOBS)
    limited_by_own = frozenset(RL_KNOBS)

    def own_knob_refusal(self, name: str, options: Mapping[str, Any]) -> str:
        """Nothing for the knobs of post-training that it carries."""
        return "" if name in self.carried else super().own_knob_refusal(name, options)

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """A workload of another kind, an engine that it has not, and what the engine cannot do."""
        rl, c, engines = workload.rl, effective(config), " or ".join(sorted(self.engines))
        if rl is None or rl.algorithm == "sft":
            message = f"{self.name} is a post-training program, but the workload has no `rl`"
            remedy = "describe a step under `rl`, or use another trainer"
            return (Limit(knob="workload.rl", value="none", message=message, remedy=remedy),)
        if rl.engine not in self.engines:
            message = f"{self.name}'s training engines are {engines}"
            remedy = f"set rl.engine to {engines}, and tune that engine"
            return (
                Limit(knob="workload.rl.engine", value=rl.engine, message=message, remedy=remedy),
            )
        return (*self.engine_limits(workload, rl, c), *broken(workload, c, step_rule(rl, c)))

    @abstractmethod
    def engine_limits(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig
    ) -> Sequence[Limit]:
        """What the engine of the workload cannot express."""

    @abstractmethod
    def document(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Its configuration by dotted paths."""

    @abstractmethod
    def command(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> tuple[str, ...]:
        """The command that reads `settings_file`."""

    def defaults_of(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """The defaults of a configuration, where its contents choose among several."""
        return self.defaults

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """The command and the configuration."""
        assert workload.rl is not None  # refused by find_limits
        c = effective(config)
        needs(options, "model", f"{self.name} starts from existing weights")
        document = nested(self.document(workload, workload.rl, c, options))
        files = {self.settings_file: to_yaml(merged(document, options[SETTINGS.name]))}
        argv = self.started(workload, c, options)
        return Launch(argv=argv, files=files, notes=start_ray(workload))

    def started(
        self, workload: Workload, c: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """The command, by the words that start the program today."""
        assert workload.rl is not None
        argv = self.command(workload, workload.rl, c)
        return (
            (*options[START.name], *argv[len(USUAL[self.name]) :]) if options[START.name] else argv
        )

    def read_config(self, present: PresentConfiguration) -> Reading:
        """Its file, with the overrides of its command."""
        name, document = self.present_document(present)
        defaults, open_paths = self.defaults_of(document), unsaid(self.words(present))
        for path in open_paths:
            if path in defaults:
                document = merged(document, nested({path: defaults[path]}))
        found = self.read_document(name, document, defaults)
        empty = [self._left_open(path, defaults[path]) for path in open_paths if path in defaults]
        options = {**found.options, START.name: self.start_of(present.argv)}
        return replace(found, options=options, remarks=(*found.remarks, *empty))

    def _left_open(self, path: str, default: Any) -> str:
        """What to say of an override whose value only the shell can compute."""
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        return (
            f"{path}: {ONLY_THE_SHELL}"
            if is_number
            else f"{path}: only the shell can compute its value, so {self.name}'s default was used"
        )

    def start_of(self, argv: Sequence[str]) -> tuple[str, ...] | None:
        """The words that start its program, where they are not the usual ones."""
        if (program := program_of(argv)) is None:
            return None
        words = argv[: program.end]
        before = len(words) - words[::-1].index("--") if "--" in words else 0
        start, usual = tuple(dropwhile(re.compile(r"\w+=").match, words[before:])), USUAL[self.name]
        alike = bool(INTERPRETER.fullmatch(start[0])) == bool(INTERPRETER.fullmatch(usual[0]))
        return None if start[1:] == usual[1:] and alike else start

    def read_document(
        self, name: str, document: Mapping[str, Any], defaults: Mapping[str, Any]
    ) -> Reading:
        """What a document says, over the program's defaults."""
        keys = KeyReader(document, name, defaults)
        found = self.read_by_its_folder(keys)
        left = {key: value for key, value in keys.left.items() if value is not None}
        left = (
            {key: with_environment(value) for key, value in left.items()} if self.resolves else left
        )
        return replace(found, settings=left, remarks=(*found.remarks, *keys.remarks))

    def present_document(self, present: PresentConfiguration) -> tuple[str, dict[str, Any]]:
        """(name, contents) of its file, over which the command's overrides `key.inner=value`
        count."""
        named = next((name for name in present.files if name.endswith((".yaml", ".yml"))), "")
        document = parse_document(named, present.files[named]) if named else {}
        found = overrides(self.words(present))
        if not named and not found:
            named, text = present.named(".yaml", ".yml")
            document = parse_document(named, text)
        return named or "command", merged(document, nested(found))

    def words(self, present: PresentConfiguration) -> tuple[str, ...]:
        """The words of its command, or of the command in a script."""
        script = next(
            (
                text
                for name, text in present.files.items()
                if name.endswith((".sh", ".slurm", ".sbatch"))
            ),
            "",
        )
        if present.argv or not script:
            return present.argv
        commands = [command.words for command in commands_of(script).commands]
        return max(
            commands,
            key=lambda words: (any(word in self.recognized_by for word in words), len(words)),
            default=(),
        )

    def parse_line(self, line: str) -> StepMetrics | None:
        """The lines that say all of a step."""
        return step_metrics_of(line) if any(mark in line for mark in self.step_marks) else None


def start_ray(workload: Workload) -> tuple[str, ...]:
    """What to do before a launch on several nodes, in words."""
    return notes_of((
        workload.cluster.num_nodes > 1,
        "start Ray on all nodes first (`ray start`), then run this command only on the head node",
    ))  # fmt: skip


def memory_fraction(rl: PostTraining) -> float | None:
    """The share of a GPU's memory that its engines take; None where the program decides it."""
    return (rl.rollout and rl.rollout.memory_fraction) or None


def with_environment(value: Any) -> Any:
    """Variables that a shell would have filled in (`$HOME`, `${DATA}`) as OmegaConf resolves them;
    its own `${data.path}` stays."""
    if isinstance(value, Mapping):
        return {key: with_environment(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_environment(inner) for inner in value]
    if isinstance(value, str):
        return re.sub(
            r"\$(?:\{([A-Z_][A-Z0-9_]*)\}|([A-Za-z_]\w*))",
            lambda m: f"${{oc.env:{m[1] or m[2]}}}",
            value,
        )
    return value


def overrides(argv: tuple[str, ...]) -> dict[str, Any]:
    """Overrides of Hydra's kind among the words of a command: `a.b=1`, `+a.b=true`, `++a.b=x`."""
    import yaml  # imported here because it is slow to import

    found: dict[str, Any] = {}
    for word in argv:
        path, sign, text = word.lstrip("+").partition("=")
        if (
            not sign
            or word.startswith("-")
            or not all(part.replace("_", "a").isalnum() for part in path.split("."))
        ):
            continue
        try:
            found[path] = yaml.safe_load(text)
        except yaml.YAMLError:
            found[path] = text
    return found


def unsaid(argv: Sequence[str]) -> list[str]:
    """Paths of overrides without a value, as a shell's unknown variable leaves them: `a.b=`,
    `a.b=$X`."""
    found = []
    for word in argv:
        path, sign, text = word.lstrip("+").partition("=")
        is_path = "." in path and all(part.replace("_", "a").isalnum() for part in path.split("."))
        if sign and is_path and re.fullmatch(r"|\$\{?\w+\}?", text):
            found.append(path)
    return found


def fitted(
    knobs: Mapping[str, Any],
    ranks: int | None,
    batch: int | None,
    *,
    alone: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The knobs with those that follow from ranks and batch. Files of these programs may have a
    batch that nothing divides, and say `alone` otherwise where no rank has the same weights."""
    found = completed(knobs, ranks=ranks)
    if found.get("dp", 0) * found.get("cp", 1) == 1:
        found |= alone or {}
    if batch and "dp" in found and batch % (found["dp"] * found["micro_batch_size"]) == 0:
        found["accumulation_steps"] = batch // (found["dp"] * found["micro_batch_size"])
    return found


def mini_batches(prompts: int | None, responses: int, batch: int | None) -> int | None:
    """Optimizer steps of a step; None where the batch does not divide its sequences, or is not
    known."""
    return (
        prompts * responses // batch
        if prompts and batch and prompts * responses % batch == 0
        else None
    )


def read_algorithm(keys: KeyReader, path: str, estimators: Mapping[str, str]) -> str:
    """`rl.algorithm` by the estimator of advantages at this path: PPO or GRPO. rloo, gpg and others
    cost what GRPO costs, and stay what they are."""
    estimator = keys.text(path)
    if estimator not in estimators.values():
        keys.keep_unless(path, None)
    return "ppo" if estimator == estimators["ppo"] else "grpo"


def read_whole_experts(keys: KeyReader, where: str, tp: int) -> bool | None:
    """`rl.whole_experts` of a launch of Megatron-Core, which splits experts by tp by default; None:
    the default of specs."""
    path = f"{where}.{EXPERT_TP}"
    degree = keys.count(path)
    if degree is not None and degree not in (1, tp):
        keys.keep(path)
        keys.remarks.append(
            f"{path}={degree}: plans support only 1 (whole experts) or tp ({tp}); launches pass the value on unchanged"
        )
    return None if degree == 1 or tp == 1 else False


def rl_value(rl: PostTraining, c: ParallelConfig, name: str) -> Any:
    """The value of a knob of post-training in a config, or today's."""
    return c.extra.get(name, rl.current(name))


def grid(workload: Workload, ranks: int) -> tuple[int, int]:
    """(nodes, GPUs per node) of so many ranks."""
    per_node = min(ranks, workload.cluster.gpus_per_node)
    return -(-ranks // per_node), per_node


def whole_nodes(per_node: int | None, gpus: int | None) -> tuple[int, int] | None:
    """(nodes, GPUs per node) of a launch; None where that is not known, or nodes are shared."""
    return (gpus // per_node, per_node) if per_node and gpus and gpus % per_node == 0 else None
