"""The cost model on published runs that it never saw: other clusters, trainers, models and GPUs
than those that anything was fitted to.

    python -m research.unseen             a line for every source, and the worst rows
    python -m research.unseen --rows      every row
    python -m research.unseen --batch 2   another batch of sources, of four

Rows: `published/unseen.py`. Each is predicted by the constants that ship, for a preset of its GPU
and a trainer as its user would name it; the level of unread trainers, to which these sources
contribute, is that of the other files and sources.

    median, p90, bias   of |predicted / measured - 1|, and the median of measured / predicted - 1
    inside              share of rows in the 90% interval before any trial
    after one           the same median and share for the other rows of a cluster and software, after one trial of it (each row in turn)
    ran, called         rows that ran, and those of them with P(OOM) > 0.5; a row that does not print its recomputation is judged by the one that fits better
    failed, called      rows that ran out of memory
    reserved, allocated   median of predicted over printed peak less 1, where the source prints the one (or does not say which) or the other
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from autotune.cost import Calibration, calibration_for
from autotune.cost.calibration import refit_values
from autotune.cost.learn.refit import uncertain
from autotune.cost.learn.uncertainty import Z90
from research import fit_memory
from research.held_out import FREE, Judged, judged
from research.study_trials import errors_after
from research.unread_level import without
from tests.benchmarks.accuracy_page import CONSTANTS
from tests.benchmarks.published import Block
from tests.benchmarks.published.unseen import BATCHES, unseen

WORST = 15
"""rows that are shown without `--rows`"""
HEADER = (
    "source", "rows", "median", "p90", "bias", "inside", "after one", "inside", "ran", "called", "failed", "called", "reserved", "allocated",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was found over the rows of one source."""

    name: str
    timed: Judged | None
    """its rows that print a speed; None where none does"""
    left: np.ndarray
    """log(measured / predicted) of rows after one trial of their cluster and software"""
    left_inside: np.ndarray
    memory: fit_memory.Judged
    peaks: tuple[np.ndarray, np.ndarray]
    """log(predicted / printed) of reserved and of allocated memory"""

    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        memory, ran = self.memory, self.memory.probability[~self.memory.failed]
        failed = memory.probability[memory.failed]
        called = (
            str(len(ran)),
            str(np.sum(ran > 0.5)),
            str(len(failed) or ""),
            str(np.sum(failed > 0.5)) if len(failed) else "",
        )
        peaks = tuple(_share(float(np.expm1(np.median(e)))) if len(e) else "" for e in self.peaks)
        if self.timed is None:
            return (self.name, *[""] * 7, *called, *peaks)
        errors = self.timed.error
        size = np.abs(np.expm1(-errors))
        return (
            self.name, str(len(errors)), _share(np.median(size)), _share(np.quantile(size, 0.9)), f"{100 * np.expm1(np.median(errors)):+.1f}%",
            _share(np.mean(self.timed.is_inside), 0), _share(np.median(np.abs(np.expm1(-self.left)))) if len(self.left) else "",
            _share(np.mean(self.left_inside), 0) if len(self.left) else "", *called, *peaks,
        )  # fmt: skip


def judge(name: str, blocks: Sequence[Block], recomputed: Sequence[Block]) -> Source:
    """The rows of one source, by the constants that ship. `recomputed`: with full recomputation
    where none is printed: calls are of the one that fits better."""
    known = unread_of(name)
    folds = [(b, calibration_for(b.workload, known=known)) for b in blocks]
    timed = (
        judged(folds) if any(np.isfinite(b.tokens_per_s_per_gpu).any() for b in blocks) else None
    )
    _, left, inside = (
        after_one(timed) if timed is not None else (None, np.empty(0), np.empty(0, dtype=bool))
    )
    memory, again = (
        fit_memory.judge(name, [(b, None) for b in several]) for several in (blocks, recomputed)
    )
    memory = replace(memory, probability=np.minimum(memory.probability, again.probability))
    return Source(
        name=name,
        timed=timed,
        left=left,
        left_inside=inside,
        memory=memory,
        peaks=peak_errors(blocks),
    )


@cache
def unread_of(name: str) -> dict[str, Any]:
    """The constants that ship, but with the level of unread trainers that the other files and
    sources have."""
    shipping = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    sigmas = {
        "prior_sigma": shipping["refit"]["level_sigma"],
        "shared_sigma": shipping["pooled"]["level_sigma"],
    }
    rest = without(shipping["unread_trainer"]["levels"], name, **sigmas)
    return {**shipping, "unread_trainer": rest}


def peak_errors(blocks: Sequence[Block]) -> tuple[np.ndarray, np.ndarray]:
    """log(predicted / printed) of reserved and of allocated memory, of the rows that print them."""
    reserved, allocated = [], []
    for b in blocks:
        constants = calibration_for(b.workload)
        peak, _ = fit_memory.predicted(b, constants)
        reserved.append(np.log(peak / b.peak_memory_bytes))
        allocated.append(np.log(peak / (1.0 + constants.fragmentation) / b.allocated_bytes))
    every = (np.concatenate(reserved), np.concatenate(allocated))
    return every[0][np.isfinite(every[0])], every[1][np.isfinite(every[1])]


def after_one(rows: Judged) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, error, whether inside) of every row of a cluster and software after each other row of
    it as the one trial."""
    prior = uncertain(Calibration(), refit_values(), names=FREE)
    found = [(np.empty(0, dtype=np.intp), np.empty(0), np.empty(0, dtype=bool))]
    for where in sorted(set(rows.where.tolist())):
        group = np.flatnonzero(rows.where == where)
        for trial in group:
            rest = np.setdiff1d(group, [trial])
            if len(rest):
                center, sigma = errors_after(rows, np.array([trial]), prior, rest)
                error = rows.error[rest] - center
                found.append((rest, error, np.abs(error) <= Z90 * sigma))
    row, error, inside = (np.concatenate(column) for column in zip(*found, strict=True))
    return row, error, inside


def total(found: Sequence[Source]) -> tuple[str, ...]:
    """The line of all rows: figures of time are means over the sources, each of which counts
    once."""
    timed = [s for s in found if s.timed is not None]
    errors = [s.timed.error for s in timed if s.timed is not None]
    after = [s for s in timed if len(s.left)]
    ran = np.concatenate([s.memory.probability[~s.memory.failed] for s in found])
    failed = np.concatenate([s.memory.probability[s.memory.failed] for s in found])
    return (
        "mean of the sources", str(sum(map(len, errors))), _share(np.mean([np.median(np.abs(np.expm1(-e))) for e in errors])),
        _share(np.mean([np.quantile(np.abs(np.expm1(-e)), 0.9) for e in errors])), f"{100 * np.mean([np.expm1(np.median(e)) for e in errors]):+.1f}%",
        _share(np.mean([np.mean(s.timed.is_inside) for s in timed if s.timed is not None]), 0), _share(np.mean([np.median(np.abs(np.expm1(-s.left))) for s in after])),
        _share(np.mean([np.mean(s.left_inside) for s in after]), 0), str(len(ran)), str(np.sum(ran > 0.5)), str(len(failed)), str(np.sum(failed > 0.5)), "", "",
    )  # fmt: skip


def rows_of(
    sources: Mapping[str, Sequence[Block]], recomputed: Mapping[str, Sequence[Block]]
) -> list[tuple[float, str]]:
    """(size of the error, text) of every row: time, memory and calls; wrong calls are the worst."""
    lines = []
    for name, blocks in sources.items():
        for b, again in zip(blocks, recomputed[name], strict=True):
            constants = calibration_for(b.workload, known=unread_of(name))
            peak, probability = fit_memory.predicted(b, constants)
            probability = np.minimum(probability, fit_memory.predicted(again, constants)[1])
            found = (
                judged([(b, constants)], with_sensitivity=False)
                if np.isfinite(b.tokens_per_s_per_gpu).any()
                else None
            )
            timed = (
                iter(zip(found.error, found.measured_s, found.is_inside, strict=True))
                if found is not None
                else iter(())
            )
            for i in range(len(b.table)):
                text, size = (
                    f"{name:22s} {b.workload.model.name} {b.workload.seq_len} {b.workload.trainer} {b.table[i]}",
                    0.0,
                )
                if b.workload.peft is not None:
                    text += f" {b.workload.peft.method}"
                if not b.failed[i] and np.isfinite(b.tokens_per_s_per_gpu[i]):
                    error, measured, inside = next(timed)
                    size = abs(float(error))
                    text += f"; measured {measured:.3g} s, {100 * np.expm1(error):+.0f}%{'' if inside else ', outside'}"
                for what, known, whole in (
                    ("reserved", b.peak_memory_bytes[i], 1.0),
                    ("allocated", b.allocated_bytes[i], 1.0 + constants.fragmentation),
                ):
                    if np.isfinite(known):
                        text += f"; {what} {known / 1e9:.1f} GB, predicted {peak[i] / whole / 1e9:.1f} GB"
                wrong = b.failed[i] != (probability[i] > 0.5)
                text += f"; P(OOM) {probability[i]:.2f}{', but it ' + ('failed' if b.failed[i] else 'ran') if wrong else ''}"
                lines.append((size + 10.0 * wrong, text))
    return lines


def _share(value: float | np.floating, digits: int = 1) -> str:
    return "" if np.isnan(value) else f"{100 * value:.{digits}f}%"


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge all sources and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", action="store_true", help="every row, in the order of the sources"
    )
    parser.add_argument(
        "--batch", type=int, choices=sorted(BATCHES), default=1, help="which sources"
    )
    options = parser.parse_args(arguments)
    sources, recomputed = (unseen(recompute, options.batch) for recompute in ("none", "full"))
    found = [judge(name, blocks, recomputed[name]) for name, blocks in sources.items()]
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    for cells in (*(s.cells() for s in found), total(found)):
        print("| " + " | ".join(cells) + " |")
    lines = rows_of(sources, recomputed)
    for _, text in lines if options.rows else sorted(lines, key=lambda line: -line[0])[:WORST]:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
