"""A program that the store has never seen is tried before its study begins; one that does not work
ends the study with that cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune import api
from autotune.errors import ProgramError
from autotune.ports import EventKind, Store
from autotune.spec import StudyStatus
from autotune.study.progress import LoopEvent, Notice
from tests.program_specs import PROGRAM, program_spec
from tests.small_studies import spec


def history(store: Store, study_id: str) -> list[str]:
    return [event.kind for event in store.events(study_id)]


@pytest.mark.thorough
def test_a_program_is_tried_once_for_all_studies_and_not_as_a_trial(
    store: Store, tmp_path: Path
) -> None:
    asked, said = program_spec(tmp_path), list[str]()
    hear = lambda event: said.append(event.message) if isinstance(event, Notice) else None  # noqa: E731
    first = api.tune(asked, store=store, on_event=hear)
    assert first.record.status is StudyStatus.COMPLETED
    assert [trial.number for trial in first.trials] == [0, 1]
    assert history(store, first.record.id).count(EventKind.PROGRAM_CHECKED) == 1
    assert said[0].startswith("first run of this program: testing 5 steps: ")
    assert "train.py --steps=4 --batch=1 --accum=4" in said[0], (
        "the baseline, told a trial's number of steps"
    )
    assert said[1].startswith("ready: read 4 steps"), "a trial of this study has no more"
    second = api.tune(asked, store=store)
    assert EventKind.PROGRAM_CHECKED not in history(store, second.record.id)


def test_a_program_that_does_not_work_ends_the_study_before_anything_is_searched(
    store: Store, tmp_path: Path
) -> None:
    broken = PROGRAM.replace("import sys, time", "import sys, time, no_such_module")
    with pytest.raises(
        ProgramError, match="the study has not started, because its program does not work"
    ) as raised:
        api.tune(program_spec(tmp_path, broken), store=store)
    assert "--no-check" in raised.value.remedy
    record = store.studies()[0]
    assert record.status is StudyStatus.FAILED
    assert "install the module for the Python that runs the program" in record.message
    assert not store.trials(record.id)
    assert EventKind.PROGRAM_CHECKED not in history(store, record.id)


def test_a_program_that_only_the_own_environment_can_start_is_told_before_its_first_run(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = list[str]()
    hear = lambda event: said.append(event.message) if isinstance(event, Notice) else None  # noqa: E731
    argv = ["python", *program_spec(tmp_path)["trainer"]["argv"][1:]]
    api.tune(program_spec(tmp_path, argv=argv), store=store, on_event=hear)
    assert (
        "There is no python on PATH, so trials use the one in autotune's own environment" in said[0]
    )


RESUMES = """\
import sys, torch
from pathlib import Path
saved = Path(__file__).with_name("last.pt")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps, batch, accumulation = (int(word.partition("=")[2]) for word in sys.argv[1:])
for step in range(steps if saved.exists() else 0, steps):
    for _ in range(accumulation):
        model(torch.ones(batch, 4)).sum().backward()
    optimizer.step()
    print(f"iter {step}: loss {10 - step / 10:.2f}, time 10.{step:02}ms", flush=True)
torch.save(model.state_dict(), saved)
"""


@pytest.mark.thorough
def test_a_program_that_resumes_from_its_last_run_ends_the_study_before_its_trials_are_lost(
    store: Store, tmp_path: Path
) -> None:
    with pytest.raises(
        ProgramError, match=r"has not started, because .* continued from .*last\.pt"
    ) as raised:
        api.tune(program_spec(tmp_path, RESUMES, cwd=str(tmp_path)), store=store)
    assert "output folder to {trial_dir}" in str(raised.value)
    record = store.studies()[0]
    assert record.status is StudyStatus.FAILED
    assert not store.trials(record.id)


def test_without_the_check_the_study_begins(store: Store, tmp_path: Path) -> None:
    unread = program_spec(tmp_path, metrics={"loss": "no such line ([0-9]+)"}) | {"check": False}
    result = api.tune(unread, store=store)
    assert [str(trial.failure.kind) for trial in result.failed if trial.failure] == [
        "METRICS_MISSING"
    ] * 2
    assert EventKind.PROGRAM_CHECKED not in history(store, result.record.id)


def test_whoever_runs_a_submitted_study_tries_its_program(store: Store, tmp_path: Path) -> None:
    record = api.submit_study(store, api.load_study(program_spec(tmp_path, "print('hello')")))
    assert record.status is StudyStatus.QUEUED
    with pytest.raises(ProgramError, match="none of the 1 line"):
        api.run_study(store, record.id)
    assert "none of the 1 line" in store.study(record.id).message


@pytest.mark.thorough
def test_a_study_that_is_stopped_meanwhile_is_tried_again_when_it_goes_on(
    store: Store, tmp_path: Path
) -> None:
    asked = program_spec(tmp_path, PROGRAM.replace("time.sleep(0.01)", "time.sleep(0.3)"))
    record = api.submit_study(store, api.load_study(asked))
    paused = api.run_study(store, record.id, interrupted=lambda: True)
    assert paused.record.status is StudyStatus.PAUSED
    assert EventKind.PROGRAM_CHECKED not in history(store, record.id)
    api.act(store, record.id, "resume")

    def cancel(event: LoopEvent) -> None:
        if isinstance(event, Notice):
            api.act(store, record.id, "cancel")

    assert api.run_study(store, record.id, on_event=cancel).record.status is StudyStatus.CANCELLED
    assert EventKind.PROGRAM_CHECKED not in history(store, record.id)


def test_simulated_and_native_trials_need_no_check(store: Store, tmp_path: Path) -> None:
    simulated = program_spec(tmp_path, "broken") | {"runner": "simulated"}
    assert api.tune(simulated, store=store).best is not None
    assert api.tune(spec(), store=store).best is not None
    with pytest.raises(ProgramError):
        api.tune(program_spec(tmp_path, "broken"), store=store)
