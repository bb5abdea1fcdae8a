"""Processes that tests watch: in this checkout, who started them, what is left of them; and waiting
for what they do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
CHECKOUT_PATH = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "workers")])
"""PYTHONPATH of a process that uses this checkout"""


def until(is_so: Callable[[], Any], timeout_s: float = 600.0, what: str = "") -> float:
    """Waits for it; returns how long that took, in seconds. Raises `TimeoutError`."""
    began_s = time.monotonic()
    while not is_so():
        if time.monotonic() - began_s > timeout_s:
            raise TimeoutError(f"not within {timeout_s:g} s: {what or is_so}")
        time.sleep(0.05)
    return time.monotonic() - began_s


def parent_of(pid: int) -> int:
    """The process that started it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def running(script: str | Path) -> list[int]:
    """Processes that run this script, whoever their parent is, launchers among them."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if (
                entry.isdigit()
                and os.fsencode(script) in Path(f"/proc/{entry}/cmdline").read_bytes()
            ):
                found.append(int(entry))
    return found


@contextlib.contextmanager
def owner_that_runs(code: str) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """Another process with this code, and the lines that it prints; killed at the end."""
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": CHECKOUT_PATH},
        cwd=CHECKOUT,
    )
    assert owner.stdout is not None
    try:
        yield owner, owner.stdout
    finally:
        owner.kill()
        owner.communicate()
