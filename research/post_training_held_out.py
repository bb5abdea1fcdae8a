"""Are the host constants of post-training those of the rows that they were fitted to? Each sweep is
predicted by constants that were fitted to the other alone.

    python -m research.post_training_held_out

Rows: `tests/benchmarks/data/post_training.csv` by `tests.benchmarks.post_training`. Fitted:
`CONSTANTS` of `autotune.cost.rl.update`, by the least sum over rows of the squared logarithm of
printed over predicted time, of the update and of log-probabilities, each less its mean over the
sweep (the level, which one trial tells), by Nelder and Mead from the middle of nothing known:
`FIRST`, which no row was used for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from autotune.cost.rl import update
from tests.benchmarks.post_training import SWEEPS, Row, judge, predicted, rows

FIRST = {
    "SEQUENCE_HOST_S": 1e-3,
    "MICRO_BATCH_HOST_S": 1e-2,
    "ROPE_HOST_S": 1e-4,
    "RING_HOST_S": 3e-4,
    "PAGEABLE_BYTES_PER_S": 5e9,
    "FSDP_LEVEL": 1.0,
}
"""round numbers for a Python loop over a sequence, a micro-batch, thirty launches, ten launches, a
pageable copy and no level"""
PHASES = (("update", "update_actor"), ("log_prob", "old_logp"))


def error_of(log_factors: Sequence[float], sweep: Sequence[Row]) -> float:
    """The sum of squares of a sweep with constants that are `FIRST` times the exponentials."""
    assign(log_factors)
    total = 0.0
    results = [(row, predicted(row)) for row in sweep if not row.is_oom]
    for ours, printed in PHASES:
        logs = np.array(
            [np.log(row.printed[printed] / p[ours]) for row, p in results if printed in row.printed]
        )
        total += float(((logs - logs.mean()) ** 2).sum()) if len(logs) > 1 else 0.0
    # a constant that the sweep does not show stays
    return total + 0.01 * float(np.square(log_factors).sum())


def assign(log_factors: Sequence[float]) -> None:
    """Sets the constants."""
    for (name, value), moved in zip(FIRST.items(), log_factors, strict=True):
        setattr(update, name, value * float(np.exp(moved)))


def main() -> None:
    """Prints both sweeps with the shipped constants, with none, and with those of the other."""
    shipped = {name: getattr(update, name) for name in FIRST}
    everything = rows()
    of = {sweep: [row for row in everything if row.sweep == sweep] for sweep in SWEEPS}
    fitted: dict[str, np.ndarray] = {}
    for sweep, found in of.items():
        fitted[sweep] = minimize(
            error_of,
            np.zeros(len(FIRST)),
            args=(found,),
            method="Nelder-Mead",
            options={"maxfev": 240},
        ).x
        values = {
            name: value * float(np.exp(moved))
            for (name, value), moved in zip(FIRST.items(), fitted[sweep], strict=True)
        }
        print(
            f"fitted to {sweep}:",
            ", ".join(f"{name} {value:.3g}" for name, value in values.items()),
            flush=True,
        )
    ways = {
        "shipped": np.log([shipped[name] / value for name, value in FIRST.items()]),
        "nothing fitted": np.zeros(len(FIRST)),
    }
    for sweep, found in of.items():
        other = next(name for name in of if name != sweep)
        for way, factors in {**ways, f"fitted to {other}": fitted[other]}.items():
            assign(factors)
            figures = judge(found)
            print(
                f"{sweep}, {way}: update {figures['update']:.1%} (level {figures['update bias']:.2f}), log-probabilities {figures['log_prob']:.1%}, "
                f"regret {max(figures['regret'].values()):.1%}, called {figures['called']}, false {figures['false']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
