"""What went wrong in a dry run, as a `DryRunError`: the operator or the user's line, and what to do.

Autograd and pipelines wrap what they meet; the first cause that says something is told. What a builder raised is told as the builder's error, unless
the reason is one that is peculiar to dry runs.
"""

from __future__ import annotations

import re

from autotune.errors import AutotuneError, DryRunError
from autotune_workers.dryrun.memory_guard import beyond_memory, was_refused_memory
from autotune_workers.dryrun.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from autotune_workers.own_model.users_line import said, user_line

WITHOUT_KERNEL = (
    r"no fake impl registered for <CustomOpDef\(([\w:.]+)\)>",
    r"Could not run '([\w:.]+)' with arguments from the 'Meta' backend",
)
"""what torch says of an operator without a fake kernel, with its name"""
READ_AS_NUMBER = "_local_scalar_dense"
"""the operator behind `if`, `.item()`, `float()` and `int()` of a tensor"""
ELSEWHERE = "or leave that part out of the model that is run dry (behind an argument of the builder)"
SHAPES_ALONE = f"let shapes and control flow depend on shapes and arguments alone, {ELSEWHERE}"
GPU_WORDS = (
    "No CUDA GPUs are available",
    "not compiled with CUDA",
    "support for cuda devices",
    "Found no NVIDIA driver",
    "CUDA driver",
    "from the 'CUDA' backend",
)
NO_GPU = "take the device of an input or a weight in place of cuda, and import kernels of a GPU only where one is used"
NO_LINE = (
    "if the module does not take what it is given, write a function that returns it under `model`, with its own `input` and `loss` "
    "(`Train your own module` in the documentation)"
)
LINE_IN_TEXT = re.compile(r" \(at \S+ of the model's code: [^)]*\)")
"""what a stage of a user's model adds to an error"""


def error_of(error: BaseException, memory_bytes: float, reached: str = "") -> DryRunError:
    """What to tell of it. `memory_bytes`: the limit of the process. `reached`: in words, how far the run came."""
    error = _root_cause(error)
    raised = error.__cause__ if isinstance(error, AutotuneError) and error.__cause__ else error
    place = user_line(raised)
    known = _peculiar_to_dry_runs(raised, f" ({place})" if place else "")
    if known is not None:
        return known
    if isinstance(error, MemoryError) or was_refused_memory(str(error)):
        parts = [part for part in (reached, f"at {place}" if place else "") if part]
        return beyond_memory(memory_bytes, f"; it came as far as: {', '.join(parts)}" if parts else "")
    needs_gpu = any(words in str(error) for words in GPU_WORDS)
    if isinstance(error, AutotuneError):
        remedy = f"a dry run has no GPU: {NO_GPU}" if needs_gpu else error.remedy
        return DryRunError(error.message, remedy=remedy, field=error.field)
    text = LINE_IN_TEXT.sub("", said(error))
    if needs_gpu:
        first, _, _ = text.partition(". ")
        at = f" ({place})" if place and place not in first else ""
        return DryRunError(f"the model needs a GPU to be built or run: {first}{at}", remedy=NO_GPU)
    if reached and not place:
        text += f" ({reached})"
    remedy = "correct that line, or the `input` and `loss` of the builder" if place else NO_LINE
    return DryRunError(f"the model's code failed, and may well fail in a real training too: {text}", remedy=remedy)


def _peculiar_to_dry_runs(error: BaseException, where: str) -> DryRunError | None:
    """The reason, where real tensors would not have raised it. `where`: the user's line."""
    if isinstance(error, UnsupportedOperatorException):
        return _without_kernel(str(error.func).removesuffix(".default").replace(".", "::", 1), where)
    for words in WITHOUT_KERNEL:
        if found := re.search(words, str(error)):
            return _without_kernel(found[1], where)
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        runs = f"runs {error.func}, the result of which"
        if READ_AS_NUMBER in str(error.func):
            runs = f"reads a tensor as a number (`if`, `while`, `.item()`: {error.func}), which"
        return DryRunError(
            f"the model {runs} depends on values that a dry run does not have{where}",
            remedy=SHAPES_ALONE,
        )
    if ".numpy() is not supported for tensor subclasses" in str(error):
        return DryRunError(
            f"the model reads values of a tensor by `.numpy()`, which a dry run does not have{where}",
            remedy=f"compute it with torch, {ELSEWHERE}",
        )
    if isinstance(error, NotImplementedError) and "meta tensor" in str(error):
        return DryRunError(
            f"the model reads values of weights that a dry run does not have{where}",
            remedy="initialize weights without reading them, or skip that where `weight.is_meta`",
        )
    return None


def _without_kernel(operator: str, where: str) -> DryRunError:
    return DryRunError(
        f"the operator {operator} has no fake kernel, which tells shapes without computing{where}",
        remedy=f'register one with `@torch.library.register_fake("{operator}")`, {ELSEWHERE}',
    )


def _root_cause(error: BaseException) -> BaseException:
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error
