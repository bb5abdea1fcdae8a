"""Trials on two nodes with two ranks each, and what the tests of such trials wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.ports import RunnerEvent, TrialRequest
from autotune.testing.runners import ended
from autotune_workers.runners.ray import RayRunner
from tests.nodes.ray_nodes import RayNodes
from tests.workers.requests import PATIENT, events_of, measurement_of, request

ALONE = [
    pytest.mark.alone,
    pytest.mark.thorough,
    # Ray leaves sockets and log files to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ENDLESS = replace(
    PATIENT, min_steps=100_000, max_steps=100_000, trial_timeout_s=1500.0, step_timeout_s=300.0
)
RANKS = "process.fork_server"
"""part of the command line of a rank, and of the fork server that each rank has for itself"""
LADDER_S = 10.0
"""for the ranks that are left to leave their collectives, or to be killed"""


def spread(number: int, **fields: Any) -> TrialRequest:
    """Four ranks on two nodes."""
    return request(number, dp=4, cluster={"num_nodes": 2, "gpus_per_node": 2}, **fields)


def ranks(cluster: RayNodes) -> int:
    """Living processes of ranks, on all nodes that are on."""
    return sum(len(node.processes(RANKS)) for node in cluster.nodes if node.is_on)


def measured(runner: RayRunner, asked: TrialRequest, timeout_s: float = 240.0) -> list[RunnerEvent]:
    """What happens of an attempt that is measured to its end."""
    events = events_of(runner, asked, deadline_s=timeout_s)
    assert len(measurement_of(ended(events)).step_times_s) >= PATIENT.min_steps
    return events
