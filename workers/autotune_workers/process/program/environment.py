"""What somebody's program sees of our environment, and as which user it runs: as a service says, by
two variables (`autotune.settings`).

Without a service a program sees the user's environment, but for autotune's own settings, the
database's password, Ray's token, and what Slurm or MPI told this process of its job. Under a
service it sees only what training programs need, and the names that the service's options add: any
other variable of a service may be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from autotune.settings import PROGRAM_ENVIRONMENT, PROGRAM_USER
from autotune.spec.texts.secrets import is_secret_name, masked
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

SPEED_PREFIXES = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "CUDA_", "CUBLAS_", "CUDNN_", "HIP_", "HSA_",
    "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "NVTE_", "XLA_", "HF_", "TRANSFORMERS_", "ACCELERATE_", "DS_", "MALLOC_",
)  # fmt: skip
SPEED_NAMES = frozenset({"TOKENIZERS_PARALLELISM", "NVIDIA_TF32_OVERRIDE", "LD_PRELOAD"})
"""beginnings of the names of variables that may change the speed of a training, and further
names"""
_NO_SPEED = re.compile(
    r".*_(?:VISIBLE_DEVICES|HOME|CACHE|DIR|ROOT|PATH|VERSION|ARCH_LIST|ENDPOINT)"
)
"""names among them of what a trial has of its own, or of where things are"""


def speed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may change the speed of a training, without secrets."""
    return {
        name: text
        for name, text in sorted(environment.items())
        if (name in SPEED_NAMES or name.startswith(SPEED_PREFIXES))
        and not (_NO_SPEED.fullmatch(name) or is_secret_name(name))
        and masked(text) == text
    }


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
