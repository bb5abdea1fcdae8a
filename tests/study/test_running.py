from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.errors import ConflictError, InfeasibleError, RunnerError, SpecError
from autotune.ports import Store
from autotune.spec import StudyStatus, TrialPurpose, TrialStatus, Wanted
from autotune.spec.texts.as_text import format_duration
from autotune.store import MemoryStore
from autotune.study.lease import StudyLease
from autotune.study.progress import LoopEvent, TrialEnded, TrialStarted
from tests.matrix import sampled
from tests.shortcuts import present
from tests.small_studies import QUIET, configs, spec
from tests.study.hearing import notices, when_ended


def interrupt_after(ended: int) -> Any:
    """An `on_event` that presses Ctrl-C when so many trials have ended and another has begun."""
    seen: list[LoopEvent] = []

    def hear(event: LoopEvent) -> None:
        seen.append(event)
        done = sum(isinstance(e, TrialEnded) for e in seen)
        if isinstance(event, TrialStarted) and done == ended:
            signal.raise_signal(signal.SIGINT)

    return hear


def test_a_study_ends_with_a_winner_that_was_measured_again(store: Store) -> None:
    result = api.tune(spec(), store=store)
    assert result.record.status is StudyStatus.COMPLETED
    assert result.best is not None
    assert (
        str(present(result.baseline).config)
        == "tp=1,pp=1,dp=8,micro_batch_size=1,accumulation_steps=8,precision=fp32"
    )
    assert result.speedup is not None
    assert result.speedup > 1.0
    assert result.record.result["final_rounds"] == 2
    # one config beside the baseline ran to its end; the others were stopped as losers
    assert len(result.trials) == 1 + 6 + 4
    assert store.studies()[0].trial_counts[str(TrialStatus.COMPLETED)] == 1 + 1 + 4


@pytest.mark.parametrize("ended", sampled([0, 1, 4, 8], [4]))
def test_after_ctrl_c_the_same_call_goes_on_and_ends_as_the_undisturbed_run(
    store: Store, ended: int
) -> None:
    runner = QUIET | {"time_scale": 0.001}
    paused = api.tune(spec(runner=runner), store=store, on_event=interrupt_after(ended))
    assert paused.record.status is StudyStatus.PAUSED
    assert paused.record.message == "interrupted"
    resumed = api.tune(spec(runner=runner), store=store)
    assert resumed.record.id == paused.record.id
    undisturbed = api.tune(spec(runner=runner), store=MemoryStore())
    kept = [t for t in resumed.trials if t.status is not TrialStatus.CANCELLED]
    assert configs(kept) == configs(undisturbed.trials)
    assert present(resumed.best).config == present(undisturbed.best).config
    assert resumed.speedup == pytest.approx(undisturbed.speedup)


def test_a_finished_study_is_not_resumed_but_begun_anew(store: Store) -> None:
    first, second = (api.tune(spec(), store=store).record.id for _ in range(2))
    assert first != second


def test_two_that_are_started_at_the_same_moment_run_one_study(store: Store) -> None:
    """The rival submits after this one has looked for an unfinished study and before it submits its
    own."""

    class Rival:
        def __init__(self) -> None:
            self.id = ""

        def __getattr__(self, name: str) -> Any:
            method = getattr(store, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                found = method(*args, **kwargs)
                if name == "studies" and not self.id and not found:
                    self.id = "looks"
                    self.id = api.submit_study(store, api.load_study(spec()), spec(), join=True).id
                return found

            return call

    rival: Any = Rival()
    assert api.tune(spec(), store=rival).record.id == rival.id
    assert len(store.studies()) == 1
    assert api.tune(spec(), store=store).record.id != rival.id, "the next one is another"


def test_a_study_whose_controller_is_gone_is_stopped_at_once(store: Store) -> None:
    study = api.load_study(spec())
    record = api.submit_study(store, study, spec())
    lease = present(store.claim(record.id, "gone", lease_s=0.01))
    store.set_status(record.id, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    time.sleep(0.05)
    assert "autotune serve" in api.document(api.result_of(store, record.id))["study"]["message"]
    api.act(store, record.id, "pause")
    assert api.act(store, record.id, "resume").message == ""
    assert "autotune serve" in api.document(api.result_of(store, record.id))["study"]["message"]
    assert api.act(store, record.id, "stop").status is StudyStatus.CANCELLED
    living = api.submit_study(store, study, spec())
    held = present(store.claim(living.id, "lives", lease_s=600))
    store.set_status(living.id, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=held)
    assert api.document(api.result_of(store, living.id))["study"]["message"] == ""
    asked = api.act(store, living.id, "stop")
    assert (asked.status, asked.wanted) == (StudyStatus.RUNNING, Wanted.STOP), (
        "its controller says when it has heard it"
    )


def test_another_spec_is_another_study(store: Store) -> None:
    paused = api.tune(
        spec(runner=QUIET | {"time_scale": 0.001}), store=store, on_event=interrupt_after(1)
    )
    other = api.tune(spec(seed=1), store=store)
    assert other.record.id != paused.record.id


def test_a_later_study_learns_from_an_earlier_one_only(store: Store) -> None:
    from autotune.study.assembly import history_of

    first = api.tune(spec(), store=store)
    study = api.load_study(spec())
    ended = present(first.record.ended_at)
    assert history_of(study, store, before=first.record.created_at) == []
    later = ended.replace(year=ended.year + 1)
    assert len(history_of(study, store, before=later)) == len(first.trials)
    real = api.load_study(spec(runner="local"))
    assert history_of(real, store, before=later) == []


def test_history_is_of_the_same_model_cluster_or_trainer_and_the_nearest_comes_first(
    store: Store,
) -> None:
    from autotune.study.assembly import history_of

    kin = {
        "same": spec(),
        "cluster": spec(model="gpt2-xl", name="cluster"),
        "trainer": spec(model="gpt2-xl", cluster="a100-80gb-1x8", name="trainer"),
        "cpu": spec(model="nano-gpt", cluster="cpu-1x4", space={}, name="cpu"),
    }
    ended = [
        api.tune(document | {"budget": {"max_trials": 1}}, store=store).record
        for document in kin.values()
    ]
    ours = api.load_study(spec(name="ours"))
    later = max(r.ended_at for r in ended if r.ended_at is not None) + timedelta(seconds=1)
    told = history_of(ours, store, before=later)
    assert list(dict.fromkeys((w.model.name, w.cluster.gpu.name) for w, _ in told)) == [
        ("gpt2-medium", "h100-sxm"),
        ("gpt2-xl", "h100-sxm"),
        ("gpt2-xl", "a100-80gb"),
    ]
    other_trainer = api.load_study(
        spec(model="llama-8b", cluster="v100-32gb-1x8", trainer="megatron", runner="ray")
    )
    assert history_of(other_trainer, store, before=later) == []


@pytest.mark.thorough
def test_a_short_training_is_not_worth_many_trials(store: Store) -> None:
    def tuned(tokens: float) -> api.Result:
        budget = {"max_trials": 30, "train_tokens": tokens}
        return api.tune(
            spec(name=f"{tokens:g}", searcher="bayesian", budget=budget), store=MemoryStore()
        )

    short, long = tuned(1e6), tuned(1e12)
    assert len(short.trials) < len(long.trials)
    assert "of a training run of" in short.record.message
    assert short.notes[-1].startswith("training on 1M tokens takes ")


@pytest.mark.thorough
@pytest.mark.parametrize("searcher", ["bayesian", "reinforce"])
def test_where_stability_is_all_that_counts_a_study_ends_too(store: Store, searcher: str) -> None:
    changes = {
        "searcher": searcher,
        "objective": {"stability_weight": 1},
        "budget": {"max_trials": 4},
    }
    result = api.tune(spec(**changes), store=store)
    assert result.record.status is StudyStatus.COMPLETED, result.record.message


def test_with_goodput_a_token_of_a_larger_batch_counts_for_less(store: Store) -> None:
    changes = {
        "workload": {"seq_len": 1024, "global_batch_size": [16, 256]},
        "objective": {"metric": "goodput"},
        "budget": {"max_trials": 6, "train_tokens": 1e9, "min_gain": 0},
    }
    result = api.tune(spec(**changes), store=store)
    assert result.baseline is not None
    worth = (
        present(present(result.best).reward).throughput - present(result.baseline.reward).throughput
    )
    takes = format_duration(
        1e9 / present(result.baseline.measurement).tokens_per_s / math.exp(worth)
    )
    assert f"training on 1B tokens takes {takes} with the best config" in result.notes[-1]


def test_nothing_legal_is_an_answer_before_anything_is_kept(store: Store) -> None:
    with pytest.raises(InfeasibleError, match="nearest miss"):
        api.tune(spec(space={"tp": [3]}), store=store)
    assert store.studies() == []


def test_nothing_that_fits_is_an_answer_with_the_nearest_miss(store: Store) -> None:
    big = spec(
        model="llama-70b", space={"tp": [1, 2], "micro_batch_size": [1, 2], "precision": ["bf16"]}
    )
    with pytest.raises(
        InfeasibleError,
        match=r"nearest miss.* 79\.\d GiB on a .*GiB, with a risk of 100% of running out",
    ) as caught:
        api.tune(big, store=store)
    assert "zero_stage" in str(caught.value)
    assert store.studies() == []


def test_a_guess_of_the_user_overrules_the_prediction_that_nothing_fits(store: Store) -> None:
    tight = spec(
        model="llama-8b", space={"tp": [2], "micro_batch_size": [2, 4], "precision": ["bf16"]}
    )
    with pytest.raises(InfeasibleError):
        api.tune(tight, store=store)
    result = api.tune(tight | {"enqueue": ["tp=2,micro_batch_size=4"]}, store=store)
    assert next(t for t in result.trials if t.config.micro_batch_size == 4).attempts == 1


def test_a_guess_that_cannot_fit_overrules_nothing(store: Store) -> None:
    big = spec(
        model="llama-70b", space={"tp": [1, 2], "micro_batch_size": [1, 2], "precision": ["bf16"]}
    )
    with pytest.raises(InfeasibleError, match=r"79\.1 GiB on a h100.* needs [0-9.]+ [GT]iB"):
        api.tune(big | {"enqueue": ["tp=2"]}, store=store)
    assert store.studies() == []


def test_guesses_that_this_machine_cannot_run_are_said(store: Store) -> None:
    here = spec(
        model="nano-gpt",
        cluster="local",
        workload={"seq_len": 64, "global_batch_size": 16},
        space={"tp": [1], "micro_batch_size": [1, 2], "precision": ["fp32"]},
        enqueue=["tp=3"],
    )
    said: list[str] = []
    result = api.tune(here, store=store, on_event=notices(said))
    assert any("tp=3: " in text for text in said)
    noted = [
        e.data["message"] for e in store.events(result.record.id) if e.kind == "guess.left_out"
    ]
    assert len(noted) == 1
    assert noted[0].startswith("tp=3: ")


def test_knobs_that_a_guess_leaves_out_are_said_with_their_values(store: Store) -> None:
    space = {
        "tp": [1, 2],
        "micro_batch_size": [1, 2],
        "zero_stage": [0, 1],
        "pp": [1],
        "precision": ["bf16"],
    }
    said: list[str] = []
    guesses = ["tp=2", {"tp": 1, "micro_batch_size": 2, "zero_stage": 1}]
    result = api.tune(spec(space=space, enqueue=guesses), store=store, on_event=notices(said))
    told = "micro_batch_size=1, zero_stage=0 in tp=2"
    assert [text for text in said if "filled in" in text] == [
        f"enqueue: filled in missing knobs of 1 config, e.g. {told}"
    ]
    assert [
        e.data["message"] for e in store.events(result.record.id) if e.kind == "guess.filled_in"
    ] == [f"enqueue: filled in missing knobs of 1 config, e.g. {told}"]
    assert result.record.study.filled_in == (told,)


def test_a_runner_with_too_few_ranks_says_so(store: Store) -> None:
    with pytest.raises(RunnerError, match="needs 8 ranks"):
        api.tune(spec(runner=QUIET | {"capacity": 4}), store=store)
    assert store.studies()[0].status is StudyStatus.FAILED


def test_an_unknown_option_of_the_runner_is_refused_before_anything_is_stored(store: Store) -> None:
    with pytest.raises(SpecError, match="nois"):
        api.tune(spec(runner=QUIET | {"nois": 0.0}), store=store)
    assert not store.studies()


def test_a_space_below_fp32_measures_its_reference_once_for_all_studies(store: Store) -> None:
    low = spec(space={"tp": [1, 2], "micro_batch_size": [1, 2], "precision": ["bf16"]})
    first, second = (api.tune(low, store=store) for _ in range(2))
    assert [t.number for t in first.trials if t.purpose is TrialPurpose.REFERENCE] == [1]
    assert [t.number for t in second.trials if t.purpose is TrialPurpose.REFERENCE] == []
    for result in (first, second):
        assert present(present(result.best).reward).parts["fidelity"] == 1.0


def test_no_reference_is_measured_where_stability_counts_for_nothing(store: Store) -> None:
    low = spec(space={"tp": [1, 2], "precision": ["bf16"]}, objective={"stability_weight": 0})
    assert all(t.purpose is not TrialPurpose.REFERENCE for t in api.tune(low, store=store).trials)


def test_two_controllers_never_run_one_study(store: Store) -> None:
    record = api.submit_study(store, api.load_study(spec()))
    with (
        StudyLease.claim(store, record.id),
        pytest.raises(ConflictError, match="another controller"),
    ):
        api.run_study(store, record.id)


def test_faults_of_every_kind_are_lived_through(store: Store) -> None:
    faults = {"hang": 0.2, "worker_lost": 0.3, "duplicate": 0.3, "late": 0.3, "error": 0.1}
    runner = {"kind": "simulated", "faults": faults, "seed": 3}
    result = api.tune(
        spec(runner=runner, budget={"max_trials": 12, "min_gain": 0, "parallel_trials": 1}),
        store=store,
    )
    assert result.record.status is StudyStatus.COMPLETED
    ends = [e.data["number"] for e in store.events(result.record.id) if e.kind == "trial.ended"]
    assert sorted(ends) == list(range(len(result.trials)))


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("stop", StudyStatus.COMPLETED),
        ("cancel", StudyStatus.CANCELLED),
        ("pause", StudyStatus.PAUSED),
    ],
)
def test_what_others_ask_for_reaches_the_loop(
    store: Store, action: str, status: StudyStatus
) -> None:
    ask = when_ended(1, lambda study: api.act(store, study, action))
    runner = QUIET | {"time_scale": 0.05}
    budget = {"max_trials": 20, "min_gain": 0}
    result = api.tune(spec(runner=runner, budget=budget), store=store, on_event=ask)
    assert result.record.status is status
    assert len(result.trials) < 20
    if action == "pause":
        api.act(store, result.record.id, "resume")
        assert store.study(result.record.id).status is StudyStatus.RUNNING


def test_a_queued_study_can_be_stopped_paused_and_resumed(store: Store) -> None:
    record = api.submit_study(store, api.load_study(spec()))
    assert api.act(store, record.id, "pause").status is StudyStatus.PAUSED
    assert api.act(store, record.id, "resume").status is StudyStatus.QUEUED
    assert api.act(store, record.id, "stop").status is StudyStatus.CANCELLED
    with pytest.raises(ConflictError):
        api.act(store, record.id, "resume")


def test_a_paused_study_that_is_stopped_keeps_its_best(store: Store) -> None:
    paused = api.tune(
        spec(runner=QUIET | {"time_scale": 0.001}), store=store, on_event=interrupt_after(4)
    )
    stopped = api.act(store, paused.record.id, "stop")
    assert stopped.status is StudyStatus.COMPLETED
    assert stopped.best is not None


def test_submitting_twice_with_one_key_makes_one_study(store: Store) -> None:
    study = api.load_study(spec())
    first, second = (api.submit_study(store, study, spec(), idempotency_key="k") for _ in range(2))
    assert first.id == second.id


CHILD = """
import json, sys, time
from autotune import api
from autotune.study.progress import TrialStarted

started = []

def hear(event):
    if isinstance(event, TrialStarted):
        started.append(event)
        if len(started) == 3:
            print("three", flush=True)
            time.sleep(3600)

api.tune(json.loads(sys.argv[1]), store=sys.argv[2], on_event=hear)
"""


def test_a_study_whose_process_was_killed_is_taken_over_at_once(tmp_path: Path) -> None:
    import json

    url = str(tmp_path / "results.db")
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(spec()), url], stdout=subprocess.PIPE, text=True
    )
    try:
        assert present(child.stdout).readline().strip() == "three"
    finally:
        child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()
    result = api.tune(spec(), store=url)
    assert result.record.status is StudyStatus.COMPLETED
    assert len(result.trials) == 11
    assert [t.attempts for t in result.trials] == [1, 1, 2] + [1] * 8
    store = api.open_store(url)
    claims = [e.data["fence"] for e in store.events(result.record.id) if e.kind == "study.claimed"]
    store.close()
    assert claims == [1, 2]
