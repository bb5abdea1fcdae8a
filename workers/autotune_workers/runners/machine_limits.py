"""What this machine cannot run, found out without starting anything. The runners share these checks.

All raise `RunnerError` (or `MissingExtraError`) with the law, the values and the remedy.
"""

from __future__ import annotations

import os
import shutil

from autotune.errors import AutotuneError, RunnerError
from autotune.extras import require_extra
from autotune.spec import ParallelConfig, Study
from autotune.trainers import Launch, trainer
from autotune.trainers.executable import find_executable
from autotune.trainers.launch_files import INTERPRETER
from autotune_workers.gang.gang_runner import NATIVE
from autotune_workers.training.torch_version import check_torch_version

_PYTHONS = ("python", "python3")
"""one of these makes a folder of programs an environment"""


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; makes no CUDA context."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip() not in ("", "-1")]
    return [str(index) for index in range(_count_gpus())]


def _count_gpus() -> int:
    """GPUs that the driver shows under /proc; 0 without a driver."""
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


def check_device(study: Study, *, on_gpu: bool, on_cpu: str, where: str = "on this machine") -> None:
    """Raises when a study of GPUs would train on the CPU and nobody asked for that. `on_cpu`: the option that asks for it; `where`: the place in which it would train, in words."""
    gpu = study.workload.cluster.gpu
    if not gpu.is_cpu and not on_gpu:
        raise RunnerError(
            f"the cluster {study.workload.cluster.name} has GPUs ({gpu.name}), but no GPU is visible {where}, where the runner {study.runner!r} would train",
            remedy=f"run it where those GPUs are, name what is here (`cluster: local`), or train on the CPU all the same with "
            f"runner: {{kind: {study.runner}, {on_cpu}}}",
            field="runner",
        )


def check_ranks(study: Study, smallest: ParallelConfig, capacity: float) -> None:
    """Raises when even the smallest config needs more ranks than there are."""
    if smallest.world_size > capacity:
        raise RunnerError(
            f"the smallest config of the space needs {smallest.world_size} ranks, but the runner {study.runner!r} has {int(capacity)} on this machine",
            remedy="name the cluster that is here (`cluster: local`), allow smaller world_sizes in the space, or run it on the cluster",
            field="runner",
        )


def check_torch(runner: str) -> None:
    """Raises when the torch of the native trainer is missing, or of a release that it was not checked with."""
    require_extra("native", f"the trainer 'native' on the runner {runner!r}")
    check_torch_version()


def check_program(study: Study, config: ParallelConfig) -> None:
    """Raises when the program or its folder is not on this machine. A launch that cannot be written is reported elsewhere."""
    if study.trainer == NATIVE:
        check_torch(study.runner)
        return
    try:
        launch = trainer(study.trainer).launch(study.workload, config, study.trainer_options)
    except AutotuneError:
        return
    check_launch(study.trainer, launch)


def check_launch(name: str, launch: Launch) -> None:
    """The folder and the executable of a launch of the trainer `name`."""
    check_folder(name, launch)
    check_environment(name, launch)
    if not find_executable(launch):
        program = os.path.join(launch.programs_folder, launch.argv[0]) if launch.python else launch.argv[0]
        raise RunnerError(
            f"the trainer {name} starts {program!r}, but there is no such program here",
            remedy="install it, name its environment with trainer.python, or name it by its path",
            field="trainer",
        )


def check_environment(name: str, launch: Launch) -> None:
    """The environment whose Python starts a launch of the trainer `name`, where it names one; the one in PATH does not take its place."""
    if not launch.python:
        return
    named = os.path.basename(launch.python)
    interpreters = [named] if INTERPRETER.fullmatch(named) else _PYTHONS
    if not any(shutil.which(python, path=launch.programs_folder) for python in interpreters):
        raise RunnerError(
            f"the trainer {name} is started by the Python of {launch.python!r}, but there is no such environment or interpreter here",
            remedy="give the whole path of an environment (a folder with bin/python) or of an interpreter",
            field="trainer.python",
        )
    if not find_executable(launch):
        raise RunnerError(
            f"the trainer {name} starts {launch.argv[0]!r} with the Python of {launch.python!r}, but {launch.programs_folder} has no such program",
            remedy="install it there, name another environment with trainer.python, or name the program by its path",
            field="trainer.python",
        )


def check_folder(name: str, launch: Launch) -> None:
    """The folder in which a launch of the trainer `name` runs."""
    cwd = os.path.abspath(launch.cwd)  # the current folder when it is empty
    if not os.path.isdir(cwd):
        raise RunnerError(
            f"the trainer {name} runs in {cwd!r}, but there is no such folder here",
            remedy="give a folder that exists where trials run",
            field="trainer.cwd",
        )
