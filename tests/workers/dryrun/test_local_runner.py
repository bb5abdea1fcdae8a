"""The dry runner of this machine: what it answers, and that it stops at its limits."""

from __future__ import annotations

import pytest

from autotune.errors import DryRunError
from autotune.ports import DryRunLimits
from autotune.registry import DRY_RUNNERS, load
from autotune.spec import DryRun
from autotune.spec.plain import to_plain
from autotune_workers.dryrun.local import LocalDryRunner
from tests.workers.trial_ranks import request

LIMITS = DryRunLimits(wall_s=120)


@pytest.mark.thorough
def test_rank_of_a_large_job_is_played_in_one_process() -> None:
    """1,024 ranks: FSDP over 512 of them, tensor parallel over 2."""
    asked = request("llama", "dp=512,tp=2,zero_stage=3")
    run = load(DRY_RUNNERS, "local")().run(asked.workload, asked.config, pp_rank=0, limits=LIMITS)
    assert run.world_size == 1024
    assert run.num_parameters == asked.workload.model.num_parameters
    assert {(c.kind, c.axis) for c in run.collectives} >= {
        ("all_gather", "dp_cp"),
        ("all_reduce", "tp"),
    }
    assert run.peak.total_bytes == max(s.total_bytes for s in run.phase_peaks if s.moment.step == 1)
    assert run.peak.parts_bytes["optimizer"] > 0
    assert DryRun.from_dict(to_plain(run)) == run, "it crosses processes as plain values"


def test_run_that_takes_too_long_is_stopped_and_says_how_far_it_came() -> None:
    asked = request("llama", "dp=2")
    with pytest.raises(
        DryRunError,
        match=r"stopped after 500 ms; the last part reached was (starting Python|importing torch)",
    ):
        LocalDryRunner().run(
            asked.workload, asked.config, pp_rank=0, limits=DryRunLimits(wall_s=0.5)
        )
