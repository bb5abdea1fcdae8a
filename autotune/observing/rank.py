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
