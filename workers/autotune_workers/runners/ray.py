"""The `ray` runner: runs the native trainer on gangs of rank actors, and programs of other trainers
on whole nodes, on a Ray cluster.

Each gang or program has a placement group. Its actors stay between trials, so that a trial of the
same shape starts warm; a group is removed if its resources are needed for another shape. On a
cluster that was joined, gangs outlive the runner for a while, and the runner of the study's next
controller adopts them with their trial (`adoption`); programs end. The runner never waits for Ray
without a deadline: it listens to all ranks at once with `ray.wait`, and repeats calls that Ray
cannot answer now (unreachable is not dead). Actors keep their messages until they are confirmed.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from autotune.detect import usable_cores
from autotune.errors import ClusterTooSmallError, RunnerError
from autotune.extras import install_command, is_installed, require_extras
from autotune.ports import AttemptId
from autotune.ports.trial_runner import LeftOut
from autotune.slurm.allocation import Allocation
from autotune.spec import ParallelConfig, Study, number_of
from autotune.spec.checks import check_names, positive, positive_int
from autotune.trainers.base.torchrun import Placement, place
from autotune_workers.gang.gang import Gang
from autotune_workers.gang.gang_runner import NATIVE
from autotune_workers.gang.ladder import Patience
from autotune_workers.process.rank_processes import TRIAL
from autotune_workers.ray.actor_groups import ActorGroups
from autotune_workers.ray.actor_handle import LOST_S
from autotune_workers.ray.cluster.connection import RayCluster, spread_allocation
from autotune_workers.ray.nodes.environment import NodeEnvironment
from autotune_workers.ray.nodes.places import RayProgramPlaces
from autotune_workers.ray.nodes.program_folder import MB, check_upload
from autotune_workers.ray.ranks.pools import RayRankPools
from autotune_workers.ray.sent_folders import SentFolders
from autotune_workers.runners.any_trainer import AnyTrainerRunner
from autotune_workers.runners.local import MIN_CPU_RANKS
from autotune_workers.runners.machine_limits import (
    check_data,
    check_device,
    check_gpus,
    check_program,
    check_ranks,
    visible_gpus,
)
from autotune_workers.training.faults import Fault

LOG = logging.getLogger(__name__)
ABANDONED_S = 30.0
"""seconds without a heartbeat of its runner after which a gang ends itself"""
ALONE = "; or add --runner local, which trains only on this machine, without Ray"
"""alternative that needs no Ray, for an error message"""
ONLY_TORCH = f"; or only torch, for --runner local: {install_command('native')}"
"""alternative that needs only torch, if torch is missing too, for an error message"""
UPLOAD_LIMIT_MB = 100
"""largest folder that is sent, MB: Ray keeps it in memory on the head and every node"""


class RayRunner(AnyTrainerRunner):
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
        lost_s: float = LOST_S,
        env: Mapping[str, str] | None = None,
        node_env: Mapping[str, Mapping[str, str]] | None = None,
        upload_limit_mb: int = UPLOAD_LIMIT_MB,
        leave_out: Sequence[str] = (),
        trial: str = TRIAL,
    ) -> None:
        """Joins the cluster at `address` (or in RAY_ADDRESS), or else starts one on this machine
        with `num_cpus` and `num_gpus`.

        `gpus_per_rank`: None means 1 if the cluster has GPUs, else 0. `dashboard`: also start Ray's
        dashboard, on loopback. `abandoned_s`: how long gangs wait for the next controller after
        this one is gone, on a cluster that was joined. `lost_s`: how long a node may be silent
        before it counts as lost. `env`, `node_env`: variables for ranks and programs on all nodes,
        and on one node by its hostname or address. `upload_limit_mb`: largest folder of a program
        or module that is sent. `leave_out`: hostnames or addresses of nodes that get no ranks.
        Raises `RunnerError` if Ray cannot be joined or started.
        """
        positive("runner.abandoned_s", abandoned_s)
        positive("runner.lost_s", lost_s)
        positive_int("runner.upload_limit_mb", upload_limit_mb)
        environment = NodeEnvironment.of(env, node_env)
        check_names("runner.leave_out", leave_out)
        _check_sizes(num_cpus=num_cpus, num_gpus=num_gpus, cpus_per_rank=cpus_per_rank)
        is_here = not (address or os.environ.get("RAY_ADDRESS")) and spread_allocation() is None
        self._cluster = RayCluster(
            address=address,
            num_cpus=_cpus(num_cpus) if is_here else num_cpus,
            num_gpus=num_gpus,
            dashboard=dashboard,
        )
        self._cluster.left_out = frozenset(leave_out)
        try:
            _warn_about_absent_nodes(environment, self._cluster)
            gpus = (
                gpus_per_rank
                if gpus_per_rank is not None
                else float(self._cluster.totals().get("GPU", 0.0) >= 1)
            )
        except BaseException:
            self._cluster.close()
            raise
        self._trains_on_requested_device = gpus > 0 or gpus_per_rank is not None
        bundle = {k: v for k, v in (("CPU", cpus_per_rank), ("GPU", gpus)) if v}
        self._groups = ActorGroups(
            self._cluster,
            bundle=bundle,
            abandoned_s=abandoned_s,
            lost_s=lost_s,
            environment=environment,
        )
        folders = SentFolders(limit_bytes=upload_limit_mb * MB)
        self._ray_pools = RayRankPools(self._groups, folders, trial=trial)
        places = RayProgramPlaces(self._groups, folders)
        super().__init__(self._ray_pools, places, faults=faults, patience=patience)

    @classmethod
    def preflight(cls, study: Study) -> None:
        """Raises `SpecError` for options that are invalid on any cluster, `RunnerError` for a
        trainer that can only be started from Python."""
        super().preflight(study)
        options = study.runner_options
        NodeEnvironment.of(options.get("env"), options.get("node_env"))
        positive_int("runner.upload_limit_mb", options.get("upload_limit_mb", UPLOAD_LIMIT_MB))
        check_names("runner.leave_out", options.get("leave_out", ()))

    @classmethod
    def preflight_here(cls, study: Study, smallest: ParallelConfig) -> None:
        """Raises `RunnerError` for a folder that is too large to be sent, and, if a cluster would
        be started on this machine, for a machine that is too small or lacks the program or usable
        data.

        A cluster that is joined, or was joined before, is checked when the study runs.
        """
        if study.trainer == "native":
            extras: tuple[str, ...] = ("ray", "native")
            with_trainer = " with the 'native' trainer"
        else:
            extras, with_trainer = ("ray",), ""
        lacks_torch = "native" in extras and not is_installed("torch")
        without_ray = ONLY_TORCH if lacks_torch else ALONE
        or_else = "" if is_installed("ray") else without_ray
        require_extras(extras, f"the 'ray' runner{with_trainer}", or_else=or_else)
        options = study.runner_options
        check_upload(
            study, smallest, limit_bytes=options.get("upload_limit_mb", UPLOAD_LIMIT_MB) * MB
        )
        if options.get("address") or os.environ.get("RAY_ADDRESS") or _is_connected():
            return
        needed = place(study.workload.cluster, smallest)
        if (job := spread_allocation()) is not None:
            _check_allocation(study, smallest, job)
            cls.preflight_there(study, smallest)
            return
        if needed.nnodes > 1:
            raise RunnerError(
                f"the smallest config in the space needs {needed.nnodes} nodes, but no Ray cluster is set, and a cluster started here has only this machine",
                remedy="in a Slurm allocation with that many nodes, autotune starts Ray; otherwise start Ray yourself (`ray start --head` on one node, "
                "`ray start --address=HOST:6379` on the others) and set RAY_ADDRESS or runner.address, or tune for one node",
                field="runner.address",
            )
        sizes = {
            name: options.get(name)
            for name in ("num_cpus", "num_gpus", "cpus_per_rank", "gpus_per_rank")
        }
        _check_sizes(**sizes)
        cpus, gpus = _cpus(sizes["num_cpus"]), sizes["num_gpus"]
        gpus = len(visible_gpus()) if gpus is None else gpus
        per_rank = sizes["gpus_per_rank"]
        check_device(study, on_gpu=gpus >= 1 or per_rank == 0, on_cpu="gpus_per_rank: 0")
        cpus_per_rank = 1.0 if sizes["cpus_per_rank"] is None else sizes["cpus_per_rank"]
        gpus_per_rank = float(gpus >= 1) if per_rank is None else per_rank
        capacity = min(
            (n / of for n, of in ((cpus, cpus_per_rank), (gpus, gpus_per_rank)) if of),
            default=math.inf,
        )
        check_ranks(study, smallest, capacity)
        check_program(study, smallest)
        if study.trainer == NATIVE:
            if sizes["num_gpus"] is None and per_rank != 0:
                check_gpus(visible_gpus())
            check_data(study)

    def check_study(self, study: Study) -> None:
        """Raises `ClusterTooSmallError` for a study on GPUs if the cluster has none."""
        check_device(
            study,
            on_gpu=self._trains_on_requested_device,
            on_cpu="gpus_per_rank: 0",
            where="in the Ray cluster",
            error=ClusterTooSmallError,
        )

    def adopt(self, study: str, attempts: Collection[AttemptId]) -> list[AttemptId]:
        """Adopts the gangs that an earlier runner left for this study. Returns those of `attempts`
        that these gangs run or have ended.

        Idle gangs are kept for the next trial of their size. A gang that runs another attempt, or
        is incomplete, is ended.
        """
        adopted = []
        for adopted_gang in self._ray_pools.adopt(study):
            request = adopted_gang.request
            if request is not None and request.id in attempts:
                self._ray_pools.take(adopted_gang, study, busy=True)
                gang = Gang.adopted(
                    request,
                    now_s=self._now_s,
                    run=adopted_gang.run,
                    patience=self._patience,
                    begun=adopted_gang.begun,
                    joined=adopted_gang.joined,
                )
                self._take_over(adopted_gang.pool, gang, adopted_gang.run)
                adopted.append(request.id)
            else:
                self._launches = max(self._launches, adopted_gang.run)
                self._ray_pools.take(adopted_gang, study, busy=False)
        return adopted

    def leave_out(self, node: str, needed: Placement) -> LeftOut:
        """See `autotune.ports.ChoosingRunner`."""
        return self._groups.leave_out(node, needed)

    @property
    def address(self) -> str:
        """Address of the cluster."""
        return self._cluster.address

    def close(self) -> None:
        """Kills all attempts and frees all resources; ends the cluster if it was started here."""
        super().close()
        self._cluster.close()


def _check_allocation(study: Study, smallest: ParallelConfig, job: Allocation) -> None:
    """Raises `RunnerError` if the nodes of the allocation cannot hold the smallest config."""
    needed, cluster = place(study.workload.cluster, smallest), study.workload.cluster
    if needed.nnodes > job.num_nodes:
        raise RunnerError(
            f"the smallest config in the space needs {number_of(needed.nnodes, 'node')}, but the job {job.job} has {job.num_nodes}",
            remedy=f"request more nodes with --nodes={needed.nnodes}, or tune for a smaller cluster",
            field="runner",
        )
    cpus, ranks = study.runner_options.get("num_cpus") or job.cpus_per_node, needed.nproc_per_node
    if cluster.gpu.is_cpu and cpus and cpus < ranks:
        raise RunnerError(
            f"the smallest config in the space has {number_of(ranks, 'rank')} on each node and one CPU per rank, but the job {job.job} has {cpus} on a node",
            remedy=f"request more CPUs with --cpus-per-task={ranks} or --exclusive (in the spec, slurm: {{cpus-per-task: {ranks}}}); Slurm's default is one CPU",
            field="runner",
        )


def _cpus(asked: int | None) -> int:
    """Number of CPUs of a cluster started here."""
    return max(MIN_CPU_RANKS, usable_cores()) if asked is None else asked


def _warn_about_absent_nodes(environment: NodeEnvironment, cluster: RayCluster) -> None:
    """Warns about variables for nodes that are not in the cluster. Not an error, because such a
    node may return later."""
    if not environment.node_env:
        return
    hostnames, addresses = cluster.hostnames(), cluster.addresses()
    if absent := environment.for_nobody(hostnames, addresses):
        there = ", ".join(sorted(hostnames | addresses))
        LOG.warning(
            "runner.node_env names %s, but the cluster's nodes are %s", ", ".join(absent), there
        )


def _is_connected() -> bool:
    """Whether this process is already connected to a Ray cluster. Does not import Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _check_sizes(**sizes: float | None) -> None:
    """Raises `SpecError` for an invalid number of CPUs or GPUs."""
    for name, size in sizes.items():
        if size is not None and name.startswith("num_"):
            positive_int(f"runner.{name}", size, least=0)
        elif size is not None:
            positive(f"runner.{name}", size, zero=True)
