"""Which of the processes of one job speaks: the first one. The others are started by the same line
and do the same work, so one review and one run are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_RANKS = (
    "RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "NODE_RANK",
    "GROUP_RANK",
)
_BY_HAND = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "NODE_RANK": "0", "GROUP_RANK": "0"}
"""variables that a person may have exported, with their values for a process that trains alone"""
_LAUNCHERS = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "KUBERNETES_SERVICE_HOST",
)
"""variables of launchers, and of the clusters whose operators set such variables"""
_NODE_OPTIONS = ("--node-rank", "--node_rank", "--machine-rank", "--machine_rank")


def is_first(environment: Mapping[str, str], command: Sequence[str]) -> bool:
    """Whether this process is the first of its job, by what launchers set, and by the number of the
    node in the command."""
    if any(environment.get(name, "0").strip().lstrip("+0") for name in _RANKS):
        return False
    for at, word in enumerate(command):
        name, sign, value = word.partition("=")
        if name in _NODE_OPTIONS:
            return not (value if sign else "".join(command[at + 1 : at + 2])).lstrip("+0")
    return True


def leftover(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """The message about variables that make this process one of several ranks although no known
    launcher set them; empty without such variables."""
    found = {
        name: value
        for name, alone in _BY_HAND.items()
        if (value := environment.get(name, alone).strip()) not in ("", alone)
    }
    if not found or any(name in environment for name in _LAUNCHERS):
        return ""
    told = ", ".join(f"{name}={value}" for name, value in found.items())
    so = (
        "so the program may wait for other ranks"
        if is_first(environment, command)
        else "so this process counts as a later rank, and its run is neither reviewed nor stored"
    )
    return f"found {told} without a launcher, {so}. Unless a job set this, run `unset {' '.join(found)}` and start again"
