"""A program that cannot run at all: its first configs fail in the same way, before their first
step.

Such a failure is of the program, its data or its environment, not of a config; trying further
configs would spend the budget and tell nothing. Running out of memory, divergence, hangs and lost
workers say something of the config or the cluster, and never count here.
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
"""configs that fail alike before the search ends"""
KINDS = frozenset({FailureKind.ERROR, FailureKind.INVALID, FailureKind.METRICS_MISSING})
"""failures that a program without a working config ends in"""


def repeated_failure(trials: Iterable[Trial]) -> str:
    """Why no config is going to run, in words; empty while one may.

    It says so when at least `SAME_FAILURES` configs have failed, all with the same exception and
    without a step, and none was measured.
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
    """What makes two failures the same: kind, exception, and the step, counted from 0. Of options
    that the program does not know the names count, since their values are the config's; folders,
    addresses and ports are other ones in each attempt."""
    text = failure.exception or failure.message
    if _UNKNOWN_OPTIONS.search(text):
        text = " ".join(_OPTION.findall(text))
    return failure.kind, _PLACE.sub("...", text), failure.step or 0
