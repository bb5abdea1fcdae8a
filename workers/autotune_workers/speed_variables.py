"""Environment variables that may change the speed of training, recognized by name: settings of
threads, collectives, devices, allocators, compilers and Hugging Face's libraries. Secrets and paths
of files are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autotune.spec.texts.secrets import is_secret_name, masked

SET_FOR_RANKS = frozenset({"OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"})
"""the variables that `process.children` sets for ranks of the native trainer"""
SPEED_PREFIXES = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NCCL_", "RCCL_", "GLOO_", "UCX_", "FI_", "CUDA_", "CUBLAS_", "CUDNN_", "HIP_", "HSA_",
    "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "NVTE_", "XLA_", "HF_", "TRANSFORMERS_", "ACCELERATE_", "DS_", "MALLOC_",
)  # fmt: skip
SPEED_NAMES = frozenset({"TOKENIZERS_PARALLELISM", "NVIDIA_TF32_OVERRIDE", "LD_PRELOAD"})
"""prefixes and whole names of variables that may change the speed of training"""
_NO_SPEED = re.compile(
    r".*_(?:VISIBLE_DEVICES|HOME|CACHE|DIR|ROOT|PATH|VERSION|ARCH_LIST|ENDPOINT)"
)
"""names with these prefixes that differ between trials or say where files are"""


def speed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may change the speed of a training, without secrets."""
    return {
        name: text
        for name, text in sorted(environment.items())
        if (name in SPEED_NAMES or name.startswith(SPEED_PREFIXES))
        and not (_NO_SPEED.fullmatch(name) or is_secret_name(name))
        and masked(text) == text
    }
