"""What autotune's own training loop cannot do with a model that code builds: what needs a plan that the model does not bring, and what only the decoder
that ships is made for.

Always: DDP and ZeRO 0 to 3 with replicas, accumulation, precision, `recompute=full`, compilation, adapters. With a tensor plan: tp. With a split: pp.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune.spec import ModelCode, ModelSpec, ParallelConfig, Workload
from autotune.trainers.limit import Limit


def own_model_limits(workload: Workload, c: ParallelConfig) -> Iterator[Limit]:
    """The values that the loop cannot express; none for a model of the catalog or of a shape."""
    code = workload.model.code
    if workload.model.is_counted:
        yield _counted(workload.model, "native")
    elif code is not None:
        yield from _plans(workload, code, c)
        yield from _decoder_alone(c)
        yield from _loss(code, c)
        yield from _workload(workload)


def module_limits(model: ModelSpec, trainer: str) -> Iterator[Limit]:
    """For a trainer that builds models from shapes: it cannot be given a user's module, nor a model of which the number of weights alone is known."""
    if model.is_counted:
        yield _counted(model, trainer)
    elif model.code is not None and model.code.module:
        message = f"the trainer {trainer} builds a model from its shape, and cannot be given a module"
        remedy = "use trainer native, a command that builds it, or give the model as {hf: PATH} or by its shape"
        yield Limit(knob="model.code", value=model.code.module, message=message, remedy=remedy)


def _counted(model: ModelSpec, trainer: str) -> Limit:
    message = f"the trainer {trainer} builds the model, and of {model.name} the number of weights alone is known"
    remedy = "use trainer command with a program that builds it, or give the model's shape, {hf: PATH} or {module: PACKAGE.MODULE:FUNCTION}"
    return Limit(knob="model.parameters", value=model.num_parameters, message=message, remedy=remedy)


def _plans(workload: Workload, code: ModelCode, c: ParallelConfig) -> Iterator[Limit]:
    name, brings = (
        workload.model.name,
        "return it from the builder" if code.module else "build it by {module: ...} with one",
    )
    if c.tp > 1 and not code.has_tensor_plan:
        message = f"{name} brings no plan for tensor parallelism that the loop applies"
        yield Limit(knob="tp", value=c.tp, message=message, remedy=f"use tp=1, or {brings} (`tp_plan`)")
    stages = c.pp * c.virtual_stages
    if c.pp > 1 and not code.has_pipeline_split:
        message = f"{name} does not say where a pipeline may cut it"
        yield Limit(knob="pp", value=c.pp, message=message, remedy=f"use pp=1, or {brings} (`pp_split`)")
    elif c.pp > 1 and stages > code.num_cuts + 1:
        message = f"{name} can be cut at {code.num_cuts} places, so into {code.num_cuts + 1} stages at most, but pp * virtual_stages = {stages}"
        remedy = "use a smaller pp, or name more places in `pp_split`"
        yield Limit(knob="pp", value=c.pp, message=message, remedy=remedy)
    if c.recompute == "selective" and not code.has_attention:
        message = f"no module in the blocks of {name} is called attention (attn)"
        yield Limit(knob="recompute", value="selective", message=message, nearest="full")


def _decoder_alone(c: ParallelConfig) -> Iterator[Limit]:
    """What is written for the layers of the decoder that ships."""
    reason = "only the decoder that ships is made for it, and this model is built by code of its own"
    if c.cp > 1:
        yield Limit(knob="cp", value=c.cp, message=f"context parallelism replaces the attention: {reason}", nearest=1)
    if c.ep > 1:
        yield Limit(knob="ep", value=c.ep, message=f"expert parallelism replaces the experts: {reason}", nearest=1)
    if c.sequence_parallel:
        message = f"sequence parallelism cuts what flows between the modules of a tensor plan: {reason}"
        yield Limit(knob="sequence_parallel", value=True, message=message, nearest=False)
    if c.precision == "fp8":
        yield Limit(knob="precision", value="fp8", message=f"fp8 replaces the projections: {reason}", nearest="bf16")
    if c.pp_split != "layers":
        message = f"the first and the last stage are not weighed: {reason}"
        yield Limit(knob="pp_split", value=c.pp_split, message=message, nearest="layers")
    if c.pp_schedule == "interleaved_zero_bubble":
        message = f"it splits the backward pass of every layer: {reason}"
        yield Limit(knob="pp_schedule", value=c.pp_schedule, message=message, nearest="interleaved_1f1b")
    if c.recompute in ("norm", "mlp"):
        message = f"these modules are known by name in the decoder alone: {reason}"
        yield Limit(knob="recompute", value=c.recompute, message=message, nearest="full")


def _loss(code: ModelCode, c: ParallelConfig) -> Iterator[Limit]:
    """The loop can take the loss of transformers' own classes in their output projection, chunk by chunk."""
    message = ""
    if c.loss != "own" and code.module:
        message = "a model that code of its own builds takes its loss itself; only transformers' own classes ({hf: PATH}) have a chunked one"
    elif c.loss == "chunked" and c.tp > 1:
        message = (
            "the tensor plan gathers the logits of the output projection, which under a chunked loss never exist whole"
        )
    if message:
        yield Limit(knob="loss", value=c.loss, message=message, nearest="own")


def _workload(workload: Workload) -> Iterator[Limit]:
    if workload.document_len:
        message = (
            "packed documents need an attention that is told where they end, and this model is built by code of its own"
        )
        yield Limit(knob="workload.document_len", value=workload.document_len, message=message, nearest=0)
