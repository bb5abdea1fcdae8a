"""What a profile adds to a diagnosis: on a GPU findings of its own, on a CPU its parts alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.diagnosis import Evidence, diagnose, lines_of
from autotune.diagnosis.collect import Reports
from tests.diagnosing.made_up import run

HEALTHY = {
    "compute": 0.080,
    "optimizer": 0.008,
    "communication": 0.004,
    "bubble": 0.0,
    "input": 0.0,
    "host": 0.008,
}


def on_gpus(**parts: float) -> Evidence:
    return replace(
        run(), facts={"device": "cuda"}, parts_s={**HEALTHY, **parts}, launch_delay_s=8e-6
    )


def test_of_a_healthy_step_nothing_is_claimed() -> None:
    found = diagnose(on_gpus())
    assert found.findings == ()
    assert found.profile == (
        "a profiled step of 100 ms: compute 80%, optimizer 8%, host 8%, communication 4%",
    )
    assert found.profile[0] in lines_of(found)


@pytest.mark.parametrize(
    ("cause", "parts", "share"),
    [
        ("host", {"host": 0.108}, 0.54),
        ("input", {"input": 0.1}, 0.5),
        ("communication_inside_node", {"communication": 0.104}, 0.52),
    ],
)
def test_what_a_gpu_waits_for_is_claimed_from_its_profile(
    cause: str, parts: dict[str, float], share: float
) -> None:
    (finding,) = diagnose(on_gpus(**parts)).findings
    assert finding.cause == cause
    assert finding.share == pytest.approx(share)
    assert finding.evidence[0].startswith("in the profile, ")


def test_a_gpu_whose_kernels_wait_in_a_queue_does_not_wait_for_the_host() -> None:
    """Its gaps are those between kernels, or of a device that another process uses."""
    assert diagnose(replace(on_gpus(host=0.108), launch_delay_s=5e-3)).findings == ()


def test_on_a_cpu_the_phases_count() -> None:
    assert diagnose(replace(on_gpus(host=0.108, input=0.1), facts={"device": "cpu"})).findings == ()


def test_a_cause_that_was_found_gets_the_profile_as_evidence() -> None:
    slow = run(communication=0.8)
    seen = replace(slow, facts={"device": "cuda"}, parts_s={**HEALTHY, "communication": 0.08})
    (finding,) = (f for f in diagnose(seen).findings if f.cause == "communication_inside_node")
    assert "exposed collectives take 45% of the step" in finding.evidence[-1]
    assert finding.share == next(
        f.share for f in diagnose(slow).findings if f.cause == finding.cause
    )


def _steps(rank: int, count: int, **more: Any) -> dict[str, Any]:
    step = {
        "s": 0.1,
        "tokens": 64,
        "sequences": [8],
        "phases": {"forward": [0.1, 0.1, 0.0]},
        **more,
    }
    return {"kind": "step", "rank": rank, "steps": [step] * count}


def test_profiled_steps_count_for_nothing_and_ranks_are_averaged() -> None:
    heard = Reports()
    for rank in (0, 1):
        profile = {
            "parts_s": {"compute": 0.1 + 0.1 * rank, "host": 0.0},
            "launch_delay_s": None,
            "longest_s": {f"kernel {rank}": 0.1},
        }
        heard.hear([_steps(rank, 8), _steps(rank, 2, profiled=True, s=3.0), {"kind": "profile", "rank": rank, **profile}, _steps(rank, 4)])  # fmt: skip
    seen = heard.evidence()
    assert seen.step_times_s == (0.1,) * 9
    assert seen.parts_s == {"compute": pytest.approx(0.15), "host": 0.0}
    assert dict(seen.longest_s) == {"kernel 0": 0.1}
    assert Evidence.from_dict(seen.to_dict()) == seen


def test_why_there_is_no_profile_is_said() -> None:
    heard = Reports()
    heard.hear(
        [
            _steps(0, 8),
            {"kind": "profile", "rank": 0, "failed": "the program's own profiler was running"},
        ]
    )
    seen = heard.evidence()
    assert seen is not None
    assert "no profile: the program's own profiler was running" in diagnose(seen).not_seen
