"""Fits the cost model's time constants to published measurements, and measures the prediction error
on held-out data.

    python -m research.fit_cost_model            fit, cross-validate, print the tables
    python -m research.fit_cost_model --write    the same, and write autotune/cost/constants.json and research/held_out.md
    python -m research.fit_cost_model --keep-error-bars --write    time constants anew; the error bars and the prior of trials stay those that ship
    python -m research.fit_cost_model --level    only the level of trainers that were never fitted, for the constants and error bars that ship, and the
                                                         lines of files that were not read; with --write they replace those of before (2 minutes)

Held out by model and by GPU count: everything is fitted again without the rows that are then
predicted; other rows of the same cluster were fitted. By cluster and trainer: the file was never
read, and its rows are predicted by what other clusters and trainers say. By nothing: constants
fitted to the very rows that they predict, which is the least error that these formulas can have.

Memory is fitted by `fit_memory` alone; its tables for the constants that ship are printed first.

time_fit.py            what is fitted to what                  held_out.py        folds
error_fit.py           how wrong it is elsewhere               study_trials.py    what trials do to them
unread_level.py        the middle of that                      accuracy_tables.py accuracy_page.py
constants_document.py  constants.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.cost import Calibration
from autotune.cost.learn.refit import OwnError
from research import fit_memory
from research.constants_document import document
from research.error_fit import Errors, fit_errors, spreads_of
from research.held_out import (
    FREE,
    Judged,
    by_gpus,
    by_model,
    folds_of,
    held_out,
    judged,
    levels_of,
    without_file,
)
from research.time_fit import Pair, fit_time, pairs
from research.unread_level import Levels, program_levels, unread_trainer, without
from tests.benchmarks.accuracy_page import CONSTANTS, HELD_OUT, timed_files, write_held_out
from tests.benchmarks.accuracy_tables import LEAST_SIGMA, Line, line, sigma_of, table, trials_table
from tests.benchmarks.published import FILES


def with_widths(pair: Pair, constants: Calibration, rows: Judged) -> Calibration:
    """The constants with the width of a config's own error: that of rows whose model was held out,
    about the level of their cluster."""
    near = rows.near()
    own = near.error - np.array([levels_of(near)[where] for where in near.where.tolist()])
    return replace(constants, time_sigma=max(sigma_of(own), LEAST_SIGMA), comm_sigma=pair.unsure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, cross-validate, print; with --write also keep the constants and the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write autotune/cost/constants.json and research/held_out.md",
    )
    parser.add_argument(
        "--level", action="store_true", help="only the level of trainers that were never fitted"
    )
    parser.add_argument(
        "--keep-error-bars", action="store_true", help="fit no error bars: those that ship stay"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="fits that run at once, each in a process"
    )
    options = parser.parse_args(arguments)
    print("\n".join(fit_memory.shipped_lines()), flush=True)
    old = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    files = timed_files()
    if options.level:
        new, lines = level_document(old, files, options.jobs)
    else:
        new, lines = fitted_document(old, files, options.jobs, keeps_errors=options.keep_error_bars)
    print("\n".join([*table(lines), "", *trials_table(lines)]), flush=True)
    for name, values in new["pairs"].items():
        print(
            f"{name}: error of a config {values['time_sigma']:.3f}, level {values['level_sigma']:.3f}"
        )
    if options.write:
        CONSTANTS.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
        write_held_out(lines, keep_others=options.level)
        print(f"wrote {CONSTANTS} and {HELD_OUT}", flush=True)
    return 0


def fitted_document(
    old: Mapping[str, Any], files: Sequence[str], jobs: int, *, keeps_errors: bool = False
) -> tuple[dict[str, Any], list[Line]]:
    """The constants of a fit to all rows with their error bars, and the lines of the table.
    `keeps_errors`: error bars and the prior of trials are those of `old`."""
    every_pair = pairs()
    lines: list[Line] = []
    with ProcessPoolExecutor(jobs) as pool:
        whole = dict(
            zip(
                [p.name for p in every_pair],
                pool.map(fit_time, every_pair, [p.blocks for p in every_pair]),
                strict=True,
            )
        )
        fitted: dict[str, Calibration] = {}
        models = {p.name: held_out(p, by_model, pool.map) for p in every_pair}
        counts = {p.name: held_out(p, by_gpus, pool.map) for p in every_pair if p.near < 100}
        unseen = _unseen(pool, files, whole, old)
        of_pairs = {}
        for pair in every_pair:
            rows = judged(models[pair.name], with_sensitivity=False)
            fitted[pair.name] = with_widths(pair, whole[pair.name], rows)
            widths = _widths_of(fitted[pair.name])
            of_pairs[pair.name] = judged([(b, replace(c, **widths)) for b, c in models[pair.name]])
        unread = {
            n: judged(folds_of(FILES[n](), _with_widths(known, fitted)))
            for n, known in unseen.items()
        }
        if keeps_errors:
            errors = _errors_of(old)
            of_file = dict.fromkeys(files, errors)
        else:
            errors = fit_errors(unread, list(of_pairs.values()), spreads_of(whole, every_pair))
            others = [{n: rows for n, rows in unread.items() if n != name} for name in files]
            apart = [
                [rows for rows in of_pairs.values() if not set(rows.where) & set(unread[n].where)]
                for n in files
            ]
            spreads = [spreads_of(_constants_of(unseen[name]), every_pair) for name in files]
            of_file = dict(zip(files, pool.map(fit_errors, others, apart, spreads), strict=True))
    print(f"errors on clusters that were not read: {errors}")
    fitted = {n: replace(c, level_sigma=errors.shared_sigma) for n, c in fitted.items()}
    for pair in every_pair:
        widths = _widths_of(fitted[pair.name])
        for by, folds in (("model", models), ("GPU count", counts)):
            if folds.get(pair.name):
                rows = judged([(b, replace(c, **widths)) for b, c in folds[pair.name]])
                lines.append(line(pair.name, by, rows, errors.values, level_is_known=True))
        rows = judged([(b, fitted[pair.name]) for b in pair.blocks])
        lines.append(
            line(pair.name, "nothing", rows, at_these_constants(errors.values), level_is_known=True)
        )
    levels = program_levels(unseen, document(fitted, old, errors))
    for name, known in unseen.items():
        of_others = of_file[name]
        own = {n: replace(c, level_sigma=of_others.shared_sigma) for n, c in fitted.items()}
        rest = without(
            levels, name, prior_sigma=of_others.level_sigma, shared_sigma=of_others.shared_sigma
        )
        whole_document = document(_constants_of(known), old, of_others, rest)
        rows = judged(
            folds_of(FILES[name](), {**whole_document, "pairs": _with_widths(known, own)["pairs"]})
        )
        lines.append(
            line(name, "cluster and trainer", rows, of_others.values, level_is_known=False)
        )
    print(f"levels of trainers that were not read: {levels}")
    level = unread_trainer(levels, prior_sigma=errors.level_sigma, shared_sigma=errors.shared_sigma)
    return document(fitted, old, errors, level), lines


def level_document(
    old: Mapping[str, Any], files: Sequence[str], jobs: int
) -> tuple[dict[str, Any], list[Line]]:
    """The constants that ship with the level of trainers that were never fitted, and the lines of
    files that were not read."""
    levels, unread = unread_rows(old, files, jobs)
    print(f"levels of trainers that were not read: {levels}", flush=True)
    lines = [
        line(n, "cluster and trainer", unread[n], old["refit"], level_is_known=False) for n in files
    ]
    return {**old, "unread_trainer": unread_trainer(levels, **_level_sigmas(old))}, lines


def unread_rows(
    old: Mapping[str, Any], files: Sequence[str], jobs: int
) -> tuple[Levels, dict[str, Judged]]:
    """Levels of trainers that were never fitted by file, and the rows of all files, each by the
    constants that ship without it, which have the level of the others."""
    fitted = _constants_of(old)
    with ProcessPoolExecutor(jobs) as pool:
        unseen = {
            n: _with_widths(known, fitted) for n, known in _unseen(pool, files, fitted, old).items()
        }
    levels = program_levels(unseen, old)
    rows = {}
    for name, known in unseen.items():
        rest = without(levels, name, **_level_sigmas(old))
        rows[name] = judged(folds_of(FILES[name](), {**known, "unread_trainer": rest}))
    return levels, rows


def _level_sigmas(old: Mapping[str, Any]) -> dict[str, float]:
    """Standard deviations of a level before any file is read, and of level and constants together,
    as a document has them."""
    return {
        "prior_sigma": old["refit"]["level_sigma"],
        "shared_sigma": old["pooled"]["level_sigma"],
    }


def _errors_of(old: Mapping[str, Any]) -> Errors:
    """The error bars of a document."""
    pooled, known = old["pooled"], old["refit"]
    return Errors(
        level_sigma=known["level_sigma"], time_sigma=pooled["time_sigma"], comm_sigma=pooled["comm_sigma"], own_error=OwnError(**known["own_error"]),
        spreads=known["spreads"], shared_sigma=pooled["level_sigma"],
    )  # fmt: skip


def _unseen(
    pool: ProcessPoolExecutor,
    files: Sequence[str],
    fitted: dict[str, Calibration],
    old: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """The constants without each file in turn."""
    count = len(files)
    return dict(
        zip(files, pool.map(_without, files, [fitted] * count, [dict(old)] * count), strict=True)
    )


def at_these_constants(known: Mapping[str, Any]) -> dict[str, Any]:
    """The prior of a refit that knows the constants: a level and own errors are all that trials can
    teach."""
    return {**known, "spreads": dict.fromkeys(FREE, 0.0)}


def _without(name: str, fitted: dict[str, Calibration], old: dict[str, Any]) -> dict[str, Any]:
    return without_file(pairs(), fitted, name, old)


def _constants_of(known: Mapping[str, Any]) -> dict[str, Calibration]:
    """The fitted pairs of a document."""
    names = {n: dict(zip(("gpu", "trainer"), n.split("/"), strict=True)) for n in known["pairs"]}
    return {
        n: Calibration.from_dict({**values, **names[n]}) for n, values in known["pairs"].items()
    }


def _with_widths(known: Mapping[str, Any], fitted: Mapping[str, Calibration]) -> dict[str, Any]:
    """The document with the error bars of these fits."""
    return {
        **known,
        "pairs": {n: {**values, **_widths_of(fitted[n])} for n, values in known["pairs"].items()},
    }


def _widths_of(constants: Calibration) -> dict[str, Any]:
    return {n: getattr(constants, n) for n in ("time_sigma", "comm_sigma", "level_sigma")}


if __name__ == "__main__":
    sys.exit(main())
