"""What one knob gains, measured and predicted: published runs that differ in that knob alone, so
that the level of their source cancels out.

    python -m research.knob_gains [--least 1]

The rows are those that nothing was fitted to (batches of `published/unseen.py`). Two runs of a
source make a pair if model, cluster, software, sequence length, GPUs and batch are the same, and
all knobs but one. `--least`: only changes that so many sources measured. Where one change has
several pairs, medians over a source's pairs, then over the sources.

    measured, predicted   how much longer a step takes after the change
    error                 measured over predicted, less 1
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.cost import calibration_for
from autotune.spec import ParallelConfig
from research.held_out import Judged, judged
from research.unseen import unread_of
from tests.benchmarks.published.unseen import BATCHES, unseen


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A knob and its values before and after."""

    knob: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs of one source: logarithms of how much longer the second one's step was, and was
    predicted to be."""

    source: str
    change: Change
    measured: float
    predicted: float


def pairs_of(source: str, rows: Judged) -> Iterator[Pair]:
    """All pairs of a source's rows that differ in one knob."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i in range(len(rows.error)):
        where = (rows.where[i], rows.model[i], rows.seq_len[i], rows.gpus[i], rows.study[i])
        groups[where].append(i)
    for members in groups.values():
        knobs = {i: ParallelConfig.parse(rows.config[i]).to_dict() for i in members}
        for one, other in itertools.combinations(members, 2):
            differ = [k for k in knobs[one] if knobs[one][k] != knobs[other].get(k)]
            if len(differ) != 1:
                continue
            values = {i: str(knobs[i][differ[0]]) for i in (one, other)}
            first, second = sorted((one, other), key=lambda i: (len(values[i]), values[i]))
            longer = np.log(rows.measured_s[second] / rows.measured_s[first])
            change = Change(differ[0], values[first], values[second])
            yield Pair(source, change, longer, longer - (rows.error[second] - rows.error[first]))


def _row(change: Change, pairs: Sequence[Pair]) -> str:
    by_source: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for pair in pairs:
        by_source[pair.source].append((pair.measured, pair.predicted))
    medians = [np.median(np.array(found), axis=0) for found in by_source.values()]
    measured, predicted = np.median(np.array(medians), axis=0)
    figures = (measured, predicted, measured - predicted)
    cells = (
        change.knob,
        f"{change.before} to {change.after}",
        str(len(by_source)),
        str(len(pairs)),
        *(f"{np.expm1(figure):+.0%}" for figure in figures),
    )
    return "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--least", type=int, default=1, help="sources that a change needs")
    least = parser.parse_args(arguments).least
    found: dict[Change, list[Pair]] = defaultdict(list)
    for batch in BATCHES:
        for name, blocks in unseen("none", batch).items():
            timed = [b for b in blocks if np.isfinite(b.step_time_s).any()]
            if not timed:
                continue
            folds = [(b, calibration_for(b.workload, known=unread_of(name))) for b in timed]
            for pair in pairs_of(name, judged(folds, with_sensitivity=False)):
                found[pair.change].append(pair)
    print("| knob | from and to | sources | pairs | measured | predicted | error |")
    print("|---|---|---|---|---|---|---|")
    for change, pairs in sorted(found.items()):
        if len({pair.source for pair in pairs}) >= least:
            print(_row(change, pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
