"""The model of a draft, by what the probe saw: the shape that was read where the weights agree with it, that of the model's own config, that of its modules, else the number of weights.

A shape is taken only where it has as many weights as were counted: what the modules look like is a guess until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import product
from typing import Any

from autotune.errors import AutotuneError, SpecError
from autotune.ports.program_facts import ProgramFacts
from autotune.spec import ModelSpec

AGREES, IS_SAME = 0.05, 0.01
"""relative differences of weights: of a shape that was read (padded vocabularies, biases), and of one that is put together from what was seen"""
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


def seen_model(facts: ProgramFacts, read: ModelSpec | None, *, seq_len: int | None) -> tuple[Any, str] | None:
    """(what the spec says, where it is from); None where what was read stands, or nothing was seen. `read`: the model that was read, if any."""
    found = facts.parameters
    if found is None or (read is not None and _differs(read, found) <= AGREES):
        return None
    if (shape := _of_config(facts, found) or _of_modules(facts, found, seq_len)) is not None:
        return _written(shape), f"{facts.values.get('model', '')}, as it was seen: {found:,} weights"
    return {
        "parameters": found
    }, f"the weights of {facts.values.get('model', '')} as they were counted; its shape if it is a decoder"


def _differs(model: ModelSpec, parameters: int) -> float:
    return abs(model.num_parameters - parameters) / parameters


def _of_config(facts: ProgramFacts, parameters: int) -> ModelSpec | None:
    """By the model's own config, where it is one of Hugging Face's."""
    config = facts.values.get("config")
    if not isinstance(config, Mapping):
        return None
    try:
        found = ModelSpec.from_hf(config, name="seen")
    except AutotuneError:
        return None
    return found if _differs(found, parameters) <= AGREES else None


def _of_modules(facts: ProgramFacts, parameters: int, seq_len: int | None) -> ModelSpec | None:
    """By its modules: of the decoders that have these sizes, the one with as many weights."""
    told = facts.values.get("shape")
    if not isinstance(told, Mapping) or not all(told.get(name) for name in _REQUIRED):
        return None
    best = min(_candidates(told, seq_len), key=lambda model: _differs(model, parameters), default=None)
    return best if best is not None and _differs(best, parameters) <= IS_SAME else None


def _candidates(told: Mapping[str, Any], seq_len: int | None) -> Iterator[ModelSpec]:
    known = {f.name for f in fields(ModelSpec)}
    sizes: dict[str, Any] = {name: value for name, value in told.items() if name in known and isinstance(value, int)}
    positions = {0, *(told.get("positions") or ()), *([seq_len] if seq_len else [])}
    for gated, tied, learnt in product((False, True), (False, True), sorted(positions)):
        try:
            yield ModelSpec(name="seen", gated_mlp=gated, tied_embeddings=tied, max_positions=learnt, **sizes)
        except SpecError:
            return


def _written(model: ModelSpec) -> dict[str, Any]:
    """The sizes that are not the usual ones."""
    usual = ModelSpec(name="usual", **{name: getattr(model, name) for name in _REQUIRED})
    found = {f.name: getattr(model, f.name) for f in fields(ModelSpec) if f.name not in ("name", "source", "code")}
    return {name: value for name, value in found.items() if name in _REQUIRED or value != getattr(usual, name)}
