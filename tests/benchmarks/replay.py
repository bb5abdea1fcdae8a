"""Replays searchers on published sweeps: how many trials until the best so far is within 5% of the
best of the cell?

    python -m tests.benchmarks.replay --searchers bayesian,random --seeds 20 --jobs 2 [--csv FILE ... | --worlds 60 | --invented 100 | --near-equals 60 | --tight 60 | --wild 60 | --own-knobs 40] [--model held_out]

Columns, over all cells and seeds: mean, median and 90th percentile of the trials until within 5%;
failed trials among them; mean regret after 3, 5 and 10 trials. For searchers that estimate their
expected gain: trials and regret when a further trial no longer paid for a training of unsaid length
(`autotune.study.controller.stop_rule`), and failed trials among these. The cost model is one of

    held_out    constants fitted without the cell's model (the honest case)       shipped   the constants that ship
    wrong       every time constant off by a random factor (log-normal, spread 2), memory off by 25% either way
    wrong_alike the same, but with the same errors for all cells of a trainer, so that earlier studies are informative
    useless     the estimates of all configs of a cell shuffled
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from time import process_time
from typing import Any

import numpy as np

from autotune.cost import Calibration
from autotune.errors import AutotuneError
from autotune.search import make_searcher, searcher_names
from autotune.space import SearchSpace
from autotune.spec import FailureKind, ParallelConfig, Trial, Workload
from autotune.study.controller.stop_rule import TRIALS_IN_A_TRAINING, pays
from research.models import MODELS, Prediction, held_out_constants, prediction
from research.replay_near_equals import near_equal_cells
from research.replay_tight import tight_cells
from research.replay_wild import wild_cells
from tests.benchmarks.cells import MIN_CONFIGS, Cell, read_cells
from tests.benchmarks.few_for_many_table import print_tables
from tests.benchmarks.figure import curves_svg
from tests.benchmarks.replay_invented import invented_cells
from tests.benchmarks.replay_own_knobs import own_knob_cells
from tests.benchmarks.replay_worlds import simulated_cells

DATA = Path(__file__).with_name("data")
DEFAULT = ("nanotron_h100.csv", "vtrain_single_node_a100.csv")
FIGURE = Path(__file__).with_name("figures") / "search_regret.svg"
CLOSE = 0.05
"""regret that counts as found"""
CURVE = 20
"""length of the regret curve, and trials after which a search is stopped (`Budget.max_trials`)"""
Fitted = dict[tuple[str, str], Calibration]
PAST_TRIALS = 5
"""number of first trials of each earlier study that are told; `bayesian` ran it without a
history"""
History = tuple[tuple[Workload, Trial], ...]
DETERMINISTIC = ("bayesian", "reinforce", "cost_ranked", "rule_of_thumb")
"""searchers that do not depend on the seed: one run stands for all seeds, unless the model depends
on the seed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One searcher on one cell with one seed."""

    cell: str
    trials: int
    """until within 5% of the best"""
    failed: int
    """of these"""
    curve: tuple[float, ...]
    """regret after each trial"""
    stopped_after: int | None
    """trials after which the search would have stopped"""
    stopped_failed: int
    """of these"""
    stopped_regret: float
    """regret at that time"""
    seconds: float
    """processor time of the searcher"""
    first: tuple[Trial, ...]
    """its first trials, as history for a study of another cell"""


def replay(
    cell: Cell,
    searcher_name: str,
    seed: int,
    *,
    model: str = "shipped",
    held_out: Calibration | None = None,
    in_flight: int = 1,
    history: History = (),
) -> Run:
    """Searches the cell until the best is found, the curve is complete and the search would have
    stopped, or until no candidate is left."""
    space = SearchSpace.of(cell.workload, _shuffled(cell, seed))
    predicted: Prediction = prediction(space, model, seed, held_out)
    began = process_time()
    searcher = make_searcher(
        searcher_name,
        space,
        seed=seed,
        estimate=predicted.estimate,
        calibration=predicted.calibration,
        history=history,
    )
    regret, curve, failed, all_failed, found, stopped = 1.0, [], 0, 0, None, None
    first: list[Trial] = []
    pending: list[ParallelConfig] = []
    while found is None or len(curve) < CURVE:
        pending += searcher.ask(in_flight - len(pending))
        if not pending:
            break
        config = pending.pop(0)
        trial = cell.trial(config, len(curve))
        searcher.tell([trial])
        first += [trial] if len(first) < PAST_TRIALS else []
        regret = min(regret, cell.regret(config))
        curve.append(regret)
        all_failed += trial.failure is not None
        if found is None:
            failed += trial.failure is not None
            found = len(curve) if regret <= CLOSE else None
        if (
            stopped is None
            and (gain := searcher.expected_gain(1)) is not None
            and (not pays(gain, TRIALS_IN_A_TRAINING) or len(curve) == CURVE)
        ):
            # trials that are already running finish
            stopped = (
                len(curve) + len(pending),
                all_failed,
                min([regret, *map(cell.regret, pending)]),
            )
    return Run(
        cell=cell.name,
        trials=found if found is not None else len(space) + 1,
        failed=failed,
        curve=tuple((curve + [regret] * CURVE)[:CURVE]),
        stopped_after=stopped[0] if stopped else None,
        stopped_failed=stopped[1] if stopped else all_failed,
        stopped_regret=stopped[2] if stopped else regret,
        seconds=process_time() - began,
        first=tuple(first),
    )


def _shuffled(cell: Cell, seed: int) -> list[ParallelConfig]:
    """The cell's configs in random order."""
    configs = list(cell.rows)
    return [configs[i] for i in np.random.default_rng(seed).permutation(len(configs))]


def past(
    cell: Cell,
    cells: Sequence[Cell],
    firsts: Mapping[str, Sequence[Trial]],
    studies: int,
    seed: int,
) -> History:
    """A history: first trials of studies of other cells of the sweep, drawn at random. `firsts`:
    trials by cell name."""
    others = [c for c in cells if c is not cell and c.workload.trainer == cell.workload.trainer]
    drawn = np.random.default_rng([seed, 7]).permutation(len(others))[:studies]
    return tuple((others[i].workload, trial) for i in drawn for trial in firsts[others[i].name])


def _job(job: tuple[Cell, str, int, dict[str, Any]]) -> Run:
    cell, name, seed, keywords = job
    return replay(cell, name, seed, **keywords)


def _runs(
    cells: Sequence[Cell],
    name: str,
    args: argparse.Namespace,
    fitted: Fitted,
    pool: ProcessPoolExecutor,
) -> Iterator[Run]:
    def play(
        searcher: str, seed: int, in_flight: int, histories: Mapping[str, History]
    ) -> Iterator[Run]:
        jobs = []
        for cell in cells:
            held_out = fitted.get((cell.workload.model.name, cell.workload.trainer))
            options = {"model": args.model, "held_out": held_out, "in_flight": in_flight}
            jobs.append(
                (cell, searcher, seed, {**options, "history": histories.get(cell.name, ())})
            )
        return pool.map(_job, jobs, chunksize=4)

    once = name in DETERMINISTIC and args.model in ("held_out", "shipped") and not args.history
    for seed in range(1 if once else args.seeds):
        histories = {}
        if args.history:
            firsts = {run.cell: run.first for run in play("bayesian", seed, 1, {})}
            histories = {cell.name: past(cell, cells, firsts, args.history, seed) for cell in cells}
        yield from play(name, seed, args.in_flight, histories)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table and draws the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--csv", type=Path, action="append", help="measurements in the common header (repeatable)"
    )
    parser.add_argument(
        "--worlds",
        type=int,
        default=0,
        help="number of simulated cells to use in place of measured ones",
    )
    parser.add_argument(
        "--invented",
        type=int,
        default=0,
        help="number of invented cells to use, of another form than the cost model",
    )
    parser.add_argument(
        "--near-equals",
        type=int,
        default=0,
        help="number of cells of 2,000 and more configs with errors of their own",
    )
    parser.add_argument(
        "--tight",
        type=int,
        default=0,
        help="number of cells at the limit of memory, of unfitted trainers",
    )
    parser.add_argument(
        "--wild",
        type=int,
        default=0,
        help="number of invented cells with a best far ahead and first picks far too slow",
    )
    parser.add_argument(
        "--own-knobs",
        type=int,
        default=0,
        help="number of cells of knobs that the cost model does not know",
    )
    parser.add_argument(
        "--unfitted",
        action="store_true",
        help="invented cells: of trainers that no constant was fitted to",
    )
    parser.add_argument(
        "--searchers",
        default="bayesian,cost_ranked,rule_of_thumb,random",
        help="names, separated by commas",
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--model", choices=MODELS, default="held_out")
    parser.add_argument("--in-flight", type=int, default=1, help="trials that run at once")
    parser.add_argument(
        "--history",
        type=int,
        default=0,
        help="earlier studies on other cells that the searcher may learn from",
    )
    parser.add_argument("--unknown-failure", type=FailureKind, default=FailureKind.OUT_OF_MEMORY)
    parser.add_argument("--figure", type=Path, help=f"SVG to draw, e.g. {FIGURE.name}")
    parser.add_argument("--cells", action="store_true", help="also print each cell")
    parser.add_argument(
        "--few-for-many",
        action="store_true",
        help="what few GPUs teach about many (few_for_many.py); 3 seeds are enough",
    )
    args = parser.parse_args(arguments)
    if args.few_for_many:
        print_tables(args.seeds, args.jobs, every_cell=args.cells)
        return
    paths = args.csv or [DATA / name for name in DEFAULT]
    if unknown := [name for name in args.searchers.split(",") if name not in searcher_names()]:
        parser.error(
            f"there is no searcher {unknown[0]!r}; there are {', '.join(searcher_names())}"
        )
    try:
        made = [
            *simulated_cells(args.worlds),
            *invented_cells(args.invented, is_fitted=not args.unfitted),
            *near_equal_cells(args.near_equals),
            *tight_cells(args.tight),
            *wild_cells(args.wild, is_fitted=not args.unfitted),
            *own_knob_cells(args.own_knobs),
        ]
        cells = made or [
            cell for path in paths for cell in read_cells(path, unknown_cause=args.unknown_failure)
        ]
    except (OSError, KeyError, ValueError, AutotuneError) as error:
        parser.error(f"the measurements cannot be read: {type(error).__name__}: {error}")
    if not cells:
        parser.error(
            f"a cell needs at least {MIN_CONFIGS} configs of one model, GPU count and batch: there is none in these files"
        )
    print(
        f"{len(cells)} cells, {args.seeds} seeds, cost model: {args.model}, {args.in_flight} in flight"
    )
    print(
        "| searcher | trials: mean | median | p90 | failed | regret at 3 | 5 | 10 | stops after | failed | with regret | s per trial |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    fitted: Fitted = {} if args.model == "shipped" or made else held_out_constants()
    known = {(cell.workload.model.name, cell.workload.trainer) for cell in cells}
    if fitted and (strange := sorted(model for model, trainer in known - fitted.keys())):
        print(
            f"no constants were fitted without {', '.join(strange)}: those that ship are used, which never saw it"
        )
    curves = {}
    with ProcessPoolExecutor(args.jobs) as pool:
        for name in args.searchers.split(","):
            runs = list(_runs(cells, name, args, fitted, pool))
            curves[name] = np.mean([r.curve for r in runs], axis=0).tolist()
            print(_line(name, runs), flush=True)
            if args.cells:
                for cell in cells:
                    own = [r for r in runs if r.cell == cell.name]
                    print(
                        f"  {cell.name}: {mean(r.trials for r in own):.1f} trials, {mean(r.failed for r in own):.1f} failed"
                    )
    if args.figure:
        args.figure.parent.mkdir(exist_ok=True)
        args.figure.write_text(
            curves_svg(
                curves,
                title=f"Mean regret on {len(cells)} {'made-up' if made else 'published'} cells",
            ),
            encoding="utf-8",
        )


def _line(name: str, runs: list[Run]) -> str:
    trials = [r.trials for r in runs]
    stopped = [r for r in runs if r.stopped_after is not None]
    stop = f"{mean(r.stopped_after for r in stopped):.1f}" if stopped else "-"
    failed = f"{mean(r.stopped_failed for r in stopped):.2f}" if stopped else "-"
    regret = f"{mean(r.stopped_regret for r in stopped):.1%}" if stopped else "-"
    at = [f"{mean(r.curve[k - 1] for r in runs):.1%}" for k in (3, 5, 10)]
    seconds = sum(r.seconds for r in runs) / sum(max(len(r.curve), r.trials) for r in runs)
    return (
        f"| {name} | {mean(trials):.2f} | {median(trials):g} | {np.percentile(trials, 90):.0f} | "
        f"{mean(r.failed for r in runs):.2f} | {' | '.join(at)} | {stop} | {failed} | {regret} | {seconds:.3f} |"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
