"""Adoption: the next controller of a study takes over the gangs that the last one left on a cluster
which goes on.

A gang is adopted when its placement group exists and all its actors answer. What is not complete is
removed, and so are nodes that run programs: their trials are run again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial

from autotune.ports import TrialRequest
from autotune_workers.gang.attempt_runner import Place
from autotune_workers.gang.wire import Message
from autotune_workers.ray.actor_groups import ANSWER_S, ActorGroups
from autotune_workers.ray.janitor import (
    group_of,
    is_node,
    orphaned_groups,
    remove_groups,
    study_prefix,
)
from autotune_workers.ray.ranks.handle import RayRank
from autotune_workers.ray.ranks.host import HostState
from autotune_workers.ray.sent_folders import SentFolders


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedGang:
    """A gang that an earlier runner of the study left behind, complete and ours from now on."""

    pool: Place
    nodes: int
    """see `HostState`"""
    request: TrialRequest | None
    """what its ranks are training, or have trained last; None: not known for certain"""
    run: int
    """number of that launch"""
    begun: set[int]
    """ranks of that launch that have the order to run"""
    joined: set[int]
    """ranks that know its store"""
    is_idle: bool
    """whether all ranks are up, or starting, and have nothing to do"""


def adopt_gangs(ours: ActorGroups, folders: SentFolders, study: str) -> list[AdoptedGang]:
    """The complete gangs that others left behind for this study. `ours`: what we hold already; its
    owner token is that of the adopted ones.

    `folders`: what can be sent along to them.
    """
    import ray

    prefix, cluster = study_prefix(study), ours.cluster
    cluster.ask(lambda: remove_groups(orphaned_groups(prefix, without=ours.label)))
    gangs: dict[str, list[str]] = {}
    programs: set[str] = set()
    for name in sorted(cluster.ask(ray.util.list_named_actors)):
        if not name.startswith(prefix) or ours.label in name:
            continue
        if is_node(name):
            programs.add(group_of(name))
        else:
            gangs.setdefault(group_of(name), []).append(name)
    cluster.ask(lambda: remove_groups(sorted(programs)))
    adopted = []
    for gang, members in gangs.items():
        with contextlib.suppress(Exception):  # it ended meanwhile
            adopted.append(cluster.ask(partial(_adopt, gang, members, ours, folders)))
    return [gang for gang in adopted if gang is not None]


def _adopt(
    gang: str, names: list[str], ours: ActorGroups, folders: SentFolders
) -> AdoptedGang | None:
    import ray
    from ray.util.placement_group import get_placement_group

    actors = {}
    for name in names:
        with contextlib.suppress(ValueError):  # gone since it was listed
            actors[name] = ray.get_actor(name)
    try:
        group = get_placement_group(gang)
    except ValueError:  # gone too: its actors end with it
        return None
    states: list[HostState | None]
    try:
        states = ray.get(
            [actor.adopt.remote(ours.owner) for actor in actors.values()], timeout=ANSWER_S
        )
    except Exception:  # an actor is dead, or as good as dead
        states = []
    known = [state for state in states if state is not None]
    if not known or len(known) < max(len(states), known[0].size):
        remove_groups([gang])
        return None
    run = max((s.trial["run"] for s in known if s.trial is not None), default=0)
    seats: dict[int, RayRank] = {}
    joined: set[int] = set()
    others: list[RayRank] = []
    order: Message | None = None
    for (name, actor), state in zip(actors.items(), known, strict=True):
        rank = RayRank(name, actor, ours.owner, folders, state, silence=ours.silence())
        if state.trial is None or state.trial["run"] != run:
            others.append(rank)
            continue
        order = state.trial
        seats[order["rank"]] = rank
        if state.knows_store:
            joined.add(order["rank"])
    is_told = all(s.ready and not (s.is_ending or s.was_replaced) for s in known)
    return AdoptedGang(
        pool=Place(handles=[seats.get(n) or others.pop(0) for n in range(len(known))], token=group),
        nodes=known[0].nodes,
        request=TrialRequest.from_dict(order["request"]) if order is not None and is_told else None,
        run=run,
        begun=set(seats),
        joined=joined,
        is_idle=all(not s.is_lost and (s.is_idle or s.trial is None) for s in known),
    )
