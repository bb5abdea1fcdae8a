"""Unknown names and invalid knob values in a spec, all in one error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from autotune.errors import AutotuneError, SpecError
from autotune.schema.clusters import LOCAL, SLURM
from autotune.schema.files import is_model_file, is_space_file
from autotune.schema.source_text import located


def unknown_names(document: Mapping[str, Any]) -> list[AutotuneError]:
    """Return errors for unknown names of model, cluster, trainer, searcher, runner, space and GPU,
    and for invalid values in an inline space, each with its field. No files except the catalogs are
    read."""
    errors = []
    for field, look_up in _look_ups(document):
        try:
            located(field, look_up)
        except AutotuneError as error:
            errors.append(error)
    return errors


def with_others(first: AutotuneError, more: list[AutotuneError]) -> AutotuneError:
    """Return the first error with the others added, at most one for each field."""
    known = {error.field for error in (first, *first.others)}
    first.others = (*first.others, *(error for error in more if error.field not in known))
    return first


def _look_ups(document: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield (field, function that raises if its name is unknown)."""
    from autotune.assets import space_file
    from autotune.registry import RUNNERS, find
    from autotune.search import check_searcher
    from autotune.spec import catalog
    from autotune.trainers import trainer

    def named(key: str, inner: str = "kind") -> str:
        value = document.get(key)
        value = value.get(inner) if isinstance(value, Mapping) else value
        return value if isinstance(value, str) else ""

    model, cluster, space = (document.get(key) for key in ("model", "cluster", "space"))
    if isinstance(model, str) and not is_model_file(model):
        yield "model", lambda: catalog.model(model)
    if isinstance(cluster, str):
        if cluster not in (LOCAL, SLURM):
            yield "cluster", lambda: catalog.cluster(cluster)
    elif gpu := named("cluster", "gpu"):
        yield "cluster.gpu", lambda: catalog.gpu(gpu)
    if isinstance(space, str) and not is_space_file(space):
        yield "space", lambda: space_file(space)
    elif isinstance(space, Mapping):
        yield from _checks_of_knobs(space)
    if kind := named("trainer"):
        yield "trainer", lambda: trainer(kind)
    if searcher := named("searcher"):
        yield "searcher", lambda: check_searcher(searcher)
    if runner := named("runner"):
        yield "runner", lambda: find(RUNNERS, runner)


def _checks_of_knobs(space: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield (field, function that raises if its value is invalid) for each knob value. The schema
    checks rules and values of other types."""
    from autotune.spec import KNOBS

    for knob in (knob for knob in space if knob in KNOBS):
        values = space[knob] if isinstance(space[knob], list) else [space[knob]]
        for value in (v for v in values if isinstance(v, str | int)):
            yield f"space.{knob}", partial(KNOBS[knob].check, value)


def check_names(document: Mapping[str, Any]) -> None:
    """Raise the first of `unknown_names` with the others. A single one is not raised, because
    parsing reports it in more detail."""
    if len(mistakes := unknown_names(document)) > 1:
        raise with_others(mistakes[0], mistakes[1:])


HUGGING_FACE = {
    "num_hidden_layers": "num_layers",
    "intermediate_size": "ffn_hidden_size",
    "num_key_value_heads": "num_kv_heads",
    "tie_word_embeddings": "tied_embeddings",
    "head_dim": "attention_head_dim",
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "experts_per_token",
}
"""keys of `model` by the key in a config.json"""

_NOT_IN_CONFIG = ("gated_mlp", "tied_embeddings", "max_positions", "mtp_layers")
"""keys of `model` that no config.json has; next to `model_type`, they override the family's
values"""


def with_native_keys(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document with Hugging Face keys of an inline model replaced by those of `model`.

    With `model_type`, the keys are read like a config.json of that family, except for
    `_NOT_IN_CONFIG`. Without it, `hidden_act: silu` or `gated_mlp` determines whether the MLP is
    gated. Raises `SpecError` if these are missing, too.
    """
    from autotune.spec import ModelSpec

    model = document.get("model")
    if (
        not isinstance(model, Mapping)
        or not ({"model_type", *HUGGING_FACE} & model.keys())
        or "hf" in model
    ):
        return document
    if "model_type" in model:
        overrides = {key: model[key] for key in ("name", *_NOT_IN_CONFIG) if key in model}
        read = located(
            "model",
            lambda: ModelSpec.from_hf({k: v for k, v in model.items() if k not in overrides}),
        )
        fields = {k: v for k, v in asdict(read).items() if k not in ("code", "name")}
        return {**document, "model": fields | overrides}
    native = {
        HUGGING_FACE.get(key, key): value for key, value in model.items() if key != "hidden_act"
    }
    if "gated_mlp" not in native:
        if model.get("hidden_act") != "silu":
            raise SpecError(
                "keys of a Hugging Face config.json need `model_type`, which determines whether the MLP is gated, but `model_type` is missing",
                remedy="add e.g. `model_type: llama`, or `gated_mlp: true` or `false`",
                field="model",
            )
        native["gated_mlp"] = True
    return {**document, "model": native}
