"""The probe in a run that somebody starts and asks to be diagnosed: the variables that bring it
into every Python process of the command. Standard library only.

    first process of the job    its ranks report into a folder; ranks of other nodes send their reports there by the store of the job
    others                      report nowhere but by that store

The probe's own files are not copied: the run is that of the user who asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

NOWHERE = "-"


PROFILED_STEPS = 2


def variables_of(
    environment: Mapping[str, str], reports: str, *, profile: bool = False
) -> dict[str, str]:
    """What the environment of the command gets; `reports`: the folder, or `NOWHERE`; `profile`:
    torch's profiler watches some steps. Empty where the probe is not installed or was switched
    off."""
    found = find_spec("autotune_workers")
    if (
        found is None
        or found.origin is None
        or environment.get("AUTOTUNE_PROBE", "").lower() in ("off", "0", "false", "no")
    ):
        return {}
    code = str(Path(found.origin).parent / "probe" / "injected")
    path = environment.get("PYTHONPATH", "")
    profiling = {"AUTOTUNE_PROBE_PROFILE": str(PROFILED_STEPS)} if profile else {}
    # else the profiler prints two lines among the command's own
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
