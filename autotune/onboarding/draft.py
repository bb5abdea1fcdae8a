"""A draft: a spec with comments that say where each value was found and what is still to be filled
in.

The cluster that a draft names, and what follows from it: how many ranks there are, and how torchrun
starts them.

The model that a program names by its id on Hugging Face's hub, or by the folder of its weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from autotune.errors import SpecError
from autotune.schema.files import is_model_file, name_of
from autotune.spec import KNOBS, ClusterSpec, catalog

RANKS = 8
"""GPUs of a node, where nothing tells"""


def named_cluster(name: str | None) -> ClusterSpec | None:
    """The cluster of that name; None for this machine. Raises `CatalogError` for an unknown one."""
    return None if name in (None, "local") else catalog.cluster(str(name))


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs: on the cluster of that name; where none is named, on as many nodes and GPUs
    as its launch script asks for."""

    name: str | None
    """GPU-NODESxGPUS; None if not named"""
    nodes: int = 1
    """nodes that the launch asks for"""
    gpus_per_node: int | None = None
    """ranks of a node in the launch; None where it does not say"""

    @property
    def ranks(self) -> int:
        """Ranks of a job on the whole cluster. Raises `CatalogError` for an unknown one."""
        found = named_cluster(self.name)
        return found.num_gpus if found else self.nodes * (self.gpus_per_node or RANKS)

    @property
    def asked(self) -> int | None:
        """Ranks that the launch asks for; None where it does not say."""
        return self.nodes * self.gpus_per_node if self.gpus_per_node else None

    @property
    def is_spread(self) -> bool:
        """Whether there are several nodes."""
        found = named_cluster(self.name)
        return (found.num_nodes if found else self.nodes) > 1

    @property
    def is_cpu(self) -> bool:
        """Whether its ranks are said to be CPU processes."""
        found = named_cluster(self.name)
        return found is not None and found.gpu.is_cpu

    @property
    def torchrun(self) -> tuple[str, ...]:
        """torchrun and its options; over several nodes its environment tells it how they meet."""
        return (
            "torchrun",
            *(() if self.is_spread else ("--standalone",)),
            "--nproc-per-node={nproc_per_node}",
        )

    @property
    def fill_in(self) -> tuple[str, ...]:
        """Whether the cluster is to be filled in: this machine is not it."""
        return ("cluster",) if self.name is None and self.nodes > 1 else ()

    @property
    def entries(self) -> tuple[Entry, Entry, Entry]:
        """The spec's cluster, time limits and runner."""
        usual = f"h100-sxm-{self.nodes}x{self.gpus_per_node or RANKS}"
        if self.name:
            comment = ""
        elif self.fill_in:
            comment = (
                f"fill in the cluster, e.g. {usual}, because the script requests {self.nodes} nodes"
            )
        else:
            comment = f"this machine; otherwise e.g. {usual}"
        return (
            Entry(key="cluster", value=self.name or "local", comment=comment),
            Entry(key="measure") if self.is_cpu else time_limits(),
            Entry(key="runner", value="ray" if self.is_spread else "local"),
        )


WIDTH = 110
"""characters of a mapping that stands on one line"""
COMMENT_COLUMN = 44
"""column at which the comments begin"""


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a list."""

    value: str
    """a text"""
    comment: str = ""
    """where it was found, or what to fill in"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key of the spec."""

    key: str
    """its name"""
    value: Any = None
    """plain values; None with `parts`"""
    comment: str = ""
    """where it was found, or what to fill in"""
    parts: tuple[Entry, ...] = ()
    """the keys inside, each on a line of its own"""
    items: tuple[Item, ...] = ()
    """the entries of a list, each on a line of its own"""
    below: tuple[str, ...] = ()
    """comments under it"""


def time_limits() -> Entry:
    """Time limits of trials on GPUs, where loading a model and compiling it take minutes."""
    return Entry(
        key="measure",
        value={"start_timeout_s": 600, "step_timeout_s": 120, "trial_timeout_s": 1800},
        comment="seconds until the first step (loading, compiling), between two steps, and for a whole trial",
    )


def filled(*entries: Entry) -> tuple[Entry, ...]:
    """Those that say something."""
    said = (entry for entry in entries if entry.parts or entry.items or is_said(entry.value))
    return tuple(said)


def is_said(value: Any) -> bool:
    """Whether a value says something: a number and a text do, nothing, False and an empty mapping
    do not."""
    return value not in (None, False, "", {})


def stated(**values: Any) -> dict[str, Any]:
    """The values that say something, by name."""
    return {name: value for name, value in values.items() if is_said(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A first spec."""

    heading: tuple[str, ...]
    """comments at the top"""
    entries: tuple[Entry, ...]
    """the spec's keys in their order"""
    fill_in: tuple[str, ...] = ()
    """keys whose value is only a stand-in"""
    notes: tuple[str, ...] = ()
    """what was kept and what was not understood, in words"""
    remarks: tuple[str, ...] = ()
    """those of the notes that a prediction needs: what is not counted, or counted as something
    else"""
    as_options: Draft | None = None
    """the same launch as if options said what the program's text does, for a review, which edits
    that text"""
    beside: str = ""
    """the keyword argument of that text behind which others may be written"""
    held: frozenset[str] = frozenset()
    """names of options that only that text has"""
    today: Mapping[str, Any] = field(default_factory=dict)
    """what the program's options are set to, by the placeholder that stands for them in trials"""
    nodes: tuple[int, int] | None = None
    """(nodes, GPUs of a node) of the launch, where a configuration says so"""

    @property
    def document(self) -> dict[str, Any]:
        """The spec as plain values."""
        return {entry.key: _value(entry) for entry in self.entries}

    @property
    def text(self) -> str:
        """The spec as YAML."""
        lines = [f"# {line}" for line in self.heading]
        for entry in self.entries:
            lines += _lines(entry, "")
        return "\n".join(lines) + "\n"

    def at(self, path: str) -> Entry | None:
        """The entry of a key, or of one inside: `trainer.argv`; None where there is none."""
        key, _, inner = path.partition(".")
        found = next((entry for entry in self.entries if entry.key == key), None)
        return replace(self, entries=found.parts).at(inner) if found and inner else found

    def value(self, path: str) -> Any:
        """What the entry says; an empty mapping where there is none."""
        return _value(found) if (found := self.at(path)) else {}

    def put(self, path: str, entry: Entry | None, *, after: str = "") -> Draft:
        """With that entry in the place of the one there, else behind the key `after` or at the end;
        None: without it."""
        key, _, inner = path.partition(".")
        if inner and (outer := self.at(key)) is not None:
            within = replace(self, entries=outer.parts).put(inner, entry, after=after)
            entry = replace(outer, parts=within.entries)
        keys = [each.key for each in self.entries]
        at = keys.index(after) + 1 if after in keys else len(keys)
        at, end = (keys.index(key), keys.index(key) + 1) if key in keys else (at, at)
        new = () if entry is None else (entry,)
        return replace(self, entries=(*self.entries[:at], *new, *self.entries[end:]))

    def edited(self, path: str, **changes: Any) -> Draft:
        """With other fields of an entry, where there is one."""
        found = self.at(path)
        return self if found is None else self.put(path, replace(found, **changes))

    def noting(self, *notes: str) -> Draft:
        """With further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def asking(self, *keys: str) -> Draft:
        """With further keys to be filled in."""
        return replace(self, fill_in=tuple(dict.fromkeys((*self.fill_in, *keys))))

    def with_values(self, values: Mapping[str, Any]) -> Draft:
        """With values that somebody said, by the path of their key: `workload.seq_len`."""

        def said(entry: Entry, path: str) -> Entry:
            if path in values:
                return replace(entry, value=values[path], comment="as given")
            inside = {
                key: values[f"{path}.{key}"]
                for key in (entry.value if isinstance(entry.value, dict) else ())
                if f"{path}.{key}" in values
            }
            if not inside:
                return replace(
                    entry, parts=tuple(said(part, f"{path}.{part.key}") for part in entry.parts)
                )
            left = [words for words in entry.comment.split("; ") if not _asks_for(words, inside)]
            words = "; ".join([*filter(None, left), f"{', '.join(inside)} as given"])
            return replace(entry, value={**entry.value, **inside}, comment=words)

        entries = tuple(said(entry, entry.key) for entry in self.entries)
        return replace(
            self, entries=entries, fill_in=tuple(key for key in self.fill_in if key not in values)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "spec": self.document,
            "text": self.text,
            "fill_in": list(self.fill_in),
            "notes": list(self.notes),
        }


def _asks_for(words: str, keys: Iterable[str]) -> bool:
    return any(words.startswith(f"fill in: {key}") for key in keys)


def baseline_text(knobs: Mapping[str, Any]) -> str:
    """Knobs as a baseline has them: those that are always shown, and those that are not at their
    defaults."""
    shown = {
        name: value
        for name, value in knobs.items()
        if KNOBS[name].always_shown or value != KNOBS[name].default
    }
    return ",".join(f"{name}={KNOBS[name].text(value)}" for name, value in shown.items())


def around(size: int) -> list[int]:
    """Sizes of micro-batches to try around that of today."""
    return sorted({max(1, size // 4), max(1, size // 2), size, 2 * size, 4 * size})


def file_name(path: str) -> str:
    """A study's name by the name of a file or folder."""
    stem = path.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    found = name_of(stem)
    if not found:
        raise SpecError(
            f"no study name can be derived from {path!r}", remedy="specify a file", field="FILE"
        )
    return found


def _value(entry: Entry) -> Any:
    if entry.items:
        return [item.value for item in entry.items]
    return {part.key: _value(part) for part in entry.parts} if entry.parts else entry.value


def _lines(entry: Entry, indent: str) -> Iterator[str]:
    if entry.parts:
        yield _commented(f"{indent}{entry.key}:", entry.comment)
        for part in entry.parts:
            yield from _lines(part, indent + "  ")
    elif entry.items:
        yield _commented(f"{indent}{entry.key}:", entry.comment)
        for item in entry.items:
            yield _commented(f"{indent}  - {_flow(item.value)}", item.comment)
    elif isinstance(entry.value, dict) and len(_flow(entry.value)) > WIDTH:
        inside = tuple(Entry(key=_flow(key), value=value) for key, value in entry.value.items())
        yield from _lines(replace(entry, value=None, parts=inside), indent)
        return
    else:
        yield _commented(f"{indent}{entry.key}: {_flow(entry.value)}", entry.comment)
    yield from (f"{indent}# {line}" for line in entry.below)


def _commented(line: str, comment: str) -> str:
    """The comment behind a short line, above a long one; there each thing to fill in has its own
    line."""
    if not comment or len(line) <= COMMENT_COLUMN:
        return f"{line:<{COMMENT_COLUMN}}  # {comment}" if comment else line
    indent = line[: len(line) - len(line.lstrip())]
    above = comment.replace("; fill in: ", f"\n{indent}# fill in: ")
    return f"{indent}# {above}\n{line}"


def _flow(value: Any) -> str:
    """A value in one line of YAML."""
    import yaml  # imported here because it is slow to import

    text: str = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=1 << 20, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def model_named(named: Any, base: Path, folder: Path) -> tuple[str, str] | None:
    """(the model for the spec, a comment): of the hub as the catalog has it, or a config.json, also
    of a folder that is named; None for any other.

    `base`: the folder that a path begins at; `folder`: of the spec.
    """
    text = str(named or "")
    if text in catalog.model_names() or text.lower() in catalog.hub_models():
        return text, ""
    of_tail = {_tail(hub): name for hub, name in catalog.hub_models().items()}
    if text and (found := of_tail.get(_tail(text))) is not None:
        return found, f"assumed for {text}"
    for local in (base / text, base / text / "config.json") if text else ():
        if is_model_file(str(local)) and local.is_file():
            return os.path.relpath(local.resolve(), folder.resolve()), ""
    return None


def _tail(hub: str) -> str:
    """A hub id without owner and without what no shape depends on: how the weights were tuned, the
    3 or 3.1 of Llama's 8B and 70B, the 2 or 2.5 of Qwen's 1.5B, 7B and 72B."""
    name = re.sub(
        r"^(meta-)?llama-3-", "llama-3.1-", hub.rstrip("/").rpartition("/")[2].lower()
    ).removeprefix("meta-")
    name = re.sub(r"^qwen2-(?=(1\.5b|7b|72b)\b)", "qwen2.5-", name)
    return re.sub(r"-(hf|base|(instruct|thinking)(-2507)?|chat|it|sft|dpo)$", "", name)
