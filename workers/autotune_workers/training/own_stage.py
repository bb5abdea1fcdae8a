"""A pipeline stage of a model that code builds: what one rank runs of it, from the micro-batch (or the stream of the stage before) to the stream or the loss.

    inputs     what the module is called with: a tensor, a tuple of arguments or a mapping of keywords      targets    next tokens (b, s), where it reads tokens
    stream     what travels between stages, one tensor; it takes the place of the first argument

The number format is that of autocast: weights are fp32, or what FSDP hands out. The last stage gives the loss itself, as a tensor of one element.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autotune.errors import ConfigError
from autotune_workers.own_model.blocks import block_names
from autotune_workers.own_model.built_model import BuiltModel
from autotune_workers.own_model.transformers_class import is_transformers
from autotune_workers.own_model.users_line import user_line
from autotune_workers.training.own_chunked_loss import ChunkedHead
from autotune_workers.training.torch_internals import pytree

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
"""errors that can be made anew of a text"""


class OwnStage(nn.Module):
    """The module, or what the cut left of it, with its loss."""

    def __init__(
        self, built: BuiltModel, *, is_first: bool, is_last: bool, dtype: torch.dtype, chunked: bool = False
    ) -> None:
        """`built.model`: this stage of the module; `dtype`: of matrix products and of the stream; `chunked`: whether the output projection takes the
        loss. Raises `ConfigError` where it cannot."""
        super().__init__()
        self.module = built.model
        self.is_first, self.is_last, self.dtype = is_first, is_last, dtype
        self.built = built
        self._names = [name for name in block_names(built) if not isinstance(built.model.get_submodule(name), Skip)]
        self._head = ChunkedHead(built.model, dtype) if chunked and is_last else None
        self.structure: Any = None
        """of (inputs, targets) under a pipeline, whose tensors come one by one"""

    @property
    def layers(self) -> dict[str, nn.Module]:
        """The repeated blocks of this stage by name; the module itself where it has none."""
        return {name: self.module.get_submodule(name) for name in self._names} or {"": self.module}

    def forward(self, *args: Any, **leaves: Tensor) -> Tensor:
        """(inputs, targets), or under a pipeline one tensor and all leaves of both -> the stream or the loss."""
        stream = None
        if self.structure is None:
            inputs, targets = args
        else:
            inputs, targets = pytree.tree_unflatten([leaves[f"leaf_{i}"] for i in range(len(leaves))], self.structure)
            stream = None if self.is_first else args[0]
        device = next(iter(self.module.parameters())).device.type
        mixed = nullcontext() if self.dtype == torch.float32 else torch.autocast(device, dtype=self.dtype)
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
        taken = {"input_ids": inputs} if stream is None else {"inputs_embeds": stream}
        if not self.is_last:
            return self.module.base_model(**taken).last_hidden_state
        if self._head is not None:
            return self._head.loss(self.module, taken, targets)
        return (
            self.module(**taken) if self.built.loss else self.module(**taken, **_labels(self.module, inputs, targets))
        )

    def _loss(self, output: Any, inputs: Any, targets: Any) -> Tensor:
        if self.built.loss is not None:
            loss = self.built.loss(output, inputs)
        else:
            loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            if loss is None and isinstance(targets, Tensor):
                loss = _cross_entropy(_logits(output), targets)
            elif loss is None:
                loss = output
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise ConfigError(
                f"the loss of a micro-batch must be one number, but {'`loss`' if self.built.loss else 'the module'} gave {given}",
                remedy="return `loss` from the builder: a function of (output, inputs) that gives the mean loss",
                field="model.loss",
            )
        return loss


def takes_embeddings(built: BuiltModel) -> bool:
    """Whether it is a class of transformers that reads tokens: its stages take `inputs_embeds`."""
    return is_transformers(built.model) and built.input is None


class Skip(nn.Module):
    """Stands for a module that another stage runs: hands on what it is given first."""

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """Anything."""
        return args[0] if args else next(iter(keywords.values()))


@contextmanager
def _users_line() -> Iterator[None]:
    """Adds the line of the user's code to the text of what it raises. The kind of an error, by which failures are told apart, stays."""
    try:
        yield
    except Exception as error:
        line = user_line(error)
        if type(error) not in _PLAIN or not line:
            raise
        # str() of a KeyError is in quotes
        said = error.args[0] if isinstance(error, KeyError) and error.args else error
        text = f"{said} (at {line} of the model's code: correct it, or `input` and `loss` of its builder)"
        raise type(error)(text).with_traceback(error.__traceback__) from None


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def _with_stream(
    args: tuple[Any, ...], keywords: dict[str, Any], stream: Tensor | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the stream in place of the first."""
    if stream is None:
        return args, keywords
    if args:
        return (stream, *args[1:]), keywords
    return args, {**keywords, next(iter(keywords)): stream}


def _labels(module: nn.Module, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The targets by the names that the class takes. Causal models shift labels by one themselves, unless they are told that this is done."""
    if getattr(module, "loss_type", "") != "ForCausalLM":
        return {"labels": targets}
    takes = inspect.signature(module.forward).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes):
        return {"labels": targets, "shift_labels": targets}
    return {"labels": tokens}


def _logits(output: Any) -> Any:
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def _cross_entropy(logits: Any, targets: Tensor) -> Tensor:
    if not isinstance(logits, Tensor) or logits.shape[:-1] != targets.shape:
        given = (
            f"a tensor of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        )
        raise ConfigError(
            f"a module that reads tokens of shape {tuple(targets.shape)} must give logits of shape {(*targets.shape, 'V')}, but gave {given}",
            remedy="return `loss` from the builder (and `input`, where the module reads no tokens)",
            field="model.loss",
        )
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


def _only_tensor(output: Any) -> Tensor:
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"a pipeline stage hands one tensor to the next, but the module gave a {type(output).__name__}",
            remedy="name other places under `pp_split`, or return it as a function (model, stage, num_stages) -> the module of that stage",
            field="model.pp_split",
        )
    return output
