"""Executes operations on fake tensors, including those that need values.

    real tensors      (a mesh of ranks) stay real: operations on real tensors only are executed
    integers          derived from constants, shapes and routing are known (`carried_values`), as are results computed from them
    routing           is assumed to be balanced: each expert gets the same number of tokens, on every rank
    integer inputs    are known too: tokens are 0; selections that a model makes by them are recorded as assumptions
    NaN, infinity     never occur
    other numbers     that are read, such as a logged loss, are 1
    anything else     raises `DataDependentOutputException` or `DynamicOutputShapeException`

Assumptions are recorded as sentences, see `FakeAnswers.guesses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor

from autotune_workers.dryrun.carried_values import CarriedValues
from autotune_workers.dryrun.torch_private import (
    WAIT,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    group_of,
    real_tensors,
)
from autotune_workers.dryrun.work_log import operation_of, tensors_in
from autotune_workers.own_model.users_line import running_line

aten = torch.ops.aten
NUMBER = aten._local_scalar_dense.default
LIFTS = ("lift_fresh", "lift_fresh_copy", "lift")
"""operations that turn a new real tensor into a fake one"""
FILLS: dict[str, Any] = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones", "isfinite"), 1),
    **dict.fromkeys(("isnan", "isinf", "isposinf", "isneginf"), 0),
}
"""operations whose result has this value everywhere, whatever their arguments"""
FILLS_WITH = {"scalar_tensor": 0, "full": 1, "full_like": 1, "new_full": 2}
"""operations whose result is filled with an argument, and the index of this argument"""
SIZED_BY_VALUES = (
    "nonzero",
    "bincount",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
)
"""operations whose result has a shape that depends on values"""
UNFILLED = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
"""operations whose result is uninitialized"""
INPUTS_DECIDE = "every token is 0, but the model makes selections by its inputs' values"
CHOICES = ("topk", "argmax", "multinomial")
"""operations with which routers choose experts"""


@final
class FakeAnswers:
    """Runs operations on fake tensors, and records what it had to guess."""

    def __init__(self, where: Callable[[], str] = lambda: "") -> None:
        """`where`: returns the name of the running module."""
        self._values = CarriedValues()
        self._where = where
        self._guesses: dict[str, set[str]] = {}

    @property
    def guesses(self) -> tuple[str, ...]:
        """The assumptions, as sentences with the modules that needed them."""
        return tuple(
            f"{guess} ({_some(sorted(modules))})" for guess, modules in self._guesses.items()
        )

    def mark_inputs(self, inputs: Iterable[Any]) -> None:
        """Marks tensors as inputs or derived from inputs, so that control flow decided by their
        values is recorded as an assumption."""
        for tensor in inputs:
            if isinstance(tensor, FakeTensor):
                self._values.mark_from_inputs(tensor)

    def __call__(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operation and returns its result."""
        if not types and func._opname not in LIFTS and tensors_in(args):
            with real_tensors():
                return func(*args, **kwargs)
        if func is WAIT:
            # real tensors are returned unchanged too; the shape function would make a new tensor
            return args[0]
        if func is NUMBER:
            return self._number(args[0])
        name = func._opname
        if func.namespace == "aten":
            if name in SIZED_BY_VALUES or func is aten.repeat_interleave.Tensor or name == "equal":
                return self._by_values(func, args, kwargs)
            if name in ("index", "index_put_", "index_put", "_index_put_impl_"):
                args = (args[0], self._without_masks(func, args[1]), *args[2:])
        if func.namespace == "c10d":
            out = func(*args, **kwargs)
            self._exchanged(func, args)
            return out
        if func is aten._grouped_mm.default:
            return grouped_product(*args, **kwargs)
        if func is aten.native_batch_norm.default:
            return batch_norm(func(*args, **kwargs), args[3])
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            if not out.dtype.is_floating_point:
                self._follow(func, args, kwargs, [out])
        elif isinstance(out, tuple | list) and any(
            isinstance(x, Tensor) and not x.dtype.is_floating_point for x in out
        ):
            self._follow(func, args, kwargs, out)
        return out

    def _number(self, tensor: Tensor) -> Any:
        constant = getattr(tensor, "constant", None)
        values = constant if constant is not None else self._values.of(tensor)
        if values is not None:
            self._decides([tensor])
            with real_tensors():
                return values.item()
        if not tensor.is_floating_point():
            raise DataDependentOutputException(NUMBER)
        if module := self._where():  # numbers read by the training loop decide nothing
            self._guess("a tensor that the model reads as a number is assumed to be 1", _at(module))
        return 1.0

    def _by_values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = self._known((args, kwargs))
        if known is None:
            kind = (
                DataDependentOutputException
                if func._opname == "equal"
                else DynamicOutputShapeException
            )
            raise kind(func)
        from_inputs = self._decides(tensors_in((args, tuple(kwargs.values()))))
        with real_tensors():
            results = func(*known[0], **known[1])
        if not isinstance(results, Tensor | tuple | list):
            return results
        fakes = [
            self._fake(result, from_inputs=from_inputs)
            for result in ([results] if isinstance(results, Tensor) else results)
        ]
        return fakes[0] if isinstance(results, Tensor) else type(results)(fakes)

    def _decides(self, tensors: Iterable[Tensor]) -> bool:
        """Records an assumption if these tensors, whose values decide a shape or a branch, are
        derived from the inputs; returns whether they are."""
        from_inputs = any(map(self._values.is_from_inputs, tensors))
        if from_inputs and (module := self._where()):
            self._guess(INPUTS_DECIDE, _at(module))
        return from_inputs

    def _mark_computed(
        self, made: Iterable[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Marks results as derived from the inputs if an argument is."""
        if any(map(self._values.is_from_inputs, tensors_in((args, tuple(kwargs.values()))))):
            self.mark_inputs(made)

    def _fake(self, values: Tensor, *, from_inputs: bool) -> Tensor:
        out = torch.empty(values.shape, dtype=values.dtype)
        self._values.set(out, values)
        if from_inputs:
            self._values.mark_from_inputs(out)
        return out

    def _without_masks(self, func: Any, indices: Any) -> list[Any]:
        """The indices with each mask replaced by the positions of its true elements."""
        converted: list[Any] = []
        for index in indices:
            if isinstance(index, FakeTensor) and index.dtype in (torch.bool, torch.uint8):
                mask = self._values.of(index)
                if mask is None:
                    raise DynamicOutputShapeException(func)
                from_inputs = self._decides([index])
                with real_tensors():
                    places = mask.nonzero(as_tuple=True)
                converted += [self._fake(place, from_inputs=from_inputs) for place in places]
            else:
                converted.append(index)
        return converted

    def _follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outs: Any) -> None:
        """Records the values of new results, where they follow from known values."""
        name, out = func._opname, outs[0]
        if name in FILLS:
            self._values.set_constant(out, FILLS[name])
        elif name in FILLS_WITH:
            self._values.set_constant(out, args[FILLS_WITH[name]])
        elif name in LIFTS:
            self._values.set(out, args[0])
        elif name in CHOICES and args[0].is_floating_point():
            self._choose(name, args, kwargs, outs[-1])
        elif name in ("any", "all") and (constant := self._values.constant(args[0])) is not None:
            self._values.set_constant(out, bool(constant))
        elif (
            name in UNFILLED
            or torch.Tag.nondeterministic_seeded in func.tags
            or out in self._values
        ):
            return  # in the last case the result is a view
        elif (tensors_in(args) or name == "arange") and (
            known := self._known((args, kwargs))
        ) is not None:
            with real_tensors():
                results = func(*known[0], **known[1])
            for fake, values in zip(
                outs, [results] if isinstance(results, Tensor) else results, strict=True
            ):
                # meta tensors: only shapes are computed
                if isinstance(fake, Tensor) and not values.is_meta:
                    self._values.set(fake, values)
        self._mark_computed(outs, args, kwargs)

    def _choose(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor
    ) -> None:
        """Records the result of a router's choice as balanced, see `balanced_choices`; no effect if
        the choice is not along the last dimension."""
        scores = args[0]
        dim_index = 1 if name == "argmax" else 2
        if name != "multinomial" and len(args) > dim_index:
            dim = args[dim_index]
        else:
            dim = kwargs.get("dim", -1)
        if scores.dim() == 0 or dim not in (-1, scores.dim() - 1):
            return
        with real_tensors():
            self._values.set(out, balanced_choices(out.shape, scores.shape[-1]))
        self._guess(
            "routing is assumed to be balanced, so every expert gets the same number of tokens",
            self._where(),
        )

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation that writes into its arguments, and updates their known values."""
        out = func(*args, **kwargs)
        changed = [
            args[i]
            for i, argument in enumerate(func._schema.arguments[: len(args)])
            if argument.alias_info is not None
            and argument.alias_info.is_write
            and isinstance(args[i], FakeTensor)
        ]
        changed = [tensor for tensor in changed if tensor in self._values]
        if not changed:
            return out
        targets = [self._values.writable(tensor) for tensor in changed]
        known = self._known((args, kwargs)) if all(t is not None for t in targets) else None
        if known is None:
            for tensor in changed:
                self._values.forget(tensor)
        else:
            with real_tensors():
                func(*known[0], **known[1])
            self._mark_computed(changed, args, kwargs)
        return out

    def _exchanged(self, func: Any, args: tuple[Any, ...]) -> None:
        """Records the integers received in a collective, assuming that all ranks have the same
        values as this one."""
        operation = operation_of(func)
        results = [t for t in tensors_in(args[0]) if not t.dtype.is_floating_point]
        if operation is None or operation.kind == "send" or not results:
            return
        if operation.kind == "recv":
            for result in results:
                self._values.set_constant(result, 1)
        elif func._opname in ("alltoall_base_", "_allgather_base_"):
            self._gathered(
                results[0], args[1], group_of(args[2]), swapped=operation.kind == "all_to_all"
            )
        else:
            for result in results:
                self._values.forget(result)

    def _gathered(self, result: Tensor, sent: Tensor, group: Any, *, swapped: bool) -> None:
        """Records a gather, or an all-to-all if `swapped`, in which all ranks send what this one
        sends."""
        values = self._values.of(sent)
        if values is None:
            self._values.forget(result)
            return
        with real_tensors():
            mine = values.view(group.size(), -1)[group.rank()] if swapped else values
            gathered = mine.flatten().repeat(group.size()).view(result.shape)
        self._values.set(result, gathered)

    def _known(self, value: Any) -> Any:
        """Nested arguments with known values in place of fake tensors; None if one is unknown."""
        if isinstance(value, Tensor):
            return self._values.of(value)
        if isinstance(value, tuple | list):
            parts = [self._known(part) for part in value]
            is_unknown = any(
                new is None and old is not None for new, old in zip(parts, value, strict=True)
            )
            return None if is_unknown else type(value)(parts)
        if isinstance(value, dict):
            named = {key: self._known(part) for key, part in value.items()}
            is_unknown = any(named[key] is None and part is not None for key, part in value.items())
            return None if is_unknown else named
        return value

    def _guess(self, guess: str, module: str) -> None:
        self._guesses.setdefault(guess, set()).add(module)


def balanced_choices(shape: torch.Size, experts: int) -> Tensor:
    """Indices of chosen experts, (..., choices per token): experts are assigned round-robin."""
    return (torch.arange(shape.numel()) % experts).view(shape)


def grouped_product(
    a: Tensor,
    b: Tensor,
    ends: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """An uninitialized result of `_grouped_mm`, whose shape function supports only bfloat16, while
    its CPU kernel supports every dtype."""
    if a.dim() == 2 and b.dim() == 2:
        assert ends is not None
        shape = (len(ends), a.shape[0], b.shape[1])
    else:
        rows = a.shape[:-1] if b.dim() == 3 else a.shape[1:-1]
        shape = (*rows, b.shape[-1])
    return a.new_empty(shape, dtype=out_dtype or a.dtype)


def batch_norm(made: tuple[Tensor, ...], running_mean: Tensor | None) -> tuple[Tensor, ...]:
    """The results of batch norm with the batch statistics in the dtype of the running ones, as
    kernels store them; the shape function uses the dtype of the input."""
    out, *statistics = made
    return out, *(x if running_mean is None else x.to(running_mean.dtype) for x in statistics)


def _at(module: str) -> str:
    """The module, with the line of user code that runs."""
    line = running_line()
    return f"{module} at {line}" if line else module


def _some(names: list[str], most: int = 3) -> str:
    return (
        "in "
        + ", ".join(names[:most])
        + (f" and {len(names) - most} more" if len(names) > most else "")
    )
