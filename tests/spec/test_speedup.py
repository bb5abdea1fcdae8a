from __future__ import annotations

from autotune.spec.speedup import format_speedup


def test_a_speedup_is_told_with_its_interval_where_there_is_one() -> None:
    assert format_speedup(1.184, 1.14, 1.2249) == "1.18x (95%: 1.14 to 1.22)"
    assert format_speedup(1.0, 1.0, 1.0, times=" times") == "1.00 times (95%: 1.00 to 1.00)"
    assert format_speedup(2.0, None, None) == "2.00x"
