"""What somebody's program sees of our environment, and as which user it runs: as a service says, by
two variables (`autotune.settings`).

Without a service a program sees the user's environment, but for autotune's own settings, the
database's password, Ray's token, and what Slurm or MPI told this process of its job. Under a
service it sees only what training programs need, and the names that the service's options add: any
other variable of a service may be a secret.
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
"""variables that programs of a service see where they are set"""
USUAL_PREFIXES = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "RCCL_", "HIP_", "HSA_", "ROCR_", "UCX_", "FI_",
    "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "OMP_", "MKL_", "KMP_", "OPENBLAS_",
)  # fmt: skip
"""beginnings of the names of further ones"""


STARTERS = frozenset(
    {"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "jsrun", "flux"}
)
"""programs that start the tasks of a job, and find it by its variables"""


def program_environment(
    argv: Sequence[str] = (), *, with_job: bool = False, of: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables of our environment that a program sees. Those of a job reach the launchers
    alone that start its tasks, or who asks for them (`with_job`). `of`: the environment of its node
    in the place of ours."""
    starts_tasks = bool(argv) and os.path.basename(argv[0]) in STARTERS
    inherited = inherited_environment(with_job=with_job or starts_tasks, of=of)
    if PROGRAM_ENVIRONMENT not in os.environ:
        return inherited
    further = set(os.environ[PROGRAM_ENVIRONMENT].split(","))
    return {
        name: value
        for name, value in inherited.items()
        if name in USUAL or name in further or name.startswith(USUAL_PREFIXES)
    }


def program_user() -> str:
    """The user as whom programs run; empty: ours."""
    return os.environ.get(PROGRAM_USER, "")
