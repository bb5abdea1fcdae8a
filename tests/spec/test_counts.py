"""Counts in texts: one thing has no plural, and large counts are grouped by thousands."""

from __future__ import annotations

from autotune.spec.texts.as_text import number_of


def test_a_number_of_things_agrees_with_its_noun() -> None:
    assert [number_of(n, "rank") for n in (0, 1, 2, 4096)] == [
        "0 ranks",
        "1 rank",
        "2 ranks",
        "4,096 ranks",
    ]
    assert [number_of(n, "micro-batch", "micro-batches") for n in (1, 3)] == [
        "1 micro-batch",
        "3 micro-batches",
    ]
