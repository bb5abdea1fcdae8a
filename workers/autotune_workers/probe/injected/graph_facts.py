"""Reads facts about a model from the autograd graph of its first backward pass: kinds of nodes,
causal attention, and the weights used in projections.

    masks      {"causal": number of attention nodes with a causal mask, "full": others}
    matrices   shapes of trained matrices, each with whether it is used other than for lookups; for an embedding that use is the head over its vocabulary

A mask is read from what is saved for the backward pass: a kernel's flag or mask, else the
probabilities of a softmax. In compiled code, and if saved tensors are packed (checkpointing,
offloading), it is unknown.
"""

from __future__ import annotations

from typing import Any

MOST_NODES = 20_000
"""largest number of nodes read from a backward graph"""
MOST_MASKS = 64
"""largest number of masks that are read"""
BLOCKED = -9e3
"""additive mask values at or below this hide a token"""
_SOFTMAX = ("SoftmaxBackward0", "SafeSoftmaxBackward0")
_LOOKUPS = ("Embedding", "Index", "Slice", "Select", "Gather")


class Graph:
    """Facts read from a graph."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """names of its nodes' kinds; empty if no graph was read"""
        self.masks = {"causal": 0, "full": 0}
        self.matrices: dict[tuple[int, ...], bool] = {}

    def read(self, tensors: Any) -> None:
        """Reads the graph of a tensor or of several."""
        if not isinstance(tensors, (list, tuple)):
            tensors = [tensors]
        todo = [
            tensor.grad_fn for tensor in tensors if getattr(tensor, "grad_fn", None) is not None
        ]
        known, names = set(todo), set()
        while todo and len(known) < MOST_NODES:
            node = todo.pop()
            names.add(node.name())
            self._read_mask(node)
            for following, _ in node.next_functions:
                weight = getattr(following, "variable", None)
                if weight is not None and weight.dim() == 2:
                    shape = tuple(map(int, weight.shape))
                    is_read = not str(node.name()).startswith(_LOOKUPS)
                    self.matrices[shape] = self.matrices.get(shape, False) or is_read
                if following is not None and following not in known:
                    known.add(following)
                    todo.append(following)
        self.names = sorted(names)[:200] or ["none"]

    def _read_mask(self, node: Any) -> None:
        if sum(self.masks.values()) >= MOST_MASKS:
            return
        try:
            is_causal = _is_causal(node)
        except Exception:  # another release of torch, with other attributes
            return
        if is_causal is not None:
            self.masks["causal" if is_causal else "full"] += 1


def _is_causal(node: Any) -> bool | None:
    """Whether an attention node hides later tokens; None for other nodes, and if unknown."""
    flag_of_flash_attn = getattr(node, "causal", None)
    if isinstance(flag_of_flash_attn, bool):  # flash_attn's function
        return flag_of_flash_attn
    if node.name() in _SOFTMAX:
        probabilities = _saved(node, "result")
        return None if probabilities is None else _hides(probabilities != 0)
    flag = getattr(node, "_saved_is_causal", None)
    if flag is None or flag:
        return flag
    for name in ("attn_mask", "attn_bias"):
        mask = _saved(node, name) if hasattr(node, f"_raw_saved_{name}") else None
        if mask is not None:
            return _hides(mask if str(mask.dtype) == "torch.bool" else mask > BLOCKED)
    return False  # no mask


def _saved(node: Any, name: str) -> Any:
    """The tensor that the node saved, without unpacking it; None if there is none. Raises
    `RuntimeError` if it is packed by others."""
    saved: list[Any] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor)
        return tensor

    try:
        getattr(node, f"_raw_saved_{name}").register_hooks(pack, lambda tensor: tensor)
    except RuntimeError as error:
        if "None" not in str(error):
            raise
    return saved[0].detach() if saved else None


def _hides(open_to: Any) -> bool | None:
    """Whether no token can see a later one; None if the mask is not square. Rows in which every
    token is visible are padding or the last token, and are ignored."""
    if open_to.dim() < 2 or open_to.shape[-1] != open_to.shape[-2] or open_to.shape[-1] < 2:
        return None
    while open_to.dim() > 2:
        open_to = open_to[0]
    real = open_to[~open_to.all(-1)]
    later = open_to.triu(1)[~open_to.all(-1)]
    return bool(len(real)) and not bool(later.any())
