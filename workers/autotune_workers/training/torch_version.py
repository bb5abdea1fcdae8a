"""The torch releases that the native trainer supports. Does not import torch.

The trainer uses private names of torch (`torch_internals` lists them), which are tested with the
releases from `OLDEST` up to, but not including, `FIRST_UNTESTED`; `pyproject.toml` has the same
bound.
"""

from __future__ import annotations

import re
from importlib import metadata

from autotune.errors import RunnerError
from autotune.extras import install_command

OLDEST = (2, 13)
"""major and minor number of the first release that works"""
FIRST_UNTESTED = (2, 14)
"""major and minor number of the first untested release"""


def requirement() -> str:
    """The supported releases as a pip requirement."""
    return f"torch>={'.'.join(map(str, OLDEST))},<{'.'.join(map(str, FIRST_UNTESTED))}"


def check_torch_version(installed: str | None = None) -> None:
    """Raises `RunnerError` unless a supported release of torch is installed. `installed`: its
    version; None: look it up."""
    if installed is None:
        try:
            installed = metadata.version("torch")
        except metadata.PackageNotFoundError:
            raise RunnerError(
                f"the native trainer needs {requirement()}, but torch is not installed",
                remedy=install_command("native"),
                field="trainer",
            ) from None
    numbers = re.match(r"(\d+)\.(\d+)", installed)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not OLDEST <= release < FIRST_UNTESTED:
        raise RunnerError(
            f"the native trainer needs {requirement()}, but torch {installed} is installed",
            remedy=f"run pip install '{requirement()}'; trainers other than native do not depend on this torch",
            field="trainer",
        )
