"""Every published file is read whole, with configs that multiply to the GPUs that it prints."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.cost import estimate
from tests.benchmarks.published import FILES
from tests.benchmarks.published.rows import COLUMNS, read
from tests.benchmarks.published.unseen import BATCHES, unseen

ROWS = {
    "nanotron": 927,
    "vtrain": 1080,
    "vtrain_multi": 109,
    "mosaic": 216,
    "nemo": 23,
    "megatron_published": 18,
    "internevo": 16,
    "internevo_memory": 16,
    "alpa": 17,
    "alpa_deepspeed": 21,
    "bigscience": 59,
    "bridge": 104,
    "simumax": 28,
}
"""rows that a reader gives"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_whole(name: str) -> None:
    blocks = FILES[name]()
    assert sum(len(block.table) for block in blocks) == ROWS[name]
    for block in blocks:
        assert block.where
        assert {getattr(block, column).shape for column in COLUMNS} == {(len(block.table),)}
        assert block.table.world_size.max() <= block.workload.cluster.num_gpus
        measured = np.isfinite(block.tokens_per_s_per_gpu) | np.isfinite(block.peak_memory_bytes)
        assert (measured | block.failed).all(), "a row that measured nothing and did not fail"
        assert not (np.isfinite(block.tokens_per_s_per_gpu) & block.failed).any()
        assert np.isfinite(np.asarray(estimate(block.workload, block.table).step_time_s)).all()


def test_reserved_memory_is_at_least_what_was_allocated() -> None:
    for block in FILES["simumax"]():
        assert (block.peak_memory_bytes >= block.allocated_bytes).all()


@pytest.mark.thorough
@pytest.mark.parametrize("batch", BATCHES)
def test_runs_that_nothing_was_fitted_to_have_addresses_and_figures(batch: int) -> None:
    rows = read(BATCHES[batch])
    assert all(
        row["url"].startswith("https://") and row["assumed"]
        for row in rows
        if row["trainer"] != "torchtitan"
    )
    sources = unseen(batch=batch)
    assert sum(len(block.table) for blocks in sources.values() for block in blocks) == len(rows)
    for block in (block for blocks in sources.values() for block in blocks):
        assert block.table.world_size.max() <= block.workload.cluster.num_gpus
        timed = np.isfinite(block.tokens_per_s_per_gpu)
        assert (
            timed
            | np.isfinite(block.peak_memory_bytes)
            | np.isfinite(block.allocated_bytes)
            | block.failed
        ).all()
        assert not (timed & block.failed).any()
        assert np.isfinite(np.asarray(estimate(block.workload, block.table).step_time_s)).all()
