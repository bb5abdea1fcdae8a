"""Finds nodes, GPUs and links that are slower than the others. Slow nodes are left out of a study if
its runner can choose nodes and has others; otherwise a notice says what to do.

    from a calibration   stored outliers of the GPU (`autotune.results.calibrations`)
    from trials          the diagnosis of at least `TRIALS` trials, and of a share of at least `MOSTLY` of the multi-node trials on the node, finds the node or
                         a rank on it slower than the others

Nodes that the largest config in the space needs are never left out.
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
"""causes of findings that blame a node"""


@final
class Outliers:
    """Finds the slow nodes, GPUs and links of one study, and leaves nodes out."""

    def __init__(
        self,
        study: Study,
        space: SearchSpace,
        runner: TrialRunner,
        tell: OnEvent,
        *,
        keep: Callable[[str], object],
    ) -> None:
        """`keep`: stores a message in the study's history."""
        self._runner, self._tell, self._keep = runner, tell, keep
        self._needed = largest(study, space)
        self._name = study.runner
        self._reported: set[str] = set()
        """names of nodes, GPUs and links that were reported already"""
        self._trials: Counter[str] = Counter()
        """number of multi-node trials by node"""
        self._blamed: Counter[str] = Counter()
        """number of trials by node whose diagnosis found it slow"""

    def judge(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Process the outliers that calibrations found."""
        for entry in found:
            date = f" (measured {entry['date'][:10]})" if entry.get("date") else ""
            self._report(entry["kind"], entry["node"], entry["name"], entry["text"] + date)

    def hear(self, event: LoopEvent) -> None:
        """Pass an event on; process the trial if it has ended."""
        self._tell(event)
        if isinstance(event, TrialEnded):
            self.see(event.trial)

    def see(self, trial: Trial) -> None:
        """Process the diagnosis of an ended trial; single-node trials are ignored."""
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
            self._report(
                "node",
                first.node,
                f"node {first.node}",
                f"{first.what}, in {number_of(count, 'trial')}",
            )

    def _report(self, kind: str, node: str, name: str, text: str) -> None:
        """Leave the node out if possible, and report the outlier once."""
        if name in self._reported or f"node {node}" in self._reported:
            return
        outcome = self._leave_out(node) if kind != LINK else "needed"
        if outcome == "absent":
            return
        self._reported.add(f"node {node}" if outcome == "left out" else name)
        message = f"{text}; {self._words(kind, node, outcome)}"
        self._keep(message)
        self._tell(Notice(message=message))

    def _leave_out(self, node: str) -> str:
        """Outcome of `ChoosingRunner.leave_out`; empty if the runner cannot choose nodes."""
        return (
            self._runner.leave_out(node, self._needed)
            if isinstance(self._runner, ChoosingRunner)
            else ""
        )

    def _words(self, kind: str, node: str, outcome: str) -> str:
        """What follows for the study, and what to do."""
        if kind == LINK:
            return "configs that send data between these nodes wait for this link; fix the link, or remove one of the nodes"
        if outcome == "left out":
            return f"node {node} is left out; the following trials use other nodes"
        if outcome == "needed":
            return f"node {node} is kept, because the largest config needs {number_of(self._needed.nnodes, 'node')} with {number_of(self._needed.nproc_per_node, 'rank')} each and there are no other nodes; fix the node, add a node, or tune for fewer nodes"
        part = {"gpu": "GPU"}.get(kind, kind)
        return f"the {part} is kept, because the {self._name!r} runner cannot choose nodes or GPUs, so every config that uses this {part} waits for it; fix the {part}, or hide it (CUDA_VISIBLE_DEVICES, the job's list of nodes) and tune for fewer ranks"


def largest(study: Study, space: SearchSpace) -> Placement:
    """Nodes and ranks per node of the largest config in the space."""
    return place(study.workload.cluster, space[int(np.argmax(space.table.world_size))])
