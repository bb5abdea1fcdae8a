"""Losses are compared step by step only where every config sees the same batches in the same order."""

from __future__ import annotations

from typing import Any

import pytest

from autotune import api
from autotune.ports import AttemptEnded
from autotune.reward import stability, stability_parts
from autotune.spec import Measurement, ParallelConfig, Study, Trial, TrialPurpose
from autotune.study.assembly import assemble
from autotune.study.controller.scoring import Scorer
from tests.small_studies import spec

PROGRAM = {
    "kind": "command",
    "argv": ["train", "{tp}", "{pp}", "{dp}", "{micro_batch_size}", "{accumulation_steps}", "{precision}"],
}


def study(trainer: Any) -> Study:
    space = {"tp": [1, 2], "micro_batch_size": [1, 2], "precision": ["bf16", "fp32"]}
    return api.load_study(spec(trainer=trainer, space=space))


@pytest.mark.parametrize(
    ("trainer", "same"),
    [("native", True), ("deepspeed", False), (PROGRAM, False), ({**PROGRAM, "same_data": True}, True)],
)
def test_it_is_a_property_of_the_trainer_that_a_spec_may_state(trainer: Any, same: bool) -> None:
    asked = study(trainer)
    assert asked.same_data is same
    assert bool(assemble(asked).references) is same, (
        "a reference in fp32 is measured only where it can be compared with"
    )


@pytest.mark.parametrize("same", [True, False])
def test_a_program_with_other_batches_is_not_called_unstable_for_other_losses(same: bool) -> None:
    """Two healthy fp32 runs whose batches come in another order: the losses fall alike, but not step by step."""
    asked = study({**PROGRAM, "same_data": same})
    scorer = Scorer(asked, {})
    falling = [8.0, 4.0, 7.0, 5.0, 3.0, 6.0, 2.0, 5.0, 4.5, 2.0, 5.5, 1.5]
    other = [4.5, 7.5, 4.0, 6.5, 5.5, 2.5, 6.0, 2.0, 1.8, 5.2, 1.6, 4.4]

    def ended(number: int, losses: list[float], purpose: TrialPurpose) -> Trial:
        config = ParallelConfig(dp=8, micro_batch_size=1 + number, precision="fp32")
        measurement = Measurement(
            step_times_s=(0.1,) * len(losses), tokens_per_step=64 * 1024, num_ranks=8, losses=tuple(losses)
        )
        trial = scorer.ended(
            Trial(config=config, number=number, purpose=purpose),
            AttemptEnded(id=("s", number, 1), measurement=measurement),
        )
        scorer.learn(trial)
        return trial

    ended(0, falling, TrialPurpose.BASELINE)
    judged = ended(1, other, TrialPurpose.SEARCH).measurement
    assert judged is not None
    assert ("fidelity" in stability_parts(judged)) is same
    assert (stability(judged) < 0.5) is same
