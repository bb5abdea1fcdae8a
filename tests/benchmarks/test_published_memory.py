"""Calls on published runs: of every data set a sample must not be called out of memory. The whole
is `python -m research.fit_memory`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.spec import ParallelConfig
from research.fit_memory import FILES, dropped, judge
from tests.benchmarks.published import FILES as READERS
from tests.benchmarks.published.nanotron_failures import TOO_FEW, blocks_by_rank, needs_no_more


@pytest.mark.thorough
@pytest.mark.parametrize("name", FILES)
def test_runs_that_were_published_are_not_called_out_of_memory(name: str) -> None:
    """At most one in a hundred, and never the fastest of its setting."""
    found = judge(name, [(block, None) for block in READERS[name]()])
    ran, failed = found.probability[~found.failed], found.probability[found.failed]
    assert np.mean(ran > 0.5) <= 0.0101
    assert not dropped(found)
    if len(failed):
        assert np.mean(failed > 0.5) >= 0.85


def test_failures_that_memory_cannot_explain_are_told_by_their_configs() -> None:
    sweep = [block for block in READERS["nanotron"]() if block.workload.model.num_layers == 16]
    for block in sweep:
        few = block.table.accumulation_steps < block.table.pp - 1
        assert (block.failed | ~few).all(), "nanotron's engine refuses so few micro-batches"
        assert (block.other_cause[few] == TOO_FEW).all()
        assert (block.other_cause[~block.failed] == "").all()
    assert blocks_by_rank(sweep[0].workload.model, 16)[-2:] == [0, 0]
    assert all(blocks_by_rank(sweep[0].workload.model, 8))


def test_a_config_needs_no_more_memory_than_one_with_larger_micro_batches_and_wholer_states() -> (
    None
):
    ran = ParallelConfig(tp=2, pp=4, dp=2, micro_batch_size=2, accumulation_steps=8)
    assert needs_no_more(replace(ran, micro_batch_size=1, zero_stage=1), ran)
    assert not needs_no_more(replace(ran, micro_batch_size=4), ran)
    assert not needs_no_more(replace(ran, tp=4), ran)
    assert not needs_no_more(ran, replace(ran, zero_stage=1)), "its optimizer states are whole"
    assert not needs_no_more(ran, replace(ran, accumulation_steps=2)), (
        "fewer micro-batches were in flight"
    )
    assert not needs_no_more(ran, replace(ran, dp=1)), "nothing was reduced"


def test_reserved_memory_of_eight_b200_is_within_its_published_figures() -> None:
    found = judge("simumax", [(block, None) for block in READERS["simumax"]()])
    errors = np.abs(np.expm1(found.errors))
    assert np.median(errors) <= 0.03
    assert errors.max() <= 0.08
    assert np.median(np.abs(np.expm1(found.allocated_errors))) <= 0.02
