"""Model figures that change the computation but not the shape. An export must carry them over from
a Hugging Face `config.json`.

The file is the user's, or for a catalog model the published file, which is in the catalog. The
catalog's file is not a field of the model, so a study with `llama-8b` has the same identity as
before the catalog contained such files, and its earlier results are found.

rotary base      rope_theta, also inside rope_parameters (transformers 5)           norm epsilon     rms_norm_eps, layer_norm_epsilon, ...
rotary scaling   rope_scaling, or a rope_parameters of another type than default    biases           of the query, key and value projections
rotary share     partial_rotary_factor                                               router           how the experts of a token are chosen and weighed
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, final

from autotune.errors import SpecError
from autotune.spec.catalog import published_config
from autotune.spec.hugging_face.reading import text_model
from autotune.spec.model import ModelSpec

QKV_BIAS = frozenset({"qwen2", "qwen2_moe", "glm", "seed_oss"})
"""families whose query, key and value projections have biases by default"""
QKV_BIAS_KEYS = ("attention_bias", "qkv_bias", "use_qkv_bias")
"""keys that override this default"""
NORM_TOPK = frozenset({"qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2"})
"""families in which `norm_topk_prob` normalizes the weights of the chosen experts to a sum of 1"""
QK_NORM = frozenset(
    {"qwen3", "qwen3_moe", "olmo2", "olmo3", "gemma3_text", "exaone4", "hunyuan_v1_dense", "dots1"}
)
"""families that normalize queries and keys"""
SIGMOID_ROUTERS = frozenset({"deepseek_v3", "glm4_moe", "glm4_moe_lite"})
"""families that weight experts by sigmoids and choose them with a load-balancing bias
(arXiv:2412.19437, section 2.1.2)"""
ROUTER_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "deepseek_v2": {"n_group": 1, "topk_group": 1},
    "deepseek_v3": {"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5},
    "glm4_moe": {"n_group": 1, "topk_group": 1},
    "glm4_moe_lite": {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8},
}
"""defaults of these families' classes in transformers 5.23"""
WINDOWED = frozenset({"mistral", "mixtral", "phi3"})
"""families in which every layer attends to `sliding_window` tokens, if the file sets this key; in
other families only some layers use the window, or no layer"""
_WINDOW_KEYS = ("sliding_window", "attention_chunk_size", "window_size")
_DEFAULT_WINDOWS: Mapping[str, int] = {
    **dict.fromkeys(("cohere2", "exaone4", "exaone_moe", "gemma2", "gemma3_text"), 4096),
    **dict.fromkeys(("ministral", "mistral", "olmo3", "vaultgemma"), 4096),
    "cwm": 8192,
    "gpt_neo": 256,
    "gpt_oss": 128,
    "llama4_text": 8192,
}
"""windows of these families' classes in transformers 5.23, for files that set no window"""
_WITHOUT_WINDOWS = frozenset({"dots1", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"})
"""families that use their window only if `use_sliding_window` is true"""
_SOURCE = "omit `source`, or set it to the text of the model's config.json"
ROTARY_SHARES: Mapping[str, float] = {"glm4_moe": 0.5}
"""default fraction of a head that is rotated, for families that rotate only a part of each head"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How a token's experts are chosen and weighted, if not by a plain softmax over the chosen
    experts."""

    is_sigmoid: bool
    """sigmoids with a load-balancing bias per expert; otherwise a softmax"""
    groups: int
    """number of groups of experts; each token uses `chosen_groups` of them, and 1 means no
    grouping"""
    chosen_groups: int
    scale: float
    """scaling factor for the routed experts' weights"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """Values that a config.json contains in addition to the shape; None for values that are not in
    the file."""

    family: str
    """its `model_type`"""
    rotary_base: float | None = None
    norm_epsilon: float | None = None
    qkv_bias: bool = False
    """biases of the query, key and value projections"""
    qk_norm: bool = False
    """queries and keys are normalized"""
    router_loss: float | None = None
    """weight of the loss that balances the experts' load"""
    softmax_over_all: bool = False
    """the chosen experts keep their softmax weights over all experts, so that they add up to less
    than 1"""
    rotary_scaling: str = ""
    """kind of rotary scaling for long contexts, or empty"""
    rotary_share: float = 1.0
    """fraction of a head that is rotated"""
    router: Router | None = None
    """how experts are chosen, for families in `ROUTER_DEFAULTS`"""
    window: int = 0
    """number of tokens that each token attends to in every layer; 0 for all earlier tokens"""


LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""parameters of the rotary scaling named llama3 in a config.json, with Llama 3.1's values"""


@cache
def figures_of(model: ModelSpec) -> ModelFigures | None:
    """Return the figures of a model with a config.json; None for a model specified only by its
    shape."""
    config = _config_json(model)
    if config is None:
        return None
    family, document = text_model(config)
    rope, scaling = _rotary(document)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "")
    return ModelFigures(
        family=family,
        rotary_base=_first(document, "rope_theta", "rotary_emb_base") or _first(rope, "rope_theta"),
        norm_epsilon=_first(
            document,
            "rms_norm_eps",
            "layer_norm_epsilon",
            "layer_norm_eps",
            "norm_epsilon",
            "norm_eps",
        ),
        qkv_bias=bool(
            next((document[key] for key in QKV_BIAS_KEYS if key in document), family in QKV_BIAS)
        ),
        qk_norm=family in QK_NORM or bool(document.get("use_qk_norm")),
        router_loss=_first(document, "router_aux_loss_coef", "aux_loss_alpha"),
        softmax_over_all=family in NORM_TOPK and not document.get("norm_topk_prob", False),
        rotary_scaling="" if kind == "default" else kind,
        rotary_share=_first(document, "partial_rotary_factor")
        or _first(rope, "partial_rotary_factor")
        or ROTARY_SHARES.get(family, 1.0),
        router=_router(family, document),
        window=int(document.get("sliding_window") or 0) if family in WINDOWED else 0,
    )


def _router(family: str, document: Mapping[str, Any]) -> Router | None:
    """Return how experts are chosen; None for families that are not in `ROUTER_DEFAULTS`."""
    if family not in ROUTER_DEFAULTS:
        return None
    values = {
        **ROUTER_DEFAULTS[family],
        **{key: value for key, value in document.items() if value is not None},
    }
    return Router(
        is_sigmoid=family in SIGMOID_ROUTERS,
        groups=int(values["n_group"]),
        chosen_groups=int(values["topk_group"]),
        scale=float(values.get("routed_scaling_factor", 1.0)),
    )


def narrowest_window(model: ModelSpec) -> int:
    """Return the maximum number of tokens that some or all layers attend to, in a sliding window or
    in chunks; 0 if all layers attend to all earlier tokens."""
    config = _config_json(model)
    if config is None:
        return 0
    family, document = text_model(config)
    kinds = document.get("layer_types")
    has_windows = not isinstance(kinds, list) or bool(
        {"sliding_attention", "chunked_attention"} & {*map(str, kinds)}
    )
    if not has_windows or not document.get("use_sliding_window", family not in _WITHOUT_WINDOWS):
        return 0
    window = next(
        (document[key] for key in _WINDOW_KEYS if key in document), _DEFAULT_WINDOWS.get(family)
    )
    return int(window or 0)


def yarn_scaling(model: ModelSpec) -> dict[str, float] | None:
    """Return the parameters of the model's YaRN scaling (arXiv:2309.00071), keyed by their names in
    the file; None if the model has no YaRN scaling."""
    return _scaling(model, "yarn", YARN)


def is_truncated(model: ModelSpec) -> bool:
    """Return whether the boundaries of the model's YaRN scaling are rounded to whole dimensions.
    The default is true, except for gpt-oss."""
    document = text_document(model)
    _, scaling = _rotary(document)
    return bool(scaling.get("truncate", document.get("model_type") != "gpt_oss"))


YARN = {
    "factor": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
}
"""parameters of YaRN, with DeepSeek's values as defaults"""


def llama3_scaling(model: ModelSpec) -> dict[str, float] | None:
    """Return the parameters of the model's rotary scaling, keyed by the names in `LLAMA3_SCALING`;
    None if the model has no rotary scaling, or a different kind."""
    return _scaling(model, "llama3", LLAMA3_SCALING)


def _scaling(model: ModelSpec, kind: str, defaults: Mapping[str, float]) -> dict[str, float] | None:
    """Return the parameters of the model's rotary scaling; None if it is not of this kind."""
    figures = figures_of(model)
    if figures is None or figures.rotary_scaling != kind:
        return None
    _, scaling = _rotary(text_document(model))
    return {name: _first(scaling, name) or default for name, default in defaults.items()}


def _rotary(document: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return `rope_parameters`, and the mapping that specifies how positions are scaled:
    `rope_scaling`, or `rope_parameters` again."""
    rope = document.get("rope_parameters")
    rope = rope if isinstance(rope, Mapping) else {}
    scaling = document.get("rope_scaling")
    return rope, scaling if isinstance(scaling, Mapping) else rope


def text_document(model: ModelSpec) -> dict[str, Any]:
    """Return the model's config.json; for a multimodal model, only its language-model part. The
    model must have a config.json."""
    config = _config_json(model)
    assert config is not None, "a model given only by its shape has no config.json"
    return dict(text_model(config)[1])


def check_source(model: ModelSpec) -> ModelSpec:
    """Return the model, if all figures that exports need can be read from its `source`. Raises
    `SpecError` otherwise."""
    if not model.source:
        return model
    try:
        document = json.loads(model.source)
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"the config.json is not JSON: {error}", remedy=_SOURCE, field="source"
        ) from None
    if not isinstance(document, dict):
        kind = "null" if document is None else f"a {type(document).__name__}"
        raise SpecError(
            f"the config.json must contain a JSON object, but contains {kind}",
            remedy=_SOURCE,
            field="source",
        )
    try:
        if figures_of(model) is not None:
            text_document(model)
            yarn_scaling(model)
            llama3_scaling(model)
            is_truncated(model)
            narrowest_window(model)
    except SpecError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SpecError(
            f"the config.json has a value of the wrong type: {error}",
            remedy=_SOURCE,
            field="source",
        ) from None
    return model


def _config_json(model: ModelSpec) -> Mapping[str, Any] | None:
    """Return the model's own config.json, or the catalog's; None if there is neither."""
    return json.loads(model.source) if model.source else published_config(model)


def _first(document: Mapping[str, Any], *keys: str) -> float | None:
    """Return the value of the first key that has a number; None if there is none."""
    return next(
        (float(document[key]) for key in keys if isinstance(document.get(key), int | float)), None
    )
