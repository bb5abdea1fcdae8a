"""Whole numbers and truth values that decide control flow, carried beside the fake tensors that
have none.

A value belongs to a storage, so that views need no care: it is one number for the whole storage, or
the numbers themselves. Whatever is computed of carried values alone is carried too, as long as it
is small; what is written over with unknown values is forgotten.

What follows from the values of the inputs is marked: no real training has inputs of those values.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from autotune_workers.dryrun.torch_private import FakeTensor, real_tensors, storage_id

LARGEST = 1 << 22
"""elements of a tensor whose values are carried"""


class CarriedValues:
    """The known values of fake tensors."""

    def __init__(self) -> None:
        self._known: dict[int, Tensor] = {}
        """by storage: one element for all, or all elements in the storage's order"""
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._of_inputs: set[int] = set()
        """storages whose values follow from those of the inputs"""

    def of(self, tensor: Tensor) -> Tensor | None:
        """The values of a tensor; None where they are not known. Real tensors have their own."""
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
        """The one value of all elements, however many; None where it is not known or there are
        several."""
        known = self._known.get(storage_id(tensor)) if isinstance(tensor, FakeTensor) else None
        return (
            known
            if known is not None and known.dim() == 0 and known.dtype == tensor.dtype
            else None
        )

    def set_constant(self, tensor: Tensor, value: Any) -> None:
        """All elements of a tensor that has just been made are this."""
        with real_tensors():
            self._keep(tensor, torch.tensor(value, dtype=tensor.dtype))

    def set(self, tensor: Tensor, values: Tensor) -> None:
        """The elements of a tensor that has just been made, or been written over, are these."""
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
        """As `of`, for an operation that writes into it."""
        if (constant := self.constant(tensor)) is not None:
            with real_tensors():
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                if size > LARGEST:
                    return None
                self._known[storage_id(tensor)] = constant.expand(size).clone()
        return self.of(tensor)

    def forget(self, tensor: Tensor) -> None:
        """Unknown values were written into its storage."""
        self._known.pop(storage_id(tensor), None)
        self._of_inputs.discard(storage_id(tensor))

    def mark_of_inputs(self, tensor: Tensor) -> None:
        """Its values, where they are known, follow from those of the inputs."""
        if tensor in self:
            self._of_inputs.add(storage_id(tensor))

    def is_of_inputs(self, tensor: Tensor) -> bool:
        """Whether its values follow from those of the inputs."""
        return isinstance(tensor, FakeTensor) and storage_id(tensor) in self._of_inputs

    def __contains__(self, tensor: Tensor) -> bool:
        return storage_id(tensor) in self._known

    def _keep(self, tensor: Tensor, known: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._known[key] = known
        if key in self._watched and self._watched[key]() is storage:
            return
        watched = self._watched

        def gone(reference: Any) -> None:
            if watched.get(key) is reference:
                del watched[key]
                self._known.pop(key, None)
                self._of_inputs.discard(key)

        watched[key] = weakref.ref(storage, gone)
