"""Evidence of runs that never were: the steps of some ranks by a few numbers, with a fault or
without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autotune.diagnosis import Evidence, Link, Node, Place, Rank

STEP_S = 0.1


def run(
    *,
    ranks: int = 2,
    nodes: int = 1,
    steps: int = 60,
    seed: int = 0,
    noise: float = 0.03,
    load: float = 0.0,
    data: float = 0.01,
    rest: float = 0.02,
    communication: float = 0.08,
    optimizer: float = 0.08,
    more: dict[tuple[int, str], Any] | None = None,
    slower: dict[int, float] | None = None,
    busier: dict[int, float] | None = None,
    tokens: Any = None,
    kind: str = "",
    sharded: bool = False,
) -> Evidence:
    """A run with a forward pass of 0.3, a backward pass of 0.6 (in units of `STEP_S`) and the given
    parts. `load`: share of the time on the run queue; `more`: (rank, phase) -> seconds that are
    blocked there, a number or one per step; `slower`: rank -> how much longer its passes take
    though they compute no more; `busier`: the same, on the processor; `tokens`: of each rank and
    step, with which its passes grow."""
    dice = np.random.default_rng(seed)

    def wobble() -> Any:
        return np.exp(noise * dice.standard_normal(steps))

    own: list[dict[str, Any]] = []
    for rank in range(ranks):
        work = np.ones(steps) if tokens is None else np.asarray(tokens)[rank] / np.mean(tokens)
        work = work * (busier or {}).get(rank, 1.0)
        stretch = (slower or {}).get(rank, 1.0)
        cpu = {
            "data": data * wobble(),
            "forward": 0.3 * work * wobble(),
            "backward": 0.6 * work * wobble(),
            "optimizer": optimizer * wobble(),
            "rest": rest * wobble(),
        }
        wall = {
            name: c * (stretch if name in ("forward", "backward", "optimizer") else 1.0)
            for name, c in cpu.items()
        }
        for (of, phase), blocked in (more or {}).items():
            if of in (rank, -1):
                wall[phase] = wall.get(phase, np.zeros(steps)) + np.asarray(blocked) / STEP_S
                cpu.setdefault(phase, np.zeros(steps))
        own.append({"cpu": cpu, "wall": wall, "sum": np.sum(list(wall.values()), axis=0)})
    longest = np.max([o["sum"] for o in own], axis=0) + (
        communication * wobble() if ranks > 1 else 0.0
    )
    found = []
    for number, o in enumerate(own):
        o["wall"]["backward"] = o["wall"]["backward"] + (longest - o["sum"] if ranks > 1 else 0.0)
        queue = load / (1 - load) if load else 0.0
        phases = {
            name: tuple(
                (float(w * (1 + queue) * STEP_S), float(c * STEP_S), float(w * queue * STEP_S))
                for w, c in zip(
                    o["wall"][name], np.broadcast_to(o["cpu"][name], steps), strict=True
                )
            )
            for name in o["wall"]
        }
        times = tuple(sum(phases[phase][step][0] for phase in phases) for step in range(steps))
        found.append(
            Rank(
                rank=number,
                node=f"node{number * nodes // ranks}",
                step_times_s=times,
                phases=phases,
                tokens=tuple(map(float, np.asarray(tokens)[number]))
                if tokens is not None
                else (64.0,) * steps,
                elapsed_s=sum(times),
                user_s=sum(times) * 0.8,
                cores=8,
                places=(
                    Place(phase="rest", kind=kind, line="train.py:7", text="batch", share=0.1),
                ),
            )
        )
    names = sorted({rank.node for rank in found})
    busy = ranks / nodes * (1 - load)
    return Evidence(
        ranks=tuple(found),
        nodes=tuple(
            Node(
                name=name,
                machine=name,
                cores=8,
                busy=busy + load * 8,
                ours=busy,
                others={"hog (process 7)": load * 8},
            )
            for name in names
        ),
        facts={
            "wrappers": ["FSDP2"] if sharded else ["DDP"],
            "world": ranks,
            "parameters": 1_000_000,
        },
        world=ranks,
        step_times_s=tuple(float(t) for t in np.max([rank.step_times_s for rank in found], axis=0)),
    )


def with_links(evidence: Evidence, speed: Any) -> Evidence:
    """Links between all nodes; `speed(from, to)`: bytes per second."""
    names = sorted({rank.node for rank in evidence.ranks})
    address = {name: f"10.0.0.{at + 1}" for at, name in enumerate(names)}
    return replace(
        evidence,
        ranks=tuple(
            replace(
                rank,
                links=tuple(
                    Link(
                        local=address[rank.node],
                        remote=address[to],
                        rtt_s=1e-3,
                        sent_bytes=1e8,
                        busy_s=1e8 / speed(rank.node, to),
                    )
                    for to in names
                    if to != rank.node
                ),
            )
            for rank in evidence.ranks
        ),
    )
