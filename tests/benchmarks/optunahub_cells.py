"""Writes the table of the OptunaHub benchmark from the replay cells of the nanotron sweep.

python -m tests.benchmarks.optunahub_cells
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from tests.benchmarks.cells import read_cells

SOURCE = Path(__file__).with_name("data") / "nanotron_h100.csv"
TARGET = (
    Path(__file__).parents[2]
    / "examples"
    / "optunahub"
    / "package"
    / "benchmarks"
    / "parallel_training"
)
KNOBS = ("tp", "pp", "micro_batch_size", "zero_stage")


def table() -> str:
    """The table as CSV: one row for each config of each cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["cell", *KNOBS, "tokens_per_s", "peak_memory_gib", "failure"])
    for cell in read_cells(SOURCE):
        model = cell.workload.model.name.removeprefix("nanotron-")
        name = f"{model}, {cell.workload.cluster.num_gpus} GPUs"
        for config, row in cell.rows.items():
            tokens = config.global_batch_size * cell.workload.seq_len
            writer.writerow(
                [
                    name,
                    *(getattr(config, knob) for knob in KNOBS),
                    "" if row.failure else f"{tokens / row.step_time_s:.0f}",
                    "" if row.peak_memory_bytes is None else f"{row.peak_memory_bytes / 2**30:.2f}",
                    row.failure or "",
                ]
            )
    return text.getvalue()


if __name__ == "__main__":
    (TARGET / "cells.csv").write_text(table(), encoding="utf-8")
