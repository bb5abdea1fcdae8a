"""Names of what a runner makes on a cluster, by which the next controller of the study and the janitor find it.

group   autotune-STUDY-LABEL-gang-N or autotune-STUDY-LABEL-program-N     LABEL: of the runner
actor   GROUP-rank-I or GROUP-node-I                                      a rank of the native trainer, or a node that runs programs
"""

from __future__ import annotations

import re

_ACTOR = re.compile(r"(?P<group>.+)-(?P<what>rank|node)-\d+")


def study_prefix(study: str) -> str:
    """How the names of all groups and actors of a study begin."""
    return f"autotune-{study}-"


def group_of(actor: str) -> str:
    """The group of an actor; empty for one that is in none of ours."""
    found = _ACTOR.fullmatch(actor)
    return found["group"] if found else ""


def is_node(actor: str) -> bool:
    """Whether it is the actor of a node that runs programs."""
    found = _ACTOR.fullmatch(actor)
    return found is not None and found["what"] == "node"
