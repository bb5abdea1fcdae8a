"""Passes: how the memory that depends on the data moves while a rank runs one micro-batch forward or backward.

    U micro-batch sizes    R rows of a pass: the moments that can be its fullest

A pass strings the segments of a profile together: what is before the layers, every layer, what is behind them, the loss, and the same backwards. A rank
of a pipeline runs those that its stage holds. Each segment has one row before its first operation, one for each part between marks, one for each mark,
and one behind its last operation. The memory of the weights has the same rows (`profile_script.py`), so that the two add up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.profile_templates import Sizes, Templates

Levels = NDArray[np.float64]
"""(U,)"""


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """What a rank runs of a model."""

    layers: tuple[str, ...]
    """recompute mode of each of its layers"""
    is_first: bool
    """whether it holds what is before the layers"""
    is_last: bool
    """whether it holds what is behind them, and the loss"""
    has_start: bool
    """whether it runs something before its layers: the first does, and later ones that make masks and tables of their own"""

    @property
    def is_whole(self) -> bool:
        """Whether there is no pipeline."""
        return self.is_first and self.is_last


@final
@dataclass(frozen=True, slots=True)
class PassBytes:
    """One pass of a micro-batch, in bytes above its beginning."""

    levels: NDArray[np.float64]
    """(R, U)"""
    net: NDArray[np.float64]
    """(U,): level at its end"""


@final
class _Rows:
    """Collects the rows of a pass."""

    def __init__(self, templates: Templates, sizes: Sizes) -> None:
        self._templates, self._sizes = templates, sizes
        self._rows: list[NDArray[np.float64]] = []
        self.level = np.zeros(len(sizes[0]))

    def edge(self, kind: str, later: str = "", *, keeps: bool = False) -> None:
        """One segment outside of the layers. `keeps`: without freeing the model's output."""
        known = self._templates.edges
        names = (f"kept {later}{kind}" if keeps else "", later + kind, kind)
        name = next(name for name in names if name in known)
        segment = self._templates.at(name, "", self._sizes)
        self._rows.append(self.level + segment.rows)
        self.level = self.level + segment.net

    def layers(self, kind: str, modes: Sequence[str], later: str, stays: Callable[[str], NDArray[np.float64]]) -> None:
        """All layers, one after the other; `stays`: by mode, what the first of them leaves behind beyond its net change."""
        for number, (mode, alike) in enumerate(itertools.groupby(modes)):
            known, count = self._templates.layers[mode], len(tuple(alike))
            name = later + kind if later + kind in known else kind
            segment = self._templates.at(name, mode, self._sizes)
            starts = self.level + segment.net * np.arange(count)[:, None]
            if number == 0:
                starts[1:] += stays(mode)
            rows = starts[:, None] + segment.rows
            if number == 0:
                rows[0, -1] += stays(mode)
            self._rows.append(rows.reshape(-1, len(self.level)))
            self.level = self.level + segment.net * count + (stays(mode) if number == 0 else 0.0)

    def told(self) -> PassBytes:
        """The pass."""
        return PassBytes(np.concatenate([np.zeros((0, len(self.level))), *self._rows]), self.level)


def forward_pass(
    templates: Templates, stage: Stage, sizes: Sizes, message: Levels, *, keeps: bool, again: bool
) -> PassBytes:
    """`message`: bytes of what is sent to the next stage. `keeps`: the output, until the next micro-batch has its own. `again`: such an output is there."""
    output = templates.at("output", "", sizes).net if keeps and again else np.zeros(())
    rows = _Rows(templates, sizes)
    rows.level = rows.level + output
    if stage.has_start:
        rows.edge("pre")
    # a stage keeps the buffer that it received, as many models keep their embeddings: all layers but the first lie that much higher
    kept = "entered" if stage.is_first else "carried"
    rows.layers("layer", stage.layers, "", lambda mode: templates.at(kept, mode, sizes).net)
    # what a single layer's backward pass needs lives on
    unsaved = (
        templates.at("unsaved", stage.layers[0], sizes).net
        if stage.has_start and len(set(stage.layers)) == 1
        else np.zeros(())
    )
    shed = sum((templates.at("shed", mode, sizes).net for mode in stage.layers), np.zeros(()))
    if stage.is_last:
        rows.level = (
            rows.level + templates.at("released", "", sizes).net
        )  # the input of the last layer is freed in what follows
        saves = stage.is_first and stage.layers and templates.at("saved", stage.layers[0], sizes).net.any()
        rows.edge("saved head" if saves else "head")
        rows.level = rows.level - output - unsaved
        rows.edge("loss", keeps=keeps)
    else:
        # what the next stage gets is cast to the number format of messages
        rows.level = rows.level - unsaved + message - templates.at("passed", "", sizes).net
    rows.level = rows.level - shed
    return rows.told()


def backward_pass(
    templates: Templates, stage: Stage, sizes: Sizes, message: Levels, *, keeps: bool, first: bool
) -> PassBytes:
    """`message`: bytes of the gradient that is received. `keeps`: the output, see `forward_pass`. `first`: of the step, which makes gradients; later ones add to them."""
    rows, later = _Rows(templates, sizes), "" if first else "later "
    if stage.is_last:
        rows.edge("loss_backward", later, keeps=keeps)
        rows.edge("head_backward", later, keeps=keeps)
    # a stage keeps the buffer of the gradient that it received, or casts it into one that it frees
    passed = np.zeros(()) if stage.is_last else templates.at("passed", "", sizes).net
    if not stage.is_last and (message != passed).any():
        rows.level, passed = rows.level + passed, np.zeros(())
    rows.layers("layer_backward", stage.layers[::-1], later, lambda _: passed)
    if not stage.layers:
        rows.level = rows.level + passed
    if stage.has_start:
        tables = [templates.at("tables", mode, sizes).net for mode in set(stage.layers)]
        rows.level = rows.level - np.max(tables, axis=0) if tables else rows.level
        rows.edge("end", later)
    return rows.told()
