"""Knobs that were asked for, and that the probe did not see in the program, are findings of a
diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.diagnosis import diagnose
from autotune.results.diagnoses import diagnosis_of_run, with_asked
from autotune.results.knobs_seen import without_effect_in
from autotune.spec import Measurement, ParallelConfig, Trial, TrialStatus
from tests.diagnosing.made_up import run

SEEN: dict[str, Any] = {
    "world": 2,
    "compiled": False,
    "autocast": "",
    "types": {"float32": 100},
    "recomputed": 0.0,
    "zero_stage": 0,
    "wrappers": ["DDP"],
}


@pytest.mark.parametrize(
    ("asked", "seen", "knobs"),
    [
        ({}, {}, []),
        ({"precision": "bf16"}, {}, ["precision"]),
        ({"precision": "bf16"}, {"autocast": "bfloat16"}, []),
        ({"precision": "fp8"}, {}, []),
        ({"compile": True}, {}, ["compile"]),
        ({"compile": True}, {"compiled": True}, []),
        ({"recompute": "full"}, {}, ["recompute"]),
        ({"recompute": "full"}, {"recomputed": 0.9}, []),
        ({"zero_stage": 3}, {}, ["zero_stage"]),
        ({}, {"compiled": True, "autocast": "bfloat16", "recomputed": 0.9}, []),
        ({"precision": "bf16", "compile": True}, {}, ["precision", "compile"]),
    ],
)
def test_what_was_asked_for_and_not_seen(
    asked: dict[str, Any], seen: dict[str, Any], knobs: list[str]
) -> None:
    config = ParallelConfig(dp=2, **{"precision": "fp32", **asked})
    found = without_effect_in(config, {**SEEN, **seen}, said_by="spec")
    assert list(found) == knobs
    assert all(
        text.startswith(f"{knob}: ") and " in the spec, but" in text for knob, text in found.items()
    )
    evidence = replace(run(ranks=2), facts={**SEEN, **seen})
    told = diagnose(with_asked(evidence, config, said_by="launch")).findings
    assert [f.knob for f in told if f.cause == "knob_without_effect"] == knobs


def test_of_the_native_trainer_whose_facts_are_no_probes_nothing_is_said() -> None:
    assert (
        without_effect_in(
            ParallelConfig(compile=True, precision="bf16"), {"world": 2}, said_by="spec"
        )
        == {}
    )


def test_a_stored_trial_says_which_knob_had_no_effect() -> None:
    evidence = replace(run(ranks=2), facts=SEEN)
    measured = Measurement(
        step_times_s=evidence.step_times_s, num_ranks=2, evidence=evidence.to_dict()
    )
    config = ParallelConfig(dp=2, precision="bf16")
    (found,) = diagnosis_of_run(
        Trial(config=config, status=TrialStatus.COMPLETED, measurement=measured)
    ).findings
    assert (found.cause, found.knob) == ("knob_without_effect", "precision")
    assert "bf16 in the spec, but the probe observed fp32" in found.evidence[0]
