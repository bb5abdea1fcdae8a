"""The shape of a study spec, as pydantic models: what keys there are, their types and bounds, and their JSON schema.

These are declarations only; `autotune.schema.parsing` turns a checked document into frozen values. Numbers are strict: text is no number and true is no
1, except that YAML writes `1e-3` as text. Unknown keys are errors that name the nearest known one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from autotune.schema.document import Count, Document, Figure, Fraction, Name, Number, Positive, Seconds, Text, either
from autotune.schema.space_models import OwnScalar, OwnValues, Sizes, SpaceDocument
from autotune.spec import KNOBS, Budget, MeasureSpec, Objective

MAX_OWN_KNOBS = 16
"""Knobs of its own that a study may have."""
_OBJECTIVE, _BUDGET, _MEASURE = Objective(), Budget(), MeasureSpec()


class ModelDocument(Document):
    """A decoder-only transformer by its shape."""

    name: Name = "inline"
    num_layers: Count
    hidden_size: Count
    num_attention_heads: Count
    vocab_size: Count
    ffn_hidden_size: StrictInt = Field(default=0, ge=0, description="inner width of the MLP; 0 means 4 * hidden_size")
    num_kv_heads: StrictInt = Field(default=0, ge=0, description="0 means num_attention_heads")
    gated_mlp: StrictBool = Field(default=False, description="Llama style: gated MLP, RMSNorm, rotary positions")
    tied_embeddings: StrictBool = False
    num_experts: StrictInt = Field(default=0, ge=0, description="0 means a dense model")
    experts_per_token: StrictInt = Field(default=0, ge=0)
    max_positions: StrictInt = Field(default=0, ge=0, description="learnt positions; 0 means none (rotary)")
    attention_head_dim: StrictInt = Field(default=0, ge=0, description="0 means hidden_size / num_attention_heads")
    num_dense_layers: StrictInt = Field(default=0, ge=0, description="layers without experts in a model with experts")
    dense_ffn_hidden_size: StrictInt = Field(default=0, ge=0, description="inner width of the MLP of these layers")
    shared_ffn_hidden_size: StrictInt = Field(
        default=0, ge=0, description="inner width of the experts that every token visits"
    )
    kv_lora_rank: StrictInt = Field(default=0, ge=0, description="latent attention: width of the latent; 0 means none")
    q_lora_rank: StrictInt = Field(
        default=0, ge=0, description="latent attention: width of the queries' latent; 0 means none"
    )
    qk_rope_head_dim: StrictInt = Field(default=0, ge=0, description="latent attention: rotated part of a head")
    v_head_dim: StrictInt = Field(default=0, ge=0, description="latent attention: size of one head's values")
    source: StrictStr = Field(
        default="",
        max_length=1 << 18,
        description="the Hugging Face config.json that the shape was read from, as JSON text",
    )


class HuggingFaceModelDocument(Document):
    """A model by its Hugging Face `config.json`."""

    hf: Text = Field(description="path to a config.json, or to the folder that holds one")


def _kind_of_model(value: Any) -> str:
    if isinstance(value, HuggingFaceModelDocument) or (isinstance(value, Mapping) and "hf" in value):
        return "<hf>"
    return "<inline>" if isinstance(value, Mapping | BaseModel) else "<name>"


class GpuDocument(Document):
    """An accelerator by its datasheet."""

    name: Name
    memory_bytes: Figure
    peak_flops_per_s: dict[Literal["fp32", "tf32", "bf16", "fp16", "fp8"], Figure]
    memory_bytes_per_s: Figure
    source: str = ""
    usd_per_hour: Positive | None = None
    power_watts: Positive | None = None


class LinkDocument(Document):
    """A way between GPUs, per GPU and direction."""

    latency_s: Annotated[Number, Field(ge=0, le=10)]
    bytes_per_s: Figure


class ClusterDocument(Document):
    """Equal nodes of GPUs; links that are left out are those of the catalog."""

    name: Name | None = None
    gpu: Annotated[
        Annotated[Text, Tag("<name>")] | Annotated[GpuDocument, Tag("<inline>")], either("<name>", "<inline>")
    ]
    num_nodes: Annotated[StrictInt, Field(ge=1, le=1 << 20)] = 1
    gpus_per_node: Annotated[StrictInt, Field(ge=1, le=1 << 12)] = 8
    intra_node: LinkDocument | None = None
    inter_node: LinkDocument | None = None
    usd_per_hour: Positive | None = Field(
        default=None, description="price of one GPU for one hour, where yours differs"
    )


class WorkloadDocument(Document):
    """What a step of the training is."""

    seq_len: Annotated[StrictInt, Field(ge=1, le=1 << 27)] = Field(description="tokens per sequence")
    global_batch_size: Sizes = Field(description="sequences per optimizer step, or the allowed numbers of them")
    optimizer: Literal["adamw", "sgd"] = "adamw"


class ObjectiveDocument(Document):
    """What makes a config better."""

    metric: Literal["throughput", "goodput", "cost"] = "throughput"
    stability_weight: Fraction = _OBJECTIVE.stability_weight


class BudgetDocument(Document):
    """When the study ends at the latest."""

    max_trials: Annotated[StrictInt, Field(ge=1, le=100_000)] = _BUDGET.max_trials
    max_wall_s: Seconds = _BUDGET.max_wall_s
    max_failed_trials: Annotated[StrictInt, Field(ge=1, le=100_000)] = _BUDGET.max_failed_trials
    max_gpu_s: Positive | None = _BUDGET.max_gpu_s
    min_gain: Fraction = _BUDGET.min_gain
    train_tokens: Annotated[Positive, Field(le=1e18)] | None = _BUDGET.train_tokens
    parallel_trials: Annotated[StrictInt, Field(ge=1, le=1024)] = _BUDGET.parallel_trials


class MeasureDocument(Document):
    """How a trial is measured."""

    warmup_steps: Annotated[StrictInt, Field(ge=0, le=10_000)] = _MEASURE.warmup_steps
    first_look: Annotated[StrictInt, Field(ge=0, le=100_000)] = _MEASURE.first_look
    min_steps: Annotated[StrictInt, Field(ge=1, le=100_000)] = _MEASURE.min_steps
    max_steps: Annotated[StrictInt, Field(ge=1, le=100_000)] = _MEASURE.max_steps
    precision: Annotated[Number, Field(gt=0, le=1)] = _MEASURE.precision
    finalists: Annotated[StrictInt, Field(ge=0, le=100)] = _MEASURE.finalists
    final_rounds: Annotated[StrictInt, Field(ge=0, le=100)] = _MEASURE.final_rounds
    stability_steps: Annotated[StrictInt, Field(ge=0, le=100_000)] = _MEASURE.stability_steps
    start_timeout_s: Seconds = _MEASURE.start_timeout_s
    step_timeout_s: Seconds = _MEASURE.step_timeout_s
    trial_timeout_s: Seconds = _MEASURE.trial_timeout_s

    @model_validator(mode="after")
    def _two_steps_are_no_look(self) -> MeasureDocument:
        if self.first_look in (1, 2):
            raise PydanticCustomError(
                "first_look",
                "first_look must be 0 (none) or at least 3, but first_look={look}: one or two slow steps say too little",
                {"look": self.first_look},
            )
        return self

    @model_validator(mode="after")
    def _at_most_is_not_under_at_least(self) -> MeasureDocument:
        if self.max_steps < self.min_steps:
            raise PydanticCustomError(
                "steps",
                "max_steps must be at least min_steps, but max_steps={most} and min_steps={least}",
                {"most": self.max_steps, "least": self.min_steps},
            )
        if self.stability_steps and not (self.finalists and self.final_rounds):
            raise PydanticCustomError(
                "stability_steps",
                "stability_steps are those of the last final round, but finalists={finalists} and final_rounds={rounds}: there is none",
                {"finalists": self.finalists, "rounds": self.final_rounds},
            )
        return self


class KindDocument(BaseModel):
    """A trainer or a runner with its options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: Name

    @property
    def options(self) -> dict[str, Any]:
        """All keys but `kind`."""
        return dict(self.__pydantic_extra__ or {})


Kind = Annotated[
    Annotated[Name, Tag("<name>")] | Annotated[KindDocument, Tag("<inline>")], either("<name>", "<inline>")
]
ConfigValue = Annotated[
    Annotated[OwnScalar, Tag("<one>")]
    | Annotated[dict[StrictStr, OwnScalar], Field(max_length=MAX_OWN_KNOBS), Tag("<extra>")],
    Discriminator(lambda value: "<extra>" if isinstance(value, dict) else "<one>"),
]
"""A knob's value, or under `extra` those of the study's own knobs, as documents of configs hold them."""
Config = Annotated[
    Annotated[Text, Tag("<text>")]
    | Annotated[dict[StrictStr, ConfigValue], Field(max_length=len(KNOBS) + MAX_OWN_KNOBS), Tag("<inline>")],
    either("<text>", "<inline>"),
]


class StudyDocument(Document):
    """A tuning job, as it is asked for."""

    name: Name | None = Field(default=None, description="what people call it; model and cluster when left out")
    model: Annotated[
        Annotated[Text, Tag("<name>")]
        | Annotated[HuggingFaceModelDocument, Tag("<hf>")]
        | Annotated[ModelDocument, Tag("<inline>")],
        Discriminator(_kind_of_model),
    ] = Field(description="catalog name, path to a Hugging Face config.json (also as {hf: PATH}), or the fields inline")
    cluster: Annotated[
        Annotated[Text, Tag("<name>")] | Annotated[ClusterDocument, Tag("<inline>")], either("<name>", "<inline>")
    ] = Field(description="catalog name (GPU-NODESxGPUS), `local`, or the fields inline")
    workload: WorkloadDocument
    space: Annotated[
        Annotated[Text, Tag("<name>")] | Annotated[SpaceDocument, Tag("<inline>")], either("<name>", "<inline>")
    ] = Field(description="name of a search space that ships, path to a file, or the knobs inline")
    knobs: Annotated[dict[StrictStr, OwnValues], Field(max_length=MAX_OWN_KNOBS)] = Field(
        default_factory=dict,
        description="the study's own knobs with their values, the default first: {num_workers: [0, 2, 4], flash: [false, true]}",
    )
    objective: ObjectiveDocument = ObjectiveDocument()
    budget: BudgetDocument = BudgetDocument()
    measure: MeasureDocument = MeasureDocument()
    searcher: Name = "bayesian"
    trainer: Kind = "native"
    runner: Kind = "ray"
    check: StrictBool = Field(
        default=True,
        description="whether a program that the store has never seen is tried for a few steps before the search begins",
    )
    seed: Annotated[StrictInt, Field(ge=0, lt=1 << 31)] = 0
    data: Text | None = Field(
        default=None, description="text or .bin file to train on; the text that ships when left out"
    )
    baseline: Config | None = Field(
        default=None,
        description="the config to beat; data parallel only when left out. dp and accumulation_steps follow from the others",
    )
    enqueue: Annotated[list[Config], Field(max_length=1000)] = Field(
        default_factory=list,
        description="your own guesses, tried first; dp and accumulation_steps follow from the others when left out",
    )
