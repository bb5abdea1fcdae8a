from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.reward import STABILITY_PARTS, diverged, stability, stability_parts
from autotune.spec import FailureKind, Measurement
from tests.reward.samples import STEPS, healthy, losses
from tests.shortcuts import present


def with_spike(at: int, factor: float) -> tuple[float, ...]:
    norms = list(healthy().grad_norms)
    norms[at] *= factor
    return tuple(norms)


def test_a_healthy_training_is_stable() -> None:
    assert stability(healthy()) >= 0.95
    always = {"finite", "skipped", "slowing", "jitter"}
    assert set(stability_parts(healthy())) == always | {"trend", "fidelity", "spikes", "headroom"}
    assert diverged(healthy()) is None


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("headroom", {"peak_memory_bytes": 0.98 * 4e9}),
        ("spikes", {"grad_norms": with_spike(10, 50.0)}),
        ("skipped", {"skipped_steps": 6}),
        ("fidelity", {"losses": losses(shift=1.0)}),
        ("fidelity", {"losses": losses()[::-1]}),
        ("trend", {"losses": tuple(4 + 0.06 * i for i in range(STEPS)), "reference_losses": ()}),
        ("jitter", {"step_times_s": tuple(0.1 if i % 2 else 0.2 for i in range(STEPS))}),
    ],
)
def test_each_trouble_lowers_its_own_part(part: str, fields: dict[str, Any]) -> None:
    parts = stability_parts(healthy(**fields))
    assert parts[part] < 0.95
    others = {name: value for name, value in parts.items() if name not in (part, "trend")}
    assert all(value >= 0.95 for value in others.values()), others
    assert stability(healthy(**fields)) < 0.95


def test_bf16_noise_about_the_reference_is_no_trouble() -> None:
    near = tuple(x * (1 + 0.002 * math.cos(5 * i)) for i, x in enumerate(losses()))
    assert stability_parts(healthy(losses=near))["fidelity"] == 1.0


def test_flat_curves_that_agree_need_no_correlation() -> None:
    flat = tuple(4 + 0.001 * (i % 2) for i in range(STEPS))
    assert stability_parts(healthy(losses=flat, reference_losses=flat[::-1]))["fidelity"] == 1.0


def test_a_norm_that_falls_fast_from_the_start_is_no_spike() -> None:
    falling = tuple(100 * 0.6**i + 1 for i in range(STEPS))
    assert stability_parts(healthy(grad_norms=falling))["spikes"] == 1.0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"losses": (*losses()[:12], math.nan, *losses()[13:])}, "1 of 20 steps"),
        ({"nonfinite_steps": 3}, "3 of 20 steps"),
        ({"grad_norms": (math.inf, *healthy().grad_norms[1:])}, "non-finite"),
        ({"skipped_steps": STEPS}, "skipped 100%"),
        ({"losses": tuple(5 * 1.1**i for i in range(STEPS))}, "grew by a factor"),
    ],
)
def test_a_hard_gate_comes_with_its_evidence(fields: dict[str, Any], words: str) -> None:
    failure = present(diverged(healthy(**fields)))
    assert failure.kind is FailureKind.DIVERGED
    assert words in failure.message
    assert stability(healthy(**fields)) == 0.0


def test_a_loss_that_a_log_does_not_say_is_no_divergence() -> None:
    """A progress bar may end one step more than the loss lines tell of."""
    known = healthy(time_from="arrival", losses=(*losses()[:-1], math.nan), grad_norms=())
    assert diverged(known) is None
    assert stability_parts(known)["finite"] == 1.0
    assert stability(known) >= 0.95
    few = healthy(
        time_from="log", losses=tuple(x if i % 4 == 0 else math.nan for i, x in enumerate(losses()))
    )
    assert diverged(few) is None


def test_the_step_of_the_first_bad_loss_is_named() -> None:
    failure = present(diverged(healthy(losses=(*losses()[:12], math.nan, *losses()[13:]))))
    assert failure.step == 12


def test_overflows_that_loss_scaling_caught_are_no_divergence() -> None:
    caught = healthy(losses=(math.inf, *losses()[1:]), skipped_steps=1)
    assert diverged(caught) is None
    assert stability_parts(caught)["skipped"] >= 0.95


def test_what_is_not_known_is_left_out() -> None:
    bare = Measurement(step_times_s=(0.1, 0.1), tokens_per_step=10)
    assert set(stability_parts(bare)) == {"finite", "skipped", "jitter"}
    assert stability(bare) == 1.0


finite = st.floats(1e-6, 1e6)
anything = st.one_of(finite, st.just(math.nan), st.just(math.inf))


@settings(deadline=None, derandomize=True)
@given(
    times=st.lists(finite, min_size=1, max_size=12),
    series=st.lists(anything, max_size=12),
    norms=st.lists(anything, max_size=12),
    reference=st.lists(anything, max_size=12),
    skipped=st.integers(0, 20),
    bad=st.integers(0, 20),
    peak=st.one_of(st.none(), st.floats(0, 1e12)),
)
def test_parts_are_between_zero_and_one(
    times: list[float],
    series: list[float],
    norms: list[float],
    reference: list[float],
    skipped: int,
    bad: int,
    peak: float | None,
) -> None:
    m = Measurement(
        step_times_s=tuple(times),
        losses=tuple(series),
        grad_norms=tuple(norms),
        reference_losses=tuple(reference),
        skipped_steps=skipped,
        nonfinite_steps=bad,
        peak_memory_bytes=peak,
        memory_capacity_bytes=1e11,
    )
    assert all(0.0 <= value <= 1.0 for value in stability_parts(m).values())
    assert 0.0 <= stability(m) <= 1.0


def test_every_part_says_how_it_is_scored() -> None:
    assert set(STABILITY_PARTS) >= set(stability_parts(healthy()))
    assert "1 up to 0.92, 0 from 1" in STABILITY_PARTS["headroom"].formula
    assert STABILITY_PARTS["fidelity"].formula.count("1 up to") == 3


def test_the_values_of_all_parts_have_names_of_their_own() -> None:
    names = [name for part in STABILITY_PARTS.values() for name in part.values]
    assert len(names) == len(set(names))
