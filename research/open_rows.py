"""Published rows of small work per rank and of long sequences: two thirds to make laws with, one
third kept out of the work.

    python -m research.open_rows           a table for each part
    python -m research.open_rows --rows    every row of the two thirds

Rows: `data/published_open.csv`, by `published/unseen.py` (batch 5). A row is kept out by a hash of
its source's cluster and software, model, sequence length and number of GPUs, so that no row that
was kept out has a neighbour that differs in the micro-batch alone among the others. Columns are
those of `unseen.py`; trials may be rows of both parts.

    tokens     tokens of a rank's micro-batch, of runs under ZeRO-3 on several GPUs: median of measured / predicted step time, less 1
    length     the same by the length of the sequence, from 32,768 tokens
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from hashlib import sha256

import numpy as np

from autotune.cost import calibration_for
from research import fit_memory
from research.held_out import Judged, judged
from research.unseen import after_one, unread_of
from tests.benchmarks.published import Block
from tests.benchmarks.published.unseen import unseen

BATCH = 5
PARTS = ("two thirds", "kept out")
LONG = 32768
HEADER = (
    "source",
    "rows",
    "median",
    "p90",
    "bias",
    "inside",
    "after one",
    "inside",
    "ran",
    "called",
    "peaks",
)


def is_kept_out(where: str, model: str, seq_len: int, gpus: int) -> bool:
    """Whether rows like these belong to the third that no law was made with."""
    return sha256(f"{where}; {model}; {seq_len}; {gpus}".encode()).digest()[0] % 3 == 0


def _kept_out(rows: Judged) -> np.ndarray:
    columns = zip(rows.where, rows.model, rows.seq_len, rows.gpus, strict=True)
    return np.array(
        [
            is_kept_out(where, model, int(length), int(gpus))
            for where, model, length, gpus in columns
        ]
    )


def memory_of(
    blocks: Sequence[Block], recomputed: Sequence[Block]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(P(OOM), log of predicted over printed peak, whether kept out) of the rows that ran."""
    columns: list[list[float]] = []
    for b, again in zip(blocks, recomputed, strict=True):
        peak, chance = fit_memory.predicted(b, calibration_for(b.workload))
        chance = np.minimum(chance, fit_memory.predicted(again, calibration_for(again.workload))[1])
        for i, gpus in enumerate(b.table.world_size):
            out = is_kept_out(b.where, b.workload.model.name, b.workload.seq_len, int(gpus))
            columns.append(
                [float(chance[i]), float(np.log(peak[i] / b.peak_memory_bytes[i])), float(out)]
            )
    chance, error, out = np.array(columns).T
    return chance, error, out > 0


def _by(values: np.ndarray, errors: np.ndarray) -> list[str]:
    """Median of measured / predicted less 1 for each value."""
    return [
        f"{int(v)}: {np.expm1(np.median(errors[values == v])):+.0%} ({int(np.sum(values == v))})"
        for v in np.unique(values)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge both parts and print their tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", action="store_true", help="every row of the two thirds")
    options = parser.parse_args(arguments)
    sources, recomputed = unseen("none", BATCH), unseen("full", BATCH)
    lines: dict[str, list[tuple[str, ...]]] = {part: [] for part in PARTS}
    small: dict[str, list[tuple[float, float]]] = {part: [] for part in PARTS}
    long: dict[str, list[tuple[float, float]]] = {part: [] for part in PARTS}
    for name, blocks in sources.items():
        rows = judged([(b, calibration_for(b.workload, known=unread_of(name))) for b in blocks])
        out, (row, left, inside) = _kept_out(rows), after_one(rows)
        chance, peaks, ran_out = memory_of(blocks, recomputed[name])
        tables = [(b.table, b.workload.seq_len) for b in blocks]
        tokens = np.concatenate([t.micro_batch_size * s / t.cp for t, s in tables])
        sharded = np.concatenate([(t.zero_stage == 3) & (t.dp > 1) for t, _ in tables])
        for part in PARTS:
            ours, of = out == (part == "kept out"), ran_out == (part == "kept out")
            if not ours.any():
                continue
            size, rest = np.abs(np.expm1(-rows.error[ours])), ours[row]
            known = of & np.isfinite(peaks)
            lines[part].append(
                (
                    name, str(int(ours.sum())), f"{np.median(size):.1%}", f"{np.quantile(size, 0.9):.1%}", f"{np.expm1(np.median(rows.error[ours])):+.1%}",
                    f"{np.mean(rows.is_inside[ours]):.0%}", f"{np.median(np.abs(np.expm1(-left[rest]))):.1%}", f"{np.mean(inside[rest]):.0%}",
                    str(int(of.sum())), str(int(np.sum(chance[of] > 0.5))), f"{np.expm1(np.median(peaks[known])):+.1%}" if known.any() else "",
                )
            )  # fmt: skip
            pick = ours & sharded
            small[part] += list(zip(tokens[pick], rows.error[pick], strict=True))
            pick = ours & (rows.seq_len >= LONG)
            long[part] += list(zip(rows.seq_len[pick], rows.error[pick], strict=True))
        if options.rows:
            for i in np.flatnonzero(~out):
                print(f"{rows.where[i]:45s} {rows.model[i]:14s} {rows.seq_len[i]:6d} {rows.config[i]:60s} {rows.measured_s[i]:9.3f} {np.expm1(rows.error[i]):+.0%}")  # fmt: skip
    for part in PARTS:
        print(f"\n{part}\n\n| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
        for cells in lines[part]:
            print("| " + " | ".join(cells) + " |")
        figures = [[float(cells[k].rstrip("%")) for cells in lines[part]] for k in (2, 5, 6, 7)]
        print("mean of the sources: median {:.1f}%, inside {:.0f}%, after one {:.1f}%, inside {:.0f}%".format(*map(np.mean, figures)))  # fmt: skip
        for what, found in (("tokens", small[part]), ("length", long[part])):
            if found:
                values, errors = np.array(found).T
                print(f"{what}: " + ", ".join(_by(values, errors)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
