"""Times, tokens, bytes and rates as people write them."""

from __future__ import annotations

import pytest

from autotune.errors import SpecError
from autotune.spec.texts.quantity import (
    BYTES,
    BYTES_PER_S,
    FLOPS_PER_S,
    SEQUENCE,
    TIME,
    TOKENS,
    Quantity,
)


@pytest.mark.parametrize(
    ("quantity", "text", "number"),
    [
        (TIME, "90", 90.0),
        (TIME, "1h", 3600.0),
        (TIME, "1h30m", 5400.0),
        (TIME, "1 h 30 min", 5400.0),
        (TIME, "0.5 days", 43200.0),
        (TIME, "250ms", 0.25),
        (TIME, "5us", 5e-6),
        (TOKENS, "15T", 15e12),
        (TOKENS, "300b", 300e9),
        (TOKENS, "1.5M tokens", 1.5e6),
        (TOKENS, "1e12", 1e12),
        (SEQUENCE, "8Ki", 8192.0),
        (SEQUENCE, "2048", 2048.0),
        (BYTES, "80GiB", 80 * 2.0**30),
        (BYTES, "80GB", 80e9),
        (BYTES, "0.1 GB", 1e8),
        (BYTES_PER_S, "3.35TB/s", 3.35e12),
        (BYTES_PER_S, "400Gbit/s", 50e9),
        (BYTES_PER_S, "400Gbps", 50e9),
        (FLOPS_PER_S, "1.98 PFLOP/s", 1.98e15),
    ],
)
def test_a_quantity_is_read_exactly(quantity: Quantity, text: str, number: float) -> None:
    assert quantity.parse(text) == number


@pytest.mark.parametrize(
    ("quantity", "text", "words"),
    [
        (TIME, "1M", "write 1min for minutes"),
        (TIME, "soon", "write e.g. 90s, 15min, 1h30m or 2d"),
        (TIME, "1h 30", "write e.g."),
        (TIME, "-5s", "write e.g."),
        (TIME, "5 TB", "must be a time, in seconds or with a unit"),
        (TIME, "", "must be a time"),
        (TIME, "1h" * 30, "must be a time"),
        (TOKENS, "300G", "write 300B for 300 x 10^9 tokens"),
        (TOKENS, "1h", "must be a number of tokens"),
        (SEQUENCE, "8k", "'8k' may mean 8 x 1000 or 8 x 1024; write 8Ki for 8 x 1024"),
        (BYTES, "80G", "can mean powers of 1000 or of 1024; write 80GB or 80GiB"),
        (BYTES, "80Gb", "has a unit of bits; write 80GB for bytes"),
        (BYTES_PER_S, "400Gb/s", "may mean bits or bytes; write 400GB/s or 400Gbit/s"),
        (BYTES_PER_S, "900GB", "has a unit without time; write 900GB/s"),
    ],
)
def test_a_wrong_or_ambiguous_unit_is_rejected_with_a_remedy(
    quantity: Quantity, text: str, words: str
) -> None:
    with pytest.raises(SpecError) as refused:
        quantity.parse(text)
    assert words in str(refused.value)
