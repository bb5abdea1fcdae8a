"""What a builder returned: the module, and what it said of its training.

input      (micro_batch_size, seq_len) -> arguments of the module: one tensor, a tuple, or a mapping of keywords
loss       (output, inputs) -> mean loss of the micro-batch, a scalar
tp_plan    module name pattern (`*` stands for a number) -> "colwise", "rowwise", ... or a torch ParallelStyle
pp_split   names of the modules before which the model may be cut, or (model, stage, num_stages) -> the module of that stage
layers     names of the repeated blocks; the longest ModuleList where they are not given
shapes     fields of `ModelSpec` by name, where laws and formulas need them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from autotune.errors import ConfigError
from autotune.spec import ModelSpec
from autotune.spec.checks import nearest

KEYS = ("model", "input", "loss", "tp_plan", "pp_split", "layers", "shapes")
"""keys of the mapping that a builder may return"""
_SHAPES = tuple(f.name for f in fields(ModelSpec) if f.name not in ("name", "source", "code"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A module with what its training needs; see above."""

    model: nn.Module
    """as it was built, all of it"""
    input: Callable[[int, int], Any] | None = None
    """makes the arguments of the module; None: tokens, or what transformers' classes take"""
    loss: Callable[[Any, Any], Any] | None = None
    """None: the module's own `.loss`, or the cross entropy of its logits"""
    tp_plan: Mapping[str, Any] = field(default_factory=dict)
    """empty: no tensor parallelism"""
    pp_split: Sequence[str] | Callable[..., nn.Module] | None = None
    """None: no pipeline"""
    layers: tuple[str, ...] = ()
    """names of the repeated blocks, in the order in which they run"""
    shapes: Mapping[str, int | bool] = field(default_factory=dict)
    """what is known of the shape"""


def built_model(returned: Any, by: str) -> BuiltModel:
    """What the function `by` returned, checked. Raises `ConfigError` that says what is wrong with it."""
    if isinstance(returned, nn.Module):
        return BuiltModel(model=returned)
    if not isinstance(returned, Mapping):
        raise _wrong(
            by, f"must return an nn.Module, or a mapping with one under `model`, but returned {_kind(returned)}"
        )
    for key in returned:
        if key not in KEYS:
            raise _wrong(by, f"returned a key {key!r}, which is none of {', '.join(KEYS)}", nearest(key, KEYS))
    given = {key: value for key, value in returned.items() if value is not None}
    if not isinstance(given.get("model"), nn.Module):
        raise _wrong(by, f"must return an nn.Module under `model`, but there is {_kind(given.get('model'))}")
    for key in ("input", "loss"):
        if key in given and not callable(given[key]):
            raise _wrong(by, f"returned {_kind(given[key])} under `{key}`, which must be a function")
    return BuiltModel(**{**given, **_names(given, by), "shapes": _shapes(given.get("shapes", {}), by)})


def _names(given: Mapping[str, Any], by: str) -> dict[str, Any]:
    """`layers` and `pp_split` as names of modules that exist."""
    known = {name for name, _ in given["model"].named_modules() if name}
    found: dict[str, Any] = {}
    for key in ("layers", "pp_split"):
        names = given.get(key)
        if names is None or (key == "pp_split" and callable(names)):
            continue
        if isinstance(names, str):
            names = [names]
        for name in names:
            if name not in known:
                raise _wrong(
                    by, f"names {name!r} under `{key}`, but the model has no such module", nearest(name, known)
                )
        found[key] = tuple(names)
    return found


def _shapes(given: Any, by: str) -> dict[str, int | bool]:
    if not isinstance(given, Mapping):
        raise _wrong(by, f"must return a mapping under `shapes`, but there is {_kind(given)}")
    for name, value in given.items():
        if name not in _SHAPES or not isinstance(value, int):
            wrong = f"returned {name}={value!r} under `shapes`, which takes whole numbers for {', '.join(_SHAPES)}"
            raise _wrong(by, wrong, nearest(name, _SHAPES))
    return dict(given)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _wrong(by: str, what: str, remedy: str = "") -> ConfigError:
    return ConfigError(
        f"the builder {by} {what}",
        remedy=remedy or "see `Train your own module` in the documentation for what a builder returns",
        field="model.module",
    )
