"""The forms of `model` in a study spec: a name, a decoder's sizes, a transformers class, a user's
module, or only the number of weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
)
from pydantic_core import PydanticCustomError

from autotune.schema.document import Count, Document, Name, Text


class ModelDocument(Document, defer_build=True):
    """The shape of a decoder-only transformer."""

    name: Name = "inline"
    num_layers: Count
    hidden_size: Count
    num_attention_heads: Count
    vocab_size: Count
    ffn_hidden_size: StrictInt = Field(
        default=0, ge=0, description="inner width of the MLP; 0 means 4 * hidden_size"
    )
    num_kv_heads: StrictInt = Field(default=0, ge=0, description="0 means num_attention_heads")
    gated_mlp: StrictBool = Field(
        default=False, description="Llama style: gated MLP, RMSNorm, rotary positions"
    )
    tied_embeddings: StrictBool = False
    num_experts: StrictInt = Field(default=0, ge=0, description="0 means a dense model")
    experts_per_token: StrictInt = Field(default=0, ge=0)
    max_positions: StrictInt = Field(
        default=0, ge=0, description="learned positions; 0 means none (rotary)"
    )
    attention_head_dim: StrictInt = Field(
        default=0, ge=0, description="0 means hidden_size / num_attention_heads"
    )
    num_dense_layers: StrictInt = Field(
        default=0, ge=0, description="number of layers without experts, in a model with experts"
    )
    dense_ffn_hidden_size: StrictInt = Field(
        default=0, ge=0, description="inner width of these layers' MLP"
    )
    shared_ffn_hidden_size: StrictInt = Field(
        default=0, ge=0, description="inner width of the shared experts"
    )
    kv_lora_rank: StrictInt = Field(
        default=0, ge=0, description="latent attention: width of the latent; 0 means none"
    )
    q_lora_rank: StrictInt = Field(
        default=0, ge=0, description="latent attention: width of the query latent; 0 means none"
    )
    qk_rope_head_dim: StrictInt = Field(
        default=0, ge=0, description="latent attention: rotated part of a head"
    )
    v_head_dim: StrictInt = Field(
        default=0, ge=0, description="latent attention: size of one head's values"
    )
    mtp_layers: StrictInt = Field(
        default=0,
        ge=0,
        description="multi-token prediction layers after the last one, if the trainer has them",
    )
    source: StrictStr = Field(
        default="",
        max_length=1 << 18,
        description="the Hugging Face config.json that the shape was read from, as JSON text",
    )


class HuggingFaceModelDocument(Document, defer_build=True):
    """The transformers class of a Hugging Face `config.json`."""

    hf: Text = Field(
        description="path to a config.json or its folder; with `source`, the model's name"
    )
    source: StrictStr = Field(
        default="",
        max_length=1 << 18,
        description="the file's JSON text, given instead of the file",
    )


class NamedModelDocument(Document, defer_build=True):
    """A model from the catalog or a `config.json`, with trainer settings."""

    name: Text = Field(description="catalog name, or path to a Hugging Face config.json")
    mtp_layers: StrictInt = Field(
        ge=0, le=16, description="multi-token prediction layers that the trainer trains"
    )


class CountedModelDocument(Document, defer_build=True):
    """A model without a decoder's shape, such as an image model, described by its number of weights."""

    parameters: Annotated[StrictInt, Field(ge=1, le=1 << 50)] = Field(
        description="the model's total number of weights, as `autotune check` counts them; predictions use a decoder of that size"
    )
    name: Name | None = Field(
        default=None, description="name of the model; default: the study's name"
    )


_BUILDER = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"


def _builder_name(name: str) -> str:
    """Return the name if it has the form MODULE:FUNCTION."""
    if not re.fullmatch(_BUILDER, name):
        raise PydanticCustomError(
            "builder_name",
            "must be MODULE:FUNCTION or PACKAGE.MODULE:FUNCTION, such as my_model:build",
        )
    return name


class ModuleModelDocument(Document, defer_build=True):
    """A model that your own function builds."""

    module: Annotated[
        StrictStr,
        AfterValidator(_builder_name),
        Field(
            json_schema_extra={"pattern": _BUILDER},
            max_length=300,
            description="package.module:function; the function returns an nn.Module, or a mapping with one under `model`",
        ),
    ]
    args: dict[StrictStr, Any] = Field(default={}, description="keyword arguments of the function")
    folder: Text | None = Field(
        default=None, description="folder from which the module is imported; default: the spec's"
    )
    name: Name | None = Field(
        default=None, description="name of the model; default: the function's name"
    )


def _kind_of_model(value: Any) -> str:
    """Return the tag of the form."""
    if not isinstance(value, Mapping | BaseModel):
        return "<name>"
    keys = set(value) if isinstance(value, Mapping) else type(value).model_fields.keys()
    if keys == {"name", "mtp_layers"}:
        return "<named>"
    return next((kind for key, kind in _KINDS.items() if key in keys), "<inline>")


_KINDS = {"hf": "<hf>", "module": "<module>", "parameters": "<counted>"}
"""tag of each form by the key that only this form has"""


ModelValue = Annotated[
    Annotated[Text, Tag("<name>")]
    | Annotated[HuggingFaceModelDocument, Tag("<hf>")]
    | Annotated[ModuleModelDocument, Tag("<module>")]
    | Annotated[NamedModelDocument, Tag("<named>")]
    | Annotated[CountedModelDocument, Tag("<counted>")]
    | Annotated[ModelDocument, Tag("<inline>")],
    Discriminator(_kind_of_model),
]
