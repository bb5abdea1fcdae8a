"""Adoption: a study's next controller takes over the gangs that the last one left on a cluster that
outlives its drivers.

A gang is adopted if its placement group exists and all its actors answer. Incomplete gangs are
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
    """A complete gang of an earlier runner of the study, now owned by this one."""

    pool: Place
    nodes: int
    """see `HostState`"""
    request: TrialRequest | None
    """request of the trial that its ranks run or ran last; None if that is uncertain"""
    run: int
    """number of that trial's launch"""
    begun: set[int]
    """ranks of that launch that have the order `run`"""
    joined: set[int]
    """ranks of that launch that know its rendezvous store"""
    is_idle: bool
    """whether all ranks are running or starting, without a trial"""


def adopt_gangs(ours: ActorGroups, folders: SentFolders, study: str) -> list[AdoptedGang]:
    """Adopts the complete gangs that other runners left for this study. `ours`: this runner's
    groups, whose owner token the adopted actors get. `folders`: folders to send with trials."""
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
        with contextlib.suppress(Exception):  # it has ended meanwhile
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
    except ValueError:  # gone, and its actors end with it
        return None
    states: list[HostState | None]
    try:
        states = ray.get(
            [actor.adopt.remote(ours.owner) for actor in actors.values()], timeout=ANSWER_S
        )
    except Exception:  # an actor is dead or does not answer
        states = []
    states_received = [state for state in states if state is not None]
    if not states_received or len(states_received) < max(len(states), states_received[0].size):
        remove_groups([gang])
        return None
    run = max((s.trial["run"] for s in states_received if s.trial is not None), default=0)
    by_rank: dict[int, RayRank] = {}
    joined: set[int] = set()
    without_trial: list[RayRank] = []
    order: Message | None = None
    for (name, actor), state in zip(actors.items(), states_received, strict=True):
        rank = RayRank(name, actor, ours.owner, folders, state, silence=ours.silence())
        if state.trial is None or state.trial["run"] != run:
            without_trial.append(rank)
            continue
        order = state.trial
        by_rank[order["rank"]] = rank
        if state.knows_store:
            joined.add(order["rank"])
    is_certain = all(s.ready and not (s.is_ending or s.was_replaced) for s in states_received)
    return AdoptedGang(
        pool=Place(
            handles=[by_rank.get(n) or without_trial.pop(0) for n in range(len(states_received))],
            token=group,
        ),
        nodes=states_received[0].nodes,
        request=TrialRequest.from_dict(order["request"])
        if order is not None and is_certain
        else None,
        run=run,
        begun=set(by_rank),
        joined=joined,
        is_idle=all(not s.is_lost and (s.is_idle or s.trial is None) for s in states_received),
    )
