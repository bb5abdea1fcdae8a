"""Calls of the outermost modules between two optimizer steps: which of them count, and how many
sequences they were given.

counts         a call whose result gets a gradient; where no result tells, each call that may
counts not     one that trains nothing (a frozen teacher), and one on the very tensor of a call before it in the step, as optimizers make that look at
               their loss several times (LBFGS, SAM). Data that stays the same from step to step counts each time
sequences      leading dimension of an integer tensor of two dimensions where there is one, else of the first tensor; the second dimension in a module
               that hands it on as such (`batch_first`). Nothing where no other tensor of the input fits it, as with the edges of a graph
micro-batch    several calls before each backward pass, as of two towers, are one
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
    """Calls of one module, in a step."""

    __slots__ = ("calls", "sequences", "tokens")

    def __init__(self) -> None:
        self.calls = self.sequences = self.tokens = 0

    def add(self, call: Call) -> None:
        """One more."""
        self.calls += 1
        self.sequences += call.sequences
        self.tokens += call.tokens


class Root:
    """A module that the program calls itself."""

    def __init__(self, module: Any) -> None:
        self.ref = weakref.ref(module)
        self.parameters = model_facts.parameter_count(module)
        self.is_frozen = model_facts.is_frozen(module)
        self.has_length_first = False
        self._now: dict[int, tuple[Any, int]] = {}
        self.step_ends()

    def step_ends(self) -> None:
        """A new step begins."""
        self.made, self.used = Count(), Count()
        """calls, and those whose results got a gradient"""
        self._before, self._now = self._now, {}

    def has_had(self, tensor: Any) -> bool:
        """Whether a call of this step was given this very tensor, which none of the step before
        was."""
        if tensor.is_inference():
            return False
        version = tensor._version
        had, had_before = (
            known is not None and known[0]() is tensor and known[1] == version
            for known in (self._now.get(id(tensor)), self._before.get(id(tensor)))
        )
        self._now[id(tensor)] = weakref.ref(tensor), version
        return had and not had_before


class Call:
    """A call of such a module with gradients."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.tensor: Any = None
        """the one that tells its size"""
        self.is_open = True
        """whether that may still be found further inside"""
        self.tokens = 0
        self._is_used = False

    @property
    def sequences(self) -> int:
        """How many it was given; 0: not known."""
        return 0 if self.tensor is None else int(self.tensor.shape[self.root.has_length_first])

    def look(self, torch: Any, module: Any, args: Any) -> None:
        """Looks at the input of a module, itself or further inside."""
        if self.is_open:
            self.tensor, self.is_open = sizing(torch, args)
            if self.tensor is not None and _are_tokens(torch, self.tensor):
                self.tokens = int(self.tensor.numel())
        if self.tensor is not None and getattr(module, "batch_first", None) is False:
            first = args[0] if args else None
            if isinstance(first, torch.Tensor) and first.shape[:2] == self.tensor.shape[:2]:
                self.root.has_length_first = True

    def ends(self, torch: Any, result: Any) -> None:
        """It is done: it counts now, or once its result gets a gradient. None: it has failed."""
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
    """The tensors in an argument or a result, the first ones."""
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
    """The tensor that tells the size of an input, if any, and whether another input may tell it."""
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
    """Micro-batches, possible numbers of sequences (the likeliest first) and tokens since the last
    step. `loaded`: samples that data loaders gave; `takes_turns`: other optimizers have stepped in
    it, each of which may have computed on the same sequences."""
    roots = list(roots)
    counts = [(_weight(root), root.used) for root in roots if root.used.calls]
    counts = counts or [(_weight(root), root.made) for root in roots if root.made.calls]
    if not counts:
        return backwards, [loaded] if loaded else [], None
    main = max(counts, key=lambda each: each[0])[1]
    sequences: list[int] = []
    for count in sorted((count for _, count in counts), key=lambda count: count is not main):
        if count.sequences:
            several = backwards and count.calls % backwards == 0
            sequences += [count.sequences * backwards // count.calls] if several else []
            sequences.append(count.sequences)
            sequences += [count.sequences // count.calls] if takes_turns else []
    if loaded in sequences:
        sequences.insert(0, loaded)
    is_told = (count.tokens for _, count in counts if count.tokens and count.calls == main.calls)
    micro = backwards if backwards and main.calls % backwards == 0 else main.calls
    return micro, list(dict.fromkeys(sequences)), next(is_told, None)


def _weight(root: Root) -> tuple[bool, int]:
    """What makes it the one that is trained: another may be larger, as one that computes a loss."""
    return not root.is_frozen, root.parameters
