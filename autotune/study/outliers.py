"""Nodes and GPUs that are slower than their likes: a study leaves their nodes out where its runner
has others, and says so where it cannot.

    known before    by a calibration (`autotune.results.calibrations`)
    seen in trials  `TRIALS` trials or more, and `MOSTLY` of those that ran there, say of themselves that this node (or a rank on it) is slower than the others

Nothing is left out that the largest config in the space needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

import numpy as np

from autotune.diagnosis import diagnose
from autotune.ports import ChoosingRunner, TrialRunner
from autotune.results.diagnoses import evidence_of_run
from autotune.space import SearchSpace
from autotune.spec import Study, Trial, number_of
from autotune.study.progress import LoopEvent, Notice, OnEvent, TrialEnded
from autotune.trainers.base.torchrun import Placement, place

TRIALS, MOSTLY = 2, 0.5
LINK = "link"
SLOW = ("slow_rank", "slow_node")


@final
class Outliers:
    """What is known of one study's nodes, and what became of it."""

    def __init__(
        self,
        study: Study,
        space: SearchSpace,
        runner: TrialRunner,
        tell: OnEvent,
        *,
        keep: Callable[[str], object],
    ) -> None:
        """`keep`: writes a line of the study's history."""
        self._runner, self._tell, self._keep = runner, tell, keep
        self._needed = largest(study, space)
        self._name = study.runner
        self._said: set[str] = set()
        """nodes, GPUs and links that were told"""
        self._trials: Counter[str] = Counter()
        """that ran on each node together with others"""
        self._blamed: Counter[str] = Counter()
        """those that found it slower than the others"""

    def judge(self, found: Iterable[Mapping[str, Any]]) -> None:
        """What a calibration found."""
        for entry in found:
            date = f" (measured {entry['date'][:10]})" if entry.get("date") else ""
            self._say(entry["kind"], entry["node"], entry["name"], entry["text"] + date)

    def hear(self, event: LoopEvent) -> None:
        """Passes an event on; of trials that have ended it sees what they say of their nodes."""
        self._tell(event)
        if isinstance(event, TrialEnded):
            self.see(event.trial)

    def see(self, trial: Trial) -> None:
        """What it says of its nodes."""
        if trial.measurement is None or not trial.measurement.evidence:
            return
        evidence = evidence_of_run(trial)
        nodes = {rank.node for rank in evidence.ranks if rank.node}
        if len(nodes) < 2:
            return
        self._trials.update(nodes)
        first = next(iter(diagnose(evidence).findings), None)
        if first is None or first.cause not in SLOW or not first.node:
            return
        self._blamed[first.node] += 1
        if (count := self._blamed[first.node]) >= max(TRIALS, MOSTLY * self._trials[first.node]):
            self._say(
                "node",
                first.node,
                f"node {first.node}",
                f"{first.what}, in {number_of(count, 'trial')}",
            )

    def _say(self, kind: str, node: str, name: str, text: str) -> None:
        if name in self._said or f"node {node}" in self._said:
            return
        became = self._leave_out(node) if kind != LINK else "needed"
        if became == "absent":
            return
        self._said.add(f"node {node}" if became == "left out" else name)
        told = f"{text}; {self._words(kind, node, became)}"
        self._keep(told)
        self._tell(Notice(message=told))

    def _leave_out(self, node: str) -> str:
        return (
            self._runner.leave_out(node, self._needed)
            if isinstance(self._runner, ChoosingRunner)
            else ""
        )

    def _words(self, kind: str, node: str, became: str) -> str:
        if kind == LINK:
            return "configs that send between these nodes wait for this link; fix the link, or remove one of the nodes"
        if became == "left out":
            return f"node {node} is left out; the following trials use other nodes"
        if became == "needed":
            return f"node {node} is kept, because the largest config needs {number_of(self._needed.nnodes, 'node')} with {number_of(self._needed.nproc_per_node, 'rank')} each and there are no other nodes; fix the node, add a node, or tune for fewer nodes"
        part = {"gpu": "GPU"}.get(kind, kind)
        return f"the {part} is kept, because the {self._name!r} runner cannot choose nodes or GPUs, so every config that uses this {part} waits for it; fix the {part}, or hide it (CUDA_VISIBLE_DEVICES, the job's list of nodes) and tune for fewer ranks"


def largest(study: Study, space: SearchSpace) -> Placement:
    """How the ranks of the space's largest config are placed."""
    return place(study.workload.cluster, space[int(np.argmax(space.table.world_size))])
