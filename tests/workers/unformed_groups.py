"""A backend of torch.distributed whose group cannot be formed while a file exists: what a rank
meets whose peer dies while they connect.

Registered as `unformed` when this module is imported; otherwise it is gloo.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

NAME = "unformed"
COLLECTIVES = f"{__name__}:{NAME}"
"""as the runner's option names it"""
FILE = "UNFORMED_GROUPS"
"""environment variable with the file's path"""


def _create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> Any:
    if rank == 0 and Path(os.environ[FILE]).exists():
        raise RuntimeError("Connection closed by peer")
    return dist.ProcessGroupGloo(store, rank, size, timeout)


dist.Backend.register_backend(NAME, _create, devices=["cpu"])
