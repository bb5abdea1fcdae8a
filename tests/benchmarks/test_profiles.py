"""A profile composes random configs as their own dry runs find them, and a plan of a thousand configs from it takes under a second."""

from __future__ import annotations

import pytest

from autotune.cost.profile import Profile
from autotune.profiling import make_profile
from tests.benchmarks.profiles import WITHIN, HereRunner, compare, plan, planned, space, workload_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def profile() -> Profile:
    return make_profile(workload_of(8, 512, 64), space(), HereRunner())


def test_every_dry_run_of_the_profile_is_composed(profile: Profile) -> None:
    assert {check.kind for check in profile.checks} == set(profile.templates)
    assert all(abs(check.error) <= WITHIN for check in profile.checks)


def test_random_configs_are_composed_or_said_to_be_run_in_full(profile: Profile) -> None:
    rows = list(compare(profile, configs=12, seed=3))
    composed = [row for row in rows if not row.why_not]
    assert len(composed) >= 4
    assert [row for row in composed if abs(row.error) > WITHIN] == []


def test_a_plan_of_a_thousand_configs(profile: Profile) -> None:
    took_s, table, peaks = plan(profile, configs=1000, seed=3)
    assert took_s < 5.0  # a second at most on an idle machine
    assert all(abs(row.error) <= 0.02 for row in planned(profile, table, peaks, runs=3, seed=3))
