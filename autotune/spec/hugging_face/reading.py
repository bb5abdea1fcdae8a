"""Shapes from a Hugging Face `config.json`, family by family (`model_type`).

A key that looks like a size but is not read here is an error, because a wrong shape would make
every prediction wrong without any warning. In multimodal models only the language model is read,
and other towers are not counted. Layers for multi-token prediction are not counted either.

    families       supported families, and families whose layers a shape cannot describe
    equivalents    families that are equivalent to another one, with other names
    defaults       sizes that a file omits
    shapes         family-specific keys
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.errors import SpecError
from autotune.spec.checks import nearest
from autotune.spec.hugging_face.defaults import SIZE_KEYS, with_class_defaults
from autotune.spec.hugging_face.equivalents import EQUIVALENTS, as_equivalent
from autotune.spec.hugging_face.families import FAMILIES, UNSUPPORTED, Family
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
_NOT_SHAPE = re.compile(
    r"label|beam|num_return|repeat|chunk_size|aux_loss|window|rope|rotary|types?$|qk_head_dim|n_positions|n_ctx|n_group|topk|nextn|mtp|pretraining|"
    r"batch_size|patch|image|ln_in_parallel|n_special|routing|router|norm|attention_layers|feature|jitter|output|num_logits|ep_size|layers_block|"
    r"kv_cache|summary|return|scal|vision|audio|media|skipped"
)
"""patterns of keys that match `_SHAPE`, but change no weights of the decoder"""
_ATTENDING = frozenset({"attention", "full_attention", "sliding_attention", "chunked_attention"})
"""values of `layer_types` for layers with attention"""
_CLASS_END = re.compile(r"(LMHead)?(Model)?(For\w+)?$")
"""end of a class name, after the family's name"""
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "vocab_size")


def fields_of(document: Document) -> dict[str, Any]:
    """Return the fields of `ModelSpec`, without the name, for a parsed `config.json`.

    Raises `SpecError` if the model is not a decoder, if its family is unknown or its layers cannot
    be described by one shape, or if a size is missing, differs from layer to layer, or is not
    understood.
    """
    family_name, document = text_model(document)
    family = _family(family_name, document)
    _check_layer_types(document)
    document = _renamed(document, family.keys)
    full = with_class_defaults(document, family.defaults)
    read = {key for keys in SIZE_KEYS.values() for key in keys} | {*family.reads, family.positions}
    full |= {key: _of_all_layers(key, value) for key, value in full.items() if key in read}

    def first(name: str) -> Any:
        return next((full[key] for key in SIZE_KEYS[name] if full.get(key) is not None), None)

    sizes = {name: first(name) for name in SIZE_KEYS}
    missing = [SIZE_KEYS[name][0] for name in _REQUIRED if sizes[name] is None]
    if missing:
        raise SpecError(
            f"the model's config.json lacks {', '.join(missing)}", remedy=INLINE, field="model"
        )
    fields = {name: value for name, value in sizes.items() if value is not None}
    fields["gated_mlp"] = family.gated_mlp
    fields["tied_embeddings"] = bool(full.get("tie_word_embeddings", family.tied))
    if family.positions:
        fields["max_positions"] = full.get(family.positions) or 0
    if not fields.get("num_experts"):
        fields.pop("num_experts", None)
        fields.pop("experts_per_token", None)
    if family.special is not None:
        fields |= family.special(full, fields)
    _check_all_read(family_name, read, document)
    return {name: value for name, value in fields.items() if value is not None}


def text_model(document: Document) -> tuple[str, Document]:
    """Return the family's name, and the language model's document: the file itself, or a part of a
    multimodal file. A family that is equivalent to another family is returned as the other family,
    with the other family's keys."""
    name = str(document.get("model_type") or "")
    text = text_of(document)
    if text is not None:
        text_name = f"{name}_text"
        family = str(
            text.get("model_type")
            or _TEXT_OF.get(name)
            or (text_name if _is_known(text_name) else name)
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
    equivalent = as_equivalent(document)
    return str(equivalent["model_type"]), equivalent


def text_of(document: Document) -> Document | None:
    """Return the language-model part of a multimodal file; None for the file of a plain language
    model."""
    return next(
        (document[key] for key in _TEXT_KEYS if isinstance(document.get(key), Mapping)), None
    )


def guessed_family(document: Document) -> str:
    """Return the family that is assumed, based on the keys, for a file without `model_type` and
    without class names; empty if the file has either."""
    if document.get("model_type") or document.get("architectures"):
        return ""
    return "gpt2" if "n_embd" in document else "llama"


def _class_in(document: Document) -> str:
    """Return the first class name in the file."""
    classes = document["architectures"]
    return str(classes[0] if isinstance(classes, list) else classes)


def family_of_class(name: str) -> str:
    """Return the family of a class: GPTNeoXForCausalLM is gpt_neox. Raises `SpecError` if no known
    family has this class."""
    stem = _CLASS_END.sub("", name).lower()
    for family in (*FAMILIES, *EQUIVALENTS, *UNSUPPORTED, *NOT_DECODERS):
        if re.sub(r"[^a-z0-9]", "", family.lower()) in (stem, f"{stem}text"):
            return family
    raise SpecError(
        f"the model's config.json has no model_type, and its class {name} belongs to no known family",
        remedy="add the model_type that transformers uses for this class",
        field="model",
    )


def _is_known(family: str) -> bool:
    """Return whether the family is known, even if it is not supported."""
    return family in FAMILIES or family in EQUIVALENTS or family in UNSUPPORTED


def _family(name: str, document: Document) -> Family:
    """Return the family with this name. Raises `SpecError` if it is not supported."""
    if name in NOT_DECODERS or document.get("is_encoder_decoder"):
        raise SpecError(
            f"the model's config.json describes {name or 'an encoder-decoder'}, which is not a decoder-only transformer",
            remedy="if the model is trained like a decoder-only transformer, write its fields inline",
            field="model",
        )
    if name in UNSUPPORTED:
        raise SpecError(
            f"the model family {name!r} in config.json {UNSUPPORTED[name]}; a decoder with identical "
            f"layers would misrepresent it",
            remedy=BUILT,
            field="model",
        )
    if name not in FAMILIES:
        known = (*FAMILIES, *EQUIVALENTS)
        near = nearest(name, known)
        raise SpecError(
            f"the model family {name!r} in config.json is not supported; the supported "
            f"families are {', '.join(sorted(known))}",
            remedy=f"{near}; else {BUILT}" if near else BUILT,
            field="model",
        )
    return FAMILIES[name]


def _renamed(document: Document, keys: Mapping[str, str]) -> Document:
    """Return the file with the family's own keys replaced. `keys`: common key by own key, where
    `a.b` is b inside a."""
    renamed: dict[str, Any] = {key: value for key, value in document.items() if key not in keys}
    for own, common in keys.items():
        outer, _, inner = own.rpartition(".")
        section = document.get(outer) if outer else document
        if isinstance(section, Mapping) and section.get(inner) is not None:
            renamed[common] = section[inner]
    return renamed


def _of_all_layers(key: str, value: Any) -> Any:
    """Return the single value of a list with the same value for every layer; other values
    unchanged. Raises `SpecError` if the values differ."""
    if not isinstance(value, list) or not value or not all(isinstance(one, int) for one in value):
        return value
    if key in ("mlp_only_layers", "moe_layers"):  # these list layer numbers
        return value
    if len(set(value)) > 1:
        raise SpecError(
            f"{key} of the model's config.json differs from layer to layer, {min(value)} to {max(value)}, but a shape has only one value",
            remedy=BUILT,
            field="model",
        )
    return value[0]


def _check_layer_types(document: Document) -> None:
    """Raise `SpecError` if the file lists layers without attention."""
    for key in ("layer_types", "layers_block_type"):
        listed = document.get(key)
        others = sorted({*map(str, listed)} - _ATTENDING) if isinstance(listed, list) else []
        if others:
            raise SpecError(
                f"{key} of the model's config.json has {', '.join(others)}, but only attention layers are supported",
                remedy=BUILT,
                field="model",
            )


def _check_all_read(name: str, read: set[str], document: Document) -> None:
    """Raise `SpecError` for a key that looks like a size, but is not read."""
    for key, value in document.items():
        is_set = isinstance(value, int | float | list) and bool(value)
        if is_set and key not in read and _SHAPE.search(key) and not _NOT_SHAPE.search(key):
            raise SpecError(
                f"the model's config.json has {key}={value!r:.40}, which autotune does not "
                f"know for {name} models, so the model's shape could be misread",
                remedy=f"remove the key if it changes no weights, otherwise {INLINE}",
                field="model",
            )
