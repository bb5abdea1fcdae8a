from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import api, registry
from autotune.cli.study_text import print_study
from autotune.errors import CatalogError, NotFoundError, SpecError
from autotune.ports import Store
from autotune.report.notes import note_of, ranked_note
from autotune.report.page import html_report
from autotune.results.answers import launch_document, result_from
from autotune.results.best_known import best_known
from autotune.results.question import Question
from autotune.results.rankings import explained
from autotune.results.result import Result
from autotune.reward import tokens_per_s
from autotune.reward.explanation import SIMULATED_LOSSES
from autotune.space import SearchSpace
from autotune.spec import (
    Failure,
    FailureKind,
    Objective,
    Reward,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
)
from autotune.spec.texts.as_text import format_duration
from autotune.store import MemoryStore
from autotune.testing.stores import measured, pending, run_trial, running_study
from tests.small_studies import spec

STEP_BY_STEP = (
    "the losses were compared step by step with those of an fp32 reference on the same data"
)


@pytest.fixture(scope="module")
def finished() -> Iterator[tuple[Store, str]]:
    store = MemoryStore()
    yield store, api.tune(spec(), store=store).record.id
    store.close()


@pytest.fixture(scope="module")
def result(finished: tuple[Store, str]) -> Result:
    return api.result_of(*finished)


def test_the_document_has_the_keys_of_the_contract(finished: tuple[Store, str]) -> None:
    store, study_id = finished
    document = api.document(api.result_of(store, study_id), top=3)
    json.dumps(document, allow_nan=False)
    assert {"study", "best", "baseline", "speedup", "configs"} <= set(document)
    assert {"id", "name", "status", "trials"} <= set(document["study"])
    assert document["study"]["trials"]["COMPLETED"] >= 1
    for key in ("best", "baseline"):
        assert {"config", "measurement", "reward", "estimate"} <= set(document[key])
    assert [c["rank"] for c in document["configs"]] == [1, 2, 3]
    assert document["configs"][0]["config"] == document["best"]["config"]
    speeds = [document[key]["measurement"]["tokens_per_s"] for key in ("best", "baseline")]
    assert document["speedup"] == pytest.approx(speeds[0] / speeds[1])


def test_a_study_without_trials_has_a_document(finished: tuple[Store, str]) -> None:
    store, _ = finished
    record = api.submit_study(store, api.load_study(spec(name="waiting")))
    document = api.document(api.result_of(store, record.id), top=3)
    assert (document["best"], document["baseline"], document["speedup"], document["configs"]) == (
        None,
        None,
        None,
        [],
    )
    with pytest.raises(NotFoundError, match="no measured trial yet"):
        api.explain(store, record.id)


@pytest.mark.parametrize(
    ("runner", "remedy"),
    [
        ("local", "`autotune tune SPEC` or `autotune serve` on this store"),
        ("python:mine.Runner", "the Python call that started the study continues it"),
    ],
)
def test_the_message_of_an_interrupted_study_says_what_continues_it(
    finished: tuple[Store, str], runner: str, remedy: str
) -> None:
    found = api.result_of(*finished)
    record = replace(found.record, study=replace(found.record.study, runner=runner))
    study = api.document(replace(found, record=record, is_left=True))["study"]
    assert study["interrupted"]
    assert remedy in study["message"]
    assert not api.document(found)["study"]["interrupted"]


def test_a_study_whose_controller_died_is_listed_as_interrupted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStore()
    lease = running_study(store)
    record = store.study(lease.study)
    (held,) = api.studies_document(store)["studies"]
    assert (held["status"], held["interrupted"]) == ("RUNNING", False)
    store.release(lease)
    (left,) = api.studies_document(store)["studies"]
    assert (left["status"], left["interrupted"]) == ("RUNNING", True)
    print_study(api.document(api.result_of(store, record.id)), [])
    said = (
        f"{record.id} ({record.study.name}): interrupted: no controller is running; run `autotune"
    )
    printed = capsys.readouterr().out
    assert said in printed
    assert "its /api/v1/health says why the study does not continue" in printed


def test_every_trial_can_be_explained(finished: tuple[Store, str], result: Result) -> None:
    store, study_id = finished
    assert set(api.explain(store, study_id)["against"]) == {"baseline", "runner-up"}
    for trial in result.trials:
        answer = api.explain(store, study_id, trial.number)
        assert answer["notes"] == (list(result.notes) if trial.config == result.best.config else [])
        json.dumps(answer, allow_nan=False)
        assert answer["text"]
    with pytest.raises(NotFoundError, match="no trial 99"):
        api.explain(store, study_id, 99)


def test_an_explanation_of_a_stopped_trial_names_the_winner_and_the_reason(
    result: Result,
) -> None:
    assert result.best is not None
    loser = next(t for t in result.measured if t.config != result.best.config)
    stopped = replace(loser, status=TrialStatus.STOPPED, reason="cannot win: too slow")
    shown = tuple(stopped if t.number == loser.number else t for t in result.shown)
    text = explained(replace(result, shown=shown), loser.number)["text"]
    assert text[0] == f"trial {loser.number} was stopped early: cannot win: too slow"
    own, best = (format_duration(t.measurement.step_time_s) for t in (loser, result.best))
    assert f"trial {loser.number}'s median step takes {own}, and the winner's takes {best}" in text
    assert not any("was stopped early" in line for line in explained(result, loser.number)["text"])
    assert not any("the winner's takes" in line for line in explained(result)["text"])


@pytest.mark.parametrize(
    ("runner", "trainer", "notes"),
    [
        ("simulated", "native", ["the speed was simulated, and may differ in a real run"]),
        ("local", "native", []),
        (
            "local",
            "megatron",
            ["the speed was measured with native, and may differ with megatron"],
        ),
    ],
)
def test_an_export_notes_that_another_trainer_was_measured(
    result: Result, runner: str, trainer: str, notes: list[str]
) -> None:
    record = replace(result.record, study=replace(result.record.study, runner=runner))
    found = api.launch_document(replace(result, record=record), trainer, {})
    assert [note for note in found["notes"] if note.startswith("the speed ")] == notes


def test_losses_of_a_simulated_study_are_not_explained(result: Result) -> None:
    for runner, expected in {"simulated": [SIMULATED_LOSSES], "local": [STEP_BY_STEP]}.items():
        record = replace(result.record, study=replace(result.record.study, runner=runner))
        text = explained(replace(result, record=record))["text"]
        assert [line for line in text if line.startswith("the losses ")] == expected


def test_reranking_does_not_change_the_store(finished: tuple[Store, str]) -> None:
    store, study_id = finished
    before = store.trials(study_id)
    ranked = api.rerank(store, study_id, Objective(metric="cost", stability_weight=0.0))
    totals = [t.reward.total for t in ranked if t.reward is not None]
    assert totals == sorted(totals, reverse=True)
    assert store.trials(study_id) == before


def test_other_rankings_use_the_final_rounds(finished: tuple[Store, str], result: Result) -> None:
    store, study_id = finished
    pooled = {t.number: t.measurement for t in result.confirmed}
    assert pooled
    ranked = api.rerank(store, study_id, Objective(metric="cost"))
    for trials in (ranked, api.pareto(result)):
        again = [t for t in trials if t.number in pooled]
        assert again
        assert all(t.measurement == pooled[t.number] for t in again)


def test_the_best_trials_are_sorted_by_reward(finished: tuple[Store, str]) -> None:
    store, study_id = finished
    found = api.best_document(store, study_id, top=99)
    totals = [row["reward"]["total"] for row in found["configs"]]
    assert found["configs"][0]["config"] == found["best"]["config"]
    assert totals == sorted(totals, reverse=True)  # the baseline is no better for its finals


def test_a_program_changed_during_the_study_is_the_first_note(result: Result) -> None:
    edited = max(t.number for t in result.trials if t.measurement)

    def dated(trial: Trial, script: str) -> Trial:
        own = {"torch": "2.12", **({"triton": "3.5"} if trial.number else {}), "script": script}
        return replace(trial, measurement=replace(trial.measurement, versions=own))  # type: ignore[type-var]

    measured = [t for t in result.trials if t.measurement]
    same = result_from(result.record, [dated(t, "1a2b") for t in measured])
    assert not any("the same conditions" in note for note in same.notes)
    mixed = [dated(t, "3c4d" if t.number == edited else "1a2b") for t in measured]
    note = result_from(result.record, mixed).notes[0]
    assert f": script changed from 1a2b to 3c4d before trial {edited}. " in note


def test_modules_and_variables_changed_during_the_study_are_listed(result: Result) -> None:
    measured = [t for t in result.trials if t.measurement]
    *_, before, last = measured

    def ran(trial: Trial, module: str, variables: dict[str, str] | None) -> Trial:
        assert trial.measurement is not None
        files = {"model.py": module} if trial is not measured[0] else {}
        seen = replace(trial.measurement, files=files, environment=variables)
        return replace(trial, measurement=seen)

    old = {"NCCL_ALGO": "Ring"}
    same = [ran(t, "1a", old if t is not before else None) for t in measured]
    assert not any("the same conditions" in note for note in result_from(result.record, same).notes)
    mixed = [ran(t, "1a", old) for t in measured[:-1]] + [ran(last, "2b", {"OMP_NUM_THREADS": "4"})]
    note = result_from(result.record, mixed).notes[0]
    for change in (
        "model.py changed from 1a to 2b",
        "NCCL_ALGO changed from Ring to unset",
        "OMP_NUM_THREADS changed from unset to 4",
    ):
        assert f"{change} before trial {last.number}" in note


def test_remarks_on_measurements_are_notes_of_results_and_exports(
    result: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert result.best is not None
    assert result.baseline is not None
    chosen, grew = (
        (result.best.config, result.baseline.config),
        "sequences grew from 8 to 16 tokens",
    )

    def remarked(trial: Trial) -> Trial:
        if trial.measurement is None or trial.config not in chosen:
            return trial
        remarks, variables = (f"{grew}; fix the length",), {"OMP_NUM_THREADS": "4"}
        seen = replace(trial.measurement, remarks=remarks, environment=variables)
        return replace(trial, measurement=seen)

    trials = [remarked(t) for t in result.trials]
    found = result_from(result.record, trials)
    assert found.best is not None
    assert found.baseline is not None
    numbers = sorted({found.best.number, found.baseline.number})
    (note,) = (note for note in found.notes if grew in note)
    assert all(str(number) in note for number in numbers)
    assert note_of(found.best).startswith(f"{grew}; ")
    assert "fix the length" not in note_of(found.best)
    launch = launch_document(found, "native", {})
    assert f"{grew}; fix the length" in launch["notes"]
    assert launch["env"]["OMP_NUM_THREADS"] == "4"
    assert grew in html_report(result.record, trials)
    document = api.document(found, top=3)
    print_study(document, [t.to_dict() for t in found.shown])
    said = capsys.readouterr().out
    assert f"limits {grew}; fix the length" in " ".join(said.split())
    assert ranked_note(document["configs"][0]).endswith(grew)


def test_trials_are_ranked_by_version(result: Result) -> None:
    old = {t.number for t in result.shown if t.measurement and t.config != result.best.config}  # type: ignore[union-attr]

    def dated(trial: Trial) -> Trial:
        torch = "2.11.0" if trial.number in old else "2.12.1+cu130"
        known = replace(trial.measurement, versions={"torch": torch}) if trial.measurement else None
        return replace(trial, measurement=known)

    seen = replace(
        result,
        best=dated(result.best) if result.best else None,
        shown=tuple(map(dated, result.shown)),
        confirmed=tuple(map(dated, result.confirmed)),
    )
    new = api.ranking_document(seen, top=99, version=["torch=2.12"])
    assert [row["config"] for row in new["configs"]] == [result.best.config.to_dict()]  # type: ignore[union-attr]
    assert new["speedup"] == result.speedup
    before = api.ranking_document(seen, top=99, version=["torch=2.11"])
    assert [row["rank"] for row in before["configs"]] == list(range(1, len(before["configs"]) + 1))
    assert before["best"]["config"] == before["configs"][0]["config"] != new["best"]["config"]
    assert (before["speedup"], before["tied_with"]) == (None, []), (
        "no claim of a config that did not win"
    )
    assert (
        before["notes"][0]
        == f"only trials measured with torch=2.11 are ranked: {len(before['configs'])}"
    )
    none = api.ranking_document(seen, version=["torch=1"])
    assert (none["best"], none["configs"]) == (None, [])
    with pytest.raises(SpecError, match="own objective"):
        api.ranking_document(seen, version=["torch=2"], pareto=True)


def test_a_config_that_failed_in_the_finals_is_not_ranked(result: Result) -> None:
    gone = Failure(kind=FailureKind.DIVERGED, message="the loss exploded", rank=0, step=9)
    failed = replace(
        result.best,
        number=99,
        purpose=TrialPurpose.FINAL,
        status=TrialStatus.FAILED,
        measurement=None,
        failure=gone,
    )
    front = api.pareto(replace(result, shown=(*result.shown, failed)))
    assert result.best.config in {t.config for t in api.pareto(result)}
    assert result.best.config not in {t.config for t in front}
    listed = api.document(replace(result, shown=(*result.shown, failed), confirmed=()), top=99)[
        "configs"
    ]
    assert result.best.config.to_dict() not in [row["config"] for row in listed]


def test_the_best_across_all_history(finished: tuple[Store, str]) -> None:
    store, study_id = finished
    found = api.past_studies(store, model="gpt2-medium", runner="simulated", limit=2)
    assert len(found) == 2
    assert found[0]["study"]["id"] == study_id
    assert api.past_studies(store, model="llama-70b", runner="simulated") == []
    assert api.past_studies(store, model="gpt2-medium") == []


def test_the_history_and_the_study_have_the_same_winner(
    finished: tuple[Store, str], result: Result
) -> None:
    store, _ = finished
    assert result.best is not None
    of_model = api.past_studies(store, model="gpt2-medium", runner="simulated", limit=1)[0]["best"]
    of_each = api.past_studies(store, runner="simulated", limit=1)[0]["best"]
    for told in (of_model, of_each):
        assert told["config"] == result.best.config.to_dict()
        assert told["measurement"]["tokens_per_s"] == pytest.approx(
            result.best.measurement.tokens_per_s
        )


def test_a_finalist_has_its_speed_in_the_finals() -> None:
    """The fastest of many that were measured once was lucky."""
    store = MemoryStore()
    lease = running_study(store)
    lucky, second = measured(pending(0), step_time_s=0.1), measured(pending(1), step_time_s=0.2)
    for trial in (lucky, second):
        run_trial(store, lease, trial)
    speed = 0.9 * tokens_per_s(second)
    finals = [{"number": second.number, "config": second.config.to_dict(), "tokens_per_s": speed}]
    ending = {"finals": finals, "stop_reason": "the budget is spent"}
    store.set_status(
        lease.study, StudyStatus.COMPLETED, expect=[StudyStatus.RUNNING], lease=lease, result=ending
    )
    shown = [row["best"] for row in api.past_studies(store, model="tiny")]
    assert [row["number"] for row in shown] == [second.number, lucky.number]
    assert [row["measurement"]["tokens_per_s"] for row in shown] == pytest.approx(
        [speed, tokens_per_s(lucky)]
    )
    assert [row["best"] for row in api.past_studies(store)] == shown[:1]
    store.close()


def test_rewards_across_studies_match_the_shown_speeds() -> None:
    """The baseline's run in the search was slow, so rewards of the search are too high. Each is
    moved to the baseline's speed in the finals."""
    store = MemoryStore()
    lease = running_study(store)
    raw = {0: 0.9, 1: 0.2, 2: 0.3}
    ended = [measured(pending(number), step_time_s=step_s) for number, step_s in raw.items()]
    for trial in ended:
        ratio = raw[0] / raw[trial.number]
        parts = {"tokens_per_s_ratio": ratio}
        reward = Reward(
            total=0.8 * math.log(ratio) + 0.2,
            throughput=math.log(ratio),
            stability=1.0,
            parts=parts,
        )
        run_trial(store, lease, replace(trial, reward=reward))
    # trial 2 was not re-measured
    speeds = {
        0: 2.0 * tokens_per_s(ended[0]),
        1: 0.8 * tokens_per_s(ended[1]),
    }
    finals = [
        {"number": number, "config": ended[number].config.to_dict(), "tokens_per_s": speed}
        for number, speed in sorted(speeds.items(), reverse=True)
    ]
    store.set_status(
        lease.study,
        StudyStatus.COMPLETED,
        expect=[StudyStatus.RUNNING],
        lease=lease,
        baseline=0,
        result={"finals": finals},
    )
    cluster = store.study(lease.study).study.workload.cluster.name
    asked = Question(model="tiny", cluster=cluster, metric="throughput")
    for rows in (api.past_studies(store, model="tiny"), best_known(store, asked, top=9)["configs"]):
        for shown in (row["best"] for row in rows):
            speed = speeds.get(shown["number"], tokens_per_s(ended[2]))
            assert shown["measurement"]["tokens_per_s"] == pytest.approx(speed)
    totals = {
        row["best"]["number"]: row["best"]["reward"]["total"]
        for row in api.past_studies(store, model="tiny")
    }
    expected = {number: 0.2 + 0.8 * math.log(speed / speeds[0]) for number, speed in speeds.items()}
    assert totals == pytest.approx(
        expected | {2: 0.2 + 0.8 * math.log(tokens_per_s(ended[2]) / speeds[0])}
    )
    store.close()


def test_without_a_model_the_best_of_each_model_is_returned(finished: tuple[Store, str]) -> None:
    store, study_id = finished
    small = api.tune(spec(name="other", model="gpt2-small"), store=store).record.id
    found = api.past_studies(store, runner="simulated")
    assert [row["study"]["id"] for row in found] == [small, study_id]
    assert (
        found[1]["best"]
        == api.past_studies(store, model="gpt2-medium", runner="simulated", limit=1)[0]["best"]
    )


def test_overrides_change_nested_values(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text(json.dumps(spec()))
    study = api.load_study(
        path, overrides={"budget.max_trials": 3, "searcher": "random", "measure.max_steps": 9}
    )
    assert (study.budget.max_trials, study.searcher, study.measure.max_steps) == (3, "random", 9)
    with pytest.raises(SpecError, match="needs a mapping"):
        api.load_study(path, overrides={"searcher.seed": 1})


def test_a_plan_needs_no_store() -> None:
    assert api.plan_of(api.load_study(spec()), top=2) is not None


def test_a_calibration_is_stored_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.detect import local_cluster
    from autotune.study.assembly import assemble

    here, store = local_cluster(), MemoryStore()

    def measure(progress: Callable[[str, float], None] | None = None) -> dict[str, Any]:
        progress("matmul", 0.5)
        return {"memory_bytes_per_s": here.gpu.memory_bytes_per_s / 2}

    monkeypatch.setattr(registry, "calibrator", lambda name: measure)
    said: list[str] = []
    assert api.calibrate(
        "local", store=store, on_progress=said.append
    ).memory_efficiency == pytest.approx(0.5)
    assert said == [" 50% matmul"]
    local = spec(
        model="nano-gpt", cluster="local", workload={"seq_len": 64, "global_batch_size": 16}
    )
    study = api.load_study(local | {"space": {"tp": [1], "micro_batch_size": [1]}})
    assert assemble(study, store).calibration.memory_efficiency == pytest.approx(0.5)
    store.close()
    with pytest.raises(SpecError, match="a machine can only measure its own cluster"):
        api.calibrate("h100-sxm-1x8")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "target"),
    [
        ({}, {"trainer": "native", "options": {}}),
        ({"trainer": "megatron"}, {"trainer": "megatron", "options": {}}),
        (
            {"trainer": "megatron", "cluster": "h100-sxm-2x8"},
            {"trainer": "megatron", "options": {}},
        ),
        (
            {"trainer": "torchtitan", "model": "llama-1b"},
            {"trainer": "torchtitan", "options": {"hf_assets_path": "HF_ASSETS_PATH"}},
        ),
        (
            {"trainer": {"kind": "torchtitan", "hf_assets_path": "/a"}, "model": "llama-1b"},
            {"trainer": "torchtitan", "options": {}},
        ),
    ],
)
def test_the_suggested_export_has_the_options_that_the_studys_trainer_needs(
    change: dict[str, Any], target: Any
) -> None:
    store = MemoryStore()
    space = {"micro_batch_size": [1, 2], "zero_stage": [0, 1, 3], "precision": ["bf16"]}
    result = api.tune(spec(**{"space": space, **change}), store=store)
    assert api.document(result)["next_export"] == target
    api.export_document(store, result.record.id, target["trainer"], target["options"])
    store.close()


def test_an_export_has_its_provenance_and_its_command(
    finished: tuple[Store, str], result: Result
) -> None:
    store, study_id = finished
    plain = api.export_document(store, study_id, "native", {})
    assert plain["job"]["scheduler"] == "shell"
    assert plain["job"]["files"] == {}
    job = api.export_document(
        store, study_id, "native", {"steps": 3, "partition": "gpu"}, on="slurm"
    )
    assert "#SBATCH --partition=gpu" in job["job"]["files"]["job.sbatch"]
    assert job["files"].keys() == plain["files"].keys()
    tuned = job["tuned"]
    assert tuned["study"]["id"] == study_id
    assert tuned["tokens_per_s"] == result.best.measurement.tokens_per_s
    assert tuned["speedup"] == result.speedup
    assert tuned["trials"]["measured"] == len({t.config for t in result.measured})
    json.dumps(job, allow_nan=False)
    with pytest.raises(SpecError, match="partition"):
        api.export_document(store, study_id, "native", {"partition": "gpu"}, on="ray")
    with pytest.raises(CatalogError, match="did you mean slurm"):
        api.export_document(store, study_id, "native", {}, on="slum")


def test_infeasible_configs_are_counted_by_reason_and_not_listed(
    finished: tuple[Store, str],
) -> None:
    store, _ = finished
    asked = spec(
        name="cut", space={"tp": [1, 3, 8], "micro_batch_size": [1, 7]}, budget={"max_trials": 1}
    )
    found = api.tune(asked, store=store)
    assert found.infeasible == dict(SearchSpace.of_study(api.load_study(asked)).excluded)
    assert sum(found.infeasible.values()) > 0
    assert api.document(found)["infeasible"] == found.infeasible
    assert not [t for t in found.trials if t.status is TrialStatus.INFEASIBLE]


def test_infeasible_trials_of_an_older_store_become_counts(result: Result) -> None:
    reason = "it needs 16 ranks, but the runner has 8"
    old = [
        replace(
            result.trials[1],
            number=90 + i,
            status=TrialStatus.INFEASIBLE,
            measurement=None,
            reason=reason,
        )
        for i in range(3)
    ]
    record = replace(
        result.record, result={k: v for k, v in result.record.result.items() if k != "infeasible"}
    )
    found = api.result_from(record, [*result.trials, *old])
    assert found.infeasible == {reason: 3}
    assert {t.number for t in found.shown} == {t.number for t in result.shown}
    page = html_report(record, [*result.trials, *old])
    assert f"3 combinations skipped: {reason} (3)" in page
    assert "#90" not in page


def test_lists_and_documents_have_the_same_speedup_of_a_study_of_an_earlier_release(
    finished: tuple[Store, str],
) -> None:
    """Its record has the speedup of the rules of that day; lists showed it, and `best` another
    one."""
    store, study_id = finished
    record = store.study(study_id)
    assert api.with_current_verdict(store, record) == record
    earlier = replace(
        record,
        speedup=7.34,
        result={key: value for key, value in record.result.items() if key != "too_noisy"},
    )
    judged = api.with_current_verdict(store, earlier)
    today = api.result_of(store, study_id).speedup
    assert judged.speedup == today != 7.34
    assert "too_noisy" in judged.result
    answer = api.document(api.result_from(earlier, store.trials(study_id)))
    assert answer["study"]["speedup"] == answer["speedup"] == today
