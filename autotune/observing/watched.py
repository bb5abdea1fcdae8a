"""Environment variables that inject the probe into every Python process of a command run with
`autotune run --diagnose`. Standard library only.

    first node      ranks write their reports to a folder; reports of other nodes arrive there through the job's torch store
    other nodes     ranks send their reports only through that store

The probe is imported from where it is installed, not copied, because the run belongs to the same
user.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

NOWHERE = "-"
"""value of `reports` for processes that write no reports"""
PROFILED_STEPS = 2
"""steps that torch's profiler records with `--profile`"""


def probe_off(environment: Mapping[str, str]) -> str:
    """What is missing if AUTOTUNE_PROBE switches the probe off, in words; empty if it is on."""
    said = environment.get("AUTOTUNE_PROBE", "").strip()
    if said.lower() not in ("off", "0", "false", "no"):
        return ""
    return f"AUTOTUNE_PROBE={said}, so the program is not observed: figures come only from its log and are not checked against the spec"


def variables_of(
    environment: Mapping[str, str], reports: str, *, profile: bool = False
) -> dict[str, str]:
    """Variables to add to the command's environment. Empty if the probe is not installed, or
    AUTOTUNE_PROBE switches it off. `reports`: the folder, or `NOWHERE`; `profile`: torch's profiler
    records a few steps."""
    package = find_spec("autotune_workers")
    if package is None or package.origin is None or probe_off(environment):
        return {}
    code = str(Path(package.origin).parent / "probe" / "injected")
    path = environment.get("PYTHONPATH", "")
    profiling = {"AUTOTUNE_PROBE_PROFILE": str(PROFILED_STEPS)} if profile else {}
    # without it the profiler prints two lines into the command's output
    if profile and "KINETO_LOG_LEVEL" not in environment:
        profiling["KINETO_LOG_LEVEL"] = "99"
    return {
        **profiling,
        "PYTHONPATH": f"{code}{os.pathsep}{path}" if path else code,
        "AUTOTUNE_PROBE_REPORTS": reports,
        "AUTOTUNE_PROBE_MIRROR": "1",
        "AUTOTUNE_PROBE_FILES": "off",
        "AUTOTUNE_PROBE_ROOT": str(os.getpid()),
    }
