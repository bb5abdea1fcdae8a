"""A dispatch mode that records memory, communication and arithmetic of every operation of a rank.

It works on real and on fake tensors, so that a dry run can be compared with a real one. Operations
on wrappers (DTensor) are not recorded, but the operations on local tensors that they run are. What
DTensor runs on global shapes to determine the sharding of a result is ignored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from autotune_workers.dryrun import torch_patches, torch_private
from autotune_workers.dryrun.memory_ledger import MemoryLedger
from autotune_workers.dryrun.position import Position
from autotune_workers.dryrun.work_log import (
    FORMULAS,
    CollectiveLog,
    WorkLog,
    operation_of,
    tensors_in,
)
from autotune_workers.probe.injected.profile import OPTIMIZER

GRADIENT_AXES = ("dp_cp", "expert_data")
"""prefixes of the mesh axes over which gradients are summed"""


@final
class RankWatch(torch_private.TorchDispatchMode):
    """Observes one rank during two optimizer steps."""

    def __init__(
        self, axes: Mapping[tuple[int, ...], str], answer: Callable[..., Any] | None = None
    ) -> None:
        """`axes`: names of mesh axes by the ranks of their group. `answer`: runs operations instead
        of torch; None: torch runs them."""
        super().__init__()
        self.axes = axes
        self._answer = answer
        self.position = Position()
        self.memory = MemoryLedger(self.position)
        self.collectives = CollectiveLog()
        self.work = WorkLog()
        self.saved_bytes: dict[str, int] = {}
        """bytes of activations that the first micro-batch of the current step saves for its
        backward pass, by module"""
        self._propagating = 0
        self._wrappers: dict[type, bool] = {}
        self._kinds: dict[Any, str] = {}
        self._before: dict[str, int] = {}
        self.position.entering = self._module_begins
        self.position.leaving = self._module_ends
        self.position.backward_begins = self._backward_begins

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block, operations are recorded."""
        handle = register_optimizer_step_post_hook(self._mark_optimizer)
        try:
            with (
                torch_patches.sharding_propagation(
                    self._propagation_begins, self._propagation_ends
                ),
                torch_patches.storage_resizes(self.memory.resized),
                torch_patches.gathered_weights(self._watch_gradient),
                torch_patches.accumulated_gradients(
                    lambda gradient: self.memory.mark(gradient, "gradients")
                ),
                torch_patches.unwatched_biases(),
                torch_patches.pipeline_chunks(self.position.begin_chunk),
                self,
            ):
                yield
        finally:
            handle.remove()

    def begin_step(self, step: int) -> None:
        """An optimizer step begins: discards the records of the previous step, except for phase
        peaks."""
        self.position.begin_step(step)
        self.memory.begin_step()
        self.collectives, self.work, self.saved_bytes = CollectiveLog(), WorkLog(), {}

    def mark_model(self, stages: Iterable[nn.Module], updated: Iterable[Tensor]) -> None:
        """Records which tensors belong to the newly built model, and follows its modules.
        `updated`: the tensors that the optimizer updates."""
        for tensor in updated:
            self.memory.mark(tensor, "parameters")
        for stage in stages:
            for name, module in stage.named_modules():
                for parameter in module.parameters(recurse=False):
                    self.memory.mark(parameter.detach(), "parameters", name)
                    if parameter.requires_grad:
                        self._watch_gradient(parameter)
                for buffer in module.buffers(recurse=False):
                    self.memory.mark(buffer, "buffers", name)
            self.position.follow(stage.named_modules())
        self.memory.mark_rest("buffers")

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """See `TorchDispatchMode`."""
        if func is torch_private.DEVICE and isinstance(args[0], torch_private.FakeTensor):
            return args[0].fake_device  # shortcut: called several times for each operation
        kwargs = kwargs or {}
        for kind in types:
            if self._is_wrapper(kind):
                return NotImplemented
        if self._propagating:
            return func(*args, **kwargs)
        if func is torch_private.RANGE_BEGINS and args[0] == OPTIMIZER:
            self.position.begin_optimizer()
            self.memory.look()
        out = (
            func(*args, **kwargs)
            if self._answer is None
            else self._answer(func, types, args, kwargs)
        )
        self._note(func, args, kwargs, out)
        return out

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind_of(func)
        if func.is_view:
            return  # no new memory
        if isinstance(out, Tensor):
            if not self._is_wrapper(type(out)):
                self.memory.note(out)
        elif out is not None:
            for tensor in tensors_in(out):
                self.memory.note(tensor)
        if not kind:
            return
        if kind == "work":
            self.work.note(func, args, kwargs, out, (self.position.module, self.position.phase))
        elif kind == "collective":
            self._note_collective(func, args, out)
        elif kind == "gather":
            for tensor in (*tensors_in(args), *tensors_in(list(kwargs.values())), *tensors_in(out)):
                self.memory.mark_passing(tensor, "communication")
        elif kind == "resize":
            self.memory.resized(args[0].untyped_storage())

    def _note_collective(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        operation, ranks, _ = self.collectives.note(func, args, out, self.position.phase)
        is_sum = operation.kind in ("reduce_scatter", "all_reduce")
        sums_gradients = (
            is_sum
            and self.axes.get(ranks, "").startswith(GRADIENT_AXES)
            and func.namespace == "c10d"
        )
        for index, tensor in enumerate((*tensors_in(args), *tensors_in(out))):
            is_result = index == 0
            self.memory.mark_passing(
                tensor, "gradients" if sums_gradients and is_result else "communication"
            )

    def _is_wrapper(self, kind: type) -> bool:
        known = self._wrappers.get(kind)
        if known is None:
            known = self._wrappers[kind] = torch_private.is_wrapper(kind)
        return known

    def _propagation_begins(self) -> None:
        self._propagating += 1

    def _propagation_ends(self) -> None:
        self._propagating -= 1

    def _module_begins(self, name: str) -> None:
        if self._is_first_forward and self.position.is_outermost:
            self._before = self.memory.activations_by_module()
        self.memory.module_begins(name)

    def _module_ends(self, name: str) -> None:
        self.memory.module_ends(name)
        if self._is_first_forward and self.position.is_outermost:
            self._note_saved()

    def _backward_begins(self) -> None:
        self.memory.forward_ends()
        if self.position.micro_batch == 0:
            self._note_saved(only="")

    @property
    def _is_first_forward(self) -> bool:
        return self.position.micro_batch == 0 and torch_private.backward_pass() == -1

    def _note_saved(self, only: str | None = None) -> None:
        """Records the activations saved by a stage that has run on the first micro-batch. `only`:
        the module to record (empty: outside of modules, such as the loss); None: all."""
        for name, size in self.memory.activations_by_module().items():
            if only in (None, name) and size > self._before.get(name, 0):
                self.saved_bytes[name] = size - self._before.get(name, 0)

    def _watch_gradient(self, parameter: Tensor) -> None:
        def mark(weight: Tensor) -> None:
            self.memory.mark(weight.grad, "gradients")

        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(mark)

    def _mark_optimizer(self, optimizer: Any, *_: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    self.memory.mark(value, "optimizer")


def _kind_of(func: Any) -> str:
    """What to record of an operation besides its memory: "collective", "work", "gather", "resize";
    empty for nothing."""
    if operation_of(func) is not None:
        return "collective"
    if func._overloadpacket in FORMULAS:
        return "work"
    if func.namespace == "fsdp":
        return "gather"
    return "resize" if func._opname in ("resize_", "set_") else ""
