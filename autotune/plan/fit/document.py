"""The answer as plain JSON values: what `autotune fit --json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.cost.learn.from_dry_runs import DRY_RUN_TRAINER
from autotune.plan.fit.answer import Fit
from autotune.plan.fit.findings import (
    active_parameters,
    beside_cost_model,
    flops_per_token,
    over_six_n,
    traffic,
)
from autotune.spec import DryRun, MemorySample


def fits_document(
    fits: Sequence[Fit], *, profile: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """{configs: one document for each config}; with `profile` if one was requested."""
    found: dict[str, Any] = {"configs": [fit_document(fit) for fit in fits]}
    return found if profile is None else {**found, "profile": dict(profile)}


def fit_document(fit: Fit) -> dict[str, Any]:
    """One config: config, verdict, memory, risk, estimate, runs."""
    return {
        "config": fit.config.to_dict(),
        "verdict": fit.verdict,
        "fits": fit.fits,
        "basis": fit.basis,
        "played": DRY_RUN_TRAINER if fit.runs else None,
        "cost_model_verdict": fit.cost_model_verdict,
        "oom_probability": fit.oom_probability,
        "allocated_bytes": fit.allocated_bytes,
        "reserved_bytes": fit.reserved.peak_bytes,
        "reserved_low_bytes": fit.reserved.low_bytes,
        "reserved_high_bytes": fit.reserved.high_bytes,
        "usable_bytes": fit.reserved.usable_bytes,
        "memory_bytes": fit.memory_bytes,
        "reserved_source": fit.reserved.source,
        "estimate": fit.estimate.to_dict(),
        "beside_cost_model": [asdict(row) for row in beside_cost_model(fit)],
        "flops_per_token": flops_per_token(fit),
        "active_parameters": active_parameters(fit),
        "over_six_n": over_six_n(fit),
        "runs": [_run(run) for run in fit.runs],
        "problem": fit.problem,
        "remedy": fit.remedy,
        "guesses": list(fit.guesses),
        "notes": list(fit.notes),
        "versions": dict(fit.versions),
        "took_s": fit.took_s,
    }


def _run(run: DryRun) -> dict[str, Any]:
    samples = {"phase_peaks": run.phase_peaks, "timeline": run.timeline}
    return {
        **asdict(run),
        "peak": _sample(run.peak),
        **{name: [_sample(sample) for sample in found] for name, found in samples.items()},
        "traffic": [asdict(row) for row in traffic(run)],
    }


def _sample(sample: MemorySample) -> dict[str, Any]:
    return {
        "moment": asdict(sample.moment),
        "parts_bytes": dict(sample.parts_bytes),
        "total_bytes": sample.total_bytes,
    }
