"""The best that is known: measured, of the nearest workload, or by the cost model, and it says
which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import api
from autotune.errors import SpecError
from autotune.results.best_known import MAX_DISTANCE, best_known, distance
from autotune.results.question import Question
from autotune.spec import Workload, catalog
from autotune.store import SqlStore, open_store

SPEC: dict[str, Any] = {
    "name": "small",
    "model": "gpt2-medium",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 64},
    "space": {"tp": [1, 2], "micro_batch_size": [1, 2, 4], "precision": ["bf16"]},
    "budget": {"max_trials": 3, "min_gain": 0},
    "measure": {"finalists": 0},
    "searcher": "cost_ranked",
    "runner": {"kind": "simulated", "noise": 0.0, "outlier_every": 0},
}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    store = open_store(tmp_path_factory.mktemp("known") / "results.db")
    api.tune(api.load_study(SPEC), store=store)
    yield store
    store.close()


def ask(store: SqlStore, *, top: int = 1, **asked: Any) -> dict[str, Any]:
    return best_known(
        store, Question(**{"cluster": "h100-sxm-1x8", "runner": "simulated"} | asked), top=top
    )


def test_a_measured_config_is_returned_with_its_evidence(tuned: SqlStore) -> None:
    found = ask(tuned, model="gpt2-medium", top=2)
    assert found["source"] == "measured"
    assert found["best"] == found["configs"][0]["best"]
    assert len(found["configs"]) == 2
    behind = found["evidence"]
    (study,) = tuned.studies()
    trials = tuned.trials(study.id)  # the baseline may have run again
    assert (behind["configs"], behind["trials"], behind["studies"]) == (
        len({t.config for t in trials}),
        len(trials),
        1,
    )
    assert datetime.now(UTC) - datetime.fromisoformat(behind["last_at"]) < timedelta(hours=1)
    assert behind["age_s"] >= 0
    left = found["untried"]
    # the baseline is outside of the space
    assert (left["legal"], left["measured"]) == (
        6,
        behind["configs"] - 1,
    )
    assert left["best"]["config"] not in [
        row["best"]["config"] for row in ask(tuned, model="gpt2-medium", top=9)["configs"]
    ]


def test_an_objective_ranks_measurements_of_several_studies(tmp_path: Path) -> None:
    store = open_store(tmp_path / "results.db")
    for tp in (1, 2):
        space = {**SPEC["space"], "tp": [tp]}
        api.tune(api.load_study(SPEC | {"name": f"tp{tp}", "space": space}), store=store)
    asked: dict[str, Any] = {
        "model": "gpt2-medium",
        "metric": "throughput",
        "stability_weight": 0.0,
    }
    by_speed = ask(store, model="gpt2-medium", top=99)
    judged = ask(store, **asked, top=99)
    assert {row["study"]["name"] for row in judged["configs"]} == {"tp1", "tp2"}
    assert [r["best"]["config"] for r in judged["configs"]] == [
        r["best"]["config"] for r in by_speed["configs"]
    ]
    totals = [row["best"]["reward"]["total"] for row in judged["configs"]]
    assert totals == sorted(totals, reverse=True)
    assert (by_speed["objective"], judged["objective"]) == (
        None,
        {"metric": "throughput", "stability_weight": 0.0},
    )
    assert ask(store, **asked | {"stability_weight": 1.0})["best"]["reward"]["total"] <= 1.0
    cheap = ask(store, **asked | {"metric": "cost"}, top=99)["configs"]
    assert all("cost_ratio" in row["best"]["reward"]["parts"] for row in cheap)
    near = ask(store, **asked | {"model": "gpt2-large"})
    assert (near["source"], near["objective"]["metric"]) == ("nearest", "throughput")
    guessed = ask(store, **asked | {"model": "llama-8b"})
    assert (guessed["source"], guessed["objective"]) == ("cost_model", None)
    assert "by predicted speed" in guessed["notes"][-1]
    store.close()


def test_an_objective_needs_model_and_cluster() -> None:
    partly: tuple[dict[str, Any], ...] = ({"model": "gpt2-medium"}, {"cluster": "h100-sxm-1x8"}, {})
    for asked in partly:
        with pytest.raises(SpecError, match="one model and one cluster"):
            Question(metric="cost", **asked)
    with pytest.raises(SpecError, match="metric"):
        Question(metric="speed", model="gpt2-medium", cluster="h100-sxm-1x8")


def test_simulated_results_are_shown_only_if_the_runner_is_specified(tuned: SqlStore) -> None:
    assert ask(tuned, model="gpt2-medium", runner="")["source"] == "cost_model"
    assert ask(tuned, model="gpt2-large", runner="")["source"] == "cost_model"
    assert "only with runner simulated" in ask(tuned, cluster="", runner="")["notes"][0]


def test_the_config_of_the_nearest_workload_is_returned(tuned: SqlStore) -> None:
    found = ask(tuned, model="gpt2-large")
    near = found["nearest"]
    assert (found["source"], near["model"]) == ("nearest", "gpt2-medium")
    assert 0 < near["distance"] < MAX_DISTANCE
    assert near["here"]["estimate"]["tokens_per_s"] > 0
    assert found["best"]["measurement"]["tokens_per_s"] > 0
    assert found["assumed"]["seq_len"] == 1024
    assert ask(tuned, model="gpt2-large", cluster="h200-sxm-1x8")["source"] == "nearest"
    here = ask(tuned, model="gpt2-large", global_batch_size=192)["nearest"]["here"]["config"]
    assert here["micro_batch_size"] * here["accumulation_steps"] * here["dp"] == 192


@pytest.mark.parametrize(
    ("model", "cluster"),
    [("llama-3b", "h100-sxm-8x8"), ("llama-8b", "h100-sxm-1x8"), ("gpt2-medium", "h100-sxm-2x8")],
)
def test_without_a_near_workload_the_cost_model_is_used(
    tuned: SqlStore, model: str, cluster: str
) -> None:
    found = ask(tuned, model=model, cluster=cluster, top=3)
    assert found["source"] == "cost_model"
    assert found["best"]["measurement"] is None
    speeds = [row["best"]["estimate"]["tokens_per_s"] for row in found["configs"]]
    assert len(speeds) == 3
    assert speeds[0] > 0
    assert found["notes"][0].startswith("cost-model constants")


def test_unknown_names_have_a_note(tuned: SqlStore) -> None:
    for asked, words in (
        ({"model": "llama-9b"}, "llama-8b"),
        ({"model": "gpt2-xl", "cluster": "h100-1x8"}, "h100-sxm-1x8"),
        ({"model": "gpt2-xl", "cluster": ""}, "specify a cluster"),
    ):
        found = ask(tuned, **asked)
        assert (found["source"], found["best"]) == ("none", None)
        assert words in found["notes"][0]
    found = ask(tuned, model="llama-405b")
    assert (found["source"], found["best"]) == ("none", None)
    assert "fit" in found["notes"][0]
    with pytest.raises(SpecError):
        Question(seq_len=0)


def test_an_empty_store_uses_the_cost_model(tmp_path: Path) -> None:
    store = open_store(tmp_path / "results.db")
    found = ask(store, model="gpt2-medium", runner="")
    assert found["source"] == "cost_model"
    assert found["assumed"] == {
        "seq_len": 1024,
        "global_batch_size": [32],
        "trainer": "native",
        "space": "dense-single-node",
    }
    store.close()


@pytest.mark.parametrize(
    ("trainer", "knob", "value"),
    [("nanotron", "compile", False), ("hf_trainer", "tp", 1), ("native", "compile", True)],
)
def test_the_cost_models_first_choice_can_be_launched(
    tuned: SqlStore, trainer: str, knob: str, value: Any
) -> None:
    found = ask(tuned, model="llama-8b", trainer=trainer)
    assert (found["source"], found["best"]["config"][knob]) == ("cost_model", value)


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ("nanotrn", "there is no trainer 'nanotrn'; did you mean nanotron"),
        ("trl", "trl trainer cannot launch any of the"),
    ],
)
def test_a_trainer_that_cannot_run_it_has_no_best_config(
    tuned: SqlStore, trainer: str, words: str
) -> None:
    found = ask(tuned, model="llama-8b", trainer=trainer)
    assert (found["source"], found["best"]) == ("none", None)
    assert words in found["notes"][0]


models = st.sampled_from([catalog.model(name) for name in catalog.model_names()])
workloads = st.builds(
    lambda model, gpu, nodes, seq_len: Workload(
        model=model,
        cluster=catalog.cluster_of(gpu, num_nodes=nodes),
        seq_len=seq_len,
        global_batch_size=64,
    ),
    models,
    st.sampled_from(catalog.gpu_names()),
    st.sampled_from([1, 2]),
    st.integers(1, 8192),
)


@given(workloads, workloads, workloads)
def test_the_distance_is_a_metric(a: Workload, b: Workload, c: Workload) -> None:
    assert distance(a, a) == 0
    assert distance(a, b) == distance(b, a)
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-9


def test_the_distance_is_finite_only_for_clusters_of_the_same_layout() -> None:
    rack = catalog.cluster("gb200-nvl72-2x4")
    one = Workload(
        model=catalog.model("llama-8b"), cluster=rack, seq_len=2048, global_batch_size=64
    )
    as_a_node = replace(rack, name="gb200-1x8", num_nodes=1, gpus_per_node=8, gpus_per_domain=0)
    two_domains = replace(rack, name="gb200-4-apart", gpus_per_domain=4)
    assert distance(one, replace(one, cluster=as_a_node)) == 0
    assert distance(one, replace(one, cluster=two_domains)) == float("inf")


def test_a_doubling_has_distance_one() -> None:
    cluster = catalog.cluster("h100-sxm-1x8")
    one = Workload(
        model=catalog.model("llama-8b"), cluster=cluster, seq_len=2048, global_batch_size=64
    )
    assert distance(one, replace(one, seq_len=4096)) == pytest.approx(1.0)
