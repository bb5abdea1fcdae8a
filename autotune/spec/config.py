"""The point that is tuned: one `ParallelConfig`, or many of them as columns.

Laws that hold for every config (others depend on model and cluster, see `autotune.space.constraint`):

    global_batch_size = micro_batch_size * accumulation_steps * dp      sequences per optimizer step
    world_size        = tp * pp * dp * cp                               ranks; ep divides dp * cp

`ConfigTable` keeps N configs as arrays of length N under the same field names, so that one code path serves one config
or a million. Words (precision, recompute, pp_schedule) are kept there as small integer codes: the index in `WORDS[field]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ConfigError
from autotune.spec.checks import nearest

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
RECOMPUTES = ("none", "selective", "full")
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble")

WORDS: Mapping[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "recompute": RECOMPUTES,
    "pp_schedule": SCHEDULES,
}
"""The fields that hold a word, with the words that they may hold, in the order of their codes."""
FLAGS = ("sequence_parallel", "compile")
"""The fields that are true or false."""
DEGREES = ("tp", "pp", "dp", "cp", "ep")
"""The sizes of the mesh axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How a model is spread over ranks and how a step is cut up."""

    tp: int = 1
    """tensor-parallel degree, >= 1"""
    pp: int = 1
    """pipeline-parallel degree (ranks), >= 1"""
    dp: int = 1
    """data-parallel degree, >= 1"""
    cp: int = 1
    """context-parallel degree, >= 1"""
    ep: int = 1
    """expert-parallel degree, >= 1; ranks are taken from dp * cp"""
    micro_batch_size: int = 1
    """sequences per rank and micro-batch, >= 1"""
    accumulation_steps: int = 1
    """micro-batches per optimizer step and data-parallel rank, >= 1"""
    precision: str = "bf16"
    """fp32, tf32, bf16, fp16 or fp8"""
    recompute: str = "none"
    """activation checkpointing: none, selective (attention only) or full (every layer)"""
    zero_stage: int = 0
    """0: replicated (DDP), 1: optimizer sharded, 2: + gradients, 3: + weights (FSDP)"""
    sequence_parallel: bool = False
    """shard the activations between tensor-parallel regions along the sequence"""
    pp_schedule: str = "1f1b"
    """gpipe, 1f1b, interleaved_1f1b or interleaved_zero_bubble"""
    virtual_stages: int = 1
    """pipeline stages per rank; above 1 only with an interleaved schedule"""
    compile: bool = False
    """torch.compile of the layers"""

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1 << 30:
                raise ConfigError(f"{name} must be a whole number from 1 to 2^30, but is {value!r}", field=name)
        if isinstance(self.zero_stage, bool) or self.zero_stage not in (0, 1, 2, 3):
            raise ConfigError(f"zero_stage must be 0, 1, 2 or 3, but is {self.zero_stage!r}", field="zero_stage")
        for name, words in WORDS.items():
            if getattr(self, name) not in words:
                value = getattr(self, name)
                raise ConfigError(
                    f"{name} must be one of {', '.join(words)}, but is {value!r}",
                    remedy=nearest(value, words),
                    field=name,
                )
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, but is {getattr(self, name)!r}", field=name)

    @property
    def world_size(self) -> int:
        """Ranks: tp * pp * dp * cp."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step: micro_batch_size * accumulation_steps * dp."""
        return self.micro_batch_size * self.accumulation_steps * self.dp

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain JSON values."""
        return {name: getattr(self, name) for name in FIELDS}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParallelConfig:
        """The config of plain values; fields left out take their defaults, unknown ones raise `ConfigError`."""
        for name in values:
            if name not in FIELDS:
                known = ", ".join(FIELDS)
                raise ConfigError(
                    f"no knob is called {name!r}",
                    remedy=nearest(name, FIELDS) or f"knobs: {known}",
                    field=str(name),
                )
        return cls(**values)

    @classmethod
    def parse(cls, text: str) -> ParallelConfig:
        """The config of `knobs_of(text)`; knobs left out take their defaults. Raises `ConfigError`."""
        return cls.from_dict(knobs_of(text))

    def __str__(self) -> str:
        """Short and unambiguous: the knobs that differ from their defaults, and always tp, pp, dp and the batch."""
        always = ("tp", "pp", "dp", "micro_batch_size", "accumulation_steps", "precision")
        names = [n for n in FIELDS if n in always or getattr(self, n) != DEFAULTS[n]]
        return ",".join(f"{n}={str(getattr(self, n)).lower() if n in FLAGS else getattr(self, n)}" for n in names)


def knobs_of(text: str) -> dict[str, Any]:
    """The knobs that a text gives, typed as `tp=2,pp=1,precision=bf16` or pasted from a table as `tp2 pp1 dp2 mb8 acc1 fp32`.

    The two ways may be mixed. Raises `ConfigError` for what is neither, for unknown knobs and values, and for a knob given twice.
    """
    values: dict[str, Any] = {}
    for piece in re.sub(r"\s*=\s*", "=", text).replace(",", " ").split():
        name, sign, value = piece.partition("=")
        if not sign:
            name, value = _of_label(piece)
        if name in values:
            raise ConfigError(f"{name} is given twice", field=name)
        values[name] = _parse_value(name, value)
    return values


_LABELS: Mapping[str, tuple[str, str]] = {
    "sp": ("sequence_parallel", "true"),
    "compile": ("compile", "true"),
    "i-1f1b": ("pp_schedule", "interleaved_1f1b"),
    "i-zb": ("pp_schedule", "interleaved_zero_bubble"),
    **{word: (name, word) for name in ("precision", "pp_schedule") for word in WORDS[name]},
    **{f"{word}-recompute": ("recompute", word) for word in RECOMPUTES},
}
"""What a word of a table's label stands for."""
_COUNTED = {"mb": "micro_batch_size", "acc": "accumulation_steps", "zero": "zero_stage", "v": "virtual_stages"}


def _of_label(word: str) -> tuple[str, str]:
    """(knob, value) of one word of a label, such as `tp2`, `bf16` or `full-recompute`."""
    if word in _LABELS:
        return _LABELS[word]
    counted = re.fullmatch(r"([a-z]+)(\d+)", word)
    if counted and (counted[1] in DEGREES or counted[1] in _COUNTED):
        return _COUNTED.get(counted[1], counted[1]), counted[2]
    raise ConfigError(
        f"{word!r} has no '=' and is no word of a config's label",
        remedy="write tp=2,pp=1,dp=4,... or paste a label such as tp2 pp1 dp4 mb8 acc1 bf16",
    )


def _parse_value(name: str, text: str) -> Any:
    if name in WORDS or name not in FIELDS:
        return text
    if name in FLAGS:
        flags = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        if text.lower() not in flags:
            raise ConfigError(f"{name} must be true or false, but is {text!r}", field=name)
        return flags[text.lower()]
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a whole number, but is {text!r}", field=name) from None


FIELDS: tuple[str, ...] = tuple(f.name for f in fields(ParallelConfig))
"""Names of all knobs, in the order in which people read them."""
DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(ParallelConfig)}
COUNTS = tuple(n for n in FIELDS if n not in WORDS and n not in FLAGS and n != "zero_stage")
"""The fields that hold a count of at least 1."""

Column = NDArray[Any]


class ConfigTable:
    """N configs as columns: `table.tp` is an int64 array of shape (N,), `table.precision` an int8 array of codes."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Any]) -> None:
        """`columns`: arrays (or single values) by field name; fields left out take their defaults. Shapes must agree."""
        unknown = [n for n in columns if n not in FIELDS]
        if unknown:
            raise ConfigError(f"no knob is called {unknown[0]!r}", remedy=nearest(unknown[0], FIELDS), field=unknown[0])
        arrays = {n: np.asarray(columns.get(n, encode(n, DEFAULTS[n])), dtype=_dtype(n)) for n in FIELDS}
        length = np.broadcast_shapes((1,) if not columns else (), *(np.atleast_1d(a).shape for a in arrays.values()))
        if len(length) != 1:
            raise ConfigError(f"columns must have one dimension, but broadcast to shape {length}")
        self._columns: dict[str, Column] = {n: np.broadcast_to(a, length) for n, a in arrays.items()}

    @classmethod
    def of(cls, configs: Iterable[ParallelConfig]) -> ConfigTable:
        """The table of these configs, in their order."""
        rows = list(configs)
        return cls({n: np.array([encode(n, getattr(c, n)) for c in rows], dtype=_dtype(n)) for n in FIELDS})

    @classmethod
    def concatenate(cls, tables: Sequence[ConfigTable]) -> ConfigTable:
        """All rows of all tables, one after the other."""
        return cls({n: np.concatenate([t.column(n) for t in tables]) for n in FIELDS})

    def column(self, name: str) -> Column:
        """The column of that knob, shape (N,)."""
        return self._columns[name]

    def __getattr__(self, name: str) -> Column:
        if name.startswith("_"):  # while it is unpickled there are no columns yet
            raise AttributeError(name)
        try:
            return self._columns[name]
        except KeyError:
            raise AttributeError(name) from None

    def __len__(self) -> int:
        return len(self._columns["tp"])

    def __getitem__(self, index: int) -> ParallelConfig:
        """Row `index` as a config."""
        return ParallelConfig(**{n: decode(n, self._columns[n][index]) for n in FIELDS})

    def __iter__(self) -> Iterator[ParallelConfig]:
        return (self[i] for i in range(len(self)))

    def take(self, index: Any) -> ConfigTable:
        """The rows that `index` (integers or a mask) names."""
        return ConfigTable({n: c[index] for n, c in self._columns.items()})

    def is_word(self, name: str, word: str) -> NDArray[np.bool_]:
        """Where the column `name` holds `word`: `table.is_word("precision", "bf16")`."""
        return self._columns[name] == WORDS[name].index(word)  # type: ignore[no-any-return]

    @property
    def world_size(self) -> Column:
        """Ranks of each row."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def global_batch_size(self) -> Column:
        """Sequences per optimizer step of each row."""
        return self.micro_batch_size * self.accumulation_steps * self.dp


def encode(name: str, value: Any) -> int:
    """The integer under which a column keeps this value of the knob."""
    return WORDS[name].index(value) if name in WORDS else int(value)


def decode(name: str, code: Any) -> Any:
    """The knob's value of a column's entry."""
    if name in WORDS:
        return WORDS[name][int(code)]
    return bool(code) if name in FLAGS else int(code)


def _dtype(name: str) -> Any:
    return np.int8 if name in WORDS else np.bool_ if name in FLAGS else np.int64
