"""The figure of each rank's time beside the prediction."""

from __future__ import annotations

from dataclasses import replace

from autotune.report.figures.step_and_memory_parts import rank_parts
from autotune.spec import Measurement, ParallelConfig, Trial, TrialStatus
from tests.diagnosing.made_up import run


def test_each_rank_has_a_bar_and_the_verdict_is_shown() -> None:
    evidence = run(ranks=3, slower={1: 2.0})
    seen = Measurement(
        step_times_s=evidence.step_times_s, num_ranks=3, evidence=evidence.shortened().to_dict()
    )
    trial = Trial(
        config=ParallelConfig(dp=3), status=TrialStatus.COMPLETED, measurement=seen, number=4
    )
    figure = rank_parts(trial)
    assert [head for head in ("rank 0", "rank 1", "rank 2") if head in figure.svg] == [
        "rank 0",
        "rank 1",
        "rank 2",
    ]
    assert "rank 1 computes" in figure.how_to_read
    waits = next(
        line
        for line in figure.csv().splitlines()
        if line.startswith(('"communication', "communication"))
    )
    assert float(waits.split(",")[-2]) < float(waits.split(",")[-1]), "the slow rank waits least"
    assert rank_parts(replace(trial, measurement=Measurement(step_times_s=(1.0,)))) is None
