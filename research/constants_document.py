"""The content of `autotune/cost/constants.json`: constants by pair, and pooled by hardware family,
by trainer and over all.

Time constants are written by `research.fit_cost_model`. Memory constants are another fit's: they
are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost import Calibration
from autotune.cost.calibration import ceiling
from autotune.spec import catalog
from research.time_fit import BOUNDED_BY, FAMILIES, LOOPS, SPREAD
from tests.benchmarks.perturbation import PHYSICAL, SOFTWARE

if TYPE_CHECKING:
    from research.error_fit import Errors

TIME = (
    *SPREAD, "half_factor", "score_bytes", "turn_s", "full_speed_ranks", "expert_imbalance", "dispatch_overlap",
    *("time_sigma", "comm_sigma", "level_sigma", "expert_sigma"),
)  # fmt: skip
"""the constants of time; all others are of memory"""
OWN = ("score_bytes", "full_speed_ranks", "turn_s", "tensor_hop_s")
"""constants of one pair's machines and kernels: zero where they are pooled"""


def document(
    fitted: Mapping[str, Calibration],
    old: Mapping[str, Any],
    errors: Errors | None = None,
    unread_trainer: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The constants as they are kept. `errors`: how wrong they are on other clusters; None: as
    before. `unread_trainer`: the level of trainers that were never fitted (`unread_level`); None:
    no level, whatever was before."""
    hardware = [n for n in PHYSICAL if n in TIME and n not in SOFTWARE]
    software = [n for n in PHYSICAL if n in TIME and n in SOFTWARE]
    everything = list(fitted.values())
    families = {f: [c for c in everything if c.gpu == f] for f in FAMILIES}
    trainers = {
        t: [c for c in everything if c.trainer == t]
        for t in sorted({c.trainer for c in everything})
    }
    bounds = {c.gpu: ceiling(catalog.gpu(BOUNDED_BY[c.gpu]), "bf16") for c in everything}
    shares = [np.log(c.matmul_efficiency / bounds[c.gpu]) for c in everything]
    # of the pair that shows it, whose measurements predate FlashAttention
    scores = {"score_bytes": max(c.score_bytes for c in everything)}
    widths = ("time_sigma", "comm_sigma", "level_sigma")
    common = {n: old["pooled"][n] for n in widths}
    if errors is not None:
        common = dict(
            zip(widths, (errors.time_sigma, errors.comm_sigma, errors.shared_sigma), strict=True)
        )
    pooled = {**_pooled(everything, [n for n in PHYSICAL if n in TIME]), **scores, **common}
    return {
        "provenance": "python -m research.fit_cost_model --write; data and their sources: tests/benchmarks/data",
        **{
            name: value
            for name, value in old.items()
            if name not in ("provenance", "unread_trainer")
        },
        "families": FAMILIES,
        "loops": LOOPS,
        "refit": old["refit"] if errors is None else errors.values,
        **({} if unread_trainer is None else {"unread_trainer": dict(unread_trainer)}),
        "share_of_measured": round(float(np.exp(np.mean(shares))), 4),
        "pairs": {
            n: {**_kept(old, "pairs", n, c), **_rounded(_time_values(c))} for n, c in fitted.items()
        },
        "hardware": {
            f: {**_kept(old, "hardware", f), **_rounded(_pooled(m, hardware))}
            for f, m in families.items()
            if m
        },
        "software": {
            t: {**_kept(old, "software", t), **_rounded(_pooled(m, software))}
            for t, m in trainers.items()
        },
        "pooled": {**_memory(old.get("pooled", {})), **_rounded(pooled)},
    }


def _time_values(constants: Calibration) -> dict[str, Any]:
    values = constants.to_dict()
    return {"source": values["source"], "fabric": values["fabric"]} | {n: values[n] for n in TIME}


def _kept(
    old: Mapping[str, Any], kind: str, name: str, fallback: Calibration | None = None
) -> dict[str, Any]:
    """The memory constants that were there, or for a new pair those of pairs of the same trainer,
    or the defaults."""
    there = old.get(kind, {}).get(name)
    if there is None and fallback is not None:
        alike = [v for n, v in old.get("pairs", {}).items() if n.endswith(f"/{fallback.trainer}")]
        there = (
            alike[0]
            if alike
            else {n: v for n, v in fallback.to_dict().items() if n not in ("gpu", "trainer")}
        )
    return _memory(there or {})


def _memory(values: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in values.items() if n not in TIME and n not in ("source", "fabric")}


def _pooled(members: Sequence[Calibration], names: Sequence[str]) -> dict[str, Any]:
    """The geometric means of these constants."""
    return {
        n: 0.0
        if n in OWN
        else float(np.exp(np.mean([np.log(max(getattr(c, n), 1e-12)) for c in members])))
        for n in names
    }


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}
