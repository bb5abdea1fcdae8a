"""Counts calls of the outermost modules between two optimizer steps, and their numbers of
sequences.

counted        calls whose results get gradients; if no result shows that, all calls that may train
not counted    calls that train nothing (a frozen teacher), and calls on the same tensor as an earlier call of the step, by optimizers that evaluate
               the loss several times (LBFGS, SAM). Data that is the same in every step is counted in each
sequences      leading dimension of a two-dimensional integer tensor if there is one, else of the first tensor; the second dimension in a module
               with `batch_first=False`. Unknown if no other tensor of the input matches it, as with the edges of a graph
micro-batch    several calls before one backward pass, as of two towers, are one
"""

from __future__ import annotations

import weakref

from . import model_facts

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds that a program may not spend
    from collections.abc import Iterable, Iterator
    from typing import Any

MOST_ROOTS, MOST_PARTS, DEEPEST = 256, 16, 3


class Count:
    """Number of calls of a module in a step, with their sequences and tokens."""

    __slots__ = ("calls", "sequences", "tokens")

    def __init__(self) -> None:
        self.calls = self.sequences = self.tokens = 0

    def add(self, call: Call) -> None:
        """Adds a call."""
        self.calls += 1
        self.sequences += call.sequences
        self.tokens += call.tokens


class Root:
    """A module that the program calls directly."""

    def __init__(self, module: Any) -> None:
        self.ref = weakref.ref(module)
        self.parameters = model_facts.parameter_count(module)
        self.is_frozen = model_facts.is_frozen(module)
        self.has_length_first = False
        self._now: dict[int, tuple[Any, int]] = {}
        self.step_ends()

    def step_ends(self) -> None:
        """Resets the counts for a new step."""
        self.made, self.used = Count(), Count()
        """all calls that may train, and those whose results got a gradient"""
        self._calls_before, self._now = self._now, {}

    def has_had(self, tensor: Any) -> bool:
        """Whether an earlier call of this step had this same tensor, and none of the previous step
        had."""
        if tensor.is_inference():
            return False
        version = tensor._version
        had, had_before = (
            known is not None and known[0]() is tensor and known[1] == version
            for known in (self._now.get(id(tensor)), self._calls_before.get(id(tensor)))
        )
        self._now[id(tensor)] = weakref.ref(tensor), version
        return had and not had_before


class Call:
    """A call of such a module with gradients enabled."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.tensor: Any = None
        """the tensor that shows the batch size; None if not found"""
        self.is_open = True
        """whether an inner module's input may still show the size"""
        self.tokens = 0
        self._is_used = False

    @property
    def sequences(self) -> int:
        """Number of sequences; 0 if unknown."""
        return 0 if self.tensor is None else int(self.tensor.shape[self.root.has_length_first])

    def look(self, torch: Any, module: Any, args: Any) -> None:
        """Reads the size from the input of the module or of an inner one."""
        if self.is_open:
            self.tensor, self.is_open = sizing(torch, args)
            if self.tensor is not None and _are_tokens(torch, self.tensor):
                self.tokens = int(self.tensor.numel())
        if self.tensor is not None and getattr(module, "batch_first", None) is False:
            first = args[0] if args else None
            if isinstance(first, torch.Tensor) and first.shape[:2] == self.tensor.shape[:2]:
                self.root.has_length_first = True

    def ends(self, torch: Any, result: Any) -> None:
        """Call when it returns: it is counted now, or once its result gets a gradient. `result`:
        None if it raised."""
        if result is None:
            return
        results = [t for t in tensors(torch, result) if t.is_floating_point() or t.is_complex()]
        trained = [tensor for tensor in results if tensor.requires_grad]
        if (results and not trained) or (
            self.tensor is not None and self.root.has_had(self.tensor)
        ):
            return
        self.root.made.add(self)
        for tensor in trained:
            tensor.register_hook(self._gets_gradient)
        if not trained:
            self._gets_gradient()

    def _gets_gradient(self, gradient: Any = None) -> None:
        if not self._is_used:
            self._is_used = True
            self.root.used.add(self)


def tensors(torch: Any, value: Any, depth: int = 0) -> Iterator[Any]:
    """Yields the tensors in an argument or a result, up to limits of size and depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < DEEPEST:
        if hasattr(value, "keys") and hasattr(value, "__getitem__"):
            value = [value[name] for name in list(value.keys())[:MOST_PARTS]]
        elif hasattr(value, "__dataclass_fields__"):
            value = list(vars(value).values()) if hasattr(value, "__dict__") else ()
        for part in value[:MOST_PARTS] if isinstance(value, (list, tuple)) else ():
            yield from tensors(torch, part, depth + 1)


def sizing(torch: Any, value: Any) -> tuple[Any, bool]:
    """(tensor that shows the size of an input or None, whether another module's input may show
    it)."""
    found = list(tensors(torch, value))
    large = [tensor for tensor in found if tensor.dim() >= 2]
    tokens = next((tensor for tensor in large if _are_tokens(torch, tensor)), None)
    if tokens is None:
        return (large[0], False) if large else (None, True)
    others = [tensor.shape[0] for tensor in found if tensor is not tokens and tensor.dim()]
    fits = tokens.shape[0] == 1 or not others or any(n in (1, *tokens.shape) for n in others)
    return tokens if fits else None, False


def _are_tokens(torch: Any, tensor: Any) -> bool:
    is_number = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
    return tensor.dim() == 2 and not is_number


def counted(
    roots: Iterable[Root], *, backwards: int, loaded: int, takes_turns: bool
) -> tuple[int, list[int], int | None]:
    """(micro-batches, possible numbers of sequences with the most likely first, tokens or None)
    since the last step. `loaded`: number of samples from data loaders. `takes_turns`: whether other
    optimizers stepped meanwhile, each of which may have used the same sequences."""
    roots = list(roots)
    counts = [(_training_priority(root), root.used) for root in roots if root.used.calls]
    counts = counts or [(_training_priority(root), root.made) for root in roots if root.made.calls]
    if not counts:
        return backwards, [loaded] if loaded else [], None
    main = max(counts, key=lambda each: each[0])[1]
    sequences: list[int] = []
    for count in sorted((count for _, count in counts), key=lambda count: count is not main):
        if count.sequences:
            is_multiple = backwards and count.calls % backwards == 0
            sequences += [count.sequences * backwards // count.calls] if is_multiple else []
            sequences.append(count.sequences)
            sequences += [count.sequences // count.calls] if takes_turns else []
    if loaded in sequences:
        sequences.insert(0, loaded)
    tokens_found = (
        count.tokens for _, count in counts if count.tokens and count.calls == main.calls
    )
    micro = backwards if backwards and main.calls % backwards == 0 else main.calls
    return micro, list(dict.fromkeys(sequences)), next(tokens_found, None)


def _training_priority(root: Root) -> tuple[bool, int]:
    """Sort key for the trained module: not frozen, then the most parameters. A frozen one that
    computes a loss may be larger."""
    return not root.is_frozen, root.parameters
