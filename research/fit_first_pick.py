"""Calibrates what is said of the first pick of a target (`autotune.search.first_pick`) on replays
of published sweeps.

    python -m research.fit_first_pick              replay, leave models out, print
    python -m research.fit_first_pick --write      the same, and write autotune/search/first_pick.json
    python -m research.fit_first_pick --every 2    of the many targets of vTrain every second one alone

A replay is one of `few_for_many`: a target, proxies on what is at hand, and constants that saw
neither the model nor the GPU count, right or wrong by a factor of two. Whether the statement holds
is judged with the scores of the other models alone. Those of targets whose layers alone are fewer
are not looked at: there is no larger cluster.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import autotune.search
from autotune.cost import Calibration
from autotune.search import Problem
from autotune.search.first_pick import NO_RIVAL, Statement, statement
from autotune.search.target_searcher import TargetSearcher
from autotune.space import SearchSpace
from tests.benchmarks.few_for_many import (
    STATES,
    Task,
    constants_in,
    constants_of,
    tasks,
    with_proxies,
)

SCORES = Path(autotune.search.__file__).with_name("first_pick.json")
LOST = 1e-3
"""least throughput of a pick, relative to the best: one that fails has none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What became of a first pick."""

    kind: str
    state: str
    model: str
    with_proxies: bool
    times: float
    regret: float
    """throughput lost against the best, 0 to 1"""
    shortfall: float
    """what the model expects (`Standing.shortfall`)"""
    stall_probability: float
    stalled: bool
    """whether the pick's step was nearer to that of a stall"""

    @property
    def score(self) -> float:
        """The shortfall over the expected one."""
        return -math.log(max(1.0 - self.regret, LOST)) / self.shortfall


def replays_of(task: Task, state: str, seed: int, fitted: Calibration) -> list[Replay]:
    """The first pick before any proxy, and after all of them."""
    target = task.target
    problem = Problem(
        space=SearchSpace.of(target.workload, list(target.rows)), seed=seed,
        calibration=constants_in(state, target.workload, fitted, seed),
    )  # fmt: skip
    searchers = TargetSearcher(problem, task.rungs[0].cluster), with_proxies(task, problem)[0]
    return [_replay(task, state, s, with_proxies=k > 0) for k, s in enumerate(searchers)]


def _replay(task: Task, state: str, searcher: TargetSearcher, *, with_proxies: bool) -> Replay:
    standing, target = searcher.standing, task.target
    pick = int(standing.order[0])
    config, row = searcher.space[pick], target.rows[searcher.space[pick]]
    step_s = (
        config.global_batch_size
        * target.workload.seq_len
        / math.exp(float(standing.log_tokens_per_s[pick]))
    )
    chance, factor = float(standing.stall_probability[pick]), float(standing.stalled_factor[pick])
    return Replay(
        kind=task.kind, state=state, model=target.workload.model.name, with_proxies=with_proxies,
        times=target.workload.cluster.num_gpus / searcher.at_hand.num_gpus, regret=target.regret(config), shortfall=standing.shortfall,
        stall_probability=chance, stalled=chance > 0 and row.failure is None and row.step_time_s > step_s * math.sqrt(factor),
    )  # fmt: skip


def document(replays: Sequence[Replay], every: int, seeds: int) -> dict[str, Any]:
    """As `first_pick.json` keeps them."""
    return {
        "provenance": f"python -m research.fit_first_pick --every {every} --seeds {seeds} --write; replays of nanotron_h100.csv and vtrain_single_node_a100.csv in tests/benchmarks/data",
        "times": [min(r.times for r in replays), max(r.times for r in replays)],
        "scores": scores_of(replays),
    }


def scores_of(replays: Sequence[Replay]) -> dict[str, list[float]]:
    """The scores with proxies and without, of picks that have a rival and did not stall."""
    scored = [r for r in replays if r.shortfall >= NO_RIVAL and not r.stalled]
    names = {"with_proxies": True, "without": False}
    return {
        name: sorted(round(max(0.0, r.score), 4) for r in scored if r.with_proxies is proxies)
        for name, proxies in names.items()
    }


def held_out(replays: Sequence[Replay]) -> list[tuple[Replay, Statement | str]]:
    """What the scores of other models say of each pick."""
    found = []
    for model in sorted({r.model for r in replays}):
        scores = scores_of([r for r in replays if r.model != model])
        for r in (r for r in replays if r.model == model):
            said = statement(
                r.shortfall, with_proxies=r.with_proxies, stall_probability=r.stall_probability, times=r.times, scores=scores
            )  # fmt: skip
            found.append((r, said))
    return found


def table(found: Sequence[tuple[Replay, Statement | str]]) -> list[str]:
    """How often what is said holds, by kind of target and state of the constants."""
    lines = [
        "| target | constants | proxies | replays | refused | holds or refused | median X | median shortfall |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key in sorted(
        {(r.kind, r.state, r.with_proxies) for r, _ in found}, key=lambda k: (k[2], k[0], k[1])
    ):
        rows = [(r, s) for r, s in found if (r.kind, r.state, r.with_proxies) == key]
        lines.append(_line(f"{key[0]} | {key[1]} | {'yes' if key[2] else 'no'}", rows))
    for proxies in (False, True):
        rows = [(r, s) for r, s in found if r.with_proxies is proxies]
        lines.append(_line(f"all | both | {'yes' if proxies else 'no'}", rows))
    return lines


def _line(name: str, rows: Sequence[tuple[Replay, Statement | str]]) -> str:
    stated = [(r, s) for r, s in rows if isinstance(s, Statement)]
    holds = sum(r.regret <= s.within for r, s in stated) + len(rows) - len(stated)
    within = f"{np.median([s.within for _, s in stated]):.1%}" if stated else "-"
    lost = np.median([r.regret for r, _ in rows])
    return f"| {name} | {len(rows)} | {len(rows) - len(stated)} | {holds / len(rows):.0%} | {within} | {lost:.1%} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay, leave out, print; with --write also keep the scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="write autotune/search/first_pick.json"
    )
    parser.add_argument("--seeds", type=int, default=2, help="draws of wrong constants")
    parser.add_argument("--every", type=int, default=1, help="of vTrain's targets every so many")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    larger = [t for t in tasks() if t.kind != "layers"]
    vtrain = [t for t in larger if t.target.workload.trainer == "megatron"]
    some = [t for t in larger if t not in vtrain or vtrain.index(t) % options.every == 0]
    with ProcessPoolExecutor(options.jobs) as pool:
        fitted = constants_of(some, pool.map)
        plays = [
            (t, s, seed)
            for t in some
            for s in STATES
            for seed in range(1 if s == "right" else options.seeds)
        ]
        known = [
            fitted[t.target.workload.model.name, t.target.workload.cluster.num_gpus]
            for t, _, _ in plays
        ]
        replays = [
            r for pair in pool.map(replays_of, *zip(*plays, strict=True), known) for r in pair
        ]
    print("\n".join(table(held_out(replays))))
    if options.write:
        SCORES.write_text(
            json.dumps(document(replays, options.every, options.seeds), indent=1) + "\n",
            encoding="utf-8",
        )
        print(f"wrote {SCORES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
