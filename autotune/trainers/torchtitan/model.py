"""A model as the call of a builder in the exported `autotune_model.py` for torchtitan 0.3: `llama`,
`qwen3`, `deepseek_v3` or `gpt_oss`.

The builder follows from the family of the config.json. Qwen3 normalizes queries and keys;
DeepSeek's attention makes keys and values from a latent, and its first layers have no experts;
gpt-oss has learned sinks, biases, and a window in every other layer. All routers are balanced by a
bias, as torchtitan's own flavors are. Facts of its code (0.3.0): models/*/__init__.py.
"""

from __future__ import annotations

from typing import Any

from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.hugging_face.figures import (
    Router,
    figures_of,
    is_truncated,
    text_document,
    yarn_scaling,
)
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.trained_families import TORCHTITAN, who_trains
from autotune.trainers.documents.python_source import call
from autotune.trainers.torchtitan.knobs import rotary_scaling

WITH_CONFIG_JSON = "set `model` in the spec to the model's config.json; torchtitan 0.3 accepts a config.json for Qwen3, DeepSeek or gpt-oss"
GPT_OSS_WINDOW, SWIGLU_LIMIT = 128, 7.0
"""what gpt-oss's class in transformers takes where the file does not say"""


def builder_of(model: ModelSpec) -> str:
    """The builder's name."""
    figures = figures_of(model)
    return "llama" if figures is None else TORCHTITAN.get(figures.family, "llama")


def model_limits(workload: Workload, c: ParallelConfig) -> list[Limit]:
    """Models that no builder builds, and what experts cannot be combined with."""
    model = workload.model
    builder, figures = builder_of(model), figures_of(model)
    if model.source and figures is not None and figures.family not in TORCHTITAN:
        return []  # which is refused as a whole

    usual = (
        WITH_CONFIG_JSON
        if figures is None
        else f"use {who_trains(figures.family, but='torchtitan')}"
    )
    window = figures.window if figures is not None else 0
    kinds = text_document(model).get("layer_types") if builder == "gpt_oss" else None
    known = [
        "full_attention" if number % 2 else "sliding_attention"
        for number in range(len(kinds or ()))
    ]
    shards = c.dp * c.cp // c.dp_replicas if c.zero_stage else c.cp
    rules = [
        Rule(
            model.num_experts and builder == "llama",
            "model.num_experts",
            "torchtitan's Llama has no experts",
            remedy=usual,
        ),
        Rule(
            model.kv_lora_rank and builder != "deepseek_v3",
            "model.kv_lora_rank",
            "torchtitan's Llama has no latent attention",
            remedy=usual,
        ),
        Rule(
            model.num_dense_layers and builder == "qwen3",
            "model.num_dense_layers",
            "all layers in torchtitan's Qwen3 have experts",
            remedy="use megatron_bridge, which reads the config.json itself",
        ),
        Rule(
            model.tied_embeddings and builder == "deepseek_v3",
            "model.tied_embeddings",
            "torchtitan's DeepSeek has a separate output projection",
            False,
        ),
        Rule(
            kinds and list(kinds) != known,
            "model.family",
            "torchtitan's gpt-oss has window attention in every other layer, starting with the first, but the file's layer_types are in a different order",
            remedy=f"use {who_trains('gpt_oss', but='torchtitan')}",
            value="gpt_oss",
        ),
        Rule(
            0 < window < workload.seq_len,
            "workload.seq_len",
            f"torchtitan attends over whole sequences, but in this model each token attends only to the last {window} tokens",
            window,
            "or use megatron",
        ),
        Rule(
            model.num_experts and c.precision in ("fp8", "mxfp8"),
            "precision",
            "torchtitan's launches quantize only linear layers, not experts",
            "bf16",
        ),
        Rule(
            model.num_experts and c.ep > 1 and c.tp > 1,
            "ep",
            f"torchtitan would also spread experts over the tp={c.tp} ranks, which autotune does not model",
            1,
            "or use tp=1",
        ),
        Rule(
            model.num_experts and c.ep > 1 and c.tp == 1 and shards % c.ep,
            "ep",
            f"torchtitan spreads experts over the ranks that shard the weights, here {shards}; ep must divide the number of these ranks",
            1,
            "or use zero_stage=2 with fewer dp_replicas",
        ),
    ]
    return broken(workload, c, *rules)


def model_arguments(model: ModelSpec, c: ParallelConfig, seq_len: int) -> dict[str, Any]:
    """The builder's arguments."""
    builder, figures = builder_of(model), figures_of(model)
    arguments: dict[str, Any] = {
        "dim": model.hidden_size,
        "n_layers": model.num_layers,
        "n_heads": model.num_attention_heads,
    }
    if builder == "deepseek_v3":
        arguments |= _latent_arguments(model)
    else:
        arguments |= {
            "n_kv_heads": model.num_kv_heads,
            "head_dim": model.head_dim,
            "hidden_dim": model.ffn_hidden_size,
        }
        arguments["tied"] = model.tied_embeddings
        if model.num_experts:
            arguments["experts"] = {
                "num_experts": model.num_experts,
                "top_k": model.experts_per_token,
            }
    if builder == "qwen3" and model.num_experts:
        arguments["experts"]["route_norm"] = figures is None or not figures.softmax_over_all
    if builder == "gpt_oss":
        document = text_document(model)
        arguments["experts"]["swiglu_limit"] = document.get("swiglu_limit", SWIGLU_LIMIT)
        arguments["sliding_window"] = document.get("sliding_window", GPT_OSS_WINDOW)
    arguments |= {
        "vocab_size": model.vocab_size,
        "norm_eps": figures.norm_epsilon if figures and figures.norm_epsilon is not None else 1e-5,
        "rope": _rotary(model, seq_len),
    }
    if c.precision == "fp8":
        given = {
            "recipe_name": "rowwise",
            "filter_fqns": ["lm_head"],
            "model_compile_enabled": c.compile,
        }
        arguments["converters"] = [call("Float8LinearConverter.Config", given)]
    if c.precision == "mxfp8":
        # the output projection stays in bf16
        within = {
            "fqns": ["layers."],
            "model_compile_enabled": c.compile,
        }
        arguments["converters"] = [call("MXFP8LinearConverter.Config", within)]
    return arguments


def _latent_arguments(model: ModelSpec) -> dict[str, Any]:
    figures, scaling = figures_of(model), yarn_scaling(model)
    router = (figures.router if figures else None) or Router(
        is_sigmoid=False, groups=1, chosen_groups=1, scale=1.0
    )
    is_grouped = router.groups > 1
    return {
        "n_dense_layers": model.num_dense_layers,
        "latent": {
            "q_lora_rank": model.q_lora_rank,
            "kv_lora_rank": model.kv_lora_rank,
            "qk_nope_head_dim": model.head_dim - model.qk_rope_head_dim,
            "qk_rope_head_dim": model.qk_rope_head_dim,
            "v_head_dim": model.v_head_dim,
            "mscale": scaling["mscale_all_dim"] if scaling else 1.0,
        },
        "hidden_dim": model.ffn_hidden_size,
        "dense_hidden_dim": model.dense_ffn_hidden_size or model.ffn_hidden_size,
        "n_shared_experts": model.shared_ffn_hidden_size // model.ffn_hidden_size,
        "experts": {
            "num_experts": model.num_experts,
            "router_top_k": model.experts_per_token,
            "router_score_func": "sigmoid" if router.is_sigmoid else "softmax",
            "router_num_expert_groups": router.groups if is_grouped else None,
            "router_num_limited_groups": router.chosen_groups if is_grouped else None,
            "router_route_scale": router.scale,
            "router_route_norm": router.is_sigmoid,
        },
    }


def _rotary(model: ModelSpec, seq_len: int) -> dict[str, Any]:
    figures = figures_of(model)
    rope: dict[str, Any] = {
        "max_seq_len": max(model.max_positions, seq_len),
        "theta": 500000.0,
        "scaling": "llama",
    }
    if figures is None:
        return rope
    if figures.rotary_base is not None:
        rope["theta"] = figures.rotary_base
    if scaling := rotary_scaling(model):
        return rope | {"scaling": "llama", **scaling}
    if yarn := yarn_scaling(model):
        names = {"factor": "rope_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}
        return rope | {
            "scaling": "yarn",
            **{theirs: yarn[name] for name, theirs in names.items()},
            "original_seq_len": int(yarn["original_max_position_embeddings"]),
            "truncate": is_truncated(model),
        }
    return rope | {"scaling": "none"}
