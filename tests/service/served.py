"""`autotune serve` as a person starts it: a process of its own, with a store in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.service.running import DEADLINE_S


@contextmanager
def served(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`autotune serve` in a process of its own, and where it is."""
    with serving(tmp_path, *options) as (process, said):
        yield process, said["url"]


@contextmanager
def serving(
    tmp_path: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The same, with all that it says when it is up."""
    argv = [
        sys.executable,
        "-c",
        "from autotune.cli import main; main()",
        "serve",
        "--runner",
        "local",
        "--port",
        "0",
    ]
    argv += ["--json", "--store", str(tmp_path / "results.db"), *options]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "AUTOTUNE_DATA": str(tmp_path)}
    )
    try:
        assert process.stdout is not None
        document = ""
        while not document.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, "it ended without an address"
            document += line
        yield process, json.loads(document)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
