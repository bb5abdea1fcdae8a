"""Losses are compared step by step only where every config sees the same batches in the same
order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from autotune import api
from autotune.ports import AttemptEnded
from autotune.reward import stability, stability_parts
from autotune.spec import Measurement, ParallelConfig, Study, Trial, TrialPurpose
from autotune.study.assembly import assemble
from autotune.study.controller.scoring import Scorer
from tests.shortcuts import present
from tests.small_studies import spec

PROGRAM = {
    "kind": "command",
    "argv": [
        "train",
        "{tp}",
        "{pp}",
        "{dp}",
        "{micro_batch_size}",
        "{accumulation_steps}",
        "{precision}",
    ],
}


def study(trainer: Any) -> Study:
    space = {"tp": [1, 2], "micro_batch_size": [1, 2], "precision": ["bf16", "fp32"]}
    return api.load_study(spec(trainer=trainer, space=space))


@pytest.mark.parametrize(
    ("trainer", "same"),
    [
        ("native", True),
        ("deepspeed", False),
        (PROGRAM, False),
        ({**PROGRAM, "same_data": True}, True),
    ],
)
def test_it_is_a_property_of_the_trainer_that_a_spec_may_state(trainer: Any, same: bool) -> None:
    asked = study(trainer)
    assert asked.same_data is same
    assert bool(assemble(asked).references) is same, (
        "a reference in fp32 is measured only where it can be compared with"
    )


def ended(
    scorer: Scorer, number: int, losses: list[float], purpose: TrialPurpose = TrialPurpose.SEARCH
) -> Trial:
    """A trial of an fp32 config with these losses, scored and learnt."""
    config = ParallelConfig(dp=8, micro_batch_size=1 + number, precision="fp32")
    measurement = Measurement(
        step_times_s=(0.1,) * len(losses),
        tokens_per_step=64 * 1024,
        num_ranks=8,
        losses=tuple(losses),
    )
    trial = scorer.ended(
        Trial(config=config, number=number, purpose=purpose),
        AttemptEnded(id=("s", number, 1), measurement=measurement),
    )
    scorer.learn(trial)
    return trial


@pytest.mark.parametrize("same", [True, False])
def test_a_program_with_other_batches_is_not_called_unstable_for_other_losses(same: bool) -> None:
    """Two healthy fp32 runs whose batches come in another order: the losses fall alike, but not
    step by step."""
    asked = study({**PROGRAM, "same_data": same})
    scorer = Scorer(asked, {})
    falling = [8.0, 4.0, 7.0, 5.0, 3.0, 6.0, 2.0, 5.0, 4.5, 2.0, 5.5, 1.5]
    other = [4.5, 7.5, 4.0, 6.5, 5.5, 2.5, 6.0, 2.0, 1.8, 5.2, 1.6, 4.4]

    ended(scorer, 0, falling, TrialPurpose.BASELINE)
    judged = present(ended(scorer, 1, other).measurement)
    assert ("fidelity" in stability_parts(judged)) is same
    assert ("equal_tokens" in stability_parts(judged)) is not same
    assert (stability(judged) < 0.5) is same


def noisy(seed: int, *, shift: float = 0.0) -> list[float]:
    """A loss that falls from 9 towards 4, with the noise of other batches."""
    noise = np.random.default_rng(seed).normal(size=20) * 0.05
    return [4 + 5 * math.exp(-i / 8) + shift + float(e) for i, e in enumerate(noise)]


def test_a_trial_is_held_against_those_that_ended_before_it_and_later_ones_change_nothing() -> None:
    asked = study(PROGRAM)
    scorer = Scorer(asked, {})
    trials = [
        ended(scorer, 0, noisy(0), TrialPurpose.BASELINE),
        ended(scorer, 1, noisy(1, shift=0.5)),
        ended(scorer, 2, noisy(2)),
    ]
    first, worse, last = (t.measurement for t in trials)
    assert present(first).loss_comparison is None, "nothing had ended before"
    assert worse is not None
    assert stability_parts(worse)["equal_tokens"] < 0.9
    assert last is not None
    assert stability_parts(last)["equal_tokens"] == 1.0

    again = Scorer(asked, {})
    for stored in (Trial.from_dict(t.to_dict()) for t in reversed(trials[:2])):
        again.learn(stored)
    assert ended(again, 2, noisy(2)).measurement == last, "a controller that took over scores alike"


def test_what_was_found_clearly_worse_is_no_reference() -> None:
    scorer = Scorer(study(PROGRAM), {})
    for number, shift in enumerate((0.0, 2.0, 2.0)):
        ended(scorer, number, noisy(number, shift=shift))
    compared = present(ended(scorer, 3, noisy(3, shift=2.0)).measurement)
    assert present(compared.loss_comparison).curves == 1
    assert stability_parts(compared)["equal_tokens"] == 0.0
