"""Programs that misbehave on the second of two Ray nodes: the same kinds and causes as on this
machine, and nothing is left on either node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune_workers.runners.ray import RayRunner
from tests.ray_roles import played_head, played_node
from tests.workers.process.test_misbehaving_programs import BRIEF, CASES, Case, check_failure

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
def test_a_program_that_misbehaves_on_a_ray_node_fails_with_its_kind_and_cause(
    runner: RayRunner, case: Case
) -> None:
    check_failure(runner, case, 2, within_s=BRIEF.step_timeout_s)
