"""Is a review right? Published pairs of a plain config and the best one that was measured beside it: does the review of the plain one name a knob that won?

    python -m tests.benchmarks.review_pairs [--least 4] [--csv FILE ...]

A pair is a cell of a published sweep (same model, GPUs, sequence, batch): of the configs that ran, the one nearest to data parallelism alone with the smallest
micro-batch, and the fastest. A review proposes among the configs that were measured, with constants that were fitted without the cell's model where there are such
(`models.held_out_constants`), else with those that ship.

    named     an edit is about a knob in which the two differ, and goes where the best one lies
    slower    the proposed config, or one edit alone, was measured slower than the plain one, or failed
    silent    nothing is proposed, though the best one is more than 5% faster
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.cost import calibration_for
from autotune.reviews.edits import Proposal, proposal
from autotune.space import SearchSpace
from autotune.space.baseline import distance_from_plain
from autotune.spec import ConfigTable, ParallelConfig, config_label
from tests.benchmarks.cells import Cell, read_cells
from tests.benchmarks.models import held_out_constants

DATA = Path(__file__).with_name("data")
FILES = (
    "nanotron_h100.csv",
    "vtrain_single_node_a100.csv",
    "vtrain_multi_node_a100.csv",
    "mosaic_llm_foundry.csv",
    "internevo_a100.csv",
    "nvidia_nemo_perf.csv",
    "megatron_published.csv",
    "alpa_osdi22_v100.csv",
    "bigscience_v100_gpt2.csv",
)
WORTH = 1.05
"""gain of the best config from which it is worth naming"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A plain config and the best one, and what the review of the plain one says."""

    cell: Cell
    plain: ParallelConfig
    best: ParallelConfig
    found: Proposal

    @property
    def gain(self) -> float:
        """Of the best config."""
        return self.cell.rows[self.plain].step_time_s / self.cell.rows[self.best].step_time_s

    @property
    def is_named(self) -> bool:
        """Whether an edit goes from the plain config toward the best."""
        return any(
            getattr(self.best, name) != old and (new > old) == (getattr(self.best, name) > old)
            if isinstance(old, int) and not isinstance(old, bool)
            else getattr(self.best, name) == new
            for edit in self.found.edits
            for name, (old, new) in edit.changes.items()
        )

    @property
    def slower(self) -> list[ParallelConfig]:
        """Proposed configs that were measured slower, or failed."""
        if self.found.together is None:
            return []
        row = self.cell.rows.get(self.found.together.config)
        mine = self.cell.rows[self.plain].step_time_s
        return [row.config] if row is not None and (row.failure or row.step_time_s > mine) else []


def pairs(files: list[Path], least: int) -> Iterator[Pair]:
    """All pairs of the files."""
    constants = held_out_constants()
    for path in files:
        for cell in read_cells(path, least=least):
            ran = [row.config for row in cell.rows.values() if row.failure is None]
            if len(ran) < 2:
                continue
            table = ConfigTable.of(ran)
            precision = ran[0].precision
            plain = ran[int(np.lexsort(distance_from_plain(table, precision))[0])]
            best = min(ran, key=lambda config: cell.rows[config].step_time_s)
            known = constants.get((cell.workload.model.name, cell.workload.trainer)) or calibration_for(cell.workload)
            space = SearchSpace.of(cell.workload, list(cell.rows))
            yield Pair(cell=cell, plain=plain, best=best, found=proposal(space, plain, known, None))


def _line(pair: Pair) -> str:
    word = "named" if pair.is_named else "silent" if not pair.found.edits else "other"
    edits = "; ".join(", ".join(f"{n} {a}->{b}" for n, (a, b) in edit.changes.items()) for edit in pair.found.edits)
    configs = f"{config_label(pair.plain)} -> {config_label(pair.best)}"
    return f"{word:7} {pair.gain:5.2f}x {pair.cell.name[:46]:46} {configs} | {edits}{'  SLOWER' if pair.slower else ''}"


def main() -> None:
    """Prints one line for each pair that is worth naming, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--least", type=int, default=4)
    parser.add_argument("--csv", type=Path, nargs="*")
    asked = parser.parse_args()
    all_pairs = []
    for pair in pairs(asked.csv or [DATA / name for name in FILES], asked.least):
        all_pairs.append(pair)
        if pair.gain >= WORTH:
            print(_line(pair), flush=True)
    worth = [pair for pair in all_pairs if pair.gain >= WORTH]
    slower = [pair for pair in all_pairs if pair.slower]
    named = sum(pair.is_named for pair in worth)
    silent = sum(not pair.found.edits for pair in worth)
    print(
        f"{len(all_pairs)} pairs, {len(worth)} of them with a best config at least {WORTH - 1:.0%} faster: named {named}, silent {silent}"
    )
    print(f"proposals that were measured slower or failed: {len(slower)}")


if __name__ == "__main__":
    main()
