"""A pipeline stage of a model built by code: the part that one rank runs, from the micro-batch (or
the previous stage's stream) to the stream or the loss.

    inputs     arguments of the module: a tensor, a tuple of arguments or a mapping of keywords      targets    next tokens (b, s), if it reads tokens
    stream     the tensor that is sent between stages; it replaces the first argument

The precision is that of autocast: weights are in fp32, or as FSDP provides them. The last stage
returns the loss as a tensor of one element.

To split a model into stages, each stage is the module with all parts of other stages replaced by
`Skip`, which returns its first argument. So the module's own forward pass runs the remaining parts,
and weights keep their names. The order in which the module registers its parts decides what is
before and after a split point. A class of transformers takes the stream as `inputs_embeds`; its
plan (`base_model_pp_plan`) names the parts of the first and last stage besides the layers, and all
stages but the last run only its base model.

The chunked loss of transformers' causal language models is computed inside the output projection, so
that only the logits of one chunk exist at a time:

    hidden (b, s, h) -> mean loss, a scalar that the class returns in place of the logits

This is correct only if the class does not change the logits after the projection (no scaling, no
soft cap). Every step checks that the class returns the same tensor as the projection.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autotune.errors import ConfigError
from autotune_workers.own_model.built_model import BuiltModel, block_names, is_transformers
from autotune_workers.own_model.users_line import error_with_line, user_line
from autotune_workers.training.model.loss import VocabularySlice, chunked_token_losses
from autotune_workers.training.torch_internals import pytree

REMEDY = "return other split points under `pp_split`, or a function (model, stage, num_stages) that returns the stage's module"


def cut(built: BuiltModel, stage: int, num_stages: int) -> BuiltModel:
    """Reduce the model to one stage. Changes `built.model`. Raises `ConfigError` if it cannot be
    split into this number of stages."""
    if num_stages == 1:
        return built
    if callable(built.pp_split):
        return _by_function(built, stage, num_stages)
    places = tuple(built.pp_split or ())
    if num_stages > len(places) + 1:
        raise ConfigError(
            f"{num_stages} stages need {num_stages - 1} split points, but the model has {len(places)}",
            remedy="use a smaller pp, or add split points to `pp_split`",
            field="pp",
        )
    stages = _stages(built, cut_places(places, num_stages))
    _check_shared(built.model, stages, num_stages)
    for name, number in stages.items():
        if number != stage:
            parent, _, key = name.rpartition(".")
            setattr(built.model.get_submodule(parent), key, Skip())
    if stage and is_transformers(built.model):
        base = built.model.base_model
        # Granite scales `inputs_embeds`, which the first stage has done already
        if hasattr(base, "embedding_multiplier"):
            base.embedding_multiplier = 1.0
    return built


def _by_function(built: BuiltModel, stage: int, num_stages: int) -> BuiltModel:
    """The stage that the builder's own function returns. Its parts may have other names than in the
    whole model."""
    assert callable(built.pp_split)
    try:
        part = built.pp_split(built.model, stage, num_stages)
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"`pp_split` raised {error_with_line(error)} for stage {stage} of {num_stages}",
            remedy="correct the line",
            field="model.pp_split",
        ) from error
    if not isinstance(part, nn.Module):
        raise ConfigError(
            f"`pp_split` must return a stage's module, but returned a {type(part).__name__} for stage {stage} of {num_stages}",
            remedy="`pp_split` is called with (model, stage, num_stages)",
            field="model.pp_split",
        )
    names = {name for name, _ in part.named_modules()}
    return replace(built, model=part, layers=tuple(name for name in built.layers if name in names))


def cut_places(places: Sequence[str], num_stages: int) -> list[str]:
    """The split points to use, so that stages are as equal as possible; longer stages come first."""
    units = len(places) + 1
    sizes = [units // num_stages + (i < units % num_stages) for i in range(num_stages)]
    return [places[end - 1] for end in itertools.accumulate(sizes[:-1])]


def aliases(module: nn.Module) -> dict[str, str]:
    """Further names of shared weights, each with the weight's first name."""
    first: dict[nn.Parameter, str] = {}
    first_names = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if first.setdefault(parameter, name) != name:
            first_names[name] = first[parameter]
    return first_names


def _stages(built: BuiltModel, places: Sequence[str]) -> dict[str, int]:
    """The stage of each part of the module that belongs to a single stage, without parts inside of
    these. Raises `ConfigError` if a weight belongs to none."""
    if is_transformers(built.model) and built.pp_split == block_names(built)[1:]:
        return _stages_of_class(built, places)
    names = [name for name, _ in built.model.named_modules() if name]
    number, stage_of = 0, {}
    for name in names:
        number += name in places
        stage_of[name] = number
    stages: dict[str, int] = {}
    for name in names:
        inner = {
            n for other, n in stage_of.items() if other == name or other.startswith(f"{name}.")
        }
        if len(inner) == 1 and not name.startswith(tuple(f"{n}." for n in stages)):
            stages[name] = inner.pop()
    common = [
        name
        for name, _ in built.model.named_parameters()
        if not name.startswith(tuple(f"{part}." for part in stages))
    ]
    if common:
        raise ConfigError(
            f"the weight {common[0]} belongs to a module that every pipeline stage runs, so no stage owns it",
            remedy="move the weight into a separate module, or return `pp_split` as a function (model, stage, num_stages) that returns the stage's module",
            field="model.pp_split",
        )
    return stages


def _stages_of_class(built: BuiltModel, places: Sequence[str]) -> dict[str, int]:
    module: Any = built.model
    last = len(places)
    prefix = "" if module.base_model is module else f"{module.base_model_prefix}."
    layers = block_names(built)
    stages = {
        layer: sum(layers.index(place) <= i for place in places) for i, layer in enumerate(layers)
    }
    holder = layers[0].rpartition(".")[0]
    is_after_layers = False
    for key in module.base_model._pp_plan or module.config.base_model_pp_plan:
        if f"{prefix}{key}" == holder:
            is_after_layers = True
        else:
            stages[f"{prefix}{key}"] = last if is_after_layers else 0
    heads: Iterable[str] = (name for name, _ in module.named_children()) if prefix else ()
    return stages | {name: last for name in heads if f"{name}." != prefix}


def _check_shared(module: nn.Module, stages: dict[str, int], num_stages: int) -> None:
    """Raise `ConfigError` if stages other than the first and last share a weight."""
    for other, name in aliases(module).items():
        sharing = {
            n
            for part, n in stages.items()
            if any(weight.startswith(f"{part}.") for weight in (other, name))
        }
        if len(sharing) > 1 and sharing != {0, num_stages - 1}:
            raise ConfigError(
                f"the stages {', '.join(map(str, sorted(sharing)))} of {num_stages} share the weight {name}, but only the first and last stages may share a weight",
                remedy=REMEDY,
                field="model.pp_split",
            )


_PLAIN = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
    NotImplementedError,
)
"""exception classes that can be created from a text"""


class OwnStage(nn.Module):
    """The module, or its part for one stage, with its loss."""

    def __init__(
        self,
        built: BuiltModel,
        *,
        is_first: bool,
        is_last: bool,
        dtype: torch.dtype,
        chunked: bool = False,
    ) -> None:
        """`built.model`: the part of the module for this stage; `dtype`: of matrix products and of
        the stream; `chunked`: whether the output projection computes the loss. Raises `ConfigError`
        if it cannot."""
        super().__init__()
        self.module = built.model
        self.is_first, self.is_last, self.dtype = is_first, is_last, dtype
        self.built = built
        self._names = [
            name
            for name in block_names(built)
            if not isinstance(built.model.get_submodule(name), Skip)
        ]
        self._head = ChunkedHead(built.model, dtype) if chunked and is_last else None
        self.structure: Any = None
        """with a pipeline: the tree structure of (inputs, targets), whose tensors are passed one by
        one"""

    @property
    def layers(self) -> dict[str, nn.Module]:
        """The repeated blocks of this stage by name; the module itself if it has none."""
        return {name: self.module.get_submodule(name) for name in self._names} or {"": self.module}

    def forward(self, *args: Any, **leaves: Tensor) -> Tensor:
        """(inputs, targets), or with a pipeline one tensor and all leaves of both -> the stream or
        the loss."""
        stream = None
        if self.structure is None:
            inputs, targets = args
        else:
            inputs, targets = pytree.tree_unflatten(
                [leaves[f"leaf_{i}"] for i in range(len(leaves))], self.structure
            )
            stream = None if self.is_first else args[0]
        device = next(iter(self.module.parameters())).device.type
        mixed = (
            nullcontext()
            if self.dtype == torch.float32
            else torch.autocast(device, dtype=self.dtype)
        )
        with mixed, _users_line():
            output = self._run(inputs, targets, stream)
            if not self.is_last:
                return _only_tensor(output).to(self.dtype)
            loss = output if self._head is not None else self._loss(output, inputs, targets)
            return loss.float().reshape(1)

    def _run(self, inputs: Any, targets: Any, stream: Tensor | None) -> Any:
        args, keywords = _arguments(inputs)
        if not takes_embeddings(self.built):
            args, keywords = _with_stream(args, keywords, stream)
            return self.module(*args, **keywords)
        arguments = {"input_ids": inputs} if stream is None else {"inputs_embeds": stream}
        if not self.is_last:
            return self.module.base_model(**arguments).last_hidden_state
        if self._head is not None:
            return self._head.loss(self.module, arguments, targets)
        return (
            self.module(**arguments)
            if self.built.loss
            else self.module(**arguments, **_labels(self.module, inputs, targets))
        )

    def _loss(self, output: Any, inputs: Any, targets: Any) -> Tensor:
        if self.built.loss is not None:
            loss = self.built.loss(output, inputs)
        else:
            loss = (
                output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            )
            if loss is None and isinstance(targets, Tensor):
                loss = _cross_entropy(_logits(output), targets)
            elif loss is None:
                loss = output
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            given = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, Tensor)
                else f"a {type(loss).__name__}"
            )
            raise ConfigError(
                f"a micro-batch's loss must be one number, but {'`loss`' if self.built.loss else 'the module'} returned {given}",
                remedy="return a `loss` function from the builder, which takes (output, inputs) and returns the mean loss",
                field="model.loss",
            )
        return loss


def takes_embeddings(built: BuiltModel) -> bool:
    """Whether it is a transformers class that reads tokens, so that its stages take
    `inputs_embeds`."""
    return is_transformers(built.model) and built.input is None


class Skip(nn.Module):
    """Replaces a module that another stage runs, and returns its first argument."""

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """The first argument."""
        return args[0] if args else next(iter(keywords.values()))


@contextmanager
def _users_line() -> Iterator[None]:
    """Add the line of the user's code to the text of exceptions that it raises, and keep their class,
    by which failures are classified."""
    try:
        yield
    except Exception as error:
        line = user_line(error)
        if type(error) not in _PLAIN or not line:
            raise
        # str() of a KeyError adds quotes
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        text = f"{message} (at {line} of the model's code: fix this line, or the builder's `input` and `loss`)"
        raise type(error)(text).with_traceback(error.__traceback__) from None


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _with_stream(
    args: tuple[Any, ...], keywords: dict[str, Any], stream: Tensor | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the first one replaced by the stream, if there is one."""
    if stream is None:
        return args, keywords
    if args:
        return (stream, *args[1:]), keywords
    return args, {**keywords, next(iter(keywords)): stream}


def _labels(module: nn.Module, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The targets as keyword arguments of a transformers class. Causal models shift `labels` by one
    themselves, unless they accept `shift_labels`."""
    if getattr(module, "loss_type", "") != "ForCausalLM":
        return {"labels": targets}
    parameters = inspect.signature(module.forward).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return {"labels": targets, "shift_labels": targets}
    return {"labels": tokens}


def _logits(output: Any) -> Any:
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def _cross_entropy(logits: Any, targets: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or logits.shape[:-1] != targets.shape:
        given = (
            f"a tensor of shape {tuple(logits.shape)}"
            if isinstance(logits, Tensor)
            else f"a {type(logits).__name__}"
        )
        raise ConfigError(
            f"a module that reads tokens of shape {tuple(targets.shape)} must return logits of shape {(*targets.shape, 'V')}, but returned {given}",
            remedy="return a `loss` function from the builder (and `input`, if the module does not read tokens)",
            field="model.loss",
        )
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def _only_tensor(output: Any) -> Tensor:
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"a pipeline stage passes one tensor to the next, but the module returned a {type(output).__name__}",
            remedy="return other split points under `pp_split`, or a function (model, stage, num_stages) that returns the stage's module",
            field="model.pp_split",
        )
    return output


@final
class ChunkedHead:
    """The output projection of the last stage, which returns the loss instead of logits."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Replace the projection's forward function. `dtype`: of the matrix products. Raises
        `ConfigError` for a class that is not a causal language model."""
        find: Any = getattr(module, "get_output_embeddings", lambda: None)
        head = find()
        if (
            getattr(module, "loss_type", "") != "ForCausalLM"
            or type(head) is not nn.Linear
            or head.bias is not None
        ):
            raise _cannot_chunk(
                f"{type(module).__name__} is not a causal language model with a bias-free Linear output projection"
            )
        self._head, self._dtype = head, dtype
        self._targets: Tensor | None = None
        self._returned: Tensor | None = None
        head.forward = self._losses

    def loss(self, module: nn.Module, arguments: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """The mean loss of the micro-batch. `arguments`: of the class. Raises `ConfigError` if the
        class changes its logits."""
        self._targets = targets
        loss = module(**arguments).logits
        if loss is not self._returned:
            raise _cannot_chunk(
                f"{type(module).__name__} scales or caps the logits after its output projection"
            )
        self._targets = self._returned = None
        return torch.as_tensor(loss)

    def _losses(self, hidden: Tensor) -> Tensor:
        assert self._targets is not None
        weight: Tensor = self._head.weight
        vocabulary = VocabularySlice(start=0, size=len(weight), group=None)
        stream = hidden.flatten(0, 1).to(self._dtype)
        self._returned = chunked_token_losses(
            stream, weight.to(self._dtype), self._targets.flatten(), vocabulary
        ).mean()
        return self._returned


def _cannot_chunk(why: str) -> ConfigError:
    return ConfigError(
        f"loss=chunked computes the loss inside the output projection, but {why}",
        remedy="use loss=own",
        field="loss",
    )
