"""Dry runs of Megatron's tensors against the memory that its ranks were measured to allocate: each
within 3%. A sample here, the whole is slow."""

from __future__ import annotations

import pytest

from autotune.ports import DryRunLimits
from autotune_workers.dryrun.local import LocalDryRunner
from research.simumax_as_modules import Measured, measured, training_of

WITHIN = 0.03
ROWS = {str(row): row for row in measured()}
LIMITS = DryRunLimits(wall_s=300)


def test_every_published_config_is_there_with_each_of_its_pipeline_ranks() -> None:
    assert len(ROWS) == 15
    assert {row.pp_rank for row in ROWS.values() if row.config.pp == 2} == {0, 1}


@pytest.mark.thorough
def test_rank_with_experts_allocates_what_was_measured() -> None:
    """In this process: the first of two pipeline ranks, with the embedding, a dense layer and a
    layer of 40 experts."""
    from autotune_workers.dryrun.played_rank import dry_run, first_rank_of_stage
    from autotune_workers.dryrun.process import stand_in
    from autotune_workers.own_model.inspection import inspect

    row = ROWS["deepseekv2-l4 4096 tp=1 pp=2 dp=4 cp=1 ep=4 rank 0"]
    workload, config = training_of(row, inspect)
    run = dry_run(stand_in(workload, config)[0], rank=first_rank_of_stage(config, row.pp_rank))
    assert run.peak.total_bytes == pytest.approx(row.bytes, rel=WITHIN)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS.values(), ids=str)
def test_every_rank_allocates_what_was_measured(row: Measured) -> None:
    runner = LocalDryRunner()
    workload, config = training_of(row, lambda model: runner.inspect(model, limits=LIMITS))
    run = runner.run(workload, config, pp_rank=row.pp_rank, limits=LIMITS)
    assert run.peak.total_bytes == pytest.approx(row.bytes, rel=WITHIN)
