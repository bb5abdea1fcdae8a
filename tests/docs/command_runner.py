"""A process that runs command lines of `autotune` and Python texts, each in a fork of its own that
has everything imported already.

One JSON object per line on stdin: {"argv": [...]} or {"python": "..."}, with "cwd" and "env". One
per line on stdout: {"code": 0, "output": "..."}. Starting an interpreter for each of a hundred
commands would cost minutes of processor time.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import traceback
from typing import Any

PRELOADED = (
    "autotune.cli",
    "autotune.api",
    "autotune.client",
    "autotune.cost",
    "autotune.report.page",
    "autotune.report.terminal",
    "autotune.schema",
    "autotune.search.bayesian",
    "autotune.space",
    "autotune.store",
    "autotune_workers.runners.simulated",
    "scipy.optimize",
)


def main() -> None:
    """Serves requests until stdin ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one request in a fork, with all that it prints in one text."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = _run(request, output.fileno())
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        output.seek(0)
        return {
            "code": os.waitstatus_to_exitcode(status),
            "output": output.read().decode(errors="replace"),
        }


def _run(request: dict[str, Any], output: int) -> int:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if "python" in request:
        exec(compile(request["python"], "<documentation>", "exec"), {"__name__": "__main__"})
        return 0
    from autotune.cli import run

    return run(list(request["argv"]))


if __name__ == "__main__":
    main()
