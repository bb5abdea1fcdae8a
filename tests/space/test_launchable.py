"""What a trainer cannot launch is in no space, and counted by reason like what is illegal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune import api
from autotune.cost.traits import POST_TRAINERS
from autotune.errors import InfeasibleError, SpecError
from autotune.space import Launchable, SearchSpace, default_config
from autotune.space.launchable import fixed_knobs
from autotune.spec import ParallelConfig, Study, Workload
from autotune.store import MemoryStore
from autotune.trainers import Limit, trainer, trainer_names
from autotune.trainers.command.trainer import CommandTrainer

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


POST_TRAINING = {
    "workload": {"seq_len": 4096},
    "rl": {
        "algorithm": "grpo",
        "prompts": 16,
        "responses": 2,
        "prompt_lengths": 512,
        "response_lengths": 1024,
    },
    "rollout": {"tokens_per_s_per_gpu": 2400},
}


def study(**changes: Any) -> Study:
    return api.load_study({**SPEC, **changes})


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in trainer_names() if name != "command"])
def test_a_space_holds_exactly_what_its_trainer_can_launch(name: str) -> None:
    asked = study(trainer=name, **(POST_TRAINING if name in POST_TRAINERS else {}))
    everything = SearchSpace.build(asked.workload, asked.space)
    space = SearchSpace.of_study(asked)
    of, options = trainer(name), asked.trainer_options
    expected = [config for config in everything if not of.limits(asked.workload, config, options)]
    assert list(space) == expected
    cut = {
        reason: count for reason, count in space.excluded.items() if reason.startswith(f"{name}_")
    }
    assert sum(cut.values()) == len(everything) - len(space)
    assert default_config(space) in expected
    refused = next((config for config in everything if config not in space), None)
    if refused is not None:
        assert f"{name} cannot express" in (space.why_not(refused) or "")


@pytest.mark.parametrize("name", trainer_names())
def test_limits_depend_on_what_a_trainer_says_they_depend_on(name: str) -> None:
    asked = study(
        trainer=name if name != "command" else {"kind": "command", "argv": ["x", "{tp}", "{dp}"]}
    )
    of, options = trainer(name), asked.trainer_options
    table = SearchSpace.build(asked.workload, asked.space).table
    seen: dict[tuple[int, ...], set[str]] = {}
    columns = [table.column(knob) for knob in sorted(of.limited_by)]
    for index in range(len(table)):
        knobs = {limit.knob for limit in of.limits(asked.workload, table[index], options)}
        first = seen.setdefault(tuple(int(column[index]) for column in columns), knobs)
        assert knobs == first, f"{name}: {table[index]}"


class Asked(CommandTrainer):
    """The `command` trainer, which counts how often it is asked for its limits."""

    def __init__(self) -> None:
        self.questions = 0

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        self.questions += 1
        return super().find_limits(workload, config, options)


class Unlimited(Asked):
    """A trainer whose limits depend on no knob."""

    limited_by = frozenset()


def test_values_of_own_knobs_multiply_the_configs_but_not_the_questions_to_the_trainer() -> None:
    knobs = {f"k{index}": [0, 1] for index in range(10)}
    argv = [
        "x",
        "{tp}",
        "{dp}",
        "{accumulation_steps}",
        "{precision}",
        *(f"{{{name}}}" for name in knobs),
    ]
    given = study(
        trainer={"kind": "command", "argv": argv},
        knobs=knobs,
        space={"tp": [1, 2], "micro_batch_size": [1, 2]},
    )
    everything = SearchSpace.build(given.workload, given.space).table
    can, cut = Launchable(trainer=(asked := Asked()), options=given.trainer_options).cut(
        given.workload, everything
    )
    assert asked.questions == len(everything) / 2**10
    assert cut == {"command_micro_batch_size": len(everything) // 2}
    assert [config.micro_batch_size for config in everything.take(can)] == [1] * (
        len(everything) // 2
    )
    can, cut = Launchable(trainer=(asked := Unlimited()), options=given.trainer_options).cut(
        given.workload, everything
    )
    assert asked.questions == 1


def test_a_plan_counts_what_the_trainer_cannot_do_and_never_proposes_it() -> None:
    asked = study(trainer="deepspeed")
    found = api.plan_of(asked, top=None)
    assert found.infeasible["deepspeed_pp"] > 0
    assert found.infeasible["deepspeed_cp"] > 0
    assert all(row.config.pp == row.config.cp == 1 for row in found.rows)


@pytest.mark.thorough
def test_a_search_asks_for_nothing_that_the_trainer_refuses() -> None:
    result = api.tune(
        study(trainer="deepspeed", searcher="random", budget={"max_trials": 12, "min_gain": 0}),
        store=MemoryStore(),
    )
    assert len(result.trials) > 12
    assert not [
        trial
        for trial in result.trials
        if trial.status == "INFEASIBLE" and "cannot express" in trial.reason
    ]


def test_a_space_of_which_nothing_can_be_launched_says_why() -> None:
    with pytest.raises(
        InfeasibleError,
        match=r"deepspeed trainer cannot launch any of the .* valid configs .*deepspeed_cp .*Ulysses",
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
        (
            {"enqueue": ["tp=1", "cp=2"], "trainer": "deepspeed"},
            "enqueue.1",
            "deepspeed cannot express cp=2",
        ),
        ({"enqueue": ["tp=3"]}, "enqueue.0", "tp must divide"),
    ],
)
def test_a_baseline_and_guesses_obey_the_same_laws_at_load(
    change: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        study(**change)
    assert caught.value.field == field


def test_many_configs_need_few_questions() -> None:
    """The trainer is asked once for each combination of the knobs that its limits depend on."""
    asked = study(
        trainer="deepspeed", workload={"seq_len": 4096, "global_batch_size": [32, 64, 128, 256]}
    )
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


ONE_MESH: dict[str, Any] = {
    "tp": [2],
    "cp": [2],
    "micro_batch_size": [1, 2, 4],
    "precision": ["bf16"],
}


def command(*argv: str, **options: Any) -> dict[str, Any]:
    return {"kind": "command", "argv": ["train", *argv], **options}


def test_a_knob_with_one_value_in_the_space_needs_no_placeholder() -> None:
    asked = study(
        trainer=command("{micro_batch_size}", "{accumulation_steps}"),
        space=ONE_MESH,
        knobs={"bucket_mb": [25]},
    )
    assert asked.trainer_options["fixed"] == {"tp": 2, "cp": 2, "dp": 2, "bucket_mb": 25}
    space = SearchSpace.of_study(asked)
    assert len(space) == 3
    assert space.excluded.get("command_tp", 0) == 0
    launch = trainer("command").launch(asked.workload, space[0], asked.trainer_options)
    assert launch.argv[0] == "train"


def test_a_knob_that_differs_between_configs_needs_one() -> None:
    asked = study(trainer=command("{micro_batch_size}"), space={**ONE_MESH, "tp": [2, 4]})
    assert set(asked.trainer_options["fixed"]) == {"cp"}
    with pytest.raises(InfeasibleError, match=r"no placeholder \{tp\}"):
        SearchSpace.of_study(asked)
    with pytest.raises(SpecError, match=r"no placeholder \{bucket_mb\}"):
        study(trainer=command("{micro_batch_size}"), space=ONE_MESH, knobs={"bucket_mb": [25, 50]})


def test_a_baseline_outside_of_the_space_is_held_to_the_value_that_the_program_is_started_with() -> (
    None
):
    with pytest.raises(SpecError, match=r"tp=1: .*started with tp=2") as caught:
        study(
            trainer=command("{micro_batch_size}", "{accumulation_steps}", "{cp}", "{dp}"),
            space=ONE_MESH,
            baseline="tp=1",
        )
    assert caught.value.field == "baseline"


def test_a_study_whose_placeholders_carry_everything_stays_as_it_is_written() -> None:
    asked = study(
        trainer=command("{micro_batch_size}", "{tp}", "{cp}", "{world_size}"), space=ONE_MESH
    )
    assert asked.trainer_options == {
        "argv": ["train", "{micro_batch_size}", "{tp}", "{cp}", "{world_size}"]
    }


@pytest.mark.parametrize(
    ("fixed", "law"), [({"tpp": 2}, "there is no knob 'tpp'"), ({"tp": 4}, "started with tp=4")]
)
def test_a_spec_may_say_what_the_program_is_started_with(fixed: dict[str, Any], law: str) -> None:
    argv = ("{micro_batch_size}", "{accumulation_steps}", "{cp}", "{dp}")
    assert study(
        trainer=command(*argv, fixed={"tp": 2}), space={"cp": [1, 2]}, baseline="tp=2,cp=2"
    ).baseline
    with pytest.raises(SpecError, match=law):
        study(trainer=command(*argv, fixed=fixed), space={"cp": [1, 2]}, baseline="tp=2,cp=2")


@pytest.mark.parametrize("world_sizes", [None, [8], [4, 8]])
def test_what_counts_as_fixed_has_one_value_in_all_configs(world_sizes: list[int] | None) -> None:
    spaces = [
        {},
        {"tp": [2]},
        {"tp": [1, 2]},
        {"pp": [2], "micro_batch_size": [1, 2]},
        {"micro_batch_size": [2]},
    ]
    for knobs in spaces:
        asked = study(space={**knobs, **({"world_sizes": world_sizes} if world_sizes else {})})
        for config in SearchSpace.build(asked.workload, asked.space):
            fixed = fixed_knobs(asked.workload, asked.space)
            assert {name: getattr(config, name) for name in fixed} == fixed
