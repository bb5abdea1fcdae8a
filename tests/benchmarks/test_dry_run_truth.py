"""Dry runs against real runs, architecture by architecture: the peak of a step by the allocator's
own account. A sample here; all of them take most of an hour, and are `make chaos`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.benchmarks.architectures import ARCHITECTURES
from tests.benchmarks.dry_run_truth import Peaks, compare, peaks_within

WORST = 0.0001
"""relative difference between a dry run's peak and that of the real tensors"""
SAMPLE = {
    "llama": "bf16",
    "qwen3_moe": "bf16",
    "gpt2": "fp32",
    "t5": "fp32",
    "vit": "fp32",
    "llama with adapters": "bf16",
    "a recommender": "fp32",
}


@dataclass
class Event:
    """One of the profiler's: a range of time, or an allocation (above zero) or release."""

    what: str
    begin: int
    long: int = 0
    size: int = 0

    def name(self) -> str:
        """As kineto's event."""
        return self.what

    def start_ns(self) -> int:
        """As kineto's event."""
        return self.begin

    def duration_ns(self) -> int:
        """As kineto's event."""
        return self.long

    def nbytes(self) -> int:
        """As kineto's event."""
        return self.size


@pytest.mark.thorough
def test_the_peak_is_that_of_the_step_with_what_was_there_before() -> None:
    events = [
        *(
            Event("[memory]", 1, size=100),
            Event("[memory]", 2, size=900),
            Event("[memory]", 3, size=-900),
        ),
        *(Event("step", 10, 10), Event("[memory]", 12, size=50), Event("[memory]", 15, size=-20)),
        Event("[memory]", 30, size=5000),
    ]
    assert peaks_within(events, "step") == Peaks(
        tensors_bytes=150, allocator_bytes=150, operator=""
    )


def test_what_an_operator_frees_before_it_returns_is_no_tensor() -> None:
    events = [
        *(Event("[memory]", 1, size=100), Event("step", 10, 10), Event("operator aten.mm", 11, 5)),
        *(
            Event("[memory]", 12, size=70),
            Event("[memory]", 13, size=30),
            Event("[memory]", 14, size=-70),
        ),
    ]
    assert peaks_within(events, "step") == Peaks(
        tensors_bytes=130, allocator_bytes=200, operator="aten.mm"
    )


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """What every fork would import anew."""
    import transformers.models.llama  # noqa: F401

    import autotune_workers.dryrun.played_rank  # noqa: F401


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAMPLE)
def test_a_dry_run_says_what_the_allocator_says(name: str) -> None:
    found = compare(name, SAMPLE[name])
    assert abs(found.error) <= WORST, found


@pytest.mark.chaos
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(name: str) -> None:
    for precision in ARCHITECTURES[name].precisions:
        found = compare(name, precision)
        assert abs(found.error) <= WORST, found
