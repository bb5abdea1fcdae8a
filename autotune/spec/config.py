"""One point in the search space: a `ParallelConfig`.

Rules for every config (others depend on model and cluster, see `autotune.space.constraint`):

    global_batch_size = micro_batch_size * accumulation_steps * dp      sequences per optimizer step
    world_size        = tp * pp * dp * cp                               ranks; ep divides dp * cp

Each field that is declared by `knob(...)` is a knob. Everything that depends on the list of knobs
is derived from these declarations. A config can be written in two ways, which may be mixed:

    tp2 pp2 dp4 mb1 acc8 bf16 full-recompute zero1        its label, for tables, without knobs at their defaults
    tp=2,pp=2,dp=4,num_workers=4                          knob by knob
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, final

from autotune.errors import ConfigError
from autotune.spec.checks import nearest
from autotune.spec.knob import Knob, Value, knob
from autotune.spec.plain import Plain

KEY_VERSION = 1
"""version of `ParallelConfig.key`, which is increased when a default changes, so that equal keys
still mean equal configs"""


@final
class Extra(Mapping[str, Value]):
    """The values of a study's own knobs, as a mapping sorted by name. Immutable, so that a config
    can be hashed."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value] | None = None) -> None:
        """`values`: by the knob's name."""
        self._values = dict(sorted((values or {}).items()))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


NO_EXTRA = Extra()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig(Plain):
    """How a model is distributed over ranks and how a step is divided."""

    tp: int = knob(
        "degree", 1, "tensor-parallel degree", label="tp{}", unit="ranks", always_shown=True
    )
    pp: int = knob(
        "degree", 1, "pipeline-parallel degree", label="pp{}", unit="ranks", always_shown=True
    )
    dp: int = knob(
        "degree", 1, "data-parallel degree", label="dp{}", unit="ranks", always_shown=True
    )
    cp: int = knob("degree", 1, "context-parallel degree", label="cp{}", unit="ranks")
    ep: int = knob(
        "degree",
        1,
        "expert-parallel degree; its ranks are taken from dp * cp",
        label="ep{}",
        unit="ranks",
    )
    micro_batch_size: int = knob(
        "count",
        1,
        "sequences in each rank's micro-batch",
        label="mb{}",
        unit="sequences",
        always_shown=True,
    )
    accumulation_steps: int = knob(
        "count",
        1,
        "micro-batches per optimizer step on each data-parallel rank",
        label="acc{}",
        unit="micro-batches",
        always_shown=True,
    )
    precision: str = knob(
        "word",
        "bf16",
        "precision of the matrix products",
        values=("fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"),
        always_shown=True,
    )
    recompute: str = knob(
        "word",
        "none",
        "activation checkpointing: none, selective (attention only), full (every layer), norm (norms and the MLP's activation function) "
        "or mlp (the MLP or the experts)",
        values=("none", "selective", "full", "norm", "mlp"),
        label="{}-recompute",
    )
    zero_stage: int = knob(
        "number",
        0,
        "0: replicated (DDP), 1: optimizer sharded, 2: + gradients, 3: + weights (FSDP)",
        values=(0, 1, 2, 3),
        label="zero{}",
    )
    sequence_parallel: bool = knob(
        "flag",
        False,
        "shard the activations between tensor-parallel regions along the sequence",
        label="sp",
    )
    pp_schedule: str = knob(
        "word",
        "1f1b",
        "order in which a pipeline runs its micro-batches",
        values=("gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble"),
        short={"interleaved_1f1b": "i-1f1b", "interleaved_zero_bubble": "i-zb"},
        shown_beside="pp",
    )
    virtual_stages: int = knob(
        "count",
        1,
        "pipeline stages per rank; above 1 only with an interleaved schedule",
        label="v{}",
        unit="stages per rank",
    )
    compile: bool = knob("flag", False, "torch.compile of the layers", label="compile")
    dp_replicas: int = knob(
        "degree",
        1,
        "replicas of the sharded weights and optimizer (HSDP); each replica is sharded over dp * cp / dp_replicas ranks",
        label="rep{}",
        unit="copies",
    )
    pp_split: str = knob(
        "word",
        "layers",
        "how a pipeline is split: layers (count only decoder layers) or edges (embedding and loss count as one layer each)",
        values=("layers", "edges"),
        label="{}-split",
    )
    loss: str = knob(
        "word",
        "own",
        "how the loss is computed: own (the trainer's default), full (all logits at once), chunked (along the sequence) or fused (one kernel without an fp32 copy)",
        values=("own", "full", "chunked", "fused"),
        label="{}-loss",
    )
    cp_style: str = knob(
        "word",
        "ring",
        "how context parallelism computes attention: ring (keys and values are passed around), heads (all-to-all over heads, Ulysses) or gather (keys and "
        "values are gathered)",
        values=("ring", "heads", "gather"),
        label="{}-cp",
    )
    activation_budget: int = knob(
        "number",
        100,
        "percentage of saved activations that the compiler keeps; the rest is recomputed (torch._functorch.config.activation_memory_budget)",
        values=(100, 80, 60, 40, 20, 0),
        label="budget{}",
        unit="percent",
    )
    offload: str = knob(
        "word",
        "none",
        "what is kept in host memory: nothing, the optimizer states (updated there), the activations, or both",
        values=("none", "optimizer", "activations", "all"),
        label="{}-offload",
    )
    async_tp: bool = knob(
        "flag",
        False,
        "split tensor-parallel collectives and overlap them with their matrix products",
        label="async-tp",
    )
    cuda_graph: str = knob(
        "word",
        "none",
        "what CUDA graphs capture: nothing (none), each layer, or the whole step",
        values=("none", "layers", "step"),
        label="{}-graph",
    )
    dispatcher: str = knob(
        "word",
        "alltoall",
        "how tokens reach their experts: alltoall, allgather, or flex (kernels such as DeepEP and HybridEP)",
        values=("alltoall", "allgather", "flex"),
        label="{}-dispatch",
    )
    ep_overlap: bool = knob(
        "flag",
        False,
        "hide the experts' all-to-all behind another micro-batch's compute",
        label="ep-overlap",
    )
    extra: Mapping[str, Value] = NO_EXTRA
    """values of the study's own knobs, by name"""

    def __post_init__(self) -> None:
        for declared in KNOBS.values():
            declared.check(getattr(self, declared.name))
        if self.extra is not NO_EXTRA:
            object.__setattr__(self, "extra", _checked_extra(self.extra))

    @property
    def world_size(self) -> int:
        """Ranks: tp * pp * dp * cp."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step: micro_batch_size * accumulation_steps * dp."""
        return self.micro_batch_size * self.accumulation_steps * self.dp

    def value(self, name: str) -> Any:
        """Return the value of a knob, including the study's own; None for a knob that this config
        does not have."""
        return getattr(self, name) if name in KNOBS else self.extra.get(name)

    def values(self) -> dict[str, Any]:
        """Return all knobs of this config by name: the built-in ones, then the study's own."""
        return {**{name: getattr(self, name) for name in FIELDS}, **self.extra}

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> ParallelConfig:
        """Return the config from `values()`; unknown names are the study's own knobs."""
        fixed = {name: value for name, value in values.items() if name in KNOBS}
        return cls(
            **fixed,
            extra=Extra({name: value for name, value in values.items() if name not in KNOBS}),
        )

    def with_values(self, values: Mapping[str, Any]) -> ParallelConfig:
        """Return a copy of this config with some knobs changed, including the study's own."""
        return ParallelConfig.of_values({**self.values(), **values})

    @property
    def key(self) -> str:
        """A key that is equal for equal configs, even after knobs are added: a version and the
        values that differ from their defaults.

        `1:{"dp":8,"precision":"fp32"}`. The key includes all values of a study's own knobs.
        """
        values: dict[str, Any] = {
            name: getattr(self, name)
            for name in FIELDS
            if getattr(self, name) != KNOBS[name].default
        }
        if self.extra:
            values["extra"] = dict(self.extra)
        return f"{KEY_VERSION}:{json.dumps(values, sort_keys=True, separators=(',', ':'))}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain JSON values; `extra` only if the study has its own knobs."""
        values = {name: getattr(self, name) for name in FIELDS}
        return {**values, "extra": dict(self.extra)} if self.extra else values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParallelConfig:
        """Return the config from plain values; omitted fields have their defaults, and unknown
        fields raise `ConfigError`."""
        for name in values:
            if name not in KNOBS and name != "extra":
                raise unknown_knob(name)
        return cls(**values)

    @classmethod
    def parse(cls, text: str) -> ParallelConfig:
        """Return the config of `knobs_of(text)`; omitted knobs have their defaults. Raises
        `ConfigError`."""
        return cls.from_dict(knobs_of(text))

    def __str__(self) -> str:
        """Return a short and unambiguous label with the knobs that differ from their defaults, and
        always tp, pp, dp, batch and precision."""
        shown = [k for k in KNOBS.values() if k.always_shown or getattr(self, k.name) != k.default]
        pairs = [f"{k.name}={k.text(getattr(self, k.name))}" for k in shown]
        pairs += [
            f"{n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in self.extra.items()
        ]
        return ",".join(pairs)


KNOBS: Mapping[str, Knob] = {
    f.name: Knob(name=f.name, **f.metadata["knob"])
    for f in fields(ParallelConfig)
    if "knob" in f.metadata
}
"""declarations of the built-in knobs by name, in display order"""
FIELDS: tuple[str, ...] = tuple(KNOBS)
"""names of the built-in knobs"""
PRECISIONS: tuple[str, ...] = KNOBS["precision"].values
SCHEDULES: tuple[str, ...] = KNOBS["pp_schedule"].values


def unknown_knob(name: Any, known: Mapping[str, Knob] = KNOBS) -> ConfigError:
    """Return the error for an unknown knob, with the nearest known knob."""
    remedy = nearest(name, known) or f"knobs: {', '.join(known)}"
    return ConfigError(f"there is no knob {name!r}", remedy=remedy, field=str(name))


def config_label(config: ParallelConfig) -> str:
    """Return the config in a few words: `tp2 pp2 dp4 mb1 acc8 bf16 full-recompute zero1`. Different
    configs have different labels."""
    words = [
        declared.label_of(getattr(config, declared.name))
        for declared in KNOBS.values()
        if _is_shown(declared, config)
    ]
    words += [
        f"{name}={str(v).lower() if isinstance(v, bool) else v}" for name, v in config.extra.items()
    ]
    return " ".join(words)


def config_changes(before: ParallelConfig, after: ParallelConfig) -> str:
    """Return the changes from one config to the other, formatted like labels: `mb 4 -> 8, acc 4 ->
    2`; empty if the configs are equal."""
    own = {*before.extra, *after.extra}
    pairs = {
        **{name: (getattr(before, name), getattr(after, name)) for name in KNOBS},
        **{name: (before.extra.get(name), after.extra.get(name)) for name in sorted(own)},
    }
    return changes_as_text({name: (a, b) for name, (a, b) in pairs.items() if a != b})


def changes_as_text(pairs: Mapping[str, Sequence[Any]]) -> str:
    """Return the changes as text; `pairs` maps each knob to its values before and after."""
    return ", ".join(
        f"{_short_name(name)} {_as_word(a)} -> {_as_word(b)}" for name, (a, b) in pairs.items()
    )


def capitalized(text: str) -> str:
    """Return the text with a capital first letter, unless it begins with a knob or a key:
    `zero_stage must be 0`."""
    first = re.split(r"[\s=:,]", text, maxsplit=1)[0]
    is_name = first in KNOBS or re.fullmatch(r"[a-z]\w*([._]\w+)+", first)
    return text if is_name else text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """Return the text with a capital first letter and a full stop."""
    return capitalized(text) + ("" if text.endswith((".", "?")) else ".")


def _short_name(name: str) -> str:
    """Return `mb` for the label `mb{}`; the knob's name if the label consists of the value, or if
    the knob is the study's own."""
    label = KNOBS[name].label if name in KNOBS else "{}"
    return name if label.startswith("{}") else label.removesuffix("{}")


def _as_word(value: Any) -> str:
    """Return a value in a list of changes; flags are on or off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def knobs_of(text: str, own: Mapping[str, Knob] | None = None) -> dict[str, Any]:
    """Return the knobs in a text, typed as `tp=2,pp=1,precision=bf16` or pasted from a table as
    `tp2 pp1 dp2 mb8 acc1 fp32`.

    `own`: declarations of the study's own knobs; their values are under `extra`. Raises
    `ConfigError` for words that are not part of a label, for unknown knobs, for values that a knob
    cannot have, and for a repeated knob.
    """
    known = {**KNOBS, **(own or {})}
    values: dict[str, Any] = {}
    for piece in re.sub(r"\s*=\s*", "=", text).replace(",", " ").split():
        name, sign, value = piece.partition("=")
        if sign and name not in known:
            raise unknown_knob(name, known)
        name, parsed = (name, known[name].parse(value)) if sign else _of_label(piece)
        if name in values:
            raise ConfigError(f"{name} is given twice", field=name)
        known[name].check(parsed)
        values[name] = parsed
    extra = {name: value for name, value in values.items() if name not in KNOBS}
    return {
        **{n: v for n, v in values.items() if n in KNOBS},
        **({"extra": extra} if extra else {}),
    }


def _is_shown(declared: Knob, config: ParallelConfig) -> bool:
    """Return whether the config's label shows the knob."""
    if declared.always_shown or getattr(config, declared.name) != declared.default:
        return True
    return bool(declared.shown_beside) and getattr(config, declared.shown_beside) > 1


def _of_label(word: str) -> tuple[str, Any]:
    """Return (knob, value) of one word in a label, such as `tp2`, `bf16` or `full-recompute`."""
    for declared in KNOBS.values():
        if declared.kind == "flag":
            if word == declared.label:
                return declared.name, True
        elif declared.kind == "word":
            for value in declared.values:
                if word in (declared.label_of(value), declared.label.format(value)):
                    return declared.name, value
        elif counted := re.fullmatch(re.escape(declared.label).replace(r"\{\}", r"(\d+)"), word):
            return declared.name, int(counted[1])
    raise ConfigError(
        f"{word!r} has no '=' and is not part of a config label",
        remedy="write tp=2,pp=1,dp=4,... or paste a label such as tp2 pp1 dp4 mb8 acc1 bf16",
    )


def _checked_extra(values: Any) -> Extra:
    """Return the values of own knobs as `Extra`. Raises `ConfigError`."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"extra must map knobs to values, but is {values!r}", field="extra")
    for name, value in values.items():
        if name in KNOBS:
            raise ConfigError(
                f"{name} is a built-in knob, but is in extra",
                remedy=f"set {name} itself",
                field="extra",
            )
        if not isinstance(value, bool | int | float | str):
            raise ConfigError(
                f"extra.{name} must be a number, a word, true or false, but is {value!r}",
                field=f"extra.{name}",
            )
    if isinstance(values, Extra):
        return values
    return Extra(values) if values else NO_EXTRA
