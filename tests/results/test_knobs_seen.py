"""Knobs that were asked for, and that the probe did not see in the program, are findings of a
diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.diagnosis import diagnose
from autotune.results.diagnoses import diagnosis_of_run, with_disagreements
from autotune.results.knobs_seen import ineffective_knobs
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
def test_knobs_without_effect_are_listed(
    asked: dict[str, Any], seen: dict[str, Any], knobs: list[str]
) -> None:
    config = ParallelConfig(dp=2, **{"precision": "fp32", **asked})
    found = ineffective_knobs(config, {**SEEN, **seen}, source="spec")
    assert list(found) == knobs
    assert all(
        text.startswith(f"{knob}: ") and " in the spec, but" in text for knob, text in found.items()
    )
    evidence = replace(run(ranks=2), facts={**SEEN, **seen})
    told = diagnose(with_disagreements(evidence, config, source="launch")).findings
    assert [f.knob for f in told if f.cause == "knob_without_effect"] == knobs


def test_facts_that_are_not_from_the_probe_are_not_compared() -> None:
    assert (
        ineffective_knobs(
            ParallelConfig(compile=True, precision="bf16"), {"world": 2}, source="spec"
        )
        == {}
    )


def test_the_diagnosis_of_a_stored_trial_lists_knobs_without_effect() -> None:
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
