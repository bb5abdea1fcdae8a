"""A study with goodput as its objective, from its spec to the explanation of its winner."""

from __future__ import annotations

from typing import Any

import pytest

from autotune import api
from autotune.spec import Objective
from autotune.store import MemoryStore
from tests.shortcuts import present
from tests.small_studies import QUIET, spec

BATCHES = [64, 128, 256, 512]


def tuned(store: MemoryStore, metric: str, gradient_noise: float) -> api.Result:
    changes: dict[str, Any] = {
        "name": f"{metric} at {gradient_noise}",
        "workload": {"seq_len": 1024, "global_batch_size": BATCHES},
        "objective": {"metric": metric},
        "enqueue": [{"dp": 8, "micro_batch_size": 8, "accumulation_steps": 8}],
        "searcher": "bayesian",
        "runner": QUIET | {"gradient_noise": gradient_noise},
    }
    return api.tune(spec(**changes), store=store)


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture(scope="module")
def fast(store: MemoryStore) -> api.Result:
    return tuned(store, "throughput", 32.0)


def batch(result: api.Result) -> int:
    return present(result.best).config.global_batch_size


def test_goodput_picks_a_smaller_batch_than_throughput_and_says_why(
    store: MemoryStore, fast: api.Result
) -> None:
    good = tuned(store, "goodput", 32.0)
    assert batch(fast) > batch(good) == BATCHES[0]
    loser = next(
        t for t in good.trials if t.config.global_batch_size > BATCHES[0] and t.is_measured
    )
    text = " ".join(api.explain(store, good.record.id, loser.number)["text"])
    assert "the gradient noise scale is 32 sequences" in text
    assert "multiply the learning rate by" in text


@pytest.mark.thorough
def test_where_gradients_are_noise_goodput_is_throughput(store: MemoryStore) -> None:
    assert batch(tuned(store, "goodput", 1e9)) == batch(tuned(store, "throughput", 1e9))


def test_a_finished_study_can_be_ranked_by_goodput(store: MemoryStore, fast: api.Result) -> None:
    again = api.rerank(store, fast.record.id, Objective(metric="goodput"))
    assert again[0].config.global_batch_size < batch(fast)
