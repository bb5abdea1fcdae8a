"""Checks whether this machine can run a study, without starting anything. Shared by the runners.

All raise `RunnerError` (or `MissingExtraError`) with the rule, the values and the remedy.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from autotune.errors import AutotuneError, ExportError, RunnerError
from autotune.extras import require_extra
from autotune.spec import ParallelConfig, Study, number_of
from autotune.trainers import Launch, trainer
from autotune.trainers.base.executable import find_executable
from autotune.trainers.launch_files import INTERPRETER
from autotune_workers.gang.gang_runner import NATIVE
from autotune_workers.training.token_file import token_file
from autotune_workers.training.torch_version import check_torch_version

GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""device files of the drivers: NVIDIA's, that of WSL, AMD's"""
_NO_GPU = ("", "-1", "NoDevFiles")
"""entries of CUDA_VISIBLE_DEVICES at which the driver stops reading; Slurm sets the last one for a
job without GPUs"""
_PLATFORM = re.compile(r"^(cuda|hip|xpu)\b.*=\s*['\"][^'\"]+['\"]", re.MULTILINE)
_PYTHONS = ("python", "python3")
"""names of interpreters; a folder of programs with one of them is an environment"""


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them. Creates no CUDA
    context."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        names = map(str.strip, listed.split(","))
        return list(takewhile(lambda name: name not in _NO_GPU, names))
    return [str(index) for index in range(_count_gpus())]


def _count_gpus() -> int:
    """Number of GPUs that NVIDIA's driver lists under /proc; 0 without the driver."""
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0


def check_gpus(gpus: Sequence[str]) -> None:
    """Raises if the native trainer cannot use the visible GPUs, because their driver is missing or
    torch was built without GPUs."""
    if not gpus:
        return
    if not any(map(os.path.exists, GPU_DRIVERS)):
        problem, remedy = (
            f"there is no GPU driver here (none of {', '.join(GPU_DRIVERS)})",
            "install the driver",
        )
    elif not is_torch_for_gpus():
        problem, remedy = (
            "torch is a CPU build",
            "install a build of torch for these GPUs (https://pytorch.org)",
        )
    else:
        return
    announced = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '(not set)')}"
    raise RunnerError(
        f"trials would train on the GPUs {', '.join(gpus)} ({announced}), but {problem}",
        remedy=f"{remedy}, or train on the CPU by unsetting CUDA_VISIBLE_DEVICES or with runner: {{kind: local, device: cpu}}",
        field="runner",
    )


def is_torch_for_gpus() -> bool:
    """Whether torch was built for GPUs, by its file `version.py` (for example `cuda = '12.8'`),
    without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
    return _PLATFORM.search(text) is not None


def check_device(
    study: Study,
    *,
    on_gpu: bool,
    on_cpu: str,
    where: str = "on this machine",
    error: type[RunnerError] = RunnerError,
) -> None:
    """Raises `error` if a study on GPUs would train on the CPU without being told to. `on_cpu`: the
    option that permits it; `where`: where it would train, as words for the message."""
    gpu = study.workload.cluster.gpu
    if not gpu.is_cpu and not on_gpu:
        raise error(
            f"the cluster {study.workload.cluster.name} has GPUs ({gpu.name}), but no GPU is visible {where}, where the {study.runner!r} runner would train",
            remedy=f"run the study where these GPUs are, use `cluster: local`, or train on the CPU anyway with "
            f"runner: {{kind: {study.runner}, {on_cpu}}}",
            field="runner",
        )


def check_ranks(study: Study, smallest: ParallelConfig, capacity: float) -> None:
    """Raises if even the smallest config needs more ranks than there are."""
    if smallest.world_size > capacity:
        raise RunnerError(
            f"the smallest config in the space needs {number_of(smallest.world_size, 'rank')}, but the {study.runner!r} runner has {int(capacity)} on this machine",
            remedy="use `cluster: local`, allow smaller world_sizes in the space, or run the study on the cluster",
            field="runner",
        )


def check_torch(runner: str) -> None:
    """Raises if the native trainer's torch is missing, or has an unsupported version."""
    require_extra("native", f"the 'native' trainer on the {runner!r} runner")
    check_torch_version()


def check_data(study: Study) -> None:
    """Raises if the study's data cannot be read here, is too short, or has token ids beyond the
    vocabulary, because every config would fail."""
    model = study.workload.model
    if model.code is None or model.code.reads_tokens:
        token_file(study.data, seq_len=study.workload.seq_len, vocab_size=model.vocab_size)


def check_program(study: Study, config: ParallelConfig) -> None:
    """Raises if the program or its folder is not on this machine, or the launch lacks an option.
    Other errors of the trainer are ignored here, as the config is valid."""
    if study.trainer == NATIVE:
        check_torch(study.runner)
        return
    try:
        launch = trainer(study.trainer).launch(study.workload, config, study.trainer_options)
    except ExportError as error:
        raise RunnerError(
            f"the {study.trainer} trainer cannot be started: {error.message}",
            remedy=error.remedy,
            field=f"trainer.{error.field}" if error.field else "trainer",
        ) from None
    except AutotuneError:
        return
    check_launch(study.trainer, launch)


def check_launch(name: str, launch: Launch) -> None:
    """Checks the folder, environment and executable of a launch of the `name` trainer."""
    check_folder(name, launch)
    check_environment(name, launch)
    if not find_executable(launch):
        program = (
            os.path.join(launch.programs_folder, launch.argv[0])
            if launch.python
            else launch.argv[0]
        )
        raise RunnerError(
            f"the {name} trainer starts {program!r}, but there is no such program here",
            remedy="install the program, set trainer.python to its environment, or set the program's path",
            field="trainer",
        )


def check_environment(name: str, launch: Launch) -> None:
    """Checks the Python environment of a launch of the `name` trainer, if it has one; the Python in
    PATH does not replace it."""
    if not launch.python:
        return
    named = os.path.basename(launch.python)
    interpreters = [named] if INTERPRETER.fullmatch(named) else _PYTHONS
    if not any(shutil.which(python, path=launch.programs_folder) for python in interpreters):
        raise RunnerError(
            f"the {name} trainer uses the Python of {launch.python!r}, but there is no such environment or interpreter here",
            remedy="set the full path of an environment (a folder with bin/python) or of an interpreter",
            field="trainer.python",
        )
    if not find_executable(launch):
        raise RunnerError(
            f"the {name} trainer starts {launch.argv[0]!r} with the Python of {launch.python!r}, but {launch.programs_folder} has no such program",
            remedy="install the program there, set trainer.python to another environment, or set the program's path",
            field="trainer.python",
        )


def check_folder(name: str, launch: Launch) -> None:
    """Checks the folder in which a launch of the `name` trainer runs."""
    cwd = os.path.abspath(launch.cwd)  # the current folder if it is empty
    if not os.path.isdir(cwd):
        raise RunnerError(
            f"the {name} trainer runs in {cwd!r}, but there is no such folder here",
            remedy="set a folder that exists on the machines where trials run",
            field="trainer.cwd",
        )
