"""The environment variables that a program inherits, and the user that runs it. A service sets both
by two variables (`autotune.settings`).

Without a service, a program inherits the user's environment except autotune's settings, database
passwords, Ray's token, and this process's place in a job of Slurm or MPI. Under a service it
inherits only the variables that training programs usually need and those that the service's options
add, because any other variable of a service may be a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from autotune.settings import PROGRAM_ENVIRONMENT, PROGRAM_USER
from autotune_workers.process.children import inherited_environment

USUAL = frozenset({
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "PYTHONPATH", "SHELL", "TMPDIR", "TZ", "USER",
    "CONDA_PREFIX", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "XDG_CACHE_HOME",
    "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE",
})  # fmt: skip
"""variables that programs of a service inherit if they are set"""
USUAL_PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "RCCL_", "HIP_", "HSA_", "ROCR_", "UCX_", "FI_",
    "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "OMP_", "MKL_", "KMP_", "OPENBLAS_",
)  # fmt: skip
"""prefixes of further variables that they inherit"""


STARTERS = frozenset(
    {"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "jsrun", "flux"}
)
"""programs that start the tasks of a job, whose variables they need"""


def program_environment(
    argv: Sequence[str] = (), *, with_job: bool = False, of: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables that a program inherits. Variables of a job are included only for launchers
    that start its tasks, or if `with_job`. `of`: the environment of its node, instead of this
    process's."""
    starts_tasks = bool(argv) and os.path.basename(argv[0]) in STARTERS
    inherited = inherited_environment(with_job=with_job or starts_tasks, of=of)
    if PROGRAM_ENVIRONMENT not in os.environ:
        return inherited
    added_by_service = set(os.environ[PROGRAM_ENVIRONMENT].split(","))
    return {
        name: value
        for name, value in inherited.items()
        if name in USUAL or name in added_by_service or name.startswith(USUAL_PREFIXES)
    }


def program_user() -> str:
    """Name of the user that runs programs; empty for the current user."""
    return os.environ.get(PROGRAM_USER, "")
