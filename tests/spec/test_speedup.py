from __future__ import annotations

from autotune.spec.texts.as_text import DEFAULT_IS_BEST, format_speedup


def test_a_speedup_has_its_interval_if_known() -> None:
    assert format_speedup(1.184, 1.14, 1.2249) == "1.18x (95% CI 1.14-1.22)"
    assert (
        format_speedup(1.0, 0.9, 1.1, times=" times", over=" it")
        == "1.00 times (95% CI 0.90-1.10) it"
    )
    assert format_speedup(2.0, None, None) == "2.00x"


def test_the_baseline_has_no_speedup_over_itself() -> None:
    assert format_speedup(1.0, 1.0, 1.0, over=" over the baseline") == DEFAULT_IS_BEST
