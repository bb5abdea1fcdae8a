"""Shapes from a Hugging Face `config.json`, family by family (`model_type`).

A key that looks like a size but is not read here is an error, because a wrong shape would make
every prediction wrong without any warning. In multimodal models only the language model is read,
and other towers are not counted. Layers for multi-token prediction are not counted either.

    hugging_face_families    what each family's file means, and families whose layers no shape describes
    hugging_face_alike       families that are another one under other names
    hugging_face_defaults    sizes that a file leaves out
    hugging_face_shapes      what families say in keys of their own
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.errors import SpecError
from autotune.spec.checks import nearest
from autotune.spec.hugging_face.alike import ALIKE, as_alike
from autotune.spec.hugging_face.defaults import SIZE_KEYS, with_class_defaults
from autotune.spec.hugging_face.families import APART, FAMILIES, Family
from autotune.spec.hugging_face.shapes import BUILT, INLINE, Document

NOT_DECODERS = frozenset(
    {
        "bert",
        "roberta",
        "distilbert",
        "electra",
        "deberta",
        "deberta-v2",
        "albert",
        "t5",
        "mt5",
        "bart",
        "vit",
        "clip",
    }
)
"""values of `model_type` for architectures that are not decoders"""
_TEXT_KEYS = ("text_config", "llm_config", "language_config", "thinker_config")
"""keys that hold the language model in multimodal files"""
_TEXT_OF = {
    **dict.fromkeys(("llava", "llava_next", "llava_onevision", "idefics3", "smolvlm"), "llama"),
    "mistral3": "mistral",
    "paligemma": "gemma",
    "aya_vision": "cohere2",
    "internvl": "qwen2",
    "kimi_vl": "deepseek_v3",
}
"""language model families in multimodal files that do not contain the family's name, if the name is
not NAME_text"""
_SHAPE = re.compile(
    r"(_size|_dim|_rank|_ratio|_replace|_step)$|^(n|num)_|experts?|heads|^d_|layers|inner|multi_query|gated|_freq$"
)
"""patterns of keys that hold a shape"""
_HARMLESS = re.compile(
    r"label|beam|num_return|repeat|chunk_size|aux_loss|window|rope|rotary|types?$|qk_head_dim|n_positions|n_ctx|n_group|topk|nextn|mtp|pretraining|"
    r"batch_size|patch|image|ln_in_parallel|n_special|routing|router|norm|attention_layers|feature|jitter|output|num_logits|ep_size|layers_block|"
    r"kv_cache|summary|return|scal|vision|audio|media|skipped"
)
"""exceptions that change no weights of the decoder"""
_ATTENDING = frozenset({"attention", "full_attention", "sliding_attention", "chunked_attention"})
"""values of `layer_types` for layers with attention"""
_CLASS_END = re.compile(r"(LMHead)?(Model)?(For\w+)?$")
"""end of a class name, after the family's name"""
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


def fields_of(document: Document) -> dict[str, Any]:
    """The fields of `ModelSpec`, without the name, for a parsed `config.json`.

    Raises `SpecError` if the model is not a decoder, if its family is unknown or its layers cannot
    be described by one shape, or if a size is missing, differs from layer to layer, or is not
    understood.
    """
    family_name, document = text_model(document)
    family = _family(family_name, document)
    _refuse_other_layers(document)
    document = _renamed(document, family.keys)
    asked = with_class_defaults(document, family.defaults)
    sized = {key for keys in SIZE_KEYS.values() for key in keys} | {*family.reads, family.positions}
    asked |= {key: _of_all_layers(key, value) for key, value in asked.items() if key in sized}

    def first(name: str) -> Any:
        return next((asked[key] for key in SIZE_KEYS[name] if asked.get(key) is not None), None)

    found = {name: first(name) for name in SIZE_KEYS}
    missing = [SIZE_KEYS[name][0] for name in _REQUIRED if found[name] is None]
    if missing:
        raise SpecError(
            f"the model's config.json lacks {', '.join(missing)}", remedy=INLINE, field="model"
        )
    fields = {name: value for name, value in found.items() if value is not None}
    fields["gated_mlp"] = family.gated_mlp
    fields["tied_embeddings"] = bool(asked.get("tie_word_embeddings", family.tied))
    if family.positions:
        fields["max_positions"] = asked.get(family.positions) or 0
    if not fields.get("num_experts"):
        fields.pop("num_experts", None)
        fields.pop("experts_per_token", None)
    if family.special is not None:
        fields |= family.special(asked, fields)
    _refuse_unread(family_name, sized, document)
    return {name: value for name, value in fields.items() if value is not None}


def text_model(document: Document) -> tuple[str, Document]:
    """The family's name, and the language model's document: the file itself, or a part of a
    multimodal file. A family that is equivalent to another family is returned as the other family,
    with the other family's keys."""
    name = str(document.get("model_type") or "")
    text = text_of(document)
    if text is not None:
        called = f"{name}_text"
        family = str(
            text.get("model_type") or _TEXT_OF.get(name) or (called if _is_named(called) else name)
        )
        tied = document.get("tie_word_embeddings")
        shared = {} if tied is None else {"tie_word_embeddings": tied}
        return text_model({**shared, **text, "model_type": family})
    if not name:
        guessed = guessed_family(document)
        return (
            (guessed, document)
            if guessed
            else text_model({**document, "model_type": family_of_class(_class_in(document))})
        )
    alike = as_alike(document)
    return str(alike["model_type"]), alike


def text_of(document: Document) -> Document | None:
    """The language-model part of a multimodal file; None for the file of a plain language model."""
    return next(
        (document[key] for key in _TEXT_KEYS if isinstance(document.get(key), Mapping)), None
    )


def guessed_family(document: Document) -> str:
    """The family that is assumed, based on the keys, for a file without `model_type` and without
    class names; empty if the file has either."""
    if document.get("model_type") or document.get("architectures"):
        return ""
    return "gpt2" if "n_embd" in document else "llama"


def _class_in(document: Document) -> str:
    named = document["architectures"]
    return str(named[0] if isinstance(named, list) else named)


def family_of_class(written: str) -> str:
    """The family of a class's name: GPTNeoXForCausalLM is gpt_neox. Raises `SpecError` if no known
    family has this class."""
    plain = _CLASS_END.sub("", written).lower()
    for family in (*FAMILIES, *ALIKE, *APART, *NOT_DECODERS):
        if re.sub(r"[^a-z0-9]", "", family.lower()) in (plain, f"{plain}text"):
            return family
    raise SpecError(
        f"the model's config.json has no model_type, and its class {written} belongs to no known family",
        remedy="add the model_type that transformers uses for this class",
        field="model",
    )


def _is_named(family: str) -> bool:
    return family in FAMILIES or family in ALIKE or family in APART


def _family(name: str, document: Document) -> Family:
    if name in NOT_DECODERS or document.get("is_encoder_decoder"):
        raise SpecError(
            f"the model's config.json describes {name or 'an encoder-decoder'}, which is not a decoder-only transformer",
            remedy="if the model is trained like a decoder-only transformer, write its fields inline",
            field="model",
        )
    if name in APART:
        raise SpecError(
            f"the model family {name!r} in config.json {APART[name]}; a decoder with identical "
            f"layers would misrepresent it",
            remedy=BUILT,
            field="model",
        )
    if name not in FAMILIES:
        known = (*FAMILIES, *ALIKE)
        near = nearest(name, known)
        raise SpecError(
            f"the model family {name!r} in config.json is not supported; the supported "
            f"families are {', '.join(sorted(known))}",
            remedy=f"{near}; else {BUILT}" if near else BUILT,
            field="model",
        )
    return FAMILIES[name]


def _renamed(document: Document, keys: Mapping[str, str]) -> Document:
    """The file with the usual keys in place of the family's own."""
    found: dict[str, Any] = {key: value for key, value in document.items() if key not in keys}
    for own, usual in keys.items():
        outer, _, inner = own.rpartition(".")
        holder = document.get(outer) if outer else document
        if isinstance(holder, Mapping) and holder.get(inner) is not None:
            found[usual] = holder[inner]
    return found


def _of_all_layers(key: str, value: Any) -> Any:
    """The size, if the file lists the same value for every layer."""
    if not isinstance(value, list) or not value or not all(isinstance(one, int) for one in value):
        return value
    if key in ("mlp_only_layers", "moe_layers"):  # these list layers
        return value
    if len(set(value)) > 1:
        raise SpecError(
            f"{key} of the model's config.json differs from layer to layer, {min(value)} to {max(value)}, but a shape has only one value",
            remedy=BUILT,
            field="model",
        )
    return value[0]


def _refuse_other_layers(document: Document) -> None:
    for key in ("layer_types", "layers_block_type"):
        listed = document.get(key)
        others = sorted({*map(str, listed)} - _ATTENDING) if isinstance(listed, list) else []
        if others:
            raise SpecError(
                f"{key} of the model's config.json has {', '.join(others)}, but only attention layers are supported",
                remedy=BUILT,
                field="model",
            )


def _refuse_unread(name: str, read: set[str], document: Document) -> None:
    for key, value in document.items():
        plain = isinstance(value, int | float | list) and bool(value)
        if plain and key not in read and _SHAPE.search(key) and not _HARMLESS.search(key):
            raise SpecError(
                f"the model's config.json has {key}={value!r:.40}, which is not known for {name} models, "
                f"so autotune could misread the model's shape",
                remedy=f"remove the key if it changes no weights, otherwise {INLINE}",
                field="model",
            )
