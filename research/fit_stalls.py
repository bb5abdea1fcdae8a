"""Fits how often, and for how long, sends between pipeline stages stall on several nodes
(`autotune.cost.time.stalls`).

    python -m research.fit_stalls            fit, leave models and node counts out, print
    python -m research.fit_stalls --write    the same, and write the key `stalls` of autotune/cost/constants.json

Rows: the pipelines over nodes of nanotron_h100.csv that ran, each predicted by constants that were
fitted without its model, less their median error. The likelihood of a row is a mixture of two
normals of log(measured / predicted): about 0 without a stall, with a twentieth of its weight spread
wide for other errors; about the stalled step with one. Other files print recipes that somebody
chose, not sweeps. Of 37 pipelines over nodes of a V100 cluster (bigscience_v100_gpt2.csv) none ran
at a third of its predicted speed or less, so the chance is that of one cluster, and another's may
be smaller.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from autotune.cost import estimate
from autotune.cost.layout import layout_of
from autotune.cost.time.stalls import Stalls, waiting_sends
from research.held_out import by_model, held_out
from research.time_fit import pairs
from tests.benchmarks.accuracy_page import CONSTANTS

SOURCE = "nanotron_h100.csv"
PRIORS = {
    "per_doubling": (0.0, 0.5),
    "log_send_s": (np.log(0.3), 2.0),
    "log_spread": (np.log(0.15), 0.7),
}
"""mean and standard deviation"""
STARTS = (0.1, 0.3, 1.0)
"""seconds of a stalled send"""
OTHER, OTHER_SD = 0.05, 0.5
"""weight and standard deviation of errors that are no stalls"""
STEPS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Pipelines over nodes, arrays of shape (n,)."""

    model: np.ndarray
    nodes: np.ndarray
    error: np.ndarray
    """log(measured / predicted step time)"""
    sends_per_s: np.ndarray
    """sends that wait one after another, per second of the predicted step"""

    def take(self, index: np.ndarray) -> Rows:
        """The rows that `index` names."""
        return Rows(**{n: getattr(self, n)[index] for n in self.__dataclass_fields__})


def read_rows() -> Rows:
    """The pipelines over nodes."""
    pair = next(p for p in pairs() if p.source == SOURCE)
    parts = []
    for whole, constants in held_out(pair, by_model):
        b = whole.take(np.flatnonzero(~whole.failed & np.isfinite(whole.tokens_per_s_per_gpu)))
        layout = layout_of(b.workload, b.table)
        predicted = np.asarray(estimate(b.workload, b.table, calibration=constants).step_time_s)
        rows = Rows(
            model=np.full(len(b.table), b.workload.model.name),
            nodes=np.ceil(layout.world / b.workload.cluster.gpus_per_node),
            error=np.log(b.step_time_s / predicted),
            sends_per_s=waiting_sends(layout) / predicted,
        )
        parts.append(rows.take(layout.stages_per_domain < layout.pp))
    joined = Rows(
        **{n: np.concatenate([getattr(p, n) for p in parts]) for n in Rows.__dataclass_fields__}
    )
    return Rows(
        model=joined.model, nodes=joined.nodes, error=joined.error - np.median(joined.error), sends_per_s=joined.sends_per_s
    )  # fmt: skip


def fit(rows: Rows) -> tuple[Stalls, float]:
    """The most probable values, and the standard deviation of the log of s between runs."""
    sigma = 1.4826 * float(np.median(np.abs(rows.error)))

    def cost(z: np.ndarray) -> float:
        log_odds = z[0] + z[1] * np.log2(rows.nodes)
        added = rows.sends_per_s * np.exp(z[2])
        plain = np.logaddexp(
            np.log1p(-OTHER) + _log_normal(rows.error, sigma), np.log(OTHER) + _log_normal(rows.error, np.hypot(sigma, OTHER_SD))
        )  # fmt: skip
        stalled = _log_normal(
            rows.error - np.log1p(added), np.hypot(sigma, added / (1.0 + added) * np.exp(z[3]))
        )
        stalled = stalled - np.logaddexp(0.0, -log_odds)
        either = np.logaddexp(plain - np.logaddexp(0.0, log_odds), stalled)
        prior = sum(
            ((v - mean) / sd) ** 2 for v, (mean, sd) in zip(z[1:], PRIORS.values(), strict=True)
        )
        return float(-either.sum() + 0.5 * prior)

    starts = [np.array([-2.0, 0.0, np.log(send_s), PRIORS["log_spread"][0]]) for send_s in STARTS]
    fits = [
        minimize(cost, s, method="Nelder-Mead", options={"maxfev": STEPS, "maxiter": STEPS})
        for s in starts
    ]
    best = min(fits, key=lambda f: float(f.fun)).x
    found = Stalls(
        log_odds=float(best[0]), per_doubling=float(best[1]), send_s=float(np.exp(best[2]))
    )
    return found, float(np.exp(best[3]))


def _log_normal(x: np.ndarray, sigma: np.ndarray | float) -> np.ndarray:
    return np.asarray(-0.5 * (x / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2.0 * np.pi))


def said(name: str, rows: Rows, found: tuple[Stalls, float], of: Rows) -> str:
    """A line of the table: the fit to `rows`, and how many of the rows of `of` it expects to run at
    less than a third of their predicted speed."""
    stalls, spread = found
    chance = 1.0 / (1.0 + np.exp(-stalls.log_odds - stalls.per_doubling * np.log2(of.nodes)))
    third = np.log(3.0)
    slow = np.log1p(of.sends_per_s * stalls.send_s) > third
    return (
        f"| {name} | {len(rows.error)} | {stalls.log_odds:.2f} | {stalls.per_doubling:.2f} | {stalls.send_s:.3f} s | {spread:.3f} | "
        f"{len(of.error)} | {float((chance * slow).sum()):.1f} | {int((of.error > third).sum())} |"
    )


def document(stalls: Stalls, rows: Rows) -> dict[str, Any]:
    """As `constants.json` keeps them."""
    return {
        "provenance": f"python -m research.fit_stalls --write; {len(rows.error)} pipelines over nodes of {SOURCE}",
        **{n: float(f"{getattr(stalls, n):.3g}") for n in Stalls.__dataclass_fields__},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, leave out, print; with --write also keep the values."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the key `stalls` of autotune/cost/constants.json",
    )
    options = parser.parse_args(arguments)
    rows = read_rows()
    print(
        "| fitted without | rows | a | b | s | spread | left out | of these at less than a third: expected | measured |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    whole = fit(rows)
    print(said("nothing", rows, whole, rows))
    for key in ("model", "nodes"):
        values = getattr(rows, key)
        for value in sorted(set(values.tolist())):
            rest, out = rows.take(values != value), rows.take(values == value)
            name = value if key == "model" else f"{value:g} nodes"
            print(said(name, rest, fit(rest), out))
    if options.write:
        constants = json.loads(CONSTANTS.read_text(encoding="utf-8"))
        constants["stalls"] = document(whole[0], rows)
        CONSTANTS.write_text(json.dumps(constants, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {CONSTANTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
