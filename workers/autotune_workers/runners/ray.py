"""The `ray` runner: gangs of rank actors on a Ray cluster, one placement group per gang.

A gang's actors stay in their placement group between trials, so that a trial of the same size starts warm; a group whose place is needed
for another size is removed. On a cluster that was joined, gangs outlive the runner for a while: that of the study's next controller adopts them, with
what they are running (`_ray_host` has the other end). The runner never waits for Ray without a deadline: it listens to all ranks at once with `ray.wait`,
and a call that Ray cannot answer now (unreachable is not dead) is asked again; its host keeps what it said until it is confirmed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from autotune.ports import AttemptId
from autotune.spec.checks import positive, positive_int
from autotune_workers.gang.gang import Gang, Patience
from autotune_workers.gang.gang_runner import GangRunner
from autotune_workers.process.machine import cpu_count
from autotune_workers.process.rank_processes import TRIAL
from autotune_workers.ray.connection import RayCluster
from autotune_workers.ray.rank_pools import RayRankPools
from autotune_workers.runners.local import MIN_CPU_RANKS
from autotune_workers.training.faults import Fault

ABANDONED_S = 30.0
"""a gang whose runner gives no sign of life for so long ends itself"""


class RayRunner(GangRunner):
    """Runs trials on a Ray cluster."""

    def __init__(
        self,
        *,
        address: str | None = None,
        num_cpus: int | None = None,
        num_gpus: int | None = None,
        cpus_per_rank: float = 1.0,
        gpus_per_rank: float | None = None,
        dashboard: bool = False,
        faults: Iterable[Fault | Mapping[str, Any]] = (),
        patience: Patience | None = None,
        abandoned_s: float = ABANDONED_S,
        trial: str = TRIAL,
    ) -> None:
        """Joins the cluster at `address` (or in RAY_ADDRESS), else starts one on this machine with `num_cpus` and `num_gpus`.

        `gpus_per_rank`: None means 1 where the cluster has GPUs, else 0. `dashboard`: also start Ray's dashboard, on loopback. `abandoned_s`: how
        long gangs wait for the next controller when this one is gone, on a cluster that was joined. Raises `RunnerError` when Ray cannot
        be joined or started.
        """
        positive("runner.cpus_per_rank", cpus_per_rank, zero=True)
        positive("runner.abandoned_s", abandoned_s)
        for name, count in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
            if count is not None:
                positive_int(f"runner.{name}", count, least=0)
        cpus = max(MIN_CPU_RANKS, cpu_count()) if num_cpus is None else num_cpus
        self._cluster = RayCluster(address=address, num_cpus=cpus, num_gpus=num_gpus, dashboard=dashboard)
        gpus = gpus_per_rank if gpus_per_rank is not None else float(self._cluster.totals().get("GPU", 0.0) >= 1)
        bundle = {k: v for k, v in (("CPU", cpus_per_rank), ("GPU", gpus)) if v}
        self._gangs = RayRankPools(self._cluster, bundle=bundle, trial=trial, abandoned_s=abandoned_s)
        super().__init__(self._gangs, faults=faults, patience=patience)

    def adopt(self, study: str, attempts: Collection[AttemptId]) -> list[AttemptId]:
        """Takes over the gangs that an earlier runner left behind for this study; those of `attempts` that still run, or ended unheard, on one.

        Gangs that have nothing to do wait for the next trial of their size; what runs another attempt, or is not whole, is ended.
        """
        adopted = []
        for left in self._gangs.adopt(study):
            request = left.request
            if request is not None and request.id in attempts:
                self._gangs.take(left.crew, busy=True)
                gang = Gang.adopted(
                    request,
                    now_s=self._now_s,
                    run=left.run,
                    patience=self._patience,
                    begun=left.begun,
                    joined=left.joined,
                )
                self._take_over(left.crew, gang, left.run)
                adopted.append(request.id)
            else:
                self._launches = max(self._launches, left.run)
                self._gangs.take(left.crew, busy=False, keep=left.is_idle)
        return adopted

    @property
    def address(self) -> str:
        """Where the cluster is."""
        return self._cluster.address

    def close(self) -> None:
        """Kills what runs and frees everything; ends the cluster when it was started here."""
        super().close()
        self._cluster.close()
