"""Fits the memory constants of every trainer to published runs, and judges the memory model on all
of them.

    python -m research.fit_memory            fit, cross-validate, print the tables
    python -m research.fit_memory --write    the same, and write autotune/cost/memory/constants.json

A row is evidence in one of three ways: a printed peak (a robust error of its log), a run that was
published without one (it fitted: its needed memory is below what is usable, censored evidence), and
a run that failed (its needed memory is above, unless it failed for another cause). Failures that
memory cannot explain (`Block.other_cause`) are counted, not judged. Priors hold constants that the
rows do not determine. Nothing here reads or changes a constant of time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from scipy.special import ndtri

import autotune.cost
from autotune.cost import Calibration, calibration_for
from autotune.cost.layout import layout_of, stages_of
from autotune.cost.memory.constants import memory_source, memory_values
from autotune.cost.memory.peak import fullest, rank_memories
from autotune.cost.traits import traits_of
from tests.benchmarks import published
from tests.benchmarks.published import Block
from tests.benchmarks.published.bridge_recipes import plausible

ASSUMED = {
    "activation_factor": 1.0, "waiting_in_layer": 0.0, "waiting_at_head": 0.0, "buffer_bytes": 0.0, "framework_bytes": 0.5e9, "fragmentation": 0.05,
    "usable_fraction": 0.98, "memory_sigma": 0.18,
}  # fmt: skip
"""for a trainer without measurements; the device keeps 2% for the CUDA context and NCCL (0.5 and 1
of 85 GB on an A100)"""
EAGER = {"buffer_bytes": 4.0}
"""torch's DDP copies fp32 gradients into buckets"""
GIVEN: Mapping[str, Mapping[str, float]] = {
    "nanotron": {"waiting_in_layer": 1.5, "waiting_at_head": 15.0, "buffer_bytes": 2.0, "usable_fraction": 0.85, "fragmentation": 0.0},
    **dict.fromkeys(("native", "hf_trainer", "accelerate", "lightning"), EAGER),
}  # fmt: skip
"""priors by trainer: nanotron's gathered inputs wait for another stream, and its reduction copies
16-bit gradients"""
SPREAD = {
    "activation_factor": 0.1, "waiting_in_layer": 0.5, "waiting_at_head": 0.7, "buffer_bytes": 0.3, "framework_bytes": 0.7, "fragmentation": 0.5,
    "usable_fraction": 0.03,
}  # fmt: skip
"""standard deviation of the log of each constant about its prior"""
NOISE = 0.03
"""errors of log peaks beyond this count linearly, not squared"""
OTHER_CAUSES = 0.1
"""share of the failing runs, beside those that are known to be no failures of memory, that failed
for another cause"""
LEAST_PEAKS = 8
"""printed peaks of a trainer from which its constants are fitted"""
FILES = (
    "nanotron",
    "mosaic",
    "nemo",
    "internevo",
    "internevo_memory",
    "bridge",
    "simumax",
    "alpa",
    "alpa_deepspeed",
)
"""data sets whose calls are a goal"""
NEVER_FITTED = ("bigscience", "alpa_deepspeed")
"""too few peaks of a loop are printed (four by bigscience); alpa_deepspeed's are what nvidia-smi
shows, with the CUDA context and cached blocks"""
WIDEST = 0.15
"""of the fitted error bars; errors beyond it are those of the allocator, not of what must fit"""
CPU = {
    "framework_bytes": 3e8,
    "memory_sigma": 0.3,
    "fragmentation": 0.0,
    "buffer_bytes": 1.0,
    "usable_fraction": 0.9,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Rows of a data set with what was predicted for them."""

    name: str
    probability: np.ndarray
    """of running out of memory"""
    failed: np.ndarray
    """whether it ran out of memory"""
    other_failures: int
    """runs that failed for another cause; they are in none of the arrays"""
    errors: np.ndarray
    """log(predicted / reserved) where a peak is printed"""
    allocated_errors: np.ndarray
    speed: np.ndarray
    cell: np.ndarray


def prior_of(trainer: str) -> dict[str, float]:
    """The constants before any measurement."""
    return {**ASSUMED, **GIVEN.get(trainer, {})}


def peaks_known(blocks: Iterable[Block]) -> int:
    """Rows that ran and print their peak."""
    return int(sum(np.sum(~b.failed & np.isfinite(b.peak_memory_bytes)) for b in blocks))


def free_constants(trainer: str, blocks: Sequence[Block]) -> tuple[str, ...]:
    """The constants that the rows of a trainer say something about."""
    if peaks_known(blocks) < LEAST_PEAKS:
        return ()
    given = prior_of(trainer)
    names = [name for name in SPREAD if given[name] > 0 and name != "usable_fraction"]
    failures = sum(int(b.out_of_memory.sum()) for b in blocks)
    return (*names, "usable_fraction") if failures > LEAST_PEAKS else tuple(names)


def predicted(block: Block, constants: Calibration) -> tuple[np.ndarray, np.ndarray]:
    """(reserved bytes, probability of running out of memory) of every row, as `estimate` has them;
    without the time."""
    workload, table, traits = block.workload, block.table, traits_of(block.workload.trainer)
    layout = layout_of(workload, table)
    stages = stages_of(workload.model, table, traits.split)
    memory = fullest(rank_memories(workload, table, layout, stages, constants, traits))
    usable = workload.cluster.gpu.memory_bytes * constants.usable_fraction
    return np.asarray(memory.parts.total), np.asarray(memory.risk(usable, constants.memory_sigma))


def residuals(blocks: Sequence[Block], values: Mapping[str, float]) -> np.ndarray:
    """Square roots of twice the negative log likelihood of every row."""
    out = []
    for b in blocks:
        constants = replace(calibration_for(b.workload), **values)
        peak, probability = predicted(b, constants)
        known = ~b.failed & np.isfinite(b.peak_memory_bytes)
        scaled = np.log(peak[known] / b.peak_memory_bytes[known]) / NOISE
        out.append(np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0)))
        p = np.clip(probability, 1e-12, 1.0 - 1e-12)
        ran = ~b.failed & ~known
        out.append(np.sqrt(-2.0 * np.log1p(-p[ran])))
        out.append(np.sqrt(-2.0 * np.log(OTHER_CAUSES + (1.0 - OTHER_CAUSES) * p[b.out_of_memory])))
    return np.concatenate(out)


def fit(trainer: str, blocks: Sequence[Block]) -> dict[str, float]:
    """The memory constants of a trainer from these rows."""
    given = prior_of(trainer)
    names = free_constants(trainer, blocks)
    if not names:
        return given
    widths = np.array([SPREAD[name] for name in names])

    def at(z: np.ndarray) -> dict[str, float]:
        found = {n: given[n] * math.exp(v) for n, v in zip(names, z * widths, strict=True)}
        found = {n: min(v, 1.0) if n == "usable_fraction" else v for n, v in found.items()}
        return {**given, **found}

    best = least_squares(
        lambda z: np.concatenate([residuals(blocks, at(z)), z]),
        np.zeros(len(names)),
        diff_step=1e-3,
        max_nfev=10,
    )
    found = at(best.x)
    return (
        {**found, "usable_fraction": usable(blocks, found)} if "usable_fraction" in names else found
    )


def usable(blocks: Sequence[Block], values: Mapping[str, float]) -> float:
    """The share of the memory above which a config is called: the smallest, within a spread of its
    prior, that calls at most one running row in a hundred and no setting's fastest."""
    found = judge("", [(block, values) for block in blocks])
    shares = values["memory_sigma"] * ndtri(np.clip(found.probability, 1e-300, 1.0 - 1e-16))
    ran = np.sort(shares[~found.failed])
    best = [
        shares[found.cell == cell][found.speed[found.cell == cell].argmax()]
        for cell in np.unique(found.cell)
    ]
    least = values["usable_fraction"] * math.exp(max(ran[-(len(ran) // 100) - 1], *best)) * 1.001
    prior, spread = (
        prior_of(blocks[0].workload.trainer)["usable_fraction"],
        math.exp(SPREAD["usable_fraction"]),
    )
    return float(np.clip(least, prior / spread, min(prior * spread, 1.0)))


def width_of(errors: np.ndarray) -> float:
    """The standard deviation for which nine tenths of these errors lie in the 90% interval."""
    return float(np.quantile(np.abs(errors), 0.9) / 1.645)


def by_trainer() -> dict[str, list[Block]]:
    """The rows that are fitted, by the loop that ran them."""
    found: dict[str, list[Block]] = defaultdict(list)
    for name, reader in published.FILES.items():
        for block in reader() if name not in NEVER_FITTED else ():
            found[block.workload.trainer].append(block)
    return dict(found)


def held_out(trainer: str, blocks: Sequence[Block]) -> list[tuple[Block, dict[str, float]]]:
    """Every row with constants that were fitted without its model."""
    models = sorted({b.workload.model.name for b in blocks})
    fits = {m: fit(trainer, [b for b in blocks if b.workload.model.name != m]) for m in models}
    return [(b, fits[b.workload.model.name]) for b in blocks]


def judge(name: str, rows: Sequence[tuple[Block, Mapping[str, float] | None]]) -> Judged:
    """What is predicted for these rows, each with its memory constants (None: those that ship)."""
    columns: dict[str, list[np.ndarray]] = defaultdict(list)
    other_failures = 0
    for everything, values in rows:
        explained = everything.failed & ~everything.out_of_memory
        other_failures += int(explained.sum())
        block = everything.take(np.flatnonzero(~explained))
        constants = replace(calibration_for(block.workload), **(values or {}))
        alternatives = [predicted(b, constants) for b in plausible(block)]
        peak = alternatives[0][0]
        known = ~block.failed & np.isfinite(block.peak_memory_bytes)
        columns["probability"].append(
            np.minimum.reduce([probability for _, probability in alternatives])
        )
        columns["failed"].append(block.failed.astype(bool))
        columns["errors"].append(np.log(peak[known] / block.peak_memory_bytes[known]))
        columns["allocated_errors"].append(
            np.log(peak[known] / (1.0 + constants.fragmentation) / block.allocated_bytes[known])
        )
        columns["speed"].append(
            np.where(block.failed, 0.0, np.nan_to_num(block.tokens_per_s_per_gpu))
        )
        columns["cell"].append(block.cell)
    return Judged(
        name=name,
        other_failures=other_failures,
        **{n: np.concatenate(c) for n, c in columns.items()},
    )


def lines_of(found: Judged) -> str:
    """One line of the table of data sets."""
    ran, failed = found.probability[~found.failed], found.probability[found.failed]
    line = f"  {found.name:18s} {len(ran):4d} ran, {np.sum(ran > 0.5):2d} called ({100 * np.mean(ran > 0.5):.1f}%)"
    if len(failed):
        line += f"; {len(failed):3d} failed, {100 * np.mean(failed > 0.5):.1f}% called"
    if found.other_failures:
        line += f"; {found.other_failures} failed for another cause"
    line += f"; best dropped in {len(dropped(found))} of {len(np.unique(found.cell))} cells"
    for what, errors in (("reserved", found.errors), ("allocated", found.allocated_errors)):
        errors = errors[np.isfinite(errors)]
        if len(errors):
            size = np.abs(np.expm1(errors))
            line += f"; {what} {100 * np.median(size):.1f}% / {100 * np.quantile(size, 0.9):.1f}% / {100 * size.max():.1f}%"
    return line


def dropped(found: Judged) -> list[str]:
    """Cells whose fastest row is called out of memory."""
    names = []
    for cell in np.unique(found.cell):
        rows = found.cell == cell
        best = rows & (found.speed == found.speed[rows].max()) & ~found.failed
        if best.any() and found.probability[best].min() > 0.5:
            names.append(str(cell))
    return names


def reliability(all_rows: Sequence[Judged]) -> list[str]:
    """Share of failing rows by predicted probability, over all data sets, without failures that
    memory cannot explain."""
    p = np.concatenate([j.probability for j in all_rows])
    failed = np.concatenate([j.failed for j in all_rows])
    lines = []
    for low, high in pairwise((0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1.0001)):
        rows = (p >= low) & (p < high)
        if rows.any():
            said = f"  P(OOM) {low:.2f} to {min(high, 1.0):.2f}: {rows.sum():4d} rows, mean {p[rows].mean():.2f}, failed {failed[rows].mean():.2f}"
            lines.append(said)
    return lines


def document(
    fits: Mapping[str, Mapping[str, float]],
    widths: Mapping[str, float],
    blocks: Mapping[str, Sequence[Block]],
) -> dict[str, object]:
    """The constants as they are kept."""

    def rounded(values: Mapping[str, float]) -> dict[str, float]:
        return {name: float(f"{value:.4g}") for name, value in values.items()}

    trainers: dict[str, object] = {}
    for trainer, given in GIVEN.items():
        trainers[trainer] = rounded(given)
    for trainer, values in sorted(fits.items()):
        free = free_constants(trainer, blocks[trainer])
        if free:
            where = sorted({b.where for b in blocks[trainer] if peaks_known([b])})
            entry = {n: v for n, v in values.items() if v != ASSUMED[n]}
            trainers[trainer] = {
                **rounded({**entry, "memory_sigma": widths[trainer]}),
                "fitted": [*free, "memory_sigma"],
                "on": sorted(
                    {b.workload.cluster.gpu.name for b in blocks[trainer] if peaks_known([b])}
                ),
                "source": "; ".join(where),
            }
    return {
        "provenance": "python -m research.fit_memory --write; data and their sources: tests/benchmarks/data",
        "assumed": ASSUMED,
        "cpu": CPU,
        "trainers": trainers,
    }


def shipped_lines() -> list[str]:
    """The tables of the constants that ship: calls and peaks of every data set, reliability, and
    what is fitted for every pair."""
    named = {name: reader() for name, reader in published.FILES.items()}
    rows = [judge(name, [(b, None) for b in blocks]) for name, blocks in named.items()]
    lines = ["memory: rows called, peaks (median / p90 / worst)", *map(lines_of, rows)]
    lines += [
        "memory: reliability over all data sets",
        *reliability(rows),
        "memory constants of every pair",
    ]
    pairs = sorted(
        {
            (b.workload.cluster.gpu.name, b.workload.trainer)
            for blocks in named.values()
            for b in blocks
        }
    )
    for gpu, trainer in pairs:
        known = memory_source(gpu, trainer)
        said = f"fitted {', '.join(known.fitted)}; assumed " if known.fitted else "assumed "
        width = memory_values(gpu, trainer)["memory_sigma"]
        lines.append(f"  {gpu}/{trainer}, error bar {width:.3f}: {said}{', '.join(known.assumed)}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, cross-validate, print; with --write also keep the constants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write autotune/cost/memory/constants.json"
    )
    options = parser.parse_args(arguments)
    rows = by_trainer()
    fits = {trainer: fit(trainer, blocks) for trainer, blocks in rows.items()}
    folds = {
        trainer: held_out(trainer, blocks)
        for trainer, blocks in rows.items()
        if free_constants(trainer, blocks)
    }
    widths = {}
    for trainer, found in folds.items():
        judged = judge(trainer, found)
        widths[trainer] = min(max(width_of(judged.errors), 0.05), WIDEST)
    for trainer, values in fits.items():
        values["memory_sigma"] = widths.get(trainer, ASSUMED["memory_sigma"])
        free = free_constants(trainer, rows[trainer])
        shown = ", ".join(f"{n} {values[n]:.3g}" for n in (*free, "memory_sigma"))
        print(f"{trainer}: {'fitted: ' + shown if free else 'assumed, nothing printed to fit'}")
    print("in the constants that ship: rows called, peaks (median / p90 / worst)")
    named = {name: reader() for name, reader in published.FILES.items()}
    all_rows = [
        judge(
            name,
            [(b, fits.get(b.workload.trainer) or prior_of(b.workload.trainer)) for b in blocks],
        )
        for name, blocks in named.items()
    ]
    print("\n".join(lines_of(j) for j in all_rows))
    print("held out by model")
    for trainer, found in folds.items():
        print(
            lines_of(
                judge(trainer, [(b, {**v, "memory_sigma": widths[trainer]}) for b, v in found])
            )
        )
    print("reliability over all data sets")
    print("\n".join(reliability(all_rows)))
    if options.write:
        path = Path(autotune.cost.__file__).parent / "memory" / "constants.json"
        path.write_text(json.dumps(document(fits, widths, rows), indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
