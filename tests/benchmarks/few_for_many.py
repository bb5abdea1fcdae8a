"""Few GPUs for many, replayed on published sweeps: what trials on the GPUs at hand teach about a
job on more of them.

    python -m tests.benchmarks.replay --few-for-many [--seeds 3] [--jobs 2] [--cells]

    cell        a target: the configs of one model on so many GPUs that were measured, and the sweeps of the same model on fewer
    proxy       the run of a sweep at hand that is most like the one that `space.proxy` derives: the same tensor degree and micro-batch, the nearest pipeline
                and accumulation. Sweeps hold no stage of a model, so a pipeline stays one
    constants   right: fitted without any row of the target's model or of its GPU count. Wrong: each of them off by a random factor (log-normal, spread 2),
                memory that is not weights or optimizer by 25% either way

Each cell is replayed without proxies, and with those that the searcher chooses (`TargetSearcher`)
one after another; then an ordinary study runs on the target, with the proxies as its history.

    error       median of |predicted / measured - 1| of the faster half of the target's configs
    regret      throughput lost by the best of the first 1 or 3 trials on the target, relative to its best config
    inside      share of the target's steps within the 90% interval, whose upper end counts the chance of a stall
    statement   what the study says of its first pick ("within X% of the best"), where it says anything

Goals are those of a target up to 8 times, and of 16 to 32 times, what is at hand. What these sweeps
cannot judge is printed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.cost import Calibration, calibration_for
from autotune.cost.learn.uncertainty import interval, upper_end
from autotune.errors import ConfigError
from autotune.search import Problem, make_searcher
from autotune.search.target_searcher import TargetSearcher
from autotune.space import Proxy, SearchSpace, why_not
from autotune.spec import ClusterSpec, ParallelConfig, StandsFor, Trial, Workload
from autotune.study.target_findings import TargetFindings
from research.models import HELD_OUT, MEMORY_CONSTANTS
from research.time_fit import Pair, fit_time, pairs
from tests.benchmarks import published
from tests.benchmarks.cells import MIN_CONFIGS, Cell, read_cells
from tests.benchmarks.perturbation import perturbed

DATA = Path(__file__).with_name("data")
PROXIES = 5
"""proxies of a study on the GPUs at hand"""
NEARER = 3
"""further ones at a quarter of the target"""
REAL = 3
"""trials on the target that are looked at"""
WRONG = 2.0
"""factor by which a wrong constant is off: the spread of a log-normal"""
WRONG_MEMORY = 0.25
MEMORY = (
    "activation_factor",
    "waiting_in_layer",
    "waiting_at_head",
    "buffer_bytes",
    "framework_bytes",
)
"""constants of memory that is not counted exactly"""
STATES = ("right", "wrong")
NOT_JUDGED = (
    "512 GPUs, and 256 with three proxies at a quarter of them: the sweeps at hand end at 128 (128 with three on 32 is shown in its place)",
    "17 to 32 times what is at hand: the farthest is 128 by 8",
    "a 3B model: the sweeps at hand have 1B and 8B",
    "proxies of one stage of a pipeline: no sweep ran one. Fewer layers are judged with whole models of 12 layers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """Sweeps on the GPUs at hand, and how many proxies run there."""

    cells: tuple[Cell, ...]
    proxies: int

    @property
    def cluster(self) -> ClusterSpec:
        """What is at hand."""
        return self.cells[0].workload.cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A target and what is at hand for it."""

    kind: str
    """near: up to 8 times; far: more; quarter: far, with proxies at a quarter too; layers: as many
    GPUs, fewer layers"""
    target: Cell
    rungs: tuple[Rung, ...]

    @property
    def name(self) -> str:
        """Target and what is at hand."""
        held = " and ".join(str(r.cluster.num_gpus) for r in self.rungs)
        return f"{self.target.name} by {held}" + (" of 12 layers" if self.kind == "layers" else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one task."""

    task: str
    kind: str
    state: str
    seed: int
    with_proxies: bool
    measured: int
    failed: int
    error: float
    inside: float
    first: float
    """regret of the first pick of the target's ranking"""
    regrets: tuple[float, ...]
    """after 1, 2 and 3 trials on the target"""
    statement: bool | None
    """whether what was said of the first pick holds; None: nothing was said"""


class SweptProxies:
    """The runs of the sweeps at hand that stand for configs of a target."""

    def __init__(self, rung: Rung) -> None:
        self._rows = [
            (cell, row)
            for cell in rung.cells
            for row in cell.rows
            if not why_not(cell.workload, row)
        ]

    def __call__(self, target: Workload, config: ParallelConfig, held: ClusterSpec) -> Proxy:
        """The nearest run with the same tensor degree, micro-batch, precision and recomputation.
        Raises `ConfigError` where there is none."""
        like = [(c, row) for c, row in self._rows if _kept(row) == _kept(config)]
        if not like:
            raise ConfigError(
                f"no run on {held.name} has tp={config.tp}, micro_batch_size={config.micro_batch_size}"
            )
        cell, row = min(like, key=lambda found: _distance(found[1], config))
        return Proxy(workload=cell.workload, config=row, blind=())

    def trial(self, proxy: Proxy, config: ParallelConfig, number: int) -> Trial:
        """What became of a proxy in the sweep."""
        cell = next(
            c for c, row in self._rows if c.workload == proxy.workload and row == proxy.config
        )
        trial = cell.trial(proxy.config, number)
        return replace(trial, stands_for=StandsFor(config=config, workload=proxy.workload))


def _kept(config: ParallelConfig) -> tuple[Any, ...]:
    return (
        config.tp,
        config.cp,
        config.ep,
        config.micro_batch_size,
        config.precision,
        config.recompute,
    )


def _distance(row: ParallelConfig, config: ParallelConfig) -> tuple[float, ...]:
    """Doublings by which pipeline and accumulation differ, and whether the sharding does."""
    stages, steps = (
        math.log2(getattr(row, n) / getattr(config, n)) for n in ("pp", "accumulation_steps")
    )
    return (
        abs(stages) + abs(steps),
        abs(stages),
        float(row.zero_stage != config.zero_stage),
        row.global_batch_size,
    )


# ---- tasks and constants


def tasks() -> list[Task]:
    """All of them, of the sweeps at hand: nanotron on 8 to 128 H100, vTrain on 2 to 8 A100."""
    cells = [
        *_on_efa(read_cells(DATA / "nanotron_h100.csv")),
        *read_cells(DATA / "vtrain_single_node_a100.csv", least=1),
    ]
    by_model: dict[tuple[str, int], tuple[Cell, ...]] = {}
    for cell in cells:
        key = cell.workload.model.name, cell.workload.cluster.num_gpus
        by_model[key] = (*by_model.get(key, ()), cell)
    found = []
    for target in (c for c in cells if len(c.rows) >= MIN_CONFIGS):
        model, gpus = target.workload.model.name, target.workload.cluster.num_gpus
        least = min(count for name, count in by_model if name == model)
        if gpus > least:
            few = Rung(cells=by_model[model, least], proxies=PROXIES)
            found.append(
                Task(kind="near" if gpus <= 8 * least else "far", target=target, rungs=(few,))
            )
            if gpus > 8 * least and (quarter := by_model.get((model, gpus // 4))):
                found.append(
                    Task(
                        kind="quarter",
                        target=target,
                        rungs=(few, Rung(cells=quarter, proxies=NEARER)),
                    )
                )
        fewer = by_model.get((f"{model.rpartition('-l')[0]}-l12", gpus))
        if fewer and target.workload.model.num_layers > 12:
            found.append(
                Task(kind="layers", target=target, rungs=(Rung(cells=fewer, proxies=PROXIES),))
            )
    return found


def _on_efa(cells: Sequence[Cell]) -> list[Cell]:
    """nanotron's sweep on the network that it ran on."""
    link = published.nanotron()[0].workload.cluster.inter_node
    return [
        replace(
            c, workload=replace(c.workload, cluster=replace(c.workload.cluster, inter_node=link))
        )
        for c in cells
    ]


def constants_without(pair: Pair, model: str, gpus: int) -> Calibration:
    """Constants fitted to the rows that have neither this model nor this GPU count."""
    rest = [b for b in pair.blocks if b.workload.model.name != model]
    kept = [
        b.take(rows)
        for b in rest
        if len(rows := np.flatnonzero(np.asarray(b.table.world_size) != gpus))
    ]
    return fit_time(pair, kept)


def constants_of(some: Sequence[Task], run: Any = map) -> Mapping[tuple[str, int], Calibration]:
    """Constants of each task's target; `run` is `map` or a pool's."""
    fitted = {"nanotron": "h100/nanotron", "megatron": "a100/megatron"}
    of_trainer = {name: next(p for p in pairs() if p.name == pair) for name, pair in fitted.items()}
    keys = sorted(
        {
            (
                t.target.workload.model.name,
                t.target.workload.cluster.num_gpus,
                t.target.workload.trainer,
            )
            for t in some
        }
    )
    fits = run(
        constants_without,
        [of_trainer[k[2]] for k in keys],
        [k[0] for k in keys],
        [k[1] for k in keys],
    )
    return {(model, gpus): fit for (model, gpus, _), fit in zip(keys, fits, strict=True)}


def constants_in(state: str, target: Workload, fitted: Calibration, seed: int) -> Calibration:
    """What the searcher is given: constants that never saw the target, right or wrong."""
    right = replace(calibration_for(target), **{n: getattr(fitted, n) for n in HELD_OUT})
    if state == "right":
        return right
    rng = np.random.default_rng(
        [seed, target.cluster.num_gpus, target.model.hidden_size, target.model.num_layers]
    )
    moved = perturbed(right, rng, math.log(WRONG))
    factor = 1.0 + WRONG_MEMORY * rng.choice([-1.0, 1.0])
    kept = {n: getattr(right, n) * (factor if n in MEMORY else 1.0) for n in MEMORY_CONSTANTS}
    return replace(moved, **kept)


# ---- one task


def replay_task(task: Task, state: str, seed: int, fitted: Calibration) -> list[Outcome]:
    """Without proxies, and with them."""
    target = task.target
    constants = constants_in(state, target.workload, fitted, seed)
    space = SearchSpace.of(target.workload, list(target.rows))
    problem = Problem(space=space, seed=seed, calibration=constants)
    plain = TargetSearcher(problem, task.rungs[0].cluster)
    searcher, told = with_proxies(task, problem)
    return [_outcome(task, state, seed, plain, ()), _outcome(task, state, seed, searcher, told)]


def with_proxies(
    task: Task, problem: Problem
) -> tuple[TargetSearcher, tuple[tuple[Workload, Trial], ...]]:
    """The searcher of the last rung once the proxies of all rungs ran, and these."""
    told: tuple[tuple[Workload, Trial], ...] = ()
    for rung in task.rungs:
        sweep = SweptProxies(rung)
        searcher = TargetSearcher(
            replace(problem, history=told), rung.cluster, worth=0.0, stand_in=sweep
        )
        for number in range(rung.proxies):
            for config in searcher.ask(1):
                searcher.tell([sweep.trial(searcher.proxy_for(config), config, number)])
        told = (*((t.stands_for.workload, t) for _, t in searcher.trials if t.stands_for), *told)
    return searcher, told


def _outcome(
    task: Task,
    state: str,
    seed: int,
    searcher: TargetSearcher,
    told: tuple[tuple[Workload, Trial], ...],
) -> Outcome:
    target, space = task.target, searcher.space
    configs = list(space)
    ran = np.array([i for i, c in enumerate(configs) if target.rows[c].failure is None])
    measured = np.array([target.rows[configs[i]].step_time_s for i in ran])
    tokens = np.asarray(space.table.global_batch_size, dtype=float)[ran] * target.workload.seq_len
    predicted = tokens / np.exp(searcher.standing.log_tokens_per_s[ran])
    top = measured <= np.median(measured)
    inside = _inside(searcher, ran, predicted, measured)
    said = TargetFindings(searcher)()["target"]["statement"]
    first = target.regret(configs[searcher.standing.order[0]])
    return Outcome(
        task=task.name, kind=task.kind, state=state, seed=seed, with_proxies=bool(told),
        measured=sum(t.is_measured for _, t in told), failed=sum(not t.is_measured for _, t in told),
        error=float(np.median(np.abs(predicted / measured - 1.0)[top])), inside=inside,
        first=first, regrets=_real_trials(task, searcher.problem, told),
        statement=None if said is None else first <= said["within"],
    )  # fmt: skip


def _inside(
    searcher: TargetSearcher, ran: np.ndarray, predicted: np.ndarray, measured: np.ndarray
) -> float:
    """Share of the steps within the interval that a study with a target states: its upper end
    counts the chance of a stall."""
    standing, sigma = searcher.standing, searcher.sigma_of(ran)
    low, _ = interval(predicted, sigma)
    high = upper_end(
        predicted, sigma, predicted * standing.stalled_factor[ran], standing.stall_probability[ran]
    )
    return float(np.mean((low <= measured) & (measured <= high)))


def _real_trials(
    task: Task, problem: Problem, told: tuple[tuple[Workload, Trial], ...]
) -> tuple[float, ...]:
    """Regret after each of the first trials of a study on the target that knows the proxies."""
    searcher = make_searcher(
        "bayesian", problem.space, seed=problem.seed, calibration=problem.calibration, history=told
    )
    regrets = [1.0]
    for number in range(REAL):
        (config,) = searcher.ask(1)
        searcher.tell([task.target.trial(config, number)])
        regrets.append(min(regrets[-1], task.target.regret(config)))
    return tuple(regrets[1:])


# ---- the table


def outcomes_of(some: Sequence[Task], seeds: int, jobs: int) -> list[Outcome]:
    """Every task with right constants, and with wrong ones for each seed."""
    with ProcessPoolExecutor(jobs) as pool:
        fitted = constants_of(some, pool.map)
        plays = [
            (t, state, seed)
            for t in some
            for state in STATES
            for seed in range(1 if state == "right" else seeds)
        ]
        known = [
            fitted[t.target.workload.model.name, t.target.workload.cluster.num_gpus]
            for t, _, _ in plays
        ]
        found = pool.map(replay_task, *zip(*plays, strict=True), known, chunksize=2)
        return [outcome for pair in found for outcome in pair]
