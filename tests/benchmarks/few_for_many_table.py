"""The table of the replay of few GPUs for many (`few_for_many.py`): what was measured, and each
goal, met or not.

error, inside   means over the cells (and the draws of wrong constants)        close    share of cells where the best of three trials is within 5%
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from tests.benchmarks.few_for_many import NOT_JUDGED, STATES, Outcome, outcomes_of, tasks

KINDS = {
    "near": "2 to 4 times",
    "far": "16 times",
    "quarter": "16 times, three more at a quarter",
    "layers": "12 layers for 16 to 24",
}
MOST_HARM = 0.02
"""regret by which a cell may be worse than without proxies"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One line of the table of goals."""

    what: str
    goal: str
    figure: str
    cells: int
    met: bool

    def __str__(self) -> str:
        return f"| {self.what} | {self.goal} | {self.figure} | {self.cells} | {'met' if self.met else 'not met'} |"


def print_tables(seeds: int, jobs: int, *, every_cell: bool) -> None:
    """Replays all and prints the tables."""
    outcomes = outcomes_of(tasks(), seeds, jobs)
    if every_cell:
        for o in outcomes:
            after = ", ".join(f"{regret:.1%}" for regret in o.regrets)
            which = f"{o.measured} proxies, {o.failed} failed" if o.with_proxies else "no proxies"
            print(
                f"  {o.task}, {o.state} {o.seed}, {which}: error {o.error:.1%}, first {o.first:.1%}, then {after}"
            )
    print(
        "\n".join(
            [
                *summary(outcomes),
                "",
                *goals_table(outcomes),
                "",
                *(f"not judged: {it}" for it in NOT_JUDGED),
            ]
        )
    )


def summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What was measured, by distance, constants and knowledge."""
    yield "| sweep | target | constants | proxies | cells | time error | inside | first pick's regret | after 1 / 3 real trials | within 5% after 3 |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for sweep in ("nanotron", "gpt"):
        for kind, words in KINDS.items():
            for state in STATES:
                for told in (False, True):
                    some = [
                        o
                        for o in outcomes
                        if (o.kind, o.state, o.with_proxies) == (kind, state, told)
                        and o.task.startswith(sweep)
                    ]
                    if some:
                        yield _line("vTrain" if sweep == "gpt" else sweep, words, state, told, some)


def _line(sweep: str, words: str, state: str, told: bool, some: Sequence[Outcome]) -> str:
    proxies = f"{mean(o.measured + o.failed for o in some):.1f}, {mean(o.failed for o in some):.1f} failed" if told else "none"  # fmt: skip
    one, *_, three = zip(*(o.regrets for o in some), strict=True)
    return (
        f"| {sweep} | {words} | {state} | {proxies} | {len(some)} | {mean(o.error for o in some):.1%} | {mean(o.inside for o in some):.0%} | "
        f"{mean(o.first for o in some):.1%} | {mean(one):.1%} / {mean(three):.1%} | {_share(r <= 0.05 for r in three):.0%} |"
    )


def goals_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Each goal with its figure."""
    yield "| | goal | figure | cells | |"
    yield "|---|---|---|---|---|"
    yield from map(str, goals(outcomes))


def goals(outcomes: Sequence[Outcome]) -> Iterator[Goal]:
    """The goals that these sweeps can judge."""
    told = [o for o in outcomes if o.with_proxies]
    near, far, quarter, layers = ([o for o in told if o.kind == kind] for kind in KINDS)
    wrong = [o for o in near if o.state == "wrong"]
    yield _at_most(
        "up to 8 times, 5 proxies, constants wrong by 2: time error of the faster half", 0.06, wrong
    )
    for state in STATES:
        some = [o for o in near if o.state == state]
        first, third = (
            _share(o.regrets[k] <= limit for o in some) for k, limit in ((0, 0.10), (2, 0.05))
        )
        yield Goal(
            what=f"up to 8 times, constants {state}: first real trial within 10% / three within 5%",
            goal="95% / 95%", figure=f"{first:.0%} / {third:.0%}", cells=len(some), met=min(first, third) >= 0.95,
        )  # fmt: skip
    some = [o for o in far if o.state == "wrong"]
    share = _share(o.regrets[2] <= 0.10 for o in some)
    yield Goal(
        what="16 to 32 times, constants wrong: three real trials within 10%",
        goal="80%", figure=f"{share:.0%}", cells=len(some), met=share >= 0.80,
    )  # fmt: skip
    for state in STATES:
        what = f"a quarter of the target at hand for three proxies, constants {state}: time error"
        yield _at_most(what, 0.10, [o for o in quarter if o.state == state])
    yield _harm(outcomes)
    holds = _share(o.statement is not False for o in told)
    refused = _share(o.statement is None for o in told)
    yield Goal(
        what="the 90% statement of the first pick holds, or is refused",
        goal=">= 85%", figure=f"{holds:.0%} ({refused:.0%} refused)", cells=len(told), met=holds >= 0.85,
    )  # fmt: skip
    for state in STATES:
        what = f"12 layers for 16 to 24, one node, constants {state}: time error"
        yield _at_most(what, 0.05, [o for o in layers if o.state == state])


def _at_most(what: str, limit: float, some: Sequence[Outcome]) -> Goal:
    figure = mean(o.error for o in some)
    return Goal(
        what=what,
        goal=f"<= {limit:.0%}",
        figure=f"{figure:.1%}",
        cells=len(some),
        met=figure <= limit,
    )


def _harm(outcomes: Sequence[Outcome]) -> Goal:
    last = {(o.task, o.state, o.seed, o.with_proxies): o.regrets[2] for o in outcomes}
    worse = [
        last[task, state, seed, True] - last[task, state, seed, False]
        for task, state, seed, told in last
        if told
    ]
    harmed = sum(it > MOST_HARM for it in worse)
    return Goal(
        what="harm: any cell worse than without proxies after three real trials",
        goal=f"by <= {MOST_HARM * 100:.0f} points",
        figure=f"by {max(worse) * 100:.1f}, {harmed} cells by more than {MOST_HARM * 100:.0f}",
        cells=len(worse),
        met=harmed == 0,
    )


def _share(holds: Iterator[bool]) -> float:
    return mean(map(float, holds))
