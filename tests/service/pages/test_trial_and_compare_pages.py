"""Pages of trials, comparisons, exports, rankings and new studies, as a browser asks for them, and
what they refuse."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any

import pytest

from autotune.ports import EndTrial, KeepTrial
from autotune.service.http.access import COOKIE
from autotune.spec import StudyStatus
from autotune.testing.stores import decide, failed, launch, measured, pending, reported, run_trial
from tests.service.running import Service, spec, until

SPEC = """\
name: typed
model: gpt2-medium
cluster: h100-sxm-1x8
workload: {seq_len: 1024, global_batch_size: 64}
space: {tp: [1, 2], micro_batch_size: [1, 2], precision: [bf16]}
searcher: cost_ranked
runner: simulated
"""


@pytest.fixture(scope="module")
def study(guarded: Service) -> str:
    """A study of ann's that has ended: trial 0 was measured with steps, trial 1 failed with
    evidence."""
    found = guarded.submitted(spec(name="looked-at"), guarded.token("submit", "ann"))
    store = guarded.store
    lease = store.claim(found, "tester:1:1", lease_s=600)
    store.set_status(found, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    decide(store, lease, KeepTrial(trial=pending(0)))
    decide(store, lease, launch(lease, 0, 1))
    store.add_steps(lease, [reported((found, 0, 1), 0, [0.9, 0.5, 0.55, 0.45])])
    store.record_event(
        found, "trial.remark", {"number": 0, "message": "left out of its log: 9 lines"}
    )
    decide(store, lease, EndTrial(trial=measured(pending(0))))
    run_trial(store, lease, failed(pending(1)))
    store.set_status(found, StudyStatus.COMPLETED, expect=[StudyStatus.RUNNING], lease=lease)
    return found


@pytest.fixture(scope="module")
def ann(guarded: Service) -> dict[str, str]:
    """Headers of ann's browser, who may submit."""
    return {"Cookie": f"{COOKIE}={guarded.token('submit', 'ann')}"}


@pytest.fixture(scope="module")
def rae(guarded: Service) -> dict[str, str]:
    """Headers of rae's browser, who may read."""
    return {"Cookie": f"{COOKIE}={guarded.token('read', 'rae')}"}


def token_of(service: Service, path: str, headers: dict[str, str]) -> str:
    """The form token of the page."""
    found = re.search(
        r'name="form_token" value="([0-9a-f]{64})"', service.http.get(path, headers=headers).text
    )
    assert found, path
    return found[1]


def test_a_study_whose_controller_died_is_interrupted_on_its_page_and_in_the_list(
    guarded: Service, ann: dict[str, str]
) -> None:
    found = guarded.submitted(spec(name="left-alone"), guarded.token("submit", "ann"))
    store = guarded.store
    lease = store.claim(found, "tester:1:1", lease_s=600)
    store.set_status(found, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)

    def shown(path: str) -> list[tuple[str, str]]:
        return re.findall(r'class="status (\w+)">(\w+)<', guarded.http.get(path, headers=ann).text)

    pages = (f"/studies/{found}", "/studies?status=RUNNING&owner=ann")
    assert [shown(page) for page in pages] == [[("RUNNING", "running")]] * 2
    store.release(lease)
    assert [shown(page) for page in pages] == [[("PAUSED", "interrupted")]] * 2
    again = store.claim(found, "tester:1:2", lease_s=600)
    store.set_status(found, StudyStatus.CANCELLED, expect=[StudyStatus.RUNNING], lease=again)


def test_the_page_of_a_trial_shows_its_steps_its_config_and_its_launch(
    guarded: Service, study: str, rae: dict[str, str]
) -> None:
    page = guarded.http.get(f"/studies/{study}/trials/0", headers=rae).text
    for figure in (
        "step_times",
        "loss",
        "gradient_norm",
        "time_by_parts",
        "memory_by_parts",
        "memory_over_time",
    ):
        assert f'id="{figure}"' in page
    for words in (
        "Why this config was tried: because (search trial).",
        "torchrun",
        "Left out of its log: 9 lines.",
        f'href="/studies/{study}/trials/1"',
    ):
        assert words in page
    data = guarded.http.get(f"/studies/{study}/trials/0/step_times.csv", headers=rae)
    assert data.text.split() == ["step,step_time_s", "0,0.9", "1,0.5", "2,0.55", "3,0.45"]
    assert guarded.http.get(f"/studies/{study}/trials/0/absent.csv", headers=rae).status_code == 404
    assert guarded.http.get(f"/studies/{study}/trials/7", headers=rae).status_code == 404


def test_the_page_of_a_failed_trial_shows_the_evidence(
    guarded: Service, study: str, rae: dict[str, str]
) -> None:
    page = guarded.http.get(f"/studies/{study}/trials/1", headers=rae).text
    for words in (
        "Out of memory.",
        "First on rank 3. In step 2.",
        '<pre tabindex="0">a\nb \u2028</pre>',
    ):
        assert words in page


def test_comparisons_show_first_what_differs(
    guarded: Service, study: str, rae: dict[str, str]
) -> None:
    page = guarded.http.get(f"/studies/{study}/compare?trial=0+1", headers=rae).text
    differing, _, same = page.partition("Identical")
    assert "micro_batch_size" in differing
    assert "pp_schedule" in same
    assert (
        "Choose two or more trials"
        in guarded.http.get(f"/studies/{study}/compare?trial=0", headers=rae).text
    )
    assert guarded.http.get(f"/studies/{study}/compare?trial=x", headers=rae).status_code == 422
    assert (
        guarded.http.get(f"/studies/{study}/compare?trial=1 2 3 4 5 6 7", headers=rae).status_code
        == 422
    )
    assert (
        "Choose two or more studies"
        in guarded.http.get("/compare", params={"study": [study]}, headers=rae).text
    )
    assert guarded.http.get("/compare?study=absent", headers=rae).status_code == 404


def test_an_export_is_shown_and_downloaded_or_shows_what_it_needs(
    guarded: Service, study: str, rae: dict[str, str]
) -> None:
    url = f"/studies/{study}/export"
    first = guarded.http.get(url, headers=rae).text
    assert "torchrun" in first
    assert "for the full run, export again with" in first
    asked: dict[str, Any] = {
        "trainer": "megatron",
        "on": "slurm",
        "options": "steps=7",
        "trial": "1",
    }
    assert "sbatch job.sbatch" in guarded.http.get(url, params=asked, headers=rae).text
    archive = guarded.http.get(f"{url}.zip", params=asked, headers=rae)
    with zipfile.ZipFile(io.BytesIO(archive.content)) as file:
        assert {"launch/launch.sh", "launch/job.sbatch"} <= set(file.namelist())
    for wrong in ({"trainer": "absent"}, {"trial": "x"}, {"options": "noise"}, {"trial": "9"}):
        answer = guarded.http.get(url, params=wrong, headers=rae)
        assert answer.status_code in (404, 422), wrong
        assert 'role="alert"' in answer.text
        assert "Give it under Options" not in answer.text
    lacking = guarded.http.get(url, params={"trainer": "command"}, headers=rae).text
    assert "Set the option under Options: <code>argv=VALUE</code>" in lacking


def test_a_ranking_uses_the_requested_objective(
    guarded: Service, study: str, rae: dict[str, str]
) -> None:
    page = guarded.http.get(
        f"/studies/{study}/ranking?metric=cost&stability_weight=0.5&pareto=1", headers=rae
    ).text
    assert "Per million tokens" in page
    again = guarded.http.get(f"/studies/{study}/ranking?metric=cost", headers=rae)
    assert again.status_code == 200
    assert '<tr class="won">' in again.text
    assert (
        guarded.http.get(f"/studies/{study}/ranking?stability_weight=2", headers=rae).status_code
        == 422
    )
    assert guarded.http.get(f"/studies/{study}/ranking?metric=odd", headers=rae).status_code == 422


@pytest.mark.thorough
def test_a_new_study_is_checked_with_lines_and_columns_and_previewed_and_submitted_once(
    guarded: Service, study: str, ann: dict[str, str]
) -> None:
    form = guarded.http.get("/submit", headers=ann).text
    number = re.search(r'name="number" value="([0-9a-f]{32})"', form)
    assert number
    data = {"form_token": token_of(guarded, "/submit", ann), "number": number[1]}

    def sent(path: str, text: str) -> Any:
        return guarded.http.post(path, data={**data, "spec": text}, headers=ann)

    wrong = sent("/submit/preview", SPEC.replace("model:", "modell:")).text
    assert "Line 2, column 1" in wrong
    assert "modell" in wrong
    assert "modell:" in wrong, "the text stays"
    broken = sent("/submit", SPEC + "searcher: [\n")
    assert (broken.status_code, "Line " in broken.text) == (422, True)
    assert "4 valid configs" in sent("/submit/preview", SPEC).text
    before = len(guarded.store.studies(name="typed"))
    first, second = sent("/submit", SPEC), sent("/submit", SPEC)
    assert first.status_code == 303
    assert first.headers["location"] == second.headers["location"]
    assert sent("/submit", SPEC + "# changed\n").headers["location"] != first.headers["location"]
    assert len(guarded.store.studies(name="typed")) == before + 2
    page = guarded.http.get(first.headers["location"], headers=ann).text
    assert "The study is submitted." in page
    assert "in the queue" in page or "before it" in page
    assert "name: looked-at" in guarded.http.get(f"/submit?from={study}", headers=ann).text


@pytest.mark.parametrize(
    "trainer", ["{kind: command, argv: [sh]}", "{kind: deepspeed, script: /bin/sh}"]
)
def test_programs_are_rejected_in_previews_and_submissions(
    guarded: Service, ann: dict[str, str], trainer: str
) -> None:
    data = {"form_token": token_of(guarded, "/submit", ann), "spec": f"{SPEC}trainer: {trainer}\n"}
    assert 'class="problems"' in guarded.http.post("/submit/preview", data=data, headers=ann).text
    answer = guarded.http.post("/submit", data=data, headers=ann)
    assert answer.status_code in (403, 422)
    assert 'class="problems"' in answer.text


def test_forms_are_rejected_without_their_token_or_scope(
    guarded: Service, study: str, ann: dict[str, str], rae: dict[str, str]
) -> None:
    bob = {"Cookie": f"{COOKIE}={guarded.token('submit', 'bob')}"}
    token = token_of(guarded, "/submit", ann)
    paths = {
        f"/studies/{study}/notes": {"text": "x"},
        f"/studies/{study}/notes/1/remove": {"sure": "1"},
        f"/studies/{study}/tags": {"add": "x"},
        f"/studies/{study}/delete": {"sure": "1"},
        "/submit": {"spec": SPEC},
        "/submit/preview": {"spec": SPEC},
        "/submit/review": {"launch": "torchrun train.py"},
    }
    for path, fields in paths.items():
        assert guarded.http.post(path, data=fields, headers=ann).status_code == 403, path
        elsewhere = {**ann, "Origin": "https://evil.example"}
        answer = guarded.http.post(path, data={**fields, "form_token": token}, headers=elsewhere)
        assert answer.status_code == 403, path
        assert guarded.http.post(path, data=fields, headers=rae).status_code == 403, path
        assert guarded.http.post(path, data=fields).headers["location"].startswith("/login")
    theirs = token_of(guarded, "/submit", bob)
    for path in (f"/studies/{study}/tags", f"/studies/{study}/delete"):
        answer = guarded.http.post(path, data={"add": "mine", "form_token": theirs}, headers=bob)
        assert "Only the owner or an admin" in answer.text
    assert guarded.http.get("/submit", headers=rae).status_code == 403
    assert guarded.http.get(f"/studies/{study}/delete", headers=bob).status_code == 403
    assert guarded.store.study(study).tags == ()


def test_a_study_is_tagged_noted_and_deleted_from_its_pages(
    guarded: Service, ann: dict[str, str]
) -> None:
    mine = guarded.submitted(spec(name="short-lived"), guarded.token("submit", "ann"))
    url = f"/studies/{mine}"
    data = {"form_token": token_of(guarded, url, ann)}

    def pressed(path: str, **fields: str) -> str:
        answer = guarded.http.post(f"{url}/{path}", data={**data, **fields}, headers=ann)
        assert answer.status_code == 303, answer.text
        return guarded.http.get(answer.headers["location"], headers=ann).text

    assert "The tags are changed." in pressed("tags", add="one, two three")
    assert guarded.store.study(mine).tags == ("one", "three", "two")
    pressed("tags", remove="two")
    assert guarded.store.study(mine).tags == ("one", "three")
    assert "&lt;b&gt;bold&lt;/b&gt;" in pressed("notes", text="<b>bold</b>")
    (note,) = guarded.store.annotations.notes(mine)
    assert "The note is removed." in pressed(f"notes/{note.number}/remove")
    assert "short-lived" in guarded.http.get("/studies?tag=one", headers=ann).text
    assert guarded.http.get(f"{url}/delete", headers=ann).status_code == 409
    with guarded.client(guarded.token("admin", "root")) as client:
        client.act(mine, "cancel")
    until(lambda: guarded.store.study(mine).status.is_terminal)
    assert "Only a backup of the store" in guarded.http.get(f"{url}/delete", headers=ann).text
    assert "The study is deleted" in pressed("delete")
    assert guarded.http.get(url, headers=ann).status_code == 404


def test_the_report_of_a_study_whose_logs_have_lone_surrogates(
    guarded: Service, study: str, rae: dict[str, str]
) -> None:
    for part in ("report", "figures", "trials/1"):
        page = guarded.http.get(f"/studies/{study}/{part}", headers=rae)
        assert page.status_code == 200, part
    assert "Error: ?" in page.text
