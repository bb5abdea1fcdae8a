"""A schedule of disturbances, drawn from a seed: which controllers, supervisors, ranks, databases
and clocks of a study are disturbed, how and when.

    after      journal lines that the controllers write before the disturbance comes: progress, not time, so that a busy machine changes nothing
    for_s      how long a database stays away, a disk full, s

The simulated runner lives in its controller's process, so what kills or freezes a controller kills
or freezes the runner. With real trials the runner's other processes are killed as well, one at a
time.

Pure values; `tests.chaos.arena` carries them out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.small_studies import QUIET, spec

SUPERVISED = ("kill", "kill", "freeze", "rival", "clock", "database", "supervisor", "supervisor")
"""SIGKILL of all controllers; SIGSTOP of one until another took over, then SIGCONT; a second
controller beside the first; a jump of the controllers' wall clocks; the database away (PostgreSQL:
stopped or crashed, SQLite: locked by somebody else); SIGKILL of a supervisor, and another in its
place"""
ANYWHERE = ("kill", "kill_and_race", "freeze", "rival", "clock", "database")
"""Where no supervisor sees to it the arena starts the next controller, or three at once"""
REAL = (*ANYWHERE, "rank", "rank", "rank")
"""with SIGKILL of one of the processes by which the running trial's ranks live: a rank, the one
that it was forked from, its actor"""
SEARCHERS = ("random", "grid", "cost_ranked", "cost_ranked", "bayesian", "optuna:tpe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """One thing that goes wrong."""

    kind: str
    after: int
    for_s: float = 0.0
    crash: bool = False
    """whether a server is killed instead of stopped, whether all that a supervisor started goes
    with it, as when a container ends"""
    jump_s: float = 0.0
    """by how much a clock is set forward or back, s"""
    which: int = 0
    """of several processes, counted round"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A study and what happens to it."""

    seed: int
    spec: dict[str, Any]
    disturbances: tuple[Disturbance, ...]
    is_real: bool = False
    """whether its trials are, so that no two runs measure the same"""
    is_supervised: bool = False
    """whether supervisors see to it that a controller runs"""
    lease_s: float = 1.0

    def __str__(self) -> str:
        kinds = ", ".join(d.kind for d in self.disturbances)
        return f"seed {self.seed}, {self.spec['searcher']}{', supervised' * self.is_supervised}: {kinds}"


def seeded(
    seed: int, *, searchers: tuple[str, ...] = SEARCHERS, supervised: float = 1 / 3
) -> Schedule:
    """The schedule of this seed: two to five disturbances of a study of 13 short trials, some of
    which fail, end twice or report late.

    `supervised`: the probability that supervisors keep it running.
    """
    draw = random.Random(seed)
    is_supervised = draw.random() < supervised
    kinds = SUPERVISED if is_supervised else ANYWHERE
    return Schedule(
        seed=seed,
        spec=study_spec(searcher=draw.choice(searchers), seed=draw.randrange(5)),
        disturbances=tuple(
            Disturbance(
                kind=draw.choice(kinds),
                after=draw.randrange(1, 9),
                for_s=draw.choice((0.1, 0.5, 1.5)),
                crash=draw.random() < 0.5,
                jump_s=draw.choice((-3600.0, -2.0, 2.0, 3600.0)),
            )
            for _ in range(draw.randrange(2, 6))
        ),
        is_supervised=is_supervised,
    )


def study_spec(*, searcher: str, seed: int) -> dict[str, Any]:
    """A study on the simulated runner whose outcome depends on its seed alone, not on the number of
    attempts: no noise, faults by trial number."""
    faults = [
        {"kind": "duplicate", "probability": 0.3},
        {"kind": "late", "probability": 0.3},
        {"kind": "worker_lost", "trial": 2, "attempt": 1},
        {"kind": "error", "trial": 4},
    ]
    return spec(
        name="disturbed",
        searcher=searcher,
        seed=seed,
        runner=QUIET | {"seed": seed, "faults": faults, "time_scale": 0.02},
    )
