"""Detects a program that cannot run at all: its first configs fail in the same way, before their
first step.

The cause is then the program, its data or its environment and not a config, so trying further
configs would waste the budget. Running out of memory, divergence, hangs and lost workers depend on
the config or the cluster, and are never counted here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.spec import Failure, FailureKind, Trial

_UNKNOWN_OPTIONS = re.compile(
    "unrecognized arguments|not used by the HfArgumentParser|No such option|Unrecognized option"
)
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_PLACE = re.compile(r"/tmp/[^\s'\"]+|\b0x[0-9a-f]+\b|\[?[\w.:]+\]?:\d{4,5}\b")
SAME_FAILURES = 3
"""number of configs that must fail in the same way"""
KINDS = frozenset({FailureKind.ERROR, FailureKind.INVALID, FailureKind.METRICS_MISSING})
"""failures that may have a cause other than the config"""


def repeated_failure(trials: Iterable[Trial]) -> str:
    """Why no config of the program can run; empty if one may.

    That is the case if at least `SAME_FAILURES` configs failed, all with the same exception and
    before their first step, and none was measured.
    """
    trials = list(trials)
    failures = [trial.failure for trial in trials if trial.failure is not None]
    configs = {trial.config for trial in trials if trial.failure is not None}
    if len(configs) < SAME_FAILURES or any(trial.is_measured for trial in trials):
        return ""
    first = failures[0]
    if (
        first.kind not in KINDS
        or first.step
        or any(_cause(failure) != _cause(first) for failure in failures)
    ):
        return ""
    return f"all {len(configs)} configs that were tried failed in the same way before their first step, with {first}"


def _cause(failure: Failure) -> tuple[str, str, int]:
    """Key by which failures are compared: kind, exception, and step from 0. For unknown options only
    their names are compared, because their values belong to the config; temporary folders, addresses
    and ports are masked, because they differ between attempts."""
    text = failure.exception or failure.message
    if _UNKNOWN_OPTIONS.search(text):
        text = " ".join(_OPTION.findall(text))
    return failure.kind, _PLACE.sub("...", text), failure.step or 0
