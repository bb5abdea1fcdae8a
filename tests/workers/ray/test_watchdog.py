"""The watchdog finds Ray's processes by their folder, and nothing that only starts or removes
them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune_workers.ray.cluster.watchdog import holders

SLEEP = "import time; print(flush=True); time.sleep(600)"


@pytest.mark.parametrize(
    ("arguments", "is_rays"),
    [
        ("--temp-dir={}", True),
        ("--log_dir={}/session_1/logs", True),
        ("{}", False),
        ("--temp-dir={}-of-another", False),
    ],
    ids=["option", "below", "argument of a starter", "another folder"],
)
def test_holders(tmp_path: Path, arguments: str, is_rays: bool) -> None:
    command = [sys.executable, "-c", SLEEP, arguments.format(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # before, its arguments may not be there yet
            assert (process.pid in holders(str(tmp_path))) == is_rays
        finally:
            process.kill()
