"""What a trainer cannot launch is in no space, and counted by reason like what is illegal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune import api
from autotune.errors import InfeasibleError, SpecError
from autotune.space import Launchable, SearchSpace, default_config
from autotune.spec import Study
from autotune.store import MemoryStore
from autotune.trainers import trainer, trainer_names

SPEC: dict[str, Any] = {
    "model": "llama-8b",
    "cluster": "a100-80gb-1x8",
    "workload": {"seq_len": 4096, "global_batch_size": 32},
    "space": {
        "tp": [1, 2, 4],
        "pp": [1, 2],
        "cp": [1, 2],
        "micro_batch_size": [1, 2, 4],
        "zero_stage": [0, 1, 2, 3],
        "recompute": ["none", "selective", "full"],
        "precision": ["bf16", "fp32"],
        "sequence_parallel": [False, True],
    },
    "runner": "simulated",
}


def study(**changes: Any) -> Study:
    return api.load_study({**SPEC, **changes})


@pytest.mark.parametrize("name", [name for name in trainer_names() if name != "command"])
def test_a_space_holds_exactly_what_its_trainer_can_launch(name: str) -> None:
    asked = study(trainer=name)
    everything = SearchSpace.build(asked.workload, asked.space)
    space = SearchSpace.of_study(asked)
    of, options = trainer(name), asked.trainer_options
    expected = [config for config in everything if not of.limits(asked.workload, config, options)]
    assert list(space) == expected
    cut = {reason: count for reason, count in space.excluded.items() if reason.startswith(f"{name}_")}
    assert sum(cut.values()) == len(everything) - len(space)
    assert default_config(space) in expected
    refused = next((config for config in everything if config not in space), None)
    if refused is not None:
        assert f"{name} cannot express" in (space.why_not(refused) or "")


@pytest.mark.parametrize("name", trainer_names())
def test_limits_depend_on_what_a_trainer_says_they_depend_on(name: str) -> None:
    asked = study(trainer=name if name != "command" else {"kind": "command", "argv": ["x", "{tp}", "{dp}"]})
    of, options = trainer(name), asked.trainer_options
    table = SearchSpace.build(asked.workload, asked.space).table
    seen: dict[tuple[int, ...], set[str]] = {}
    columns = [table.column(knob) for knob in sorted(of.limited_by)]
    for index in range(len(table)):
        knobs = {limit.knob for limit in of.limits(asked.workload, table[index], options)}
        first = seen.setdefault(tuple(int(column[index]) for column in columns), knobs)
        assert knobs == first, f"{name}: {table[index]}"


def test_a_plan_counts_what_the_trainer_cannot_do_and_never_proposes_it() -> None:
    asked = study(trainer="deepspeed")
    found = api.plan_of(asked, top=None)
    assert found.infeasible["deepspeed_pp"] > 0
    assert found.infeasible["deepspeed_cp"] > 0
    assert all(row.config.pp == row.config.cp == 1 for row in found.rows)


def test_a_search_asks_for_nothing_that_the_trainer_refuses() -> None:
    result = api.tune(
        study(trainer="deepspeed", searcher="random", budget={"max_trials": 12, "min_gain": 0}), store=MemoryStore()
    )
    assert len(result.trials) > 12
    assert not [trial for trial in result.trials if trial.status == "INFEASIBLE" and "cannot express" in trial.reason]


def test_a_space_of_which_nothing_can_be_launched_says_why() -> None:
    with pytest.raises(
        InfeasibleError, match=r"deepspeed can launch none of the .* legal configs .*deepspeed_cp .*Ulysses"
    ):
        api.plan_of(study(trainer="deepspeed", space={"cp": [2], "micro_batch_size": [1]}))


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"baseline": "tp=16"}, "baseline", "at most the 8 GPUs"),
        (
            {"baseline": "tp=2,dp=4,micro_batch_size=3,accumulation_steps=1"},
            "baseline",
            "must be the global batch size 32",
        ),
        ({"baseline": "pp=2", "trainer": "deepspeed"}, "baseline", "deepspeed cannot express pp=2"),
        ({"enqueue": ["tp=1", "cp=2"], "trainer": "deepspeed"}, "enqueue.1", "deepspeed cannot express cp=2"),
        ({"enqueue": ["tp=3"]}, "enqueue.0", "tp must divide"),
    ],
)
def test_a_baseline_and_guesses_obey_the_same_laws_at_load(change: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        study(**change)
    assert caught.value.field == field


def test_many_configs_need_few_questions() -> None:
    """The trainer is asked once for each combination of the knobs that its limits depend on."""
    asked = study(trainer="deepspeed", workload={"seq_len": 4096, "global_batch_size": [32, 64, 128, 256]})
    table = SearchSpace.build(asked.workload, asked.space).table
    subject, questions = trainer("deepspeed"), 0

    class Counting(type(subject)):  # type: ignore[misc]
        def find_limits(self, *arguments: Any) -> Any:
            nonlocal questions
            questions += 1
            return super().find_limits(*arguments)

    mask, counts = Launchable(trainer=Counting()).cut(asked.workload, table)
    assert questions < len(table) / 3
    assert int(np.count_nonzero(~mask)) == sum(counts.values())
    same, again = replace(Launchable.of(asked)).cut(asked.workload, table)
    assert (same == mask).all()
    assert again == counts
