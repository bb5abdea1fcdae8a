"""The published measurements that ship with reviews: `python -m tests.benchmarks.published_table`
writes the file again."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

from autotune.reviews.earlier import COLUMNS, PUBLISHED_FILE
from tests.benchmarks.published import FILES

SHIPPED = ("nanotron", "mosaic", "nemo", "megatron_published", "internevo", "bridge")
"""data sets of runs that people start today"""


def rows() -> Iterator[dict[str, str]]:
    """One for each measured run."""
    for name in SHIPPED:
        for block in FILES[name]():
            workload = block.workload
            for row, step_time_s in enumerate(block.step_time_s):
                if math.isfinite(step_time_s) and step_time_s > 0:
                    yield {
                        "source": f"{name}: {block.where}",
                        "model": workload.model.name,
                        "params_b": f"{workload.model.num_parameters / 1e9:.3g}",
                        "layers": str(workload.model.num_layers),
                        "hidden": str(workload.model.hidden_size),
                        "gpu": workload.cluster.gpu.name,
                        "gpus": str(block.table[row].world_size),
                        "seq_len": str(workload.seq_len),
                        "trainer": workload.trainer,
                        "step_time_s": f"{step_time_s:.4g}",
                        "config": str(block.table[row]),
                    }


def text() -> str:
    """The whole file."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows())
    return file.getvalue()


if __name__ == "__main__":
    PUBLISHED_FILE.write_text(text(), encoding="utf-8")
