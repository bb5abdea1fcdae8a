"""Fits the cost model's constants to published measurements, and measures the prediction error on held-out data.

    python -m tests.benchmarks.fit_cost_model            fit, cross-validate, print the tables
    python -m tests.benchmarks.fit_cost_model --write    the same, and write autotune/cost/constants.json

Each pair of GPU family and trainer is fitted separately: a robust loss (soft L1) on log tokens/s, with log-normal priors around physical figures
(datasheets, measured matmul and NCCL limits), so that a constant that the data do not determine stays at its physical value. For the held-out
tables everything is fitted again without the model, or the GPU count, that is then predicted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import spearmanr

import autotune.cost
from autotune.cost import Calibration, estimate
from autotune.cost.layout import layout_of
from autotune.cost.stages import stages_of
from autotune.cost.step_time import time_parts
from autotune.cost.traits import traits_of
from tests.benchmarks import measurements
from tests.benchmarks.measurements import Block
from tests.benchmarks.perturbation import PHYSICAL, SOFTWARE

PRIOR = Calibration(latency_factor=3.0, straggler=0.004, hop_s=60e-6, inter_efficiency=0.85, inter_decay=0.1)
SPREAD = {
    "matmul_efficiency": 0.1, "fp8_factor": 0.15, "half_size": 0.5, "attention_efficiency": 0.3, "memory_efficiency": 0.25, "layer_host_s": 1.0,
    "micro_batch_host_s": 1.0, "step_host_s": 1.0, "pipelined_tensor_host_s": 2.0, "send_host_s": 1.0, "intra_efficiency": 0.2,
    "inter_efficiency": 0.4, "rails": 0.5, "inter_decay": 0.7, "latency_factor": 0.3, "hop_s": 1.0, "data_overlap": 0.4, "straggler": 0.7,
}  # fmt: skip
"""Standard deviation of the log of each time constant about its prior."""
MEMORY_SPREAD = {
    "activation_factor": 0.1, "waiting_in_layer": 0.5, "waiting_at_head": 0.7, "buffer_bytes": 0.3, "framework_bytes": 0.7,
}  # fmt: skip
TIME_NOISE, MEMORY_NOISE = 0.05, 0.03
"""residuals beyond this count linearly, not squared"""
FAMILIES = {"a100": ["a100-40gb", "a100-80gb"], "h100": ["h100-sxm", "h200-sxm"]}
HARDWARE_PRIOR = {
    "a100": {"matmul_efficiency": 0.78, "intra_efficiency": 0.76},
    "h100": {"matmul_efficiency": 0.70, "intra_efficiency": 0.78},
}
"""with `PRIOR`'s share of the network: about what nccl-tests shows for large gathers on such nodes, alone"""
CEILING = {"a100": 271 / 312, "h100": 790 / 989}
"""the best plain matmul that was ever measured on them, as a fraction of the peak"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One GPU family and trainer with its data."""

    name: str
    source: str
    blocks: list[Block]
    free: tuple[str, ...]
    """constants that these data say something about"""
    given: dict[str, float]
    """constants that are known from the code of that time"""
    unsure: float
    """extra relative error of communication and bubbles that these data do not show"""
    near: float
    """rows slower than this many times their cell's best do not count in the fit"""


def pairs() -> list[Pair]:
    """The pairs that have measurements."""
    mosaic = measurements.mosaic()
    single = (
        "attention_efficiency",
        "hop_s",
        "inter_efficiency",
        "inter_decay",
        "pipelined_tensor_host_s",
        "straggler",
    )
    flat = ("rails", "layer_host_s", "pipelined_tensor_host_s", "send_host_s", "latency_factor")

    def without(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(n for n in SPREAD if n not in names)

    def of(family: str, blocks: list[Block]) -> list[Block]:
        return [b for b in blocks if b.workload.cluster.gpu.name in FAMILIES[family]]

    recipe = (
        "matmul_efficiency",
        "fp8_factor",
        "half_size",
        "attention_efficiency",
        "memory_efficiency",
        "intra_efficiency",
        "data_overlap",
    )
    return [
        Pair(
            name="h100/nanotron", source="nanotron_h100.csv", blocks=measurements.nanotron(), free=without(("fp8_factor",)),
            given={"usable_fraction": 0.84, "waiting_in_layer": 1.5, "waiting_at_head": 15.0, "buffer_bytes": 2.0},
            unsure=0.0, near=3.0,
        ),
        Pair(
            name="a100/megatron", source="vtrain_single_node_a100.csv", blocks=measurements.vtrain(),
            free=without((*single, "fp8_factor")), given={"score_bytes": 12.0}, unsure=0.1, near=3.0,
        ),
        Pair(
            name="a100/torchtitan", source="mosaic_llm_foundry.csv", blocks=of("a100", mosaic), free=without((*flat, "fp8_factor")),
            given={}, unsure=0.2, near=1e9,
        ),
        Pair(
            name="h100/torchtitan", source="mosaic_llm_foundry.csv", blocks=of("h100", mosaic), free=without(flat), given={},
            unsure=0.2, near=1e9,
        ),
        Pair(
            name="h100/megatron", source="nvidia_nemo_perf.csv", blocks=measurements.nemo(), free=recipe, given={}, unsure=0.1, near=1e9,
        ),
    ]  # fmt: skip


def running(blocks: Sequence[Block], near: float) -> list[Block]:
    """The rows that ran, at most `near` times slower than the best of their cell."""
    best: dict[str, float] = {}
    for b in blocks:
        for cell, speed in zip(b.cell, b.tokens_per_s_per_gpu, strict=True):
            if np.isfinite(speed):
                best[cell] = max(best.get(cell, 0.0), float(speed))
    kept = []
    for b in blocks:
        limit = np.array([best.get(c, np.inf) for c in b.cell]) / near
        rows = np.where(~b.failed & (np.nan_to_num(b.tokens_per_s_per_gpu) >= limit))[0]
        if len(rows):
            kept.append(b.take(rows))
    return kept


def predicted_speed(block: Block, constants: Calibration) -> np.ndarray:
    """Tokens/s per GPU of every row, as `estimate` has it; without the memory, which a fit of time constants does not need."""
    workload, table, traits = block.workload, block.table, traits_of(block.workload.trainer)
    layout = layout_of(workload, table)
    stages = stages_of(workload.model, layout.pp, traits.split)
    step = time_parts(workload, table, layout, stages, constants, traits).total
    return table.global_batch_size * float(workload.seq_len) / (step * layout.world)


def time_errors(blocks: Sequence[Block], constants: Calibration) -> np.ndarray:
    """log(measured / predicted speed) of every row."""
    return np.concatenate([np.log(b.tokens_per_s_per_gpu / predicted_speed(b, constants)) for b in blocks])


def memory_errors(blocks: Sequence[Block], constants: Calibration) -> np.ndarray:
    """log(measured / predicted peak) of every row with a measured peak."""
    rows = []
    for b in blocks:
        known = np.isfinite(b.peak_memory_bytes)
        if known.any():
            peak = np.asarray(estimate(b.workload, b.table, calibration=constants).peak_memory_bytes)
            rows.append(np.log(b.peak_memory_bytes[known] / peak[known]))
    return np.concatenate(rows) if rows else np.empty(0)


def _fit(
    errors: Callable[[Calibration], np.ndarray], prior: Calibration, spread: dict[str, float], noise: float, ceiling: float,
    start: dict[str, float] | None = None, steps: int = 20,
) -> tuple[Calibration, float]:  # fmt: skip
    names, widths = list(spread), np.array(list(spread.values()))

    def at(z: np.ndarray) -> Calibration:
        values = {n: float(getattr(prior, n) * np.exp(v)) for n, v in zip(names, z * widths, strict=True)}
        for n in values:
            if n == "matmul_efficiency":
                values[n] = min(values[n], ceiling)
            elif n.endswith("_efficiency") or n in ("data_overlap", "rails", "fp8_factor"):
                values[n] = min(values[n], 1.0)
        return replace(prior, **values)

    def cost(z: np.ndarray) -> np.ndarray:
        scaled = errors(at(z)) / noise
        robust = np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))
        return np.concatenate([robust, z])

    first = np.array([np.log((start or {}).get(n, getattr(prior, n)) / getattr(prior, n)) for n in names]) / widths
    found = least_squares(cost, first, diff_step=1e-3, max_nfev=steps)
    return at(found.x), float(found.cost)


def fit_time(pair: Pair, blocks: Sequence[Block]) -> Calibration:
    """The pair's time constants from these rows: the better of two starts, host-bound and device-bound."""
    family, trainer = pair.name.split("/")
    prior = replace(PRIOR, gpu=family, trainer=trainer, source=pair.source, **HARDWARE_PRIOR[family], **pair.given)
    spread = {n: SPREAD[n] for n in pair.free}
    rows = running(blocks, pair.near)
    starts = [{"layer_host_s": 0.5e-3}, {"layer_host_s": 4e-3}] if "layer_host_s" in spread else [{}]
    fits = [_fit(lambda c: time_errors(rows, c), prior, spread, TIME_NOISE, CEILING[family], s) for s in starts]
    return min(fits, key=lambda f: f[1])[0]


def fit_memory(constants: Calibration, blocks: Sequence[Block]) -> Calibration:
    """The memory constants from these rows, where any has a measured peak."""
    rows = [b.take(np.where(~b.failed & np.isfinite(b.peak_memory_bytes))[0]) for b in blocks]
    rows = [b for b in rows if len(b.table)]
    if not rows:
        return constants
    spread = {n: v for n, v in MEMORY_SPREAD.items() if getattr(constants, n) > 0}
    return _fit(lambda c: memory_errors(rows, c), constants, spread, MEMORY_NOISE, 1.0)[0]


def fit(pair: Pair, blocks: Sequence[Block]) -> Calibration:
    """All constants of a pair from these rows."""
    return fit_memory(fit_time(pair, blocks), blocks)


def held_out(
    pair: Pair, key: Callable[[Block], np.ndarray], run: Callable[..., Iterable[Calibration]] = map
) -> list[tuple[Block, Calibration]]:
    """Every row once, with constants that were fitted without any row of the same `key` (a model, a GPU count); `run` is `map` or a pool's."""
    values = sorted({v for b in pair.blocks for v in key(b).tolist()})
    rests = [[b.take(rows) for b in pair.blocks if len(rows := np.flatnonzero(key(b) != v))] for v in values]
    out = []
    for value, constants in zip(values, run(fit, [pair] * len(values), rests), strict=True):
        out += [(b.take(rows), constants) for b in pair.blocks if len(rows := np.flatnonzero(key(b) == value))]
    return out


def by_model(b: Block) -> np.ndarray:
    """The model of each row."""
    return np.full(len(b.table), b.workload.model.name)


def by_gpus(b: Block) -> np.ndarray:
    """The GPU count of each row."""
    return np.asarray(b.table.world_size)


def rows_near(block: Block, folds: Sequence[tuple[Block, Calibration]], near: float) -> np.ndarray:
    """The rows of a fold that ran, at most `near` times slower than the best of their cell in any fold."""
    best: dict[str, float] = {}
    for b, _ in folds:
        for cell, speed in zip(b.cell, b.tokens_per_s_per_gpu, strict=True):
            if np.isfinite(speed):
                best[cell] = max(best.get(cell, 0.0), float(speed))
    limit = np.array([best.get(c, np.inf) for c in block.cell]) / near
    return np.flatnonzero(~block.failed & (np.nan_to_num(block.tokens_per_s_per_gpu) >= limit))


def errors_of(folds: Sequence[tuple[Block, Calibration]], near: float) -> np.ndarray:
    """Held-out log errors of the rows within `near` of their cell's best."""
    rows = [(b.take(rows_near(b, folds, near)), c) for b, c in folds]
    return np.concatenate([time_errors([b], c) for b, c in rows if len(b.table)])


def coverage(folds: Sequence[tuple[Block, Calibration]], near: float, errors: np.ndarray) -> float:
    """Share of a data set's held-out rows in intervals whose width comes from the other folds: each model's rows by the others' errors."""
    names = np.concatenate([by_model(b)[rows_near(b, folds, near)] for b, _ in folds])
    held = [np.abs(errors[names == n]) <= 1.645 * max(sigma_of(errors[names != n]), 0.04) for n in sorted(set(names))]
    return float(np.mean(np.concatenate(held)))


def percent(errors: np.ndarray) -> str:
    """median / 90th percentile of the relative error."""
    size = np.abs(np.expm1(-errors))
    return f"{100 * np.median(size):.1f}% / {100 * np.quantile(size, 0.9):.1f}%"


@dataclass(slots=True)
class Choice:
    """What picking configs in predicted order costs, over the cells of a data set."""

    trials: list[int]
    failed: list[int]
    rank: list[float]
    """Spearman correlation over all rows that ran, by cell"""
    rank_near: list[float]
    """the same over rows within a factor 2 of the cell's best"""


def choosing(folds: Sequence[tuple[Block, Calibration]], *, least: int, within: float = 0.05) -> Choice:
    """Trials until one is within 5% of the cell's best, in predicted order behind the memory gate (P(OOM) <= 0.5)."""
    cells: dict[str, list[tuple[float, float, bool, float]]] = {}
    for b, constants in folds:
        e = estimate(b.workload, b.table, calibration=constants)
        for i, cell in enumerate(b.cell):
            speed, failed = float(b.tokens_per_s_per_gpu[i]), bool(b.failed[i])
            row = (float(np.asarray(e.tokens_per_s_per_gpu)[i]), speed, failed, float(np.asarray(e.oom_probability)[i]))
            cells.setdefault(str(cell), []).append(row)
    result = Choice([], [], [], [])
    for rows in cells.values():
        ran = [r for r in rows if not r[2]]
        if len(rows) < least or len(ran) < 2:
            continue
        best = max(r[1] for r in ran)
        order = sorted((r for r in rows if r[3] <= 0.5), key=lambda r: -r[0])
        failed = tried = 0
        for _, speed, bad, _ in order:
            tried += 1
            failed += bad
            if not bad and speed >= best / (1 + within):
                break
        result.trials.append(tried)
        result.failed.append(failed)
        near = [r for r in ran if r[1] * 2 >= best]
        if len(near) > 4:
            result.rank.append(float(spearmanr([r[0] for r in ran], [r[1] for r in ran])[0]))
            result.rank_near.append(float(spearmanr([r[0] for r in near], [r[1] for r in near])[0]))
    return result


def gate(folds: Sequence[tuple[Block, Calibration]]) -> tuple[np.ndarray, np.ndarray]:
    """(probability of running out of memory, whether the run failed) of every row."""
    p = [np.asarray(estimate(b.workload, b.table, calibration=c).oom_probability) for b, c in folds]
    return np.concatenate(p), np.concatenate([b.failed for b, _ in folds])


def best_called(folds: Sequence[tuple[Block, Calibration]], p: np.ndarray) -> list[str]:
    """Cells whose fastest row is called out of memory; `p` as `gate` gives it."""
    cells = np.concatenate([b.cell for b, _ in folds])
    speeds = np.nan_to_num(np.concatenate([np.where(b.failed, 0.0, b.tokens_per_s_per_gpu) for b, _ in folds]))
    return [
        str(cell)
        for cell in np.unique(cells)
        if p[(cells == cell) & (speeds == speeds[cells == cell].max())].min() > 0.5
    ]


def sigma_of(errors: np.ndarray) -> float:
    """The width for which nine tenths of these errors lie in the 90% interval."""
    return float(np.quantile(np.abs(errors), 0.9) / 1.645)


def judged(
    pair: Pair, previous: dict[str, float], quick: bool, pool: ProcessPoolExecutor
) -> tuple[Calibration, list[str]]:
    """The pair's constants with the widths of their error bars, and what is to be said about them."""
    fitted = pool.submit(fit, pair, pair.blocks)
    widths = {n: float(previous[n]) for n in ("time_sigma", "memory_sigma") if n in previous}
    near = 2.0 if pair.near < 100 else 1e9
    constants = fitted.result()
    lines = [f"{pair.name}: fitted, median / p90 {percent(time_errors(running(pair.blocks, near), constants))}"]
    if not quick:
        models = held_out(pair, by_model, pool.map)
        counts = held_out(pair, by_gpus, pool.map) if pair.near < 100 else []
        for name, folds in (("model", models), ("GPU count", counts)):
            if folds:
                lines += time_table(name, folds, near, choose=pair.near < 100)
        widths["time_sigma"] = max(sigma_of(errors_of(models, near)), 0.04)
        peaks = np.concatenate([memory_errors([b], c) for b, c in models])
        if len(peaks):
            widths["memory_sigma"] = min(sigma_of(peaks), 0.15)
            lines += memory_table("model", models, widths["memory_sigma"])
            lines += memory_table("GPU count", counts, widths["memory_sigma"])
    return replace(constants, **widths, comm_sigma=pair.unsure), lines


def time_table(name: str, folds: Sequence[tuple[Block, Calibration]], near: float, choose: bool) -> list[str]:
    """How well held-out step times were predicted, and what choosing by them costs."""
    errors = errors_of(folds, near)
    line = f"  held out by {name}: step time {percent(errors)}, 90% interval {100 * coverage(folds, near, errors):.0f}%"
    if choose:
        choice = choosing(folds, least=15)
        line += (
            f"; trials to within 5% {np.mean(choice.trials):.2f}, failed {np.mean(choice.failed):.2f},"
            f" Spearman {np.median(choice.rank_near):.3f} (all rows {np.median(choice.rank):.3f}) over {len(choice.trials)} cells"
        )
    return [line]


def memory_table(name: str, folds: Sequence[tuple[Block, Calibration]], sigma: float) -> list[str]:
    """How well held-out peaks were predicted, and what the memory gate calls."""
    errors = np.concatenate([memory_errors([b], c) for b, c in folds])
    under = float(np.mean(errors > np.log(1.1)))
    p, failed = gate([(b, replace(c, memory_sigma=sigma)) for b, c in folds])
    lines = [
        f"  held out by {name}: memory {percent(errors)}, under-predicted by more than 10%: {100 * under:.1f}%",
        (
            f"  called: {np.mean(p[failed] > 0.5):.3f} of failing, {np.mean(p[~failed] > 0.5):.4f} of running rows,"
            f" the best of {len(best_called(folds, p))} cells"
        ),
    ]
    for low, high in pairwise((0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.01)):
        rows = (p >= low) & (p < high)
        if rows.any():
            lines.append(
                f"    P(OOM) {low:.2f}-{min(high, 1):.2f}: {rows.sum():4d} rows, {np.mean(failed[rows]):.2f} failed"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, cross-validate, print; with --write also keep the constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write autotune/cost/constants.json")
    parser.add_argument("--quick", action="store_true", help="fit only; no cross-validation, widths as they are")
    parser.add_argument("--jobs", type=int, default=1, help="fits that run at once, each in a process")
    options = parser.parse_args(arguments)
    path = Path(autotune.cost.__file__).with_name("constants.json")
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"pairs": {}}

    fitted: dict[str, Calibration] = {}
    with ProcessPoolExecutor(options.jobs) as pool, ThreadPoolExecutor(8) as threads:
        tasks = {
            pair.name: threads.submit(judged, pair, old["pairs"].get(pair.name, {}), options.quick, pool)
            for pair in pairs()
        }
        for pair_name, task in tasks.items():
            fitted[pair_name], lines = task.result()
            print("\n".join(lines), flush=True)
    for name, blocks, key in (
        ("Megatron-LM's published runs, 8 to 3,072 A100", measurements.megatron_published(), "a100/megatron"),
        ("InternEvo 7B, 8 to 1,024 A100", measurements.internevo(), "a100/torchtitan"),
    ):
        errors = time_errors(blocks, fitted[key])
        print(
            f"never fitted: {name}: {percent(errors)}, mean {100 * np.mean(np.abs(np.expm1(-errors))):.1f}%, {len(errors)} rows"
        )
    if options.write:
        path.write_text(json.dumps(document(fitted), indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")
    return 0


def document(fitted: dict[str, Calibration]) -> dict[str, object]:
    """The constants as they are kept: by pair, and pooled by hardware family, by trainer and over all."""

    def rounded(values: dict[str, object]) -> dict[str, object]:
        return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}

    def pool(members: Sequence[Calibration], names: Sequence[str]) -> dict[str, object]:
        return {
            n: float(np.exp(np.mean([np.log(max(getattr(c, n), 1e-12)) for c in members]))) if n not in ("score_bytes", "full_speed_ranks", "turn_s", "waiting_in_layer", "waiting_at_head") else 0.0
            for n in names
        }  # fmt: skip

    def waiting(members: Sequence[Calibration]) -> dict[str, object]:
        return {n: float(np.mean([getattr(c, n) for c in members])) for n in ("waiting_in_layer", "waiting_at_head")}

    hardware = [n for n in PHYSICAL if n not in SOFTWARE]
    everything = list(fitted.values())
    families = {f: [c for c in everything if c.gpu == f] for f in FAMILIES}
    trainers = {t: [c for c in everything if c.trainer == t] for t in sorted({c.trainer for c in everything})}
    cpu = Calibration(
        source="order of magnitude of processes on a CPU; run `autotune calibrate`", matmul_efficiency=0.6, half_size=16.0,
        attention_efficiency=0.2, memory_efficiency=0.5, layer_host_s=1e-3, step_host_s=5e-3, send_host_s=0.5e-3,
        data_overlap=0.05, full_speed_ranks=2.0, turn_s=5e-4, framework_bytes=3e8, time_sigma=0.5, memory_sigma=0.3,
    )  # fmt: skip
    blank = {"gpu", "trainer"}
    return {
        "provenance": "python -m tests.benchmarks.fit_cost_model --write; data and their sources: tests/benchmarks/data",
        "families": FAMILIES,
        "pairs": {n: rounded({k: v for k, v in c.to_dict().items() if k not in blank}) for n, c in fitted.items()},
        "hardware": {f: rounded(pool(m, hardware)) for f, m in families.items() if m},
        "software": {t: rounded({**pool(m, SOFTWARE), **waiting(m)}) for t, m in trainers.items()},
        "pooled": rounded({**pool(everything, PHYSICAL), "time_sigma": 0.15, "comm_sigma": 0.3, "memory_sigma": 0.15}),
        "cpu": rounded({k: v for k, v in cpu.to_dict().items() if k not in blank}),
        "unknown_hardware_sigma": 0.25,
    }


if __name__ == "__main__":
    sys.exit(main())
