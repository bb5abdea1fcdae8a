"""A study with a target: proxies on the cluster at hand, and the target's ranking. Simulated, so
that it takes a second or two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune import api
from autotune.errors import CallbackError, InfeasibleError, NotFoundError, SpecError
from autotune.ports import Store
from autotune.report.comparison import result_facts
from autotune.report.page import html_report
from autotune.report.target_text import CONSTANT_TEXTS, target_rows, target_sentences
from autotune.results.rankings import explained
from autotune.results.result import Result
from autotune.search.history import informed
from autotune.search.target_searcher import TargetSearcher
from autotune.space import SearchSpace, why_not
from autotune.spec import (
    Failure,
    FailureKind,
    ParallelConfig,
    StandsFor,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
    config_label,
)
from autotune.store import MemoryStore
from autotune.study.assembly import assemble, history_of
from autotune.study.target_findings import TargetFindings
from tests.shortcuts import present
from tests.small_studies import spec
from tests.study.test_running import interrupt_after


def target_spec(**changes: Any) -> dict[str, Any]:
    """One node at hand, four meant."""
    asked: dict[str, Any] = {
        "name": "few for many",
        "target": {"cluster": "h100-sxm-4x8", "global_batch_size": 256},
        "space": {
            "tp": [1, 2],
            "pp": [1, 2],
            "micro_batch_size": [4, 8],
            "zero_stage": [0, 1, 3],
            "precision": ["bf16"],
        },
        "budget": {"max_trials": 6, "min_gain": 0.001},
        "searcher": "bayesian",
    }
    return spec(**{**asked, **changes})


@pytest.fixture(scope="module")
def kept() -> Iterator[Store]:
    with closing(MemoryStore()) as memory:
        yield memory


@pytest.fixture(scope="module")
def ended(kept: Store) -> Result:
    return api.tune(target_spec(), store=kept)


def test_every_trial_is_a_proxy_of_its_own_workload_that_stands_for_a_config_of_the_target(
    ended: Result,
) -> None:
    study = ended.record.study
    assert study.at_hand is not None
    assert len(ended.trials) > 2
    for trial in ended.trials:
        assert trial.purpose is TrialPurpose.PROXY
        assert trial.stands_for is not None
        assert trial.config.world_size <= study.at_hand.num_gpus
        assert trial.stands_for.workload.cluster == study.at_hand
        assert trial.stands_for.workload.global_batch_size == trial.config.global_batch_size
        assert why_not(trial.stands_for.workload, trial.config) is None
        assert why_not(study.workload, trial.stands_for.config) is None
        assert present(trial.measurement).num_ranks == trial.config.world_size


def test_no_proxy_runs_twice_whatever_configs_share_it(ended: Result) -> None:
    ran = [(str(t.config), str(t.stands_for and t.stands_for.workload)) for t in ended.trials]
    assert len(set(ran)) == len(ran)


def test_a_proxy_is_never_rewarded_ranked_or_the_best(ended: Result, kept: Store) -> None:
    assert ended.record.status is StudyStatus.COMPLETED
    assert ended.best is None
    assert ended.baseline is None
    assert all(trial.reward is None for trial in ended.trials)
    assert api.past_studies(kept, runner="simulated") == []


def test_the_result_holds_the_targets_ranking_with_intervals(ended: Result) -> None:
    target = ended.record.result["target"]
    assert (target["cluster"], target["at_hand"], target["times"]) == (
        "h100-sxm-4x8",
        "h100-sxm-1x8",
        4.0,
    )
    assert target["proxies"] == len(ended.trials)
    rows = target["configs"]
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert row["step_time_low_s"] < row["step_time_s"] < row["step_time_high_s"]
        assert row["config"]["dp"] * row["config"]["tp"] * row["config"]["pp"] == 32
    assert any(row["proxies"] for row in rows[:2]), (
        "the proxy of the first pick ran, or that of its equal"
    )
    assert "inter_efficiency" in rows[0]["blind"], "one node tells nothing of the network"


def test_the_export_launches_the_first_pick_on_the_target(ended: Result, kept: Store) -> None:
    first = ended.record.result["target"]["configs"][0]["config"]
    launch = api.export_document(kept, ended.record.id, "native", {})
    assert launch["config"] == first
    assert "--nnodes=4" in launch["argv"]
    assert "was not run on h100-sxm-4x8" in launch["notes"][0]
    of_trial = api.export_document(kept, ended.record.id, "native", {}, trial=0)
    assert of_trial["config"] == present(ended.trials[0].stands_for).config.to_dict()


@pytest.mark.parametrize("other", [{"pareto": True}, {"metric": "cost"}, {"stability_weight": 0.9}])
def test_proxies_have_no_other_order(ended: Result, other: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="a study with a target has one ranking, by throughput"):
        api.ranking_document(ended, **other)


def test_people_read_what_is_known_and_what_is_not(ended: Result) -> None:
    document = api.document(ended)
    assert document["study"]["at_hand"] == "h100-sxm-1x8"
    said = target_sentences(document["target"])
    assert said[0].startswith(
        "the configs for target h100-sxm-4x8 (32 GPUs, 4 times as many as h100-sxm-1x8)"
    )
    assert any(
        sentence.startswith("proxies cannot show: the network between nodes") for sentence in said
    )
    assert document["target"]["statement"]["confidence"] == 0.9
    assert 0.0 < document["target"]["statement"]["within"] < 0.5
    assert any("of the best one with 90% confidence" in sentence for sentence in said)
    assert len(target_rows(document["target"])) == len(document["target"]["configs"])
    page = html_report(ended.record, ended.trials)
    assert "Target h100-sxm-4x8" in page
    assert "No trial was measured" not in page
    for row in document["target"]["configs"]:
        assert set(row["blind"] or ()) <= set(CONSTANT_TEXTS)


def test_a_study_of_proxies_is_compared_by_what_it_says_of_its_target(ended: Result) -> None:
    told = result_facts(ended)
    assert (told["cluster"], told["proxies on"], told["best config"]) == (
        "h100-sxm-4x8",
        "h100-sxm-1x8",
        "-",
    )
    first = ended.record.result["target"]["configs"][0]["config"]
    assert told["first config of the target"] == config_label(ParallelConfig.from_dict(first))


def test_a_proxy_is_explained_as_one_and_a_study_of_proxies_has_no_winner_to_explain(
    ended: Result,
) -> None:
    assert explained(ended, 0)["text"][0].startswith("this trial is a proxy")
    with pytest.raises(NotFoundError, match="proxies are not ranked"):
        explained(ended)


def test_the_plan_shows_which_proxies_would_run_each_once() -> None:
    rows = api.few_for_many_of(api.load_study(target_spec()), top=8)["proxies"]
    ran = [row["proxy"] for row in rows if row["proxy"] and row["shared_with"] is None]
    assert ran
    assert len({str(proxy) for proxy in ran}) == len(ran)
    assert all(proxy["cluster"] == "h100-sxm-1x8" for proxy in ran)
    assert api.few_for_many_of(api.load_study(spec())) == {"proxies": [], "target": {}}


def test_proxies_ask_by_turns_for_what_may_win_and_for_what_tells_most() -> None:
    searcher = assemble(api.load_study(target_spec())).searcher()
    assert isinstance(searcher, TargetSearcher)
    first, reason = searcher.propose() or (0, "")
    gains = searcher.standing.improvement
    assert gains[first] == max(gain for i, gain in enumerate(gains) if searcher.is_open(i))
    assert reason.startswith(
        f"stands for the config ranked {list(searcher.standing.order).index(first) + 1} on the target"
    )
    searcher.ask(1)
    second, reason = searcher.propose() or (0, "")
    assert reason.startswith("most informative about which config is best")
    assert searcher.is_open(second)


def test_beyond_32_times_nothing_is_stated(store: Store) -> None:
    asked = target_spec(
        target={"cluster": "h100-sxm-64x8", "global_batch_size": 4096}, budget={"max_trials": 1}
    )
    target = api.tune(asked, store=store).record.result["target"]
    assert target["statement"] is None
    assert "64 times as many GPUs as you have" in target["no_statement"]


def test_configs_without_a_proxy_are_counted_with_their_reason() -> None:
    searcher = assemble(
        api.load_study(target_spec(cluster="h100-sxm-1x2", space={"tp": [1, 4]}))
    ).searcher()
    (refused,) = TargetFindings(searcher)()["target"]["without_proxy"]
    assert "tp=4" in refused


@pytest.mark.thorough
@pytest.mark.parametrize("count", [0, 1])
def test_after_ctrl_c_the_same_call_goes_on_and_ends_as_the_undisturbed_study(
    store: Store, ended: Result, count: int
) -> None:
    asked = target_spec(
        runner={"kind": "simulated", "noise": 0.0, "outlier_every": 0, "time_scale": 0.02}
    )
    paused = api.tune(asked, store=store, on_event=interrupt_after(count))
    assert paused.record.status is StudyStatus.PAUSED
    resumed = api.tune(asked, store=store)
    assert resumed.record.id == paused.record.id
    again = [t.config for t in resumed.trials if t.status is not TrialStatus.CANCELLED]
    assert again == [t.config for t in ended.trials]
    one, other = (r.record.result["target"]["configs"] for r in (resumed, ended))
    assert [row["config"] for row in one] == [row["config"] for row in other]
    assert [row["step_time_s"] for row in one] == pytest.approx(
        [row["step_time_s"] for row in other]
    )


def test_who_stops_a_paused_study_with_measured_proxies_has_completed_it(store: Store) -> None:
    def fail(trial: Trial) -> None:
        raise KeyError(trial.number)

    with pytest.raises(CallbackError):
        api.tune(target_spec(), store=store, on_trial=fail)
    (paused,) = store.studies()
    assert paused.status is StudyStatus.PAUSED
    assert any(trial.is_measured for trial in store.trials(paused.id))
    assert api.act(store, paused.id, "stop").status is StudyStatus.COMPLETED


def test_the_next_rung_of_the_ladder_learns_from_the_proxies_before_it(
    kept: Store, ended: Result
) -> None:
    two_nodes = api.load_study(target_spec(cluster="h100-sxm-2x8"))
    record = kept.submit(two_nodes, {})
    history = history_of(two_nodes, kept, before=record.created_at)
    assert [(w, t.config) for w, t in history] == [
        (t.stands_for and t.stands_for.workload, t.config) for t in ended.trials
    ]
    on_the_target = api.load_study(target_spec(cluster="h100-sxm-4x8"))
    assert on_the_target.at_hand is None
    assert len(history_of(on_the_target, kept, before=record.created_at)) == len(ended.trials)


def test_a_target_of_which_nothing_has_a_proxy_here_is_refused_before_anything_starts() -> None:
    asked = target_spec(
        cluster="h100-sxm-1x1", space={"tp": [2], "precision": ["bf16"], "micro_batch_size": [1]}
    )
    with pytest.raises(InfeasibleError, match="has a proxy on h100-sxm-1x1"):
        assemble(api.load_study(asked))


def test_the_plan_says_how_far_the_first_config_may_be_behind_before_any_proxy_ran() -> None:
    found = api.few_for_many_of(api.load_study(target_spec()))["target"]
    assert found["proxies"] == 0
    assert found["statement"]["confidence"] == 0.9


def test_a_default_config_that_nothing_would_be_compared_with_is_refused() -> None:
    default = {"dp": 32, "micro_batch_size": 8, "precision": "bf16"}
    with pytest.raises(SpecError, match="never compared with a baseline") as refused:
        api.load_study(target_spec(baseline=default))
    assert refused.value.field == "baseline"


def test_a_study_on_the_target_begins_with_the_times_that_its_proxies_lead_to(
    kept: Store, ended: Result
) -> None:
    on_the_target = api.load_study(target_spec(cluster="h100-sxm-4x8"))
    record = kept.submit(on_the_target, {})
    assembly = assemble(on_the_target)
    problem = replace(
        assembly.searcher().problem,
        history=tuple(history_of(on_the_target, kept, before=record.created_at)),
    )
    found = informed(problem)
    assert found.times_are_learnt
    ranked = {
        ParallelConfig.from_dict(row["config"]): row["step_time_s"]
        for row in ended.record.result["target"]["configs"]
    }
    times = dict(zip(problem.space, np.asarray(found.predict().step_time_s).tolist(), strict=True))
    assert [times[config] for config in ranked] == pytest.approx(list(ranked.values()), rel=1e-6)


def test_a_searcher_that_would_not_choose_the_proxies_is_refused() -> None:
    with pytest.raises(SpecError, match="chooses its proxies") as refused:
        api.load_study(target_spec(searcher="grid"))
    assert refused.value.field == "searcher"
    assert api.load_study(target_spec(searcher="grid", cluster="h100-sxm-4x8")).searcher == "grid"


def test_the_study_of_the_machine_at_hand_is_one_proxy() -> None:
    found = assemble(api.load_study(target_spec())).runs_here
    assert found.study.at_hand is None
    assert found.study.workload.cluster.name == "h100-sxm-1x8"
    assert list(SearchSpace.of(found.study.workload, found.space.table)) == [found.baseline]


def test_proxies_stand_for_what_may_win_with_stalls_counted_and_failed_ones_are_named() -> None:
    pipelines = {"tp": [2], "pp": [1, 4], "micro_batch_size": [1, 4], "zero_stage": [1, 3], "recompute": ["none", "full"],
                 "precision": ["bf16"], "pp_schedule": ["1f1b", "interleaved_1f1b"], "virtual_stages": [1, 4]}  # fmt: skip
    far = {"cluster": "a100-80gb-16x8", "global_batch_size": 512}
    asked = target_spec(model="gpt-neox-20b", cluster="a100-80gb-1x8", target=far, space=pipelines)
    searcher = assemble(api.load_study(asked)).searcher()
    assert isinstance(searcher, TargetSearcher)
    standing = searcher.standing
    faster = standing.log_tokens_per_s > standing.log_tokens_per_s[standing.order[0]]
    stalls = standing.stall_probability * np.log(standing.stalled_factor) > 0.4
    assert (faster & stalls).any(), (
        "a pipeline over nodes that is faster than the first config as long as nothing stalls"
    )
    assert standing.improvement[stalls].max() < 0.02, "which no proxy could find out"
    (config,) = searcher.ask(1)
    proxy = searcher.proxy_for(config)
    index = present(searcher.space.index_of(config))
    assert not stalls[index]
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="out of memory")
    searcher.tell([Trial(number=7, config=proxy.config, status=TrialStatus.FAILED, failure=failure,
                         stands_for=StandsFor(config=config, workload=proxy.workload))])  # fmt: skip
    assert searcher.trials_of(index) == [7]
