"""What the errors of published runs that nothing was fitted to depend on: the batches that were
read of `published/unseen.py` as one table, each source counting once.

    python -m research.error_causes                 the tables below (half a minute)
    python -m research.error_causes --rows          every row with its covariates
    python -m research.error_causes --files         the files of the fits too, each predicted by constants that have not read it (two minutes more)
    python -m research.error_causes --constants     constants moved for all sources at once (two minutes)

e = log(measured / predicted). Each source is predicted by the constants that ship, with the middle
of the other sources (`unseen.unread_of`).

    spread       median |predicted / measured - 1| that is left once the median of e is known of each source, cluster and software, precision, model, ...: mean and
                 median over the sources. A group of one row leaves nothing, so the lines of narrow groups flatter
    middles      of trainers that were never fitted, by kind of program: how they are estimated, and from which sources; the median error is that of sources that were left out
    variance     shares of the mean square of e: of the sources' means about nothing, of the clusters' about those, of the models' and precisions', and the rest
    levels       median of e by source, by what the constants know of GPU and trainer
    covariates   slope of e on a covariate within clusters, the median over the other sources, and what it takes from the spread (median distance from the median)
                 of a source that was left out. Shares are of the predicted step
    one trial    median error of a row after one trial of its cluster, by what both have in common, over the sources that have both kinds of pairs
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from autotune.cost import Calibration, calibration_for, estimate
from autotune.cost.calibration import refit_values
from autotune.cost.learn.refit import uncertain
from autotune.cost.traits import traits_of
from autotune.spec import ParallelConfig
from research.fit_cost_model import unread_rows
from research.held_out import FREE, Fold, Judged, judged, kind_of
from research.study_trials import errors_after
from research.unread_level import KINDS, NORMAL, PROGRAMS
from research.unseen import unread_of
from tests.benchmarks.accuracy_page import CONSTANTS, timed_files
from tests.benchmarks.published import FILES
from tests.benchmarks.published.unseen import READ, unseen

MOVED = ("matmul_efficiency", "half_size", "attention_efficiency", "memory_efficiency", "layer_host_s", "intra_efficiency", "inter_efficiency", "data_overlap", "latency_factor", "fp8_factor", "expert_host_s")  # fmt: skip
"""constants that `--constants` moves"""
FRACTIONS = ("_efficiency", "_overlap")
NARROW = ("fp8", "mxfp8", "nvfp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published run."""

    source: str
    cluster: str
    """with its software"""
    known: str
    """what constants know of GPU and trainer: `kind_of`"""
    program: str
    trainer: str
    gpu: str
    fabric: str
    model: str
    experts: bool
    adapters: str
    seq_len: int
    config: ParallelConfig
    width: int
    nodes: int
    shares: Mapping[str, float]
    """causes of the predicted step"""
    error: float
    """log(measured / predicted)"""
    level: float
    """log of the middle in the prediction"""
    batch: int

    @property
    def tokens(self) -> float:
        """Of a micro-batch on a rank."""
        return self.config.micro_batch_size * self.seq_len / self.config.cp

    def text(self) -> str:
        """Its line."""
        c = self.config
        kind = "experts" if self.experts else self.adapters or "dense"
        return (
            f"{self.source:22s} {self.error:+.3f} {self.known}; {self.program}; {self.trainer}; {self.gpu}; {self.fabric}; {c.world_size} GPUs; {self.model}; {kind}; {c.precision}; "
            f"{'compiled' if c.compile else 'not compiled'}; {self.tokens:.0f} tokens; sequences of {self.seq_len}; {self.cluster}"
        )


def _share_of(cause: str) -> Callable[[Row], float]:
    return lambda row: row.shares[cause]


Sources = dict[str, tuple[Judged, list[Row]]]
COVARIATES: dict[str, Callable[[Row], float]] = {
    "8 or 4 bits": lambda r: r.config.precision in NARROW,
    "8 or 4 bits, Hopper": lambda r: r.config.precision in NARROW and r.gpu.startswith(("h", "gh")),
    "8 or 4 bits, Blackwell": lambda r: r.config.precision in NARROW and "b" in r.gpu,
    "experts": lambda r: r.experts,
    "adapters": lambda r: r.adapters != "",
    "4-bit weights": lambda r: r.adapters == "qlora",
    "compiled": lambda r: r.config.compile,
    "recomputed": lambda r: r.config.recompute == "full",
    "log2 tokens of a micro-batch": lambda r: float(np.log2(r.tokens)),
    "log2 sequence": lambda r: float(np.log2(r.seq_len)),
    "log2 hidden width": lambda r: float(np.log2(r.width)),
    "log2 GPUs": lambda r: float(np.log2(r.config.world_size)),
    "several nodes": lambda r: r.nodes > 1,
    "tensor parallelism": lambda r: r.config.tp > 1,
    "pipeline": lambda r: r.config.pp > 1,
    "context parallelism": lambda r: r.config.cp > 1,
    "log2 micro-batches": lambda r: float(np.log2(r.config.accumulation_steps)),
**{f"share of {n}": _share_of(n) for n in ("tp_comm", "dp_comm", "ep_comm", "bubble", "optimizer", "other")},
}  # fmt: skip
ALIKE: dict[str, Callable[[Row], Any]] = {
    "model": lambda r: r.model,
    "precision": lambda r: r.config.precision,
    "adapters or none": lambda r: r.adapters,
    "experts or none": lambda r: r.experts,
    "sequence": lambda r: r.seq_len,
    "recomputation": lambda r: r.config.recompute,
    "tensor, pipeline and context degree": lambda r: (r.config.tp, r.config.pp, r.config.cp),
    "tokens of a micro-batch": lambda r: r.tokens,
    "GPUs": lambda r: r.config.world_size,
}
GROUPS: dict[str, Callable[[Row], Any]] = {
    "nothing": lambda r: None,
    "the source": lambda r: r.source,
    "cluster and software": lambda r: r.cluster,
    "and precision": lambda r: (r.cluster, r.config.precision),
    "and experts, adapters, precision": lambda r: (
        r.cluster,
        r.config.precision,
        r.experts,
        r.adapters,
    ),
    "and model": lambda r: (r.cluster, r.model),
    "and model, precision, adapters": lambda r: (
        r.cluster,
        r.model,
        r.config.precision,
        r.adapters,
    ),
}


def folds() -> dict[tuple[int, str], list[Fold]]:
    """The blocks with printed speeds of all sources, by batch and name, with their constants."""
    found = {}
    for batch in READ:
        for name, blocks in unseen(batch=batch).items():
            timed = [b for b in blocks if np.isfinite(b.tokens_per_s_per_gpu).any()]
            if timed:
                found[batch, name] = [
                    (b, calibration_for(b.workload, known=unread_of(name))) for b in timed
                ]
    return found


def rows_of(name: str, blocks: Sequence[Fold], found: Judged, batch: int) -> list[Row]:
    """The rows of a source with their covariates, in the order of `judged`."""
    errors, rows = iter(found.error.tolist()), []
    for whole, constants in blocks:
        b = whole.take(np.flatnonzero(~whole.failed & np.isfinite(whole.tokens_per_s_per_gpu)))
        if not len(b.table):
            continue
        w = b.workload
        times = estimate(w, b.table, calibration=constants).time_parts_s
        parts = {n: np.asarray(v) / np.asarray(times.total) for n, v in times.to_dict().items()}
        for i in range(len(b.table)):
            config = b.table[i]
            rows.append(
                Row(
                    source=name, cluster=b.where, known=kind_of(constants.source), program=traits_of(w.trainer).program, trainer=w.trainer, gpu=w.cluster.gpu.name,
                    fabric=w.cluster.inter_node.fabric or "one node", model=w.model.name, experts=w.model.num_experts > 0, adapters=w.peft.method if w.peft else "",
                    seq_len=w.seq_len, config=config, width=w.model.hidden_size, nodes=-(-config.world_size // w.cluster.gpus_per_node),
                    shares={n: float(v[i]) for n, v in parts.items()}, error=next(errors), level=float(np.log(constants.level)), batch=batch,
                )
            )  # fmt: skip
    return rows


def size(errors: Any) -> float:
    """Median of |predicted / measured - 1|."""
    return float(np.median(np.abs(np.expm1(-np.asarray(errors)))))


def about(
    rows: Sequence[Row], key: Callable[[Row], Any], middle: Callable[[Any], Any] = np.median
) -> np.ndarray:
    """Errors about the middle of their group."""
    groups: dict[Any, list[float]] = {}
    for r in rows:
        groups.setdefault(key(r), []).append(r.error)
    return np.array([r.error - float(middle(groups[key(r)])) for r in rows])


def spreads(sources: Sources) -> list[str]:
    """What is left of the errors once groups are known."""
    lines = [
        "",
        "| known is the level of | median error, mean of sources | median of sources |",
        "|---|---|---|",
    ]
    for name, key in GROUPS.items():
        left = [
            size([r.error for r in rows] if name == "nothing" else about(rows, key))
            for _, rows in sources.values()
        ]
        lines.append(f"| {name} | {100 * np.mean(left):.1f}% | {100 * np.median(left):.1f}% |")
    return lines


def variances(sources: Sources) -> list[str]:
    """Nested shares of the mean square."""
    keys = [
        GROUPS[n] for n in ("the source", "cluster and software", "and model, precision, adapters")
    ]
    squares = [np.mean([np.mean([r.error**2 for r in rows]) for _, rows in sources.values()])]
    squares += [
        np.mean([np.mean(about(rows, key, np.mean) ** 2) for _, rows in sources.values()])
        for key in keys
    ]
    parts = [*(a - b for a, b in pairwise(squares)), squares[-1]]
    names = (
        "sources",
        "clusters and software within a source",
        "models, precisions and adapters within a cluster",
        "configs of one model",
    )
    return ["", "| between | share of the mean square |", "|---|---|"] + [
        f"| {n} | {100 * p / squares[0]:.0f}% |" for n, p in zip(names, parts, strict=True)
    ]  # fmt: skip


def levels(sources: Sources) -> list[str]:
    """Levels of the sources by what constants know."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for name, (_, rows) in sources.items():
        for kind in sorted({(r.known, r.program) for r in rows}):
            of_kind = [r.error for r in rows if (r.known, r.program) == kind]
            found.setdefault(kind, []).append((float(np.median(of_kind)), name))
    lines = ["", "| constants of | program | levels, as logarithms |", "|---|---|---|"]
    for (known, program), several in sorted(found.items()):
        lines.append(
            f"| {known} | {program} | {', '.join(f'{name} {level:+.2f}' for level, name in sorted(several))} |"
        )
    return lines


def _relative(levels: np.ndarray) -> float:
    """The middle of least |exp(middle - level) - 1|: a median with weights exp(-level)."""
    ordered = np.sort(levels)
    weights = np.exp(-ordered)
    return float(np.interp(0.5, (np.cumsum(weights) - weights / 2.0) / weights.sum(), ordered))


def _mode(levels: np.ndarray) -> float:
    """Mean of the shortest half."""
    ordered, half = np.sort(levels), len(levels) // 2 + 1
    start = int(np.argmin(ordered[half - 1 :] - ordered[: len(ordered) - half + 1]))
    return float(ordered[start : start + half].mean())


def _pooled(
    levels: Sequence[float], location: Callable[[np.ndarray], float], prior_sigma: float
) -> float:
    """Partial pooling as `unread_level.middle`, about another location."""
    every = np.array(levels)
    if len(every) < 2:
        return 0.0
    at = location(every)
    spread = NORMAL * float(np.median(np.abs(every - at)))
    return at * prior_sigma**2 / (prior_sigma**2 + 0.5 * np.pi * spread**2 / len(every))


def middles(sources: Sources) -> list[str]:
    """Median errors of sources that were left out, by how the middle of the others is estimated."""
    shipping = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    of_files = {p: [v for n, v in shipping["unread_trainer"]["levels"][p].items() if n not in sources] for p in PROGRAMS}  # fmt: skip
    found: dict[str, dict[str, float]] = {p: {} for p in PROGRAMS}
    for name, (_, rows) in sources.items():
        for p in PROGRAMS:
            clusters: dict[str, list[float]] = {}
            for r in rows:
                if r.known in KINDS and r.program == p:
                    clusters.setdefault(r.cluster, []).append(r.error + r.level)
            if clusters:
                found[p][name] = float(np.mean([np.median(some) for some in clusters.values()]))
    ways: dict[str, Callable[[np.ndarray], float]] = {"none": lambda v: 0.0, "median, as they ship": lambda v: float(np.median(v)), "median of relative errors": _relative, "mean of the shortest half": _mode}  # fmt: skip
    lines = ["", "| middle | from the levels of | sharded | cut | median error, mean of sources | median of sources |", "|---|---|---|---|---|---|"]  # fmt: skip
    for way, location in ways.items():
        for batches, from_which in (((1,), "the first batch"), (tuple(READ), "all batches"))[
            : 1 if way == "none" else 2
        ]:
            known = {n for n, (_, rows) in sources.items() if rows[0].batch in batches}

            def middle_of(program: str, without: str, known: set[str] = known, location: Callable[[np.ndarray], float] = location) -> float:  # fmt: skip
                others = [v for n, v in found[program].items() if n in known and n != without]
                return _pooled(
                    [*of_files[program], *others], location, shipping["refit"]["level_sigma"]
                )

            errors = []
            for name, (_, rows) in sources.items():
                middle = {p: middle_of(p, name) for p in PROGRAMS}
                errors.append(
                    size(
                        [
                            r.error + r.level - (middle[r.program] if r.known in KINDS else 0.0)
                            for r in rows
                        ]
                    )
                )
            whole = " | ".join(f"{middle_of(p, ''):+.3f}" for p in PROGRAMS)
            lines.append(
                f"| {way} | {from_which} | {whole} | {100 * np.mean(errors):.1f}% | {100 * np.median(errors):.1f}% |"
            )
    return lines


def covariates(sources: Sources) -> list[str]:
    """Slopes within clusters, and what those of the other sources explain of one that was left
    out."""
    lines = ["", "| covariate | sources | median slope | spread of a source left out, before | after | improved |", "|---|---|---|---|---|---|"]  # fmt: skip
    for name, of in COVARIATES.items():
        slopes, both = {}, {}
        for source, (_, rows) in sources.items():
            errors = about(rows, lambda r: r.cluster, np.mean)
            values = about(
                [replace(r, error=float(of(r))) for r in rows], lambda r: r.cluster, np.mean
            )
            if np.abs(values).max() > 1e-6:
                slopes[source], both[source] = (
                    float(values @ errors / (values @ values)),
                    (values, errors),
                )
        if len(slopes) < 3:
            continue
        spread = []
        for source, (values, errors) in both.items():
            slope = float(np.median([s for other, s in slopes.items() if other != source]))
            spread.append(
                [
                    float(np.median(np.abs(e - np.median(e))))
                    for e in (errors, errors - slope * values)
                ]
            )
        before, after = np.array(spread).T
        lines.append(
            f"| {name} | {len(slopes)} | {np.median(list(slopes.values())):+.3f} | {before.mean():.3f} | {after.mean():.3f} | {np.sum(after < before - 1e-9)} |"
        )
    return lines


def one_trial(sources: Sources) -> list[str]:
    """Errors after one trial by what trial and row have in common."""
    prior = uncertain(Calibration(), refit_values(), names=FREE)
    left: dict[str, dict[bool, dict[str, list[float]]]] = {n: {True: {}, False: {}} for n in ALIKE}
    for name, (found, rows) in sources.items():
        for where in sorted(set(found.where.tolist())):
            group = np.flatnonzero(found.where == where)
            for trial in group:
                rest = np.setdiff1d(group, [trial])
                if not len(rest):
                    continue
                errors = found.error[rest] - errors_after(found, np.array([trial]), prior, rest)[0]
                for what, key in ALIKE.items():
                    for i, error in zip(rest, errors, strict=True):
                        left[what][key(rows[trial]) == key(rows[i])].setdefault(name, []).append(
                            float(error)
                        )
    lines = [
        "",
        "| trial and row have the same | sources with both kinds of pairs | the same | another |",
        "|---|---|---|---|",
    ]
    for what, kinds in left.items():
        both = [n for n in kinds[True] if n in kinds[False]]
        same, other = (100 * np.mean([size(kinds[k][n]) for n in both]) for k in (True, False))
        lines.append(f"| {what} | {len(both)} | {same:.1f}% | {other:.1f}% |")
    return lines


def moved_constants(every: Mapping[Any, Sequence[Fold]]) -> list[str]:
    """Median errors with a constant a quarter lower and a third higher for all sources."""

    def errors(name: str, factor: float) -> np.ndarray:
        most = 1.0 if name.endswith(FRACTIONS) else np.inf
        changed = {
            n: judged([(b, replace(c, **{name: min(getattr(c, name) * factor, most)})) for b, c in blocks], with_sensitivity=False)
            for n, blocks in every.items()
        }  # fmt: skip
        return np.array([size(j.error) for j in changed.values()])

    before = errors("layer_host_s", 1.0)
    lines = [
        "", "| constant | times | median error, mean of sources | median of sources | better by half a point | worse |", "|---|---|---|---|---|---|",
        f"| as they ship | | {100 * before.mean():.1f}% | {100 * np.median(before):.1f}% | | |",
    ]  # fmt: skip
    for name in MOVED:
        for factor in (0.75, 1.33):
            now = errors(name, factor)
            lines.append(f"| {name} | {factor} | {100 * now.mean():.1f}% | {100 * np.median(now):.1f}% | {np.sum(now < before - 0.005)} | {np.sum(now > before + 0.005)} |")  # fmt: skip
    return lines


def files() -> list[str]:
    """Errors of the files of the fits, each by constants that have not read it."""
    shipping = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    _, found = unread_rows(shipping, timed_files(), 2)
    lines = [
        "",
        "| file | rows | level | median error | once the level of its clusters is known |",
        "|---|---|---|---|---|",
    ]
    for name, rows in found.items():
        apart = rows.error.copy()
        for where in set(rows.where.tolist()):
            apart[rows.where == where] -= np.median(apart[rows.where == where])
        lines.append(
            f"| {name} | {len(rows)} | {np.median(rows.error):+.2f} | {100 * size(rows.error):.1f}% | {100 * size(apart):.1f}% |"
        )
    assert set(found) <= set(FILES)
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", action="store_true", help="every row with its covariates")
    parser.add_argument("--files", action="store_true", help="the files of the fits too")
    parser.add_argument(
        "--constants", action="store_true", help="constants moved for all sources at once"
    )
    options = parser.parse_args(arguments)
    every = folds()
    if options.constants:
        print("\n".join(moved_constants(every)))
        return 0
    sources: Sources = {}
    for (batch, name), blocks in every.items():
        found = judged(blocks, with_sensitivity=not options.rows)
        sources[name] = (found, rows_of(name, blocks, found, batch))
    print(
        f"{len(sources)} sources with speeds, {sum(len(rows) for _, rows in sources.values())} rows"
    )
    if options.rows:
        print("\n".join(r.text() for _, rows in sources.values() for r in rows))
        return 0
    for table in (spreads, variances, levels, middles, covariates, one_trial):
        print("\n".join(table(sources)), flush=True)
    if options.files:
        print("\n".join(files()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
