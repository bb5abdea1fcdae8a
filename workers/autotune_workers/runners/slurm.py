"""The `slurm` runner: programs on the nodes of a Slurm job, without Ray. Each attempt is one step
of srun that runs a keeper on each of its nodes (`autotune_workers.slurm`).

Nodes need only Python, so programs may run in a container without autotune. The native trainer is
not a program; `runner: ray` runs it in a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from autotune.errors import RunnerError
from autotune.ports import TrialRequest
from autotune.ports.trial_runner import LeftOut
from autotune.slurm.allocation import Allocation, allocation, in_container, is_on_a_node
from autotune.spec import ParallelConfig, Study
from autotune.spec.checks import check_names, positive_int
from autotune.trainers import python_line, trainer_names
from autotune.trainers.base.torchrun import Placement, place
from autotune_workers.gang.gang_runner import NATIVE
from autotune_workers.gang.ladder import Patience
from autotune_workers.process.program.attempt import ProgramRunner
from autotune_workers.process.program.launch import UPLOAD
from autotune_workers.runners.any_trainer import refuse_python_line
from autotune_workers.runners.local import MIN_CPU_RANKS
from autotune_workers.runners.machine_limits import check_device, check_program, visible_gpus
from autotune_workers.slurm.places import SlurmPlaces


@final
class SlurmRunner(ProgramRunner):
    """Runs programs on the nodes of a Slurm job, without Ray."""

    def __init__(
        self,
        *,
        gpus_per_node: int | None = None,
        leave_out: Sequence[str] = (),
        patience: Patience | None = None,
    ) -> None:
        """`gpus_per_node`: number of GPUs that programs use on each node; None: as many as this
        node has. `leave_out`: hostnames of nodes that get no ranks. Raises `RunnerError` outside of
        a job."""
        check_names("runner.leave_out", leave_out)
        self._slurm = SlurmPlaces(_job(), _ranks_per_node(_gpus(gpus_per_node)), left_out=leave_out)
        super().__init__(self._slurm, patience=patience)

    @classmethod
    def preflight(cls, study: Study) -> None:
        """Raises `RunnerError` for a study that does not run programs installed on the nodes, and
        `SpecError` for an invalid option."""
        if study.trainer == NATIVE:
            raise RunnerError(
                "the 'slurm' runner starts programs, but the 'native' trainer trains in autotune's own processes",
                remedy="set runner: ray, which starts Ray on the job's nodes, or use the trainer that starts your program",
                field="runner",
            )
        refuse_python_line(study)
        if study.trainer_options.get("working_dir") == UPLOAD:
            raise RunnerError(
                "the 'slurm' runner cannot upload a folder, but trainer.working_dir is upload",
                remedy="put the program on a file system that all nodes see and set working_dir: shared, or set runner: ray",
                field="trainer.working_dir",
            )
        _check_gpus(study.runner_options.get("gpus_per_node"))
        check_names("runner.leave_out", study.runner_options.get("leave_out", ()))

    @classmethod
    def preflight_here(cls, study: Study, smallest: ParallelConfig) -> None:
        """Raises `RunnerError` outside of a job, and if the smallest config needs more nodes, ranks
        or GPUs than the job has."""
        job, gpus = _job(), _gpus(asked := study.runner_options.get("gpus_per_node"))
        check_device(
            study,
            on_gpu=gpus > 0 or asked == 0,
            on_cpu="gpus_per_node: 0",
            where=f"in the job {job.job}",
        )
        needed, ranks = place(study.workload.cluster, smallest), _ranks_per_node(gpus)
        for size, available, unit in (
            (
                needed.nnodes,
                job.num_nodes - len(study.runner_options.get("leave_out", ())),
                "nodes",
            ),
            (needed.nproc_per_node, ranks, "ranks on a node"),
        ):
            if size > available:
                raise RunnerError(
                    f"the smallest config in the space needs {size} {unit}, but the job {job.job} has {available}",
                    remedy="request more from Slurm, or tune for a smaller cluster",
                    field="runner",
                )
        cls.preflight_there(study, smallest)

    @classmethod
    def preflight_there(cls, study: Study, smallest: ParallelConfig) -> None:
        """Raises `RunnerError` for a program that is not visible to this machine and the nodes of
        the study's job. Does nothing if trials run in a container."""
        if not in_container():
            check_program(study, smallest)

    @property
    def trainers(self) -> Sequence[str]:
        """Names of all trainers that a launch starts."""
        return tuple(name for name in trainer_names() if name != NATIVE and not python_line(name))

    def start(self, request: TrialRequest) -> None:
        """Starts the attempt, or queues it until nodes are free. Raises `RunnerError` if it cannot
        be run."""
        if self._closed:
            raise RunnerError("the runner is closed", remedy="create a new runner")
        if request.trainer not in self.trainers:
            raise RunnerError(
                f"the 'slurm' runner runs the trainers {', '.join(self.trainers)}, but the study uses {request.trainer!r}",
                remedy="use runner: ray",
                field="trainer",
            )
        super().start(request)

    def leave_out(self, node: str, needed: Placement) -> LeftOut:
        """See `autotune.ports.ChoosingRunner`."""
        return self._slurm.leave_out(node, needed)


def _job() -> Allocation:
    """The Slurm job of this process. Raises `RunnerError` if there is none, or this machine is not
    one of its nodes."""
    job = allocation()
    if job is None or not is_on_a_node(job.hosts()):
        where = "not in one" if job is None else f"not on a node of job {job.job}"
        raise RunnerError(
            f"the 'slurm' runner uses the nodes of a Slurm job, but this process is {where}",
            remedy="start the study on the login node with `autotune tune SPEC --on slurm`, or in an allocation (salloc); set runner: local on this machine",
            field="runner",
        )
    return job


def _check_gpus(asked: int | None) -> None:
    if asked is not None:
        positive_int("runner.gpus_per_node", asked, least=0)


def _gpus(asked: int | None) -> int:
    """Number of GPUs that programs use on each node."""
    _check_gpus(asked)
    return len(visible_gpus()) if asked is None else asked


def _ranks_per_node(gpus: int) -> int:
    """Number of ranks per node: one per GPU, else CPU ranks, which may outnumber CPUs as in the
    `local` runner."""
    return gpus or max(MIN_CPU_RANKS, _job().cpus_per_node)
