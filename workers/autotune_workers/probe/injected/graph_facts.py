"""What the graph of a first backward pass says of a model: the kinds of its nodes, which attention
is causal, and which weights are projected onto.

    masks      {"causal": nodes of attention in which no token sees a later one, "full": others}
    matrices   shapes of the matrices that are trained, and whether something other than a lookup reads them: of an embedding that is the head over its vocabulary

A mask is looked at where it is kept for the backward pass: the flag or the mask of a kernel, else
the probabilities of a softmax. In compiled code, and where what is kept is packed (checkpointing,
offloading), nothing is known.
"""

from __future__ import annotations

from typing import Any

MOST_NODES = 20_000
"""nodes of a backward graph that are looked at"""
MOST_MASKS = 64
"""of them those whose mask is looked at"""
BLOCKED = -9e3
"""a number that is added to what must not be seen is this or less"""
_SOFTMAX = ("SoftmaxBackward0", "SafeSoftmaxBackward0")
_LOOKUPS = ("Embedding", "Index", "Slice", "Select", "Gather")


class Graph:
    """What was read of a graph."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """kinds of its nodes; empty: none was read"""
        self.masks = {"causal": 0, "full": 0}
        self.matrices: dict[tuple[int, ...], bool] = {}

    def read(self, tensors: Any) -> None:
        """Reads the graph of these tensors."""
        if not isinstance(tensors, (list, tuple)):
            tensors = [tensors]
        todo = [
            tensor.grad_fn for tensor in tensors if getattr(tensor, "grad_fn", None) is not None
        ]
        known, names = set(todo), set()
        while todo and len(known) < MOST_NODES:
            node = todo.pop()
            names.add(node.name())
            self._look_at(node)
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

    def _look_at(self, node: Any) -> None:
        if sum(self.masks.values()) >= MOST_MASKS:
            return
        try:
            is_causal = _is_causal(node)
        except Exception:  # another release, whose nodes keep it otherwise
            return
        if is_causal is not None:
            self.masks["causal" if is_causal else "full"] += 1


def _is_causal(node: Any) -> bool | None:
    """Whether a node of attention hides later tokens; None for other nodes, and where it cannot be
    seen."""
    own = getattr(node, "causal", None)
    if isinstance(own, bool):  # of flash_attn's own function
        return own
    if node.name() in _SOFTMAX:
        seen = _kept(node, "result")
        return None if seen is None else _hides(seen != 0)
    flag = getattr(node, "_saved_is_causal", None)
    if flag is None or flag:
        return flag
    for name in ("attn_mask", "attn_bias"):
        mask = _kept(node, name) if hasattr(node, f"_raw_saved_{name}") else None
        if mask is not None:
            return _hides(mask if str(mask.dtype) == "torch.bool" else mask > BLOCKED)
    return False  # without a mask all is seen


def _kept(node: Any, name: str) -> Any:
    """What the node keeps, without having it unpacked; None where there is nothing. Raises
    `RuntimeError` where others pack it."""
    found: list[Any] = []

    def pack(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    try:
        getattr(node, f"_raw_saved_{name}").register_hooks(pack, lambda tensor: tensor)
    except RuntimeError as error:
        if "None" not in str(error):
            raise
    return found[0].detach() if found else None


def _hides(open_to: Any) -> bool | None:
    """Whether no token is open to a later one; None where it is not said of tokens by tokens. A
    token that is open to all is padding, or the last one."""
    if open_to.dim() < 2 or open_to.shape[-1] != open_to.shape[-2] or open_to.shape[-1] < 2:
        return None
    while open_to.dim() > 2:
        open_to = open_to[0]
    real = open_to[~open_to.all(-1)]
    later = open_to.triu(1)[~open_to.all(-1)]
    return bool(len(real)) and not bool(later.any())
