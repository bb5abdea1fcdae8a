"""Losses of fp32 references: one for each global batch that is tried, kept for later studies of the
same numbers and no others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from autotune import api
from autotune.ports import Store
from autotune.spec import Objective, TrialPurpose, TrialStatus
from autotune.store import MemoryStore, open_store
from tests.shortcuts import present
from tests.small_studies import QUIET, spec

BATCHES = [64, 128]


def referenced(store: Store, name: str, **changes: Any) -> list[int]:
    """Global batches whose reference a study in bf16 measured."""
    changes = {
        "name": name,
        "workload": {"seq_len": 1024, "global_batch_size": BATCHES},
        "space": {"tp": [1, 2], "micro_batch_size": [1, 2, 4, 8], "precision": ["bf16"]},
        "searcher": "random",
        "budget": {"max_trials": 6, "min_gain": 0.0},
        "runner": QUIET,
    } | changes
    result = api.tune(spec(**changes), store=store)
    tried = {
        t.config.global_batch_size
        for t in result.trials
        if t.purpose is TrialPurpose.SEARCH and t.is_measured
    }
    assert tried == set(BATCHES)
    for trial in result.trials:
        if (
            trial.purpose in (TrialPurpose.SEARCH, TrialPurpose.FINAL)
            and trial.status is TrialStatus.COMPLETED
        ):
            assert "fidelity" in present(trial.reward).parts
    return [
        t.config.global_batch_size for t in result.trials if t.purpose is TrialPurpose.REFERENCE
    ]


def test_a_reference_is_measured_once_for_all_studies_of_the_same_numbers(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "results.db")) as store:
        assert sorted(referenced(store, "first")) == BATCHES
        assert referenced(store, "second") == []
        longer = {"max_steps": 30, "stability_steps": 60}
        assert sorted(referenced(store, "longer", measure=longer)) == BATCHES
        assert (
            sorted(
                referenced(store, "other rate", trainer={"kind": "native", "learning_rate": 0.1})
            )
            == BATCHES
        )


def test_a_reference_that_nobody_asked_for_cannot_win(store: Store) -> None:
    """However fast it is: here the space holds only what is slower."""
    low = {
        "space": {
            "precision": ["bf16"],
            "tp": [1],
            "recompute": ["full"],
            "micro_batch_size": [1, 2],
        },
        "runner": QUIET,
    }
    result = api.tune(spec(name="low", measure={"finalists": 9}, **low), store=store)
    (reference,) = (
        t for t in result.trials if t.purpose is TrialPurpose.REFERENCE and t.is_measured
    )
    again = [t.config for t in result.trials if t.purpose is TrialPurpose.FINAL]
    assert again
    assert reference.config not in again
    for weight in (0.0, 0.2):
        ranked = api.rerank(
            store, result.record.id, Objective(metric="cost", stability_weight=weight)
        )
        assert reference.config not in [t.config for t in [*ranked, *api.pareto(result)]]
    text = api.explain(store, result.record.id, reference.number)["text"]
    assert "cannot win" in text[0]


def test_where_stability_counts_for_nothing_no_reference_is_measured() -> None:
    low = {"space": {"precision": ["bf16"], "tp": [1, 2]}, "objective": {"stability_weight": 0.0}}
    result = api.tune(spec(name="fast", **low), store=MemoryStore())
    assert all(t.purpose is not TrialPurpose.REFERENCE for t in result.trials)


def test_where_the_default_config_does_not_fit_in_fp32_another_is_the_reference() -> None:
    large: dict[str, Any] = {
        "model": "llama-3b",
        "space": {"tp": [1, 4, 8], "micro_batch_size": [1, 2], "precision": ["bf16"]},
        "workload": {"seq_len": 4096, "global_batch_size": 64},
    }
    result = api.tune(spec(name="large", **large), store=MemoryStore())
    (reference,) = (t for t in result.trials if t.purpose is TrialPurpose.REFERENCE)
    assert reference.config.tp > 1
    assert reference.config.precision == "fp32"
    searched = [
        t
        for t in result.trials
        if t.purpose is TrialPurpose.SEARCH and t.status is TrialStatus.COMPLETED
    ]
    assert searched
    assert all(t.reward is not None and "fidelity" in t.reward.parts for t in searched)
