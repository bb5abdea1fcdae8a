"""Detects the first rank of a job. All ranks run the same command, so only the first one prints a
review and stores the run."""

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
_SINGLE_PROCESS = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "NODE_RANK": "0",
    "GROUP_RANK": "0",
}
"""variables that a user may have exported, with their values in a single-process training"""
_LAUNCHERS = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "KUBERNETES_SERVICE_HOST",
)
"""variables that show that a launcher or a Kubernetes operator set the rank"""
_NODE_OPTIONS = ("--node-rank", "--node_rank", "--machine-rank", "--machine_rank")


def is_first(environment: Mapping[str, str], command: Sequence[str]) -> bool:
    """Whether this process is the first of its job, according to the launchers' variables and the
    node rank in the command."""
    if any(environment.get(name, "0").strip().lstrip("+0") for name in _RANKS):
        return False
    for at, word in enumerate(command):
        name, sign, value = word.partition("=")
        if name in _NODE_OPTIONS:
            return not (value if sign else "".join(command[at + 1 : at + 2])).lstrip("+0")
    return True


def leftover(environment: Mapping[str, str], command: Sequence[str]) -> str:
    """The message about rank variables that are set although no known launcher set them, probably
    left over in the shell; empty without such variables."""
    variables = {
        name: value
        for name, default in _SINGLE_PROCESS.items()
        if (value := environment.get(name, default).strip()) not in ("", default)
    }
    if not variables or any(name in environment for name in _LAUNCHERS):
        return ""
    listed = ", ".join(f"{name}={value}" for name, value in variables.items())
    consequence = (
        "so the program may wait for other ranks"
        if is_first(environment, command)
        else "so this process counts as a later rank, and its run is neither reviewed nor stored"
    )
    return f"found {listed} without a launcher, {consequence}. Unless a job set these variables, run `unset {' '.join(variables)}` and start again"
