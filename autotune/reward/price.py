"""Cost of a token: in money if the price of a GPU is known, in energy if its power is known, else in
rank-seconds.

    cost per token = ranks * rate / tokens_per_s         rate: USD per rank-second, W per rank, or 1

Only ranks in use are counted. Measured power (the trial's `power_watts`, mean per rank) takes
precedence over the datasheet's.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.spec import GpuSpec, Measurement

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """Cost of one token."""

    value: float
    """cost per token, in `unit`"""
    unit: str
    """USD, J or rank_s"""
    source: str
    """price, measured power, datasheet power or ranks. Only costs of the same source are
    comparable"""


def token_cost(measurement: Measurement, gpu: GpuSpec) -> TokenCost:
    """Cost of one token at the median step."""
    rank_seconds = measurement.num_ranks / measurement.tokens_per_s
    if gpu.usd_per_hour is not None:
        return TokenCost(
            value=rank_seconds * gpu.usd_per_hour / SECONDS_PER_HOUR, unit="USD", source="price"
        )
    if watts := measurement.utilization.get("power_watts"):
        return TokenCost(value=rank_seconds * watts, unit="J", source="measured power")
    if gpu.power_watts:
        return TokenCost(value=rank_seconds * gpu.power_watts, unit="J", source="datasheet power")
    return TokenCost(value=rank_seconds, unit="rank_s", source="ranks")
