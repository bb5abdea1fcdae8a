"""The keys `rl`, `rollout` and `workload.lengths` of a spec: their pydantic models, and the frozen
values made of them.

lengths     512 | {mean: 900, p50: 700, p95: 2600, max: 8192} | {histogram: {512: 100, 1024: 40}} | {file: lengths.txt} | {log: run.log} | {log: run.log, max: 8192}
placement   colocated | split | async | {split: [TRAINER_GPUS, ROLLOUT_GPUS]} | {async: [TRAINER_GPUS, ROLLOUT_GPUS], staleness: 1}
rollout     {tokens_per_s_per_gpu: 2400} | {tokens_per_s_per_gpu: {1: 2400, 2: 2100}} | {generation_s: 144, gpus: 8} | {log: run.log}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr, Tag

from autotune.errors import SpecError
from autotune.schema.document import (
    Count,
    Document,
    Fraction,
    Number,
    Positive,
    Seconds,
    Text,
    either,
)
from autotune.schema.files import locate
from autotune.schema.source_text import located
from autotune.spec import ClusterSpec, ModelSpec
from autotune.spec.lengths import Lengths
from autotune.spec.post_training import PostTraining, Rollout
from autotune.trainers.post_training.logs import PhaseLog, read_phases

MAX_BYTES = 1 << 28
"""maximum size of a file with lengths"""
NotNegative = Annotated[Number, Field(ge=0)]
Percentage = Annotated[Number, Field(ge=0, le=1 << 27)]


class LengthsDocument(Document, defer_build=True):
    """Lengths of sequences."""

    mean: Annotated[Number, Field(gt=0, le=1 << 27)] | None = Field(
        default=None, description="tokens on average"
    )
    min: Percentage | None = Field(
        default=None, description="length of the shortest sequence in tokens"
    )
    p5: Percentage | None = None
    p10: Percentage | None = None
    p25: Percentage | None = None
    p50: Percentage | None = Field(
        default=None, description="median number of tokens; likewise p75, p90 and others"
    )
    p75: Percentage | None = None
    p90: Percentage | None = None
    p95: Percentage | None = None
    p99: Percentage | None = None
    max: Percentage | None = Field(
        default=None, description="length of the longest possible sequence in tokens"
    )
    histogram: (
        Annotated[dict[StrictInt | StrictStr, NotNegative], Field(min_length=1, max_length=100_000)]
        | None
    ) = Field(default=None, description="number of sequences by length: {512: 100, 1024: 40}")
    file: Text | None = Field(
        default=None, description="path of a text file with one length per line"
    )
    log: Text | None = Field(
        default=None, description="path of a verl, NeMo-RL, OpenRLHF or TRL log"
    )


LengthsValue = Annotated[
    Annotated[Number, Field(gt=0, le=1 << 27), Tag("<tokens>")]
    | Annotated[LengthsDocument, Tag("<inline>")],
    either("<tokens>", "<inline>"),
]
Gpus = Annotated[list[Count], Field(min_length=2, max_length=2)]


class PlacementDocument(Document, defer_build=True):
    """GPUs for the trainer and the generation engine."""

    split: Gpus | None = Field(
        default=None,
        description="[number of training GPUs, number of generation GPUs]; each group waits for the other",
    )
    async_: Gpus | None = Field(
        default=None,
        alias="async",
        description="[number of training GPUs, number of generation GPUs]; both groups work at the same time",
    )
    staleness: NotNegative | None = Field(
        default=None,
        description="how many steps the generating policy may lag behind the updated one",
    )


class CriticDocument(Document, defer_build=True):
    """The critic of ppo."""

    model: Text = Field(
        description="catalog name or path to a config.json; default: the policy's shape"
    )


class PostTrainingDocument(Document, defer_build=True):
    """A step of post-training."""

    algorithm: Literal["grpo", "dapo", "ppo", "dpo"] = Field(
        description="ppo has a critic, grpo and dapo have none, and dpo generates no responses"
    )
    prompts: Count | None = Field(
        default=None,
        description="prompts per step; default for dpo: global_batch_size divided by responses",
    )
    responses: Count | None = Field(
        default=None, description="responses per prompt; default: 2 for dpo, otherwise 1"
    )
    mini_batches: Count | None = Field(
        default=None, description="optimizer steps per epoch of each post-training step; default: 1"
    )
    mini_batch_prompts: Count | None = Field(
        default=None, description="prompts per optimizer step, instead of mini_batches"
    )
    epochs: Count = Field(default=1, description="passes over a step's responses")
    prompt_lengths: LengthsValue | None = Field(
        default=None, description="prompt lengths in tokens; default for dpo: none"
    )
    response_lengths: LengthsValue | None = Field(
        default=None,
        description="response lengths in tokens; default for dpo: seq_len, without the prompt",
    )
    same_prompt: Fraction = Field(
        default=0.3,
        description="share of the variance of response lengths that lies between prompts",
    )
    reference: StrictBool | None = Field(
        default=None,
        description="whether a frozen reference model scores the responses; default: only for dpo",
    )
    reference_offload: StrictBool | None = Field(
        default=None,
        description="whether the reference model is in host memory except while it scores; default: only for NeMo-RL",
    )
    critic: CriticDocument | None = None
    placement: Annotated[
        Annotated[Literal["colocated", "split", "async"], Tag("<word>")]
        | Annotated[PlacementDocument, Tag("<inline>")],
        either("<word>", "<inline>"),
    ] = Field(default="colocated", description="whether generation and training share GPUs")
    staleness: NotNegative | None = Field(
        default=None, description="how many steps the generating policy may lag behind, for `async`"
    )
    reward_s: NotNegative = Field(
        default=0.0,
        description="seconds per step spent only on computing rewards; default: as in rollout.log",
    )
    engine: Literal["fsdp", "megatron", "deepspeed"] | None = Field(
        default=None, description="the training engine; default: the trainer's usual one"
    )
    micro_batch_tokens: Annotated[StrictInt, Field(ge=0)] = Field(
        default=0,
        description="pack micro-batches up to this many tokens per GPU. 0 counts sequences instead",
    )
    log_prob_micro_batch_tokens: Annotated[StrictInt, Field(ge=0)] = Field(
        default=0,
        description="micro_batch_tokens for log-probabilities. 0 means the value of micro_batch_tokens",
    )
    phase_offload: Literal["none", "optimizer", "all"] = Field(
        default="none",
        description="what part of the trainer is in host memory while responses are generated",
    )
    balance: Literal["none", "batch", "in_order", "mini_batch"] | None = Field(
        default=None,
        description="how tokens are balanced across ranks; default: the trainer's usual method",
    )
    group_by_length: StrictBool = Field(
        default=False, description="whether sequences of similar length share a micro-batch"
    )
    fused_rope: StrictBool | None = Field(
        default=None,
        description="whether a Megatron-Core engine uses apply_rope_fusion; default: no in verl, yes in the others",
    )
    whole_experts: StrictBool = Field(
        default=True, description="whether a Megatron-Core engine has expert_tensor_parallel_size 1"
    )
    padded: StrictBool | None = Field(
        default=None,
        description="whether micro-batches are padded to their longest sequence; default: the trainer's usual way",
    )


class RolloutDocument(Document, defer_build=True):
    """How fast responses are generated: given by you, not modeled."""

    tokens_per_s_per_gpu: (
        Annotated[
            Annotated[Positive, Tag("<number>")]
            | Annotated[
                dict[StrictInt | StrictStr, Positive],
                Field(min_length=1, max_length=64),
                Tag("<inline>"),
            ],
            either("<number>", "<inline>"),
        ]
        | None
    ) = Field(
        default=None,
        description="generated tokens per second per GPU, or by tensor-parallel degree: {1: 2400, 2: 2100}",
    )
    generation_s: Seconds | None = Field(
        default=None,
        description="time in seconds to generate a step's responses; an alternative to tokens_per_s_per_gpu",
    )
    gpus: Count | None = Field(
        default=None,
        description="number of GPUs for generation_s; default: all GPUs in the cluster",
    )
    tp: Count = Field(default=1, description="tensor-parallel degree of the engine")
    memory_fraction: Fraction = Field(
        default=0.0, description="share of a GPU's memory that the engine uses while generating"
    )
    sleeps: StrictBool = Field(
        default=True,
        description="whether a colocated engine returns that memory while the trainer works",
    )
    tokens_per_s_per_response: Positive | None = Field(
        default=None, description="tokens per second for a single response"
    )
    log: Text | None = Field(
        default=None, description="path of a verl, NeMo-RL, OpenRLHF or TRL log with these figures"
    )


TRAINER_DEFAULTS = {
    "verl": ("fsdp", "batch", False),
    "nemo_rl": ("fsdp", "mini_batch", False),
    "openrlhf": ("deepspeed", "none", False),
    "trl": ("fsdp", "none", True),
}
"""defaults of each trainer: (engine, balance, padded)"""
_PROGRAM_DEFAULTS = ("fsdp", "none", True)
"""defaults for users' programs"""


def post_training_of(
    document: PostTrainingDocument,
    rollout: RolloutDocument | None,
    *,
    trainer: str,
    model: ModelSpec,
    cluster: ClusterSpec,
    critic: Callable[[str], ModelSpec],
    base: Path | None,
    seq_len: int,
    batch: Any,
) -> PostTraining:
    """Return the post-training step of a spec. `critic` looks up a model by name; `seq_len` and
    `batch` are those of the workload. Raises `SpecError` with the field."""
    engine, balance, padded = TRAINER_DEFAULTS.get(trainer, _PROGRAM_DEFAULTS)
    placement, gpus, staleness = _placement(document, cluster)
    count = document.responses or (2 if document.algorithm == "dpo" else 1)
    num_prompts, prompts, responses = _prompts_and_lengths(document, count, base, seq_len, batch)
    generates = document.algorithm != "dpo"
    if rollout is not None and not generates:
        raise SpecError(
            "dpo trains on existing responses and generates none, but the spec has `rollout`",
            remedy="omit `rollout`",
            field="rollout",
        )
    critic_model = None
    if document.algorithm == "ppo":
        critic_model = (
            model
            if document.critic is None
            else located(
                "rl.critic.model", lambda: critic(str(document.critic and document.critic.model))
            )
        )
    elif document.critic is not None:
        raise SpecError(
            f"only ppo has a critic, but algorithm={document.algorithm}",
            remedy="omit `critic`, or use ppo",
            field="rl.critic",
        )
    tokens = num_prompts * count * responses.mean
    log = None if rollout is None or rollout.log is None else _log(rollout.log, "rollout.log", base)
    engine_speed = None if rollout is None else _rollout(rollout, tokens, cluster, gpus, log)
    return PostTraining(
        algorithm=document.algorithm,
        prompts=num_prompts,
        responses=count,
        mini_batches=_mini_batches(document, num_prompts),
        epochs=document.epochs,
        prompt_lengths=prompts,
        response_lengths=responses,
        same_prompt=document.same_prompt,
        reference=document.algorithm == "dpo" if document.reference is None else document.reference,
        reference_offload=trainer == "nemo_rl"
        if document.reference_offload is None
        else document.reference_offload,
        critic=critic_model,
        placement=placement,
        rollout_gpus=gpus,
        staleness=staleness,
        rollout=engine_speed,
        reward_s=document.reward_s or (log.median("reward") if log else None) or 0.0,
        engine=document.engine or engine,
        micro_batch_tokens=document.micro_batch_tokens,
        log_prob_micro_batch_tokens=document.log_prob_micro_batch_tokens,
        phase_offload=document.phase_offload,
        balance=document.balance or balance,
        group_by_length=document.group_by_length,
        fused_rope=not (trainer == "verl" and (document.engine or engine) == "megatron")
        if document.fused_rope is None
        else document.fused_rope,
        whole_experts=document.whole_experts,
        padded=padded if document.padded is None else document.padded,
    )


def _prompts_and_lengths(
    document: PostTrainingDocument, count: int, base: Path | None, seq_len: int, batch: Any
) -> tuple[int, Lengths, Lengths]:
    """Return (prompts per step, prompt lengths, response lengths). For dpo, which trains on existing
    sequences, missing values follow from the workload; other algorithms require them."""
    for name in ("prompts", "prompt_lengths", "response_lengths"):
        if getattr(document, name) is None and document.algorithm != "dpo":
            raise SpecError("this key is required, but is missing", field=f"rl.{name}")
    num_prompts = document.prompts
    if num_prompts is None:
        if not isinstance(batch, int) or batch % count:
            raise SpecError(
                f"without `prompts`, global_batch_size must be a single multiple of {count}, the number of sequences in a pair, but is {batch!r}",
                remedy="set workload.global_batch_size to the sequences per optimizer step, or set rl.prompts",
                field="workload.global_batch_size",
            )
        num_prompts = batch // count
    prompts = lengths_of(document.prompt_lengths or 0.0, "rl.prompt_lengths", base, "prompt")
    if document.response_lengths is not None:
        field = "rl.response_lengths"
        return num_prompts, prompts, lengths_of(document.response_lengths, field, base, "response")
    filling = Lengths(
        values=(max(seq_len - prompts.longest, 1.0),),
        assumed="assumed to fill seq_len, because rl.response_lengths is not set",
    )
    return num_prompts, prompts, filling


def fine_tuning_of(lengths: Any, batch: int, *, trainer: str, base: Path | None) -> PostTraining:
    """Return fine-tuning on sequences of these lengths, a step without generation or
    log-probabilities."""
    _, balance, _ = TRAINER_DEFAULTS.get(trainer, _PROGRAM_DEFAULTS)
    return PostTraining(
        algorithm="sft",
        prompts=batch,
        responses=1,
        prompt_lengths=Lengths(values=(0.0,)),
        response_lengths=lengths_of(lengths, "workload.lengths", base, "response"),
        same_prompt=0.0,
        balance=balance,
        padded=True,
    )


def lengths_of(
    document: float | LengthsDocument, field: str, base: Path | None, which: str
) -> Lengths:
    """Return the distribution of lengths in a spec. `which`: prompt or response, if a log contains
    both."""
    if not isinstance(document, LengthsDocument):
        return Lengths(values=(float(document),))
    ways = [name for name in ("histogram", "file", "log") if getattr(document, name) is not None]
    percentiles = _percentiles(document)
    if ways == ["log"] and percentiles.keys() == {100.0} and document.mean is None:
        return _lengths_of_log(
            _log(str(document.log), f"{field}.log", base), f"{field}.log", which, percentiles[100.0]
        )
    if len(ways) + bool(percentiles or document.mean) != 1:
        given = (
            ", ".join([*ways, *(["mean and percentiles"] if percentiles or document.mean else [])])
            or "nothing"
        )
        raise SpecError(
            f"the spec must give lengths in exactly one way, but it gives {given}",
            remedy="specify the mean and percentiles, a histogram, a file, or a log",
            field=field,
        )
    if document.histogram is not None:
        counts = {
            float(_whole(length, f"{field}.histogram")): count
            for length, count in document.histogram.items()
        }
        return located(field, lambda: Lengths.of_histogram(counts))
    if document.file is not None:
        return _of_file(document.file, f"{field}.file", base)
    if document.log is not None:
        return _lengths_of_log(_log(document.log, f"{field}.log", base), f"{field}.log", which)
    return located(field, lambda: Lengths.of_percentiles(percentiles, document.mean))


def _percentiles(document: LengthsDocument) -> dict[float, float]:
    """Return lengths in tokens by percentile (0 to 100)."""
    lengths: dict[float, float | None] = {0.0: document.min, 100.0: document.max}
    lengths |= {
        float(name[1:]): getattr(document, name)
        for name in LengthsDocument.model_fields
        if re.fullmatch(r"p\d+", name)
    }
    return {percentile: n for percentile, n in lengths.items() if n is not None}


def _of_file(text: str, field: str, base: Path | None) -> Lengths:
    """Return the distribution of the lengths in a text file."""
    path = locate(text, base, field=field)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SpecError(
                f"a length file may have at most {MAX_BYTES:,} bytes, but {text!r} has more",
                field=field,
            )
        words = re.split(r"[\s,]+", path.read_text(encoding="utf-8").strip().strip("[]"))
    except (OSError, ValueError) as error:
        raise SpecError(f"the length file {text!r} cannot be read: {error}", field=field) from None
    try:
        lengths = [float(word) for word in words if word]
    except ValueError:
        wrong = next(word for word in words if word and not re.fullmatch(r"[0-9.eE+]+", word))
        raise SpecError(
            f"a length file must have one token count per line, but one line is {wrong!r:.60}",
            field=field,
        ) from None
    return located(field, lambda: Lengths.of(lengths))


def _log(text: str, field: str, base: Path | None) -> PhaseLog:
    """Return the phases in a post-training log. Raises `SpecError` if it has no step."""
    path = locate(text, base, field=field)
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            log = read_phases(lines)
    except OSError as error:
        raise SpecError(f"the log {text!r} cannot be read: {error}", field=field) from None
    if not log.steps:
        raise SpecError(
            f"no step of verl, NeMo-RL, OpenRLHF or TRL was found in the log {text!r}",
            remedy="specify tokens_per_s_per_gpu and lengths as numbers instead",
            field=field,
        )
    return log


def _lengths_of_log(log: PhaseLog, field: str, which: str, most: float | None = None) -> Lengths:
    """Return the distribution of the lengths in a log. `most`: the longest possible sequence in
    tokens, which may be missing in a short log."""
    mean, longest = log.median(f"{which}_mean"), most or log.largest(f"{which}_max")
    if mean is None:
        raise SpecError(
            f"the log contains no {which} lengths",
            remedy="specify the lengths as a mean and percentiles",
            field=field,
        )
    return located(
        field, lambda: Lengths.of_percentiles({} if longest is None else {100.0: longest}, mean)
    )


def _placement(document: PostTrainingDocument, cluster: ClusterSpec) -> tuple[str, int, float]:
    """Return (placement, number of GPUs that generate, staleness in steps)."""
    if isinstance(document.placement, str):
        word, gpus, inner = document.placement, None, None
    else:
        both = document.placement.split or document.placement.async_
        if (document.placement.split is None) == (
            document.placement.async_ is None
        ) or both is None:
            raise SpecError(
                "placement must be split or async",
                remedy="use {split: [16, 16]} or {async: [16, 16], staleness: 1}",
                field="rl.placement",
            )
        word, gpus, inner = (
            "split" if document.placement.split else "async",
            both,
            document.placement.staleness,
        )
    staleness = inner if inner is not None else document.staleness
    if word == "split" and staleness:
        raise SpecError(
            "placement=split allows no staleness, because training and generation wait for each other",
            remedy="use placement=async",
            field="rl.staleness",
        )
    if word == "async" and staleness is None:
        raise SpecError(
            "placement=async needs a value for staleness",
            remedy="set staleness, for example to 1, so that responses may come from weights that are one step old",
            field="rl.staleness",
        )
    if gpus is not None and sum(gpus) != cluster.num_gpus:
        raise SpecError(
            f"training and generation GPUs must add up to the cluster's, but {gpus[0]} + {gpus[1]} are {sum(gpus)} and {cluster.name} has {cluster.num_gpus}",
            remedy=f"use [{cluster.num_gpus - gpus[1]}, {gpus[1]}], for instance"
            if gpus[1] < cluster.num_gpus
            else f"use [{cluster.num_gpus - cluster.num_gpus // 2}, {cluster.num_gpus // 2}], for instance",
            field="rl.placement",
        )
    split = gpus[1] if gpus is not None else cluster.num_gpus // 2
    generating = 0 if word == "colocated" else split
    if word != "colocated" and generating == 0:
        raise SpecError(
            f"{word} needs at least two GPUs, but {cluster.name} has {cluster.num_gpus}",
            field="rl.placement",
        )
    return word, generating, float(staleness or 0.0)


def _mini_batches(document: PostTrainingDocument, prompts: int) -> int:
    """Return the number of optimizer steps per epoch of a post-training step."""
    if document.mini_batch_prompts is None:
        return document.mini_batches or 1
    if document.mini_batches is not None:
        raise SpecError(
            "mini_batches and mini_batch_prompts are alternatives, but the spec has both",
            remedy="omit one of them",
            field="rl.mini_batch_prompts",
        )
    if prompts % document.mini_batch_prompts:
        raise SpecError(
            f"mini_batch_prompts must divide prompts, but mini_batch_prompts={document.mini_batch_prompts} and prompts={prompts}",
            field="rl.mini_batch_prompts",
        )
    return prompts // document.mini_batch_prompts


def _rollout(
    document: RolloutDocument,
    tokens: float,
    cluster: ClusterSpec,
    generating: int,
    log: PhaseLog | None,
) -> Rollout:
    """Return the generation speed. `tokens`: generated per step; `generating`: number of GPUs that
    generate, 0 if colocated."""
    ways = [
        name
        for name in ("tokens_per_s_per_gpu", "generation_s", "log")
        if getattr(document, name) is not None
    ]
    if len(ways) != 1:
        raise SpecError(
            "the spec must give the generation speed in exactly one way, but it gives "
            f"{' and '.join(ways) or 'nothing'}",
            remedy="use tokens_per_s_per_gpu, generation_s, or log",
            field="rollout",
        )
    gpus = document.gpus or generating or cluster.num_gpus
    rates: tuple[tuple[int, float], ...]
    if isinstance(document.tokens_per_s_per_gpu, Mapping):
        rates = tuple(
            sorted(
                (_whole(tp, "rollout.tokens_per_s_per_gpu"), rate)
                for tp, rate in document.tokens_per_s_per_gpu.items()
            )
        )
    elif document.tokens_per_s_per_gpu is not None:
        rates = ((document.tp, document.tokens_per_s_per_gpu),)
    elif document.generation_s is not None:
        rates = ((document.tp, tokens / (document.generation_s * gpus)),)
    else:
        assert log is not None
        seconds = log.median("generation")
        if seconds is None or seconds <= 0:
            raise SpecError(
                "the log has no generation times",
                remedy="set tokens_per_s_per_gpu",
                field="rollout.log",
            )
        logged = log.median("response_tokens")
        rates = ((document.tp, (logged or tokens) / (seconds * gpus)),)
    if document.tp not in dict(rates):
        degrees = ", ".join(str(tp) for tp, _ in rates)
        raise SpecError(
            f"the generation speed is given only for tp={degrees}, but the engine has tp={document.tp}",
            field="rollout.tp",
        )
    return Rollout(
        tokens_per_s_per_gpu=rates,
        tp=document.tp,
        memory_fraction=document.memory_fraction,
        sleeps=document.sleeps,
        tokens_per_s_per_response=document.tokens_per_s_per_response or 0.0,
    )


def _whole(text: int | str, field: str) -> int:
    """Return the key as a whole number. Raises `SpecError`."""
    try:
        return int(text)
    except ValueError:
        raise SpecError(f"a key must be a whole number, but is {text!r}", field=field) from None
