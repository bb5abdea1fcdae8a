"""A draft: a spec with comments that say where each value was found and what is still to be filled
in.

Also the cluster of a draft, with its ranks and torchrun options, and the model that a program names
by its id on Hugging Face's hub or by the folder of its weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from autotune.errors import SpecError
from autotune.schema.files import is_model_file, name_of
from autotune.spec import KNOBS, ClusterSpec, catalog

RANKS = 8
"""GPUs per node, assumed if nothing gives their number"""


def named_cluster(name: str | None) -> ClusterSpec | None:
    """The cluster with this name; None for this machine. Raises `CatalogError` for an unknown
    name."""
    return None if name in (None, "local") else catalog.cluster(str(name))


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where a job runs: on the named cluster, or else on the nodes and GPUs that its launch script
    requests."""

    name: str | None
    """GPU-NODESxGPUS; None if not named"""
    nodes: int = 1
    """nodes that the launch requests"""
    gpus_per_node: int | None = None
    """ranks per node of the launch; None if it does not say"""

    @property
    def ranks(self) -> int:
        """Ranks of a job on the whole cluster. Raises `CatalogError` for an unknown cluster."""
        found = named_cluster(self.name)
        return found.num_gpus if found else self.nodes * (self.gpus_per_node or RANKS)

    @property
    def asked(self) -> int | None:
        """Ranks that the launch requests; None if it does not say."""
        return self.nodes * self.gpus_per_node if self.gpus_per_node else None

    @property
    def is_spread(self) -> bool:
        """Whether the job runs on several nodes."""
        found = named_cluster(self.name)
        return (found.num_nodes if found else self.nodes) > 1

    @property
    def is_cpu(self) -> bool:
        """Whether the named cluster has CPU ranks."""
        found = named_cluster(self.name)
        return found is not None and found.gpu.is_cpu

    @property
    def torchrun(self) -> tuple[str, ...]:
        """torchrun and its options. Across nodes, rendezvous is set by environment variables."""
        return (
            "torchrun",
            *(() if self.is_spread else ("--standalone",)),
            "--nproc-per-node={nproc_per_node}",
        )

    @property
    def fill_in(self) -> tuple[str, ...]:
        """("cluster",) if the cluster is to be filled in, because the launch needs several nodes;
        or else empty."""
        return ("cluster",) if self.name is None and self.nodes > 1 else ()

    @property
    def entries(self) -> tuple[Entry, Entry, Entry]:
        """The spec's entries for cluster, time limits and runner."""
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
"""maximum width in characters of a mapping on one line"""
COMMENT_COLUMN = 44
"""column at which comments begin"""


@dataclass(frozen=True, slots=True)
class Item:
    """An element of a list in the spec."""

    value: str
    """the text of the element"""
    comment: str = ""
    """where it was found, or what to fill in"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key of the spec with its value."""

    key: str
    """name of the key"""
    value: Any = None
    """plain value; None with `parts`"""
    comment: str = ""
    """where it was found, or what to fill in"""
    parts: tuple[Entry, ...] = ()
    """nested keys, each on its own line"""
    items: tuple[Item, ...] = ()
    """elements of a list, each on its own line"""
    below: tuple[str, ...] = ()
    """comment lines below the entry"""

    def with_texts(self, changed: Callable[[str], Any]) -> Entry:
        """The entry with `changed(text)` for each text of its values, parts and items. Comments of
        changed items no longer explain what the text was taken for."""
        items = tuple(
            item
            if (value := changed(item.value)) == item.value
            else replace(item, value=value, comment=item.comment.partition(", taken as")[0])
            for item in self.items
        )
        parts = tuple(part.with_texts(changed) for part in self.parts)
        return replace(self, value=_with_texts(self.value, changed), items=items, parts=parts)


def _with_texts(value: Any, changed: Callable[[str], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_texts(each, changed) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each, changed) for each in value]
    return changed(value) if isinstance(value, str) else value


def time_limits() -> Entry:
    """Time limits of trials on GPUs, where loading a model and compiling it take minutes."""
    return Entry(
        key="measure",
        value={"start_timeout_s": 600, "step_timeout_s": 120, "trial_timeout_s": 1800},
        comment="seconds until the first step (loading, compiling), between two steps, and for a whole trial",
    )


def filled(*entries: Entry) -> tuple[Entry, ...]:
    """The entries that are not empty."""
    nonempty = (entry for entry in entries if entry.parts or entry.items or is_said(entry.value))
    return tuple(nonempty)


def is_said(value: Any) -> bool:
    """Whether a value is not empty. Zero counts as a value, False does not."""
    return value not in (None, False, "", {})


def stated(**values: Any) -> dict[str, Any]:
    """The values that are not empty, by name."""
    return {name: value for name, value in values.items() if is_said(value)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A draft of a study's spec."""

    heading: tuple[str, ...]
    """comment lines at the top"""
    entries: tuple[Entry, ...]
    """keys of the spec in order"""
    fill_in: tuple[str, ...] = ()
    """keys whose value is only a placeholder"""
    notes: tuple[str, ...] = ()
    """sentences about what was kept and what was not understood"""
    remarks: tuple[str, ...] = ()
    """notes that affect predictions: what is not modeled, or modeled as something else"""
    as_options: Draft | None = None
    """the same launch with the arguments in the code treated as options, for a review, which edits
    the code"""
    beside: str = ""
    """the keyword argument in the code after which others may be added"""
    held: frozenset[str] = frozenset()
    """names of options that only the code sets"""
    today: Mapping[str, Any] = field(default_factory=dict)
    """current values of the program's options, by their placeholder in trials"""
    nodes: tuple[int, int] | None = None
    """(nodes, GPUs per node) of the launch, if a configuration gives them"""

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
        """The entry of a key, or of a nested one (`trainer.argv`); None if there is none."""
        key, _, inner = path.partition(".")
        found = next((entry for entry in self.entries if entry.key == key), None)
        return replace(self, entries=found.parts).at(inner) if found and inner else found

    def value(self, path: str) -> Any:
        """The value of an entry; an empty mapping if there is none."""
        return _value(found) if (found := self.at(path)) else {}

    def put(self, path: str, entry: Entry | None, *, after: str = "") -> Draft:
        """The draft with this entry replacing the one at `path`, or else inserted after the key
        `after`, or else at the end. With None the entry is removed."""
        key, _, rest = path.partition(".")
        if rest and (outer := self.at(key)) is not None:
            nested = replace(self, entries=outer.parts).put(rest, entry, after=after)
            entry = replace(outer, parts=nested.entries)
        keys = [each.key for each in self.entries]
        at = keys.index(after) + 1 if after in keys else len(keys)
        at, end = (keys.index(key), keys.index(key) + 1) if key in keys else (at, at)
        inserted = () if entry is None else (entry,)
        return replace(self, entries=(*self.entries[:at], *inserted, *self.entries[end:]))

    def edited(self, path: str, **changes: Any) -> Draft:
        """The draft with other fields of an entry; unchanged if there is no such entry."""
        found = self.at(path)
        return self if found is None else self.put(path, replace(found, **changes))

    def noting(self, *notes: str) -> Draft:
        """The draft with further notes."""
        return replace(self, notes=(*self.notes, *notes))

    def asking(self, *keys: str) -> Draft:
        """The draft with further keys to be filled in."""
        return replace(self, fill_in=tuple(dict.fromkeys((*self.fill_in, *keys))))

    def with_values(self, values: Mapping[str, Any]) -> Draft:
        """The draft with values given by the user, by the path of their key: `workload.seq_len`."""

        def replaced(entry: Entry, path: str) -> Entry:
            if path in values:
                return replace(entry, value=values[path], comment="as given")
            given = {
                key: values[f"{path}.{key}"]
                for key in (entry.value if isinstance(entry.value, dict) else ())
                if f"{path}.{key}" in values
            }
            if not given:
                return replace(
                    entry, parts=tuple(replaced(part, f"{path}.{part.key}") for part in entry.parts)
                )
            kept_comments = [
                comment for comment in entry.comment.split("; ") if not _asks_for(comment, given)
            ]
            comment = "; ".join([*filter(None, kept_comments), f"{', '.join(given)} as given"])
            return replace(entry, value={**entry.value, **given}, comment=comment)

        entries = tuple(replaced(entry, entry.key) for entry in self.entries)
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
    """Whether a comment asks to fill in one of these keys."""
    return any(words.startswith(f"fill in: {key}") for key in keys)


def baseline_text(knobs: Mapping[str, Any]) -> str:
    """Knobs in the notation of a baseline: those that are always shown, and those that differ from
    their default."""
    shown = {
        name: value
        for name, value in knobs.items()
        if KNOBS[name].always_shown or value != KNOBS[name].default
    }
    return ",".join(f"{name}={KNOBS[name].text(value)}" for name, value in shown.items())


def around(size: int) -> list[int]:
    """Micro-batch sizes to try around the current one."""
    return sorted({max(1, size // 4), max(1, size // 2), size, 2 * size, 4 * size})


def file_name(path: str) -> str:
    """A study name from the name of a file or folder. Raises `SpecError` if it contains no usable
    character."""
    stem = path.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0]
    found = name_of(stem)
    if not found:
        raise SpecError(
            f"no study name can be derived from {path!r}", remedy="specify a file", field="FILE"
        )
    return found


def _value(entry: Entry) -> Any:
    """The plain value of an entry with its parts or items."""
    if entry.items:
        return [item.value for item in entry.items]
    return {part.key: _value(part) for part in entry.parts} if entry.parts else entry.value


def _lines(entry: Entry, indent: str) -> Iterator[str]:
    """Lines of YAML for an entry."""
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
    """The line with its comment after it, or above a long line; there each thing to fill in has its
    own line."""
    if not comment or len(line) <= COMMENT_COLUMN:
        return f"{line:<{COMMENT_COLUMN}}  # {comment}" if comment else line
    indent = line[: len(line) - len(line.lstrip())]
    above = comment.replace("; fill in: ", f"\n{indent}# fill in: ")
    return f"{indent}# {above}\n{line}"


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    import yaml  # imported here because it is slow to import

    text: str = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=1 << 20, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")


def model_named(named: Any, base: Path, folder: Path) -> tuple[str, str] | None:
    """(the model for the spec, a comment): a catalog model with this name or hub id, or a
    config.json, which may be in a named folder; None for any other. `base`: the folder that a path
    is relative to; `folder`: the folder of the spec."""
    text = str(named or "")
    if text in catalog.model_names() or text.lower() in catalog.hub_models():
        return text, ""
    by_tail = {_tail(hub): name for hub, name in catalog.hub_models().items()}
    if text and (found := by_tail.get(_tail(text))) is not None:
        return found, f"assumed for {text}"
    for candidate in (base / text, base / text / "config.json") if text else ():
        if is_model_file(str(candidate)) and candidate.is_file():
            return os.path.relpath(candidate.resolve(), folder.resolve()), ""
    return None


def _tail(hub: str) -> str:
    """A hub id without owner and without parts that do not change the shape: how the weights were
    tuned, the 3 or 3.1 of Llama's 8B and 70B, the 2 or 2.5 of Qwen's 1.5B, 7B and 72B."""
    name = re.sub(
        r"^(meta-)?llama-3-", "llama-3.1-", hub.rstrip("/").rpartition("/")[2].lower()
    ).removeprefix("meta-")
    name = re.sub(r"^qwen2-(?=(1\.5b|7b|72b)\b)", "qwen2.5-", name)
    return re.sub(r"-(hf|base|(instruct|thinking)(-2507)?|chat|it|sft|dpo)$", "", name)
