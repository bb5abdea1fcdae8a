"""The configuration that a training program has now: its files and command
(`PresentConfiguration`), and what was read of them (`Reading`).

A trainer that writes a launch also reads one: `read_config(build(config).present)` gives the same
knobs back. The files may be the user's own: keys that are no knob and no option of the trainer are
its `settings`, which every launch writes again.

    ranks   the world size; a file alone seldom tells it, a launch command does

Nested documents: mappings of mappings, as configuration files hold them.

A file is JSON or TOML by the ending of its name, else YAML. A path is the keys from the outside in,
joined by dots: `zero_optimization.stage`.

Reads keys of a nested document, and knows which of them were read and which are left over.

A path is the keys from the outside in, joined by dots: `zero_optimization.stage`. What nobody reads
is left over, so that nothing of somebody's configuration is dropped without a word. A value that
was asked for but is not understood is no longer left over; a remark names it.

Knobs that a configuration does not state because they follow from others.

ranks = tp * pp * dp * cp                                 the world size
batch = micro_batch_size * accumulation_steps * dp        sequences per optimizer step
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, TypeVar, final

from autotune.errors import SpecError
from autotune.spec.texts.as_text import number_of
from autotune.spec.texts.json_text import read_json
from autotune.trainers.base.trainer_option import Option, Reach
from autotune.trainers.documents.file_formats import to_json, to_toml, to_yaml
from autotune.trainers.launch_files import Launch

MAX_VALUES = 100_000
"""A document of more values, with those of an alias wherever it stands, is no configuration."""


DOCUMENTS = (".yaml", ".yml", ".json", ".toml")
"""endings of files that `parse_document` reads"""


def parse_document(name: str, text: str) -> dict[str, Any]:
    """The mapping that a JSON, YAML or TOML file holds, by its ending. Raises `SpecError`."""
    import yaml  # imported here because it is slow to import

    ending = PurePosixPath(name).suffix.lower()
    try:
        if ending == ".toml":
            found = tomllib.loads(text)
        else:
            found = read_json(text) if ending == ".json" else _of_yaml(text)
        values = _num_values(found, {})
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        kind = {".toml": "TOML", ".json": "JSON"}.get(ending, "YAML")
        raise SpecError(f"{name} is not {kind}: {_complaint(error)}", field="FILE") from None
    if not isinstance(found, dict):
        raise SpecError(
            f"{name} must be a mapping of keys to values, but is a {type(found).__name__}",
            field="FILE",
        )
    if values > MAX_VALUES:
        raise SpecError(
            f"{name} contains itself, or more than {MAX_VALUES:,} values, so it is not a configuration",
            field="FILE",
        )
    return found


def _of_yaml(text: str) -> Any:
    """What a YAML text holds: by libyaml, which is ten times as fast, where it is there. Mistakes
    are those that Python's loader names."""
    import yaml

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return yaml.safe_load(text)


def _num_values(node: Any, known: dict[int, int]) -> int:
    """Values in a document, those of an alias wherever it stands; more than `MAX_VALUES` where a
    part holds itself. `known`: by the parts' identity."""
    if not isinstance(node, dict | list):
        return 1
    if id(node) not in known:
        known[id(node)] = MAX_VALUES  # as long as it is open
        inner = node.values() if isinstance(node, dict) else node
        known[id(node)] = 1 + sum(_num_values(value, known) for value in inner)
    return known[id(node)]


def _complaint(error: Exception) -> str:
    """What a parser says in its first line; of YAML's, the line of the file and the problem, which
    stand in its last lines."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}: {problem}" if problem and mark else str(error).splitlines()[0]


def document_text(name: str, document: Mapping[str, Any]) -> str:
    """The text of a JSON, YAML or TOML file, by its ending."""
    ending = PurePosixPath(name).suffix.lower()
    return {".toml": to_toml, ".json": to_json}.get(ending, to_yaml)(document)


def merged(document: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with the keys of `more`, also inside its mappings; `more` counts where both have a
    value."""
    result = dict(document)
    for key, value in more.items():
        here = result.get(key)
        inside = isinstance(here, Mapping) and isinstance(value, Mapping)
        result[key] = merged(here, value) if inside else value  # type: ignore[arg-type]
    return result


def nested(document: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted paths as mappings of mappings; a None is left out."""
    found: dict[str, Any] = {}
    for path, value in document.items():
        if value is not None:
            for key in reversed(path.split(".")):
                value = {key: value}
            found = merged(found, value)
    return found


def at_path(document: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    for key in path.split("."):
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def section(document: Any, path: str) -> Mapping[str, Any]:
    """The mapping at a dotted path; empty where there is none."""
    found = at_path(document, path)
    return found if isinstance(found, Mapping) else {}


def without(
    document: Mapping[str, Any], is_left_out: Callable[[str, Any], bool], prefix: str = ""
) -> dict[str, Any]:
    """`document` without the values, and the whole mappings, that are left out by their path and
    value; mappings that are emptied go too."""
    left: dict[str, Any] = {}
    for key, value in document.items():
        path = f"{prefix}{key}"
        if is_left_out(path, value):
            continue
        inner = without(value, is_left_out, f"{path}.") if isinstance(value, Mapping) else value
        if inner or not value:
            left[str(key)] = inner
    return left


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All values with their paths, inner keys joined by dots; an empty mapping is a value."""
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def without_equal(document: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`document` without what `other` holds with the same value, also inside mappings."""
    told = dict(flat(other))
    return without(document, lambda path, value: path in told and told[path] == value)


def dotted(document: Mapping[str, Any]) -> Iterator[str]:
    """The paths of all values."""
    return (path for path, _ in flat(document))


def split_by_path(
    document: Mapping[str, Any], patterns: Sequence[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(the document without the values whose path matches a pattern such as `profiling.*`, the
    paths that are left out)

    Values that are off already, false or null, stay: without them a default could count, which may
    be on.
    """
    out = {
        path
        for path, value in flat(document)
        if value is not None
        and value is not False
        and any(fnmatchcase(path, pattern) for pattern in patterns)
    }
    return without(document, lambda path, _: path in out), tuple(sorted(out))


AUTO = "auto"
"""what Hugging Face's integrations write for a value that the program fills in"""
ONLY_THE_SHELL = "only the shell can compute this number"
"""of a value that is a variable which nothing sets"""
T = TypeVar("T")


@final
class KeyReader:
    """Reads a document key by key and keeps account."""

    def __init__(
        self, document: Mapping[str, Any], name: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        """`name`: of the file, for remarks. `defaults`: what the program takes for keys that the
        document lacks, by dotted path."""
        self._document, self.name = document, name
        self._defaults = defaults or {}
        self._taken: set[str] = set()
        self._added: dict[str, Any] = {}
        self.remarks: list[str] = []
        """values that were not understood, in words; a reader may add to them"""

    def count(self, path: str) -> int | None:
        """A whole number of at least 0; None where there is none."""
        value = self.find(path)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return self._understood(path, int(value) if fits else None, "a whole number")

    def positive(self, path: str) -> int:
        """A whole number of at least 1; 1 where there is none."""
        return self.count(path) or 1

    def number(self, path: str) -> float | None:
        """A number. YAML reads `1e-4` as text, which counts as a number here."""
        value, found = self.find(path), None
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            with suppress(ValueError):
                found = float(value)
        return self._understood(path, found, "a number")

    def flag(self, path: str) -> bool | None:
        """True or false, also as text."""
        value = self.find(path)
        if isinstance(value, str):
            value = {"true": True, "false": False}.get(value.lower())
        return self._understood(path, value if isinstance(value, bool) else None, "true or false")

    def is_on(self, path: str) -> bool:
        """Whether it is true."""
        return self.flag(path) is True

    def text(self, path: str) -> str | None:
        """A text that is not empty."""
        value = self.find(path)
        return self._understood(path, value) if isinstance(value, str) and value else None

    def word(self, path: str, meanings: Mapping[Any, Any], usual: Any = None) -> Any:
        """What the value means, by `meanings`; `usual` where there is none or it is none of
        these."""
        value = self.find(path)
        meaning = meanings.get(value) if isinstance(value, str | bool | int) else None
        found = self._understood(path, meaning, "one of " + ", ".join(map(str, meanings)))
        return usual if found is None else found

    def find(self, path: str) -> Any:
        """The value, which stays left over, or the program's default; None where there is none."""
        found = self.written(path)
        return self._defaults.get(path) if found is None else found

    def written(self, path: str) -> Any:
        """The value that the document itself has; None where there is none."""
        return at_path(self._document, path)

    def drop(self, *paths: str) -> None:
        """Counts the keys as read, whatever they hold: others that were read imply them."""
        self._taken.update(paths)

    def drop_equal(self, values: Mapping[str, Any]) -> None:
        """Counts the keys as read that have these very values: a launch writes them by itself."""
        self.drop(*(path for path, value in values.items() if self.find(path) == value))

    def keep(self, *paths: str) -> None:
        """Counts the keys as left over, though they were read: a launch writes these very values
        again."""
        self._taken.difference_update(paths)

    def keep_unless(self, path: str, value: Any) -> Any:
        """The value, which is left over, also where it is the program's default, if that is not
        this one, which a launch writes by itself."""
        found = self.find(path)
        self.keep(path)
        if self.written(path) is None and found not in (None, value):
            self._added[path] = found
        return found

    @property
    def left(self) -> dict[str, Any]:
        """The document without what was read."""
        return merged(
            nested(self._added), without(self._document, lambda path, _: path in self._taken)
        )

    def _understood(self, path: str, meaning: T | None, expected: str = "") -> T | None:
        """The meaning of a value, which counts as read; None is remarked on where there is a
        value."""
        value = self.find(path)
        if value is None:
            return None
        self._taken.add(path)
        if meaning is None:
            why = f" is left out, because it is not {expected}"
            if value == AUTO:
                why = " is filled in by the program"
            elif "number" in expected and isinstance(value, str) and ("$" in value or not value):
                why = f": {ONLY_THE_SHELL}"
            self.remarks.append(f"{self.name}: {path}={value!r:.60}{why}")
        return meaning


SETTINGS = Option(
    name="settings",
    meaning="other settings for the trainer, written unchanged to the trainer's file or command",
    default={},
    reach=Reach.ARGUMENT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentConfiguration:
    """Files, command and environment of a training program."""

    files: Mapping[str, str] = field(default_factory=dict)
    """text by name, as in a launch; a single file has its own name"""
    argv: tuple[str, ...] = ()
    """the command, where it is known"""
    env: Mapping[str, str] = field(default_factory=dict)
    """variables that it is started with"""
    cwd: str = ""
    """folder in which it runs, where that is known and not the folder of the files"""
    ranks_of_cluster: int | None = None
    """GPUs of the cluster that is meant, for programs that take them all"""

    @classmethod
    def of_launch(cls, launch: Launch) -> PresentConfiguration:
        """What a launch writes."""
        return cls(files=launch.files, argv=launch.argv, env=launch.env, cwd=launch.cwd)

    @property
    def ranks(self) -> int | None:
        """The world size by the options of torchrun, which other launchers share; None where the
        command does not tell: `--nnodes $NODES` may be any."""
        nodes, per_node = (self._launcher_count(name) for name in ("nnodes", "nproc-per-node"))
        return None if nodes is None or per_node is None else nodes * per_node

    @property
    def tf32(self) -> bool:
        """Whether fp32 matrix products are computed in TF32."""
        return self.env.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1"

    def named(self, *endings: str) -> tuple[str, str]:
        """Name and text of the first file with one of these endings. Raises `SpecError`."""
        for name, text in self.files.items():
            if PurePosixPath(name).suffix.lower() in endings:
                return name, text
        raise SpecError(
            f"none of the files {', '.join(self.files) or '(none)'} ends in {' or '.join(endings)}",
            remedy="run `autotune init FILE`, which detects the trainer",
            field="FILE",
        )

    def keys(self, *endings: str) -> KeyReader:
        """The keys of the first file with one of these endings. Raises `SpecError`."""
        name, text = self.named(*endings)
        return KeyReader(parse_document(name, text), name)

    def option(self, name: str) -> str | None:
        """The value of the program's option `--name VALUE` or `--name=VALUE`; None where the
        command has none."""
        return next((value for given, value in options_of(self.argv) if given == name), None)

    def _launcher_count(self, name: str) -> int | None:
        values = {
            "nnodes": "1",
            **{given.replace("_", "-"): value for given, value in options_of(self.argv)},
        }
        text = values.get(name)
        return int(text) if text and text.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A present configuration in the tuner's terms. What the files do not tell is left out."""

    knobs: Mapping[str, Any]
    """values of knobs, by name"""
    model: Mapping[str, Any] = field(default_factory=dict)
    """fields of `ModelSpec`"""
    model_file: str = ""
    """name of the file that is the model's config.json, among those that were read, or the path
    that they name"""
    seq_len: int | None = None
    """tokens per sequence"""
    global_batch_size: int | None = None
    """sequences per optimizer step"""
    optimizer: str = ""
    """one of `Workload.optimizer`"""
    pure_bf16: bool = False
    """whether weights, gradients and moments are all in bf16"""
    unfused_attention: bool = False
    """whether attention stores its scores"""
    peft: Mapping[str, Any] = field(default_factory=dict)
    """keys of a workload's `peft`"""
    cluster: str = ""
    """name of the cluster"""
    nodes: tuple[int, int] | None = None
    """(nodes, GPUs of a node), with those that only generate"""
    rl: Mapping[str, Any] = field(default_factory=dict)
    """keys of a spec's `rl`, of programs that post-train; lengths are the largest that the files
    allow"""
    rollout: Mapping[str, Any] = field(default_factory=dict)
    """keys of its `rollout`"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """options of the trainer"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """keys that are neither knobs nor options, with their values"""
    remarks: tuple[str, ...] = ()
    """what was not understood, in words"""
    missing: tuple[str, ...] = ()
    """names of files that decide some of it, but were not there"""
    held: frozenset[str] = frozenset()
    """knobs that files decide which launches do not write"""

    def __post_init__(self) -> None:
        for name in ("options", "rl", "rollout"):
            told = {key: value for key, value in getattr(self, name).items() if value is not None}
            object.__setattr__(self, name, told)


_NUMBER = re.compile(r"-[0-9.]+([eE]-?[0-9]+)?")


def options_of(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of each option of a command; the value of a flag is empty."""
    for at, word in enumerate(argv):
        if not word.startswith("--") or len(word) < 3:
            continue
        name, sign, value = word[2:].partition("=")
        following = argv[at + 1] if at + 1 < len(argv) else ""
        is_value = bool(following) and (
            not following.startswith("-") or _NUMBER.fullmatch(following)
        )
        if not sign:
            value = following if is_value else ""
        yield name, value


def typed(word: str) -> Any:
    """A number that is written back as it was, as one; anything else as it is written."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word) if str(kind(word)) == word else word
    return word


def flags_of(words: Iterable[str], meaning: Callable[[str], Any] = typed) -> dict[str, Any]:
    """The values of a command's flags: `--name` (true), `--name value`, `--name=value`, `--name low
    high`. `meaning`: what a word stands for."""
    found: dict[str, list[Any]] = {}
    values: list[Any] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, sign, value = word[2:].partition("=")
            found[name] = values = [meaning(value)] if sign else []
        else:
            values.append(meaning(word))
    return {name: _of_flag(given) for name, given in found.items()}


def _of_flag(values: list[Any]) -> Any:
    """The value of a flag that these follow."""
    if not values:
        return True
    return values if len(values) > 1 else values[0]


def completed(
    knobs: Mapping[str, Any], *, ranks: int | None = None, batch: int | None = None
) -> dict[str, Any]:
    """The knobs that are known (None: not), with those that follow from them. Raises `SpecError`
    where they contradict each other."""
    found = {name: value for name, value in knobs.items() if value is not None}
    degrees = {name: found.get(name, 1) for name in ("tp", "pp", "cp")}
    if ranks is not None and "dp" not in found:
        others = math.prod(degrees.values())
        _divides(others, ranks, f"{_words(degrees)} must divide the {number_of(ranks, 'rank')}")
        found["dp"] = ranks // others
    steps: dict[str, int] = {
        name: found[name]
        for name in ("micro_batch_size", "accumulation_steps", "dp")
        if name in found
    }
    if batch is not None and len(steps) == 2:
        (missing,) = {"micro_batch_size", "accumulation_steps", "dp"} - steps.keys()
        _divides(
            math.prod(steps.values()),
            batch,
            f"{_words(steps)} must divide the global batch of {batch}",
        )
        found[missing] = batch // math.prod(steps.values())
    elif batch is not None and len(steps) == 3 and math.prod(steps.values()) != batch:
        raise SpecError(
            f"{_words(steps)} must multiply to the global batch, but the batch is {batch}",
            field="global_batch_size",
        )
    return found


def batch_of(knobs: Mapping[str, Any]) -> int | None:
    """Sequences per optimizer step; None where the knobs do not tell."""
    parts = [knobs.get(name) for name in ("micro_batch_size", "accumulation_steps", "dp")]
    return None if None in parts else math.prod(part for part in parts if part is not None)


def _divides(divisor: int, number: int, law: str) -> None:
    if divisor < 1 or number % divisor:
        raise SpecError(
            f"{law}, but do not",
            remedy="change one of these values, or the number of ranks that the launch requests",
        )


def _words(values: Mapping[str, int]) -> str:
    return " * ".join(f"{name}={value}" for name, value in values.items())
