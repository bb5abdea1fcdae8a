"""The searchers without a model of their own keep the contract and their order."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autotune.errors import CatalogError, ConfigError
from autotune.search import make_searcher, searcher_names
from autotune.space import SearchSpace
from autotune.testing.searchers import WORKLOAD, SearcherContract, candidates


class TestRandom(SearcherContract):
    searcher = "random"

    def test_seed_decides_the_order(self) -> None:
        assert self.make(seed=0).ask(5) != self.make(seed=1).ask(5)


class TestGrid(SearcherContract):
    searcher = "grid"

    def test_keeps_the_order_of_the_space(self) -> None:
        assert self.make().ask(5) == candidates()[:5]


class TestCostRanked(SearcherContract):
    searcher = "cost_ranked"


class TestRuleOfThumb(SearcherContract):
    searcher = "rule_of_thumb"


def test_unknown_name_names_the_nearest() -> None:
    with pytest.raises(CatalogError, match="bayesian"):
        make_searcher("bayesion", SearchSpace.of(WORKLOAD, candidates()))


@pytest.mark.parametrize("name", searcher_names())
def test_every_registered_name_makes_a_searcher_that_asks(name: str) -> None:
    space = SearchSpace.of(WORKLOAD, candidates()[:12])
    (config,) = make_searcher(name, space).ask(1)
    assert config in space


def test_importing_the_searchers_imports_nothing_heavy() -> None:
    code = "import sys, autotune.search; print([m for m in ('scipy', 'optuna', 'torch') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900
    )
    assert done.stdout.strip() == "[]"


def test_all_enqueued_configs_outside_the_space_are_told_at_once() -> None:
    space, outside = SearchSpace.of(WORKLOAD, candidates()[:2]), candidates()[2:4]
    with pytest.raises(ConfigError) as raised:
        make_searcher("random", space, enqueue=[candidates()[0], *outside])
    told = [str(error) for error in (raised.value, *raised.value.others)]
    assert len(told) == 2
    assert all(str(config) in line for config, line in zip(outside, told, strict=True))
