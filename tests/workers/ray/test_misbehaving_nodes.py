"""Programs that misbehave on the second of two Ray nodes: the same kinds and causes as on this machine, and nothing is left on either node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from autotune_workers.runners.ray import RayRunner
from tests.ray_roles import played_head, played_node
from tests.workers.process.test_misbehaving_programs import BRIEF, CASES, HASTY, SCRIPT, Case, asked
from tests.workers.processes import running
from tests.workers.requests import one

pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    # Ray leaves sockets and log files to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def runner() -> Iterator[RayRunner]:
    with (
        played_head() as (_, address),
        played_node(address, num_cpus=2),
        RayRunner(address=address) as runner,
    ):
        yield runner


@pytest.mark.parametrize("case", CASES, ids=[case.does + "".join(case.arguments) for case in CASES])
def test_a_program_that_misbehaves_on_a_ray_node_fails_with_its_kind_and_cause(runner: RayRunner, case: Case) -> None:
    began_s = time.monotonic()
    request = asked(1, case.does, *case.arguments, nodes=2)
    request = replace(request, measure=case.measure)
    failure = one(runner, request).failure
    took_s = time.monotonic() - began_s
    assert failure is not None
    assert failure.kind is case.kind, failure
    assert case.says in failure.message
    assert took_s >= HASTY.step_timeout_s if case.hangs else took_s < BRIEF.step_timeout_s
    assert running(SCRIPT.name) == []
