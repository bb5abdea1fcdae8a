"""Known integer and boolean values of fake tensors, needed where values decide control flow.

Values are recorded per storage, so that views share them: one number for the whole storage, or one
per element. Results computed from known values alone are recorded too if they are small; storages
overwritten with unknown values are removed.

Values derived from the inputs are marked, because no real training has these (zero) inputs.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from autotune_workers.dryrun.torch_private import FakeTensor, real_tensors, storage_id

LARGEST = 1 << 22
"""maximum number of elements of a tensor whose values are recorded one by one"""


class CarriedValues:
    """The known values of fake tensors."""

    def __init__(self) -> None:
        self._known: dict[int, Tensor] = {}
        """by storage id: a scalar for all elements, or all elements in the order of the storage"""
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._from_inputs: set[int] = set()
        """ids of storages whose values were derived from the inputs"""

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of a tensor; None if unknown. A real tensor is returned as it is."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        known = self._known.get(storage_id(tensor))
        if known is None or known.dtype != tensor.dtype or tensor.numel() > LARGEST:
            return None
        with real_tensors():
            if known.dim() == 0:
                return known.expand(tensor.shape)
            return known.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def constant(self, tensor: Tensor) -> Tensor | None:
        """The common value of all elements as a scalar tensor; None if unknown or not the same for
        all."""
        known = self._known.get(storage_id(tensor)) if isinstance(tensor, FakeTensor) else None
        if known is None or known.dim() != 0 or known.dtype != tensor.dtype:
            return None
        return known

    def set_constant(self, tensor: Tensor, value: Any) -> None:
        """Records one value for all elements of a new tensor."""
        with real_tensors():
            self._keep(tensor, torch.tensor(value, dtype=tensor.dtype))

    def set(self, tensor: Tensor, values: Tensor) -> None:
        """Records the elements of a new or overwritten tensor; forgets them if there are too many
        or shape or dtype differ."""
        if tensor.numel() > LARGEST or values.dtype != tensor.dtype or values.shape != tensor.shape:
            self.forget(tensor)
            return
        storage = tensor.untyped_storage()
        with real_tensors():
            flat = self._known.get(storage._cdata)
            if flat is None or flat.dim() == 0:
                flat = torch.zeros(storage.nbytes() // tensor.element_size(), dtype=tensor.dtype)
            flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(values)
        self._keep(tensor, flat)

    def writable(self, tensor: Tensor) -> Tensor | None:
        """Like `of`, for an operation that writes into the result: a constant is expanded to one
        value per element first."""
        if (constant := self.constant(tensor)) is not None:
            with real_tensors():
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                if size > LARGEST:
                    return None
                self._known[storage_id(tensor)] = constant.expand(size).clone()
        return self.of(tensor)

    def forget(self, tensor: Tensor) -> None:
        """Removes the values of the tensor's storage, into which unknown values were written."""
        self._known.pop(storage_id(tensor), None)
        self._from_inputs.discard(storage_id(tensor))

    def mark_from_inputs(self, tensor: Tensor) -> None:
        """Marks the tensor's values, if known, as derived from the inputs."""
        if tensor in self:
            self._from_inputs.add(storage_id(tensor))

    def is_from_inputs(self, tensor: Tensor) -> bool:
        """Whether the tensor's values are derived from the inputs."""
        return isinstance(tensor, FakeTensor) and storage_id(tensor) in self._from_inputs

    def __contains__(self, tensor: Tensor) -> bool:
        return storage_id(tensor) in self._known

    def _keep(self, tensor: Tensor, known: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._known[key] = known
        if key in self._watched and self._watched[key]() is storage:
            return
        watched = self._watched

        def remove(reference: Any) -> None:
            if watched.get(key) is reference:
                del watched[key]
                self._known.pop(key, None)
                self._from_inputs.discard(key)

        watched[key] = weakref.ref(storage, remove)
