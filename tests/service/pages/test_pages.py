"""The web pages, as a browser asks for them."""

from __future__ import annotations

import re
from html import unescape

import pytest

from autotune import api, assets
from autotune.report.history import history_line
from autotune.service.http.access import COOKIE
from autotune.service.pages.rendering import render
from autotune.service.pages.study_page import MAX_EVENTS
from autotune.spec import StudyStatus
from autotune.spec.texts.as_text import format_speedup
from autotune.store.writes import history, locking
from autotune.testing.stores import failed, measured, pending, run_trial
from tests.service.running import Service, slow_spec, spec, until


def form_token(page: str) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', page)
    assert found
    return found[1]


def test_a_study_from_queue_to_report(tuning: Service) -> None:
    with tuning.client() as client:
        study = client.submit(spec(name="seen"))["study"]["id"]
        done = client.wait(study)
    listed = tuning.http.get("/", follow_redirects=True)
    assert f'href="/studies/{study}"' in listed.text
    page = tuning.http.get("/studies/seen").text
    # one truth: the list and the study's table count the same runs
    runs = sum(done["study"]["trials"].values())
    assert f'<td class="n wide">{runs}</td>' in listed.text
    assert f", in {runs} runs; speeds in" in page
    assert f"of {runs} runs; speeds in" in tuning.http.get("/studies/seen?runs=each").text
    assert "<h2>Best</h2>" in page
    assert "autotune export" in page
    assert (
        format_speedup(done["speedup"], done["speedup_low"], done["speedup_high"], times="×")
        in page
    )
    assert "http-equiv" not in page  # it has ended: nothing to load again
    report = tuning.http.get(f"/studies/{study}/report")
    assert "<svg" in report.text
    assert "default-src 'none'" in report.headers["content-security-policy"]
    best = tuning.http.get("/best", params={"model": "gpt2-medium", "runner": "simulated"}).text
    assert f'href="/studies/{study}"' in best
    assert tuning.http.get("/best", params={"model": "absent"}).text.count("<tr>") == 0
    asked = {"model": "gpt2-medium", "cluster": "h100-sxm-1x8"}
    judged = tuning.http.get(
        "/best", params={**asked, "runner": "simulated", "metric": "cost"}
    ).text
    assert "ranked by cost" in judged
    assert "Predicted by the cost model" in tuning.http.get("/best", params=asked).text
    assert (
        "gpt2-medium on h100-sxm-1x8"
        in tuning.http.get(
            "/best", params={**asked, "model": "gpt2-large", "runner": "simulated"}
        ).text
    )
    wrong = tuning.http.get("/best", params={"metric": "SPEED"})
    assert (wrong.status_code, "&#39;SPEED&#39;" in wrong.text) == (422, True)
    assert tuning.http.get("/static/style.css").headers["content-type"].startswith("text/css")


def test_a_button_needs_the_form_token(tuning: Service) -> None:
    with tuning.client() as client:
        study = client.submit(slow_spec())["study"]["id"]
        until(lambda: client.status(study)["study"]["status"] == "RUNNING")
        page = tuning.http.get(f"/studies/{study}").text
        assert 'http-equiv="refresh"' in page
        wrong = tuning.http.post(
            f"/studies/{study}/act", data={"action": "cancel", "form_token": "x"}
        )
        assert wrong.status_code == 403
        assert "did not come from this page" in wrong.text
        done = tuning.http.post(
            f"/studies/{study}/act", data={"action": "cancel", "form_token": form_token(page)}
        )
        assert (done.status_code, done.headers["location"]) == (
            303,
            f"/studies/{study}?done=cancel",
        )
        assert "running trials are killed" in tuning.http.get(done.headers["location"]).text
        until(lambda: client.status(study)["study"]["status"] == "CANCELLED")
        again = tuning.http.post(
            f"/studies/{study}/act", data={"action": "cancel", "form_token": form_token(page)}
        )
        assert again.status_code == 409


def test_strangers_are_redirected_to_the_login_and_back(guarded: Service) -> None:
    answer = guarded.http.get("/studies?status=RUNNING")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/studies")
    assert guarded.http.post("/login", data={"token": "at_0_0", "next": "/best"}).status_code in (
        401,
        429,
    )
    token = guarded.token("submit")
    entered = guarded.http.post("/login", data={"token": token, "next": "/best"})
    assert (entered.status_code, entered.headers["location"]) == (303, "/best")
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    guarded.http.cookies.clear()
    made = guarded.http.post(
        "/api/v1/studies", json=spec(), headers={"Authorization": f"Bearer {token}"}
    )
    study, mine = made.json()["study"]["id"], {"Cookie": f"{COOKIE}={token}"}
    page = guarded.http.get(f"/studies/{study}", headers=mine).text
    data = {"action": "pause", "form_token": form_token(page)}
    assert guarded.http.post(f"/studies/{study}/act", data=data, headers=mine).status_code == 303
    other = {"Cookie": f"{COOKIE}={guarded.token('submit', 'bob')}"}
    theirs = guarded.http.get(f"/studies/{study}", headers=other).text
    assert "/act" not in theirs
    assert "/delete" not in theirs
    assert guarded.http.post(f"/studies/{study}/act", data=data, headers=other).status_code == 403
    assert guarded.http.post("/logout", headers=mine).headers["location"] == "/login"


@pytest.mark.parametrize(
    "back",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/a\nb"],
)
def test_the_login_does_not_redirect_to_other_sites(guarded: Service, back: str) -> None:
    entered = guarded.http.post("/login", data={"token": guarded.token("read"), "next": back})
    assert entered.headers["location"] == "/studies"
    guarded.http.cookies.clear()


def test_other_sites_cannot_send_the_login(guarded: Service) -> None:
    answer = guarded.http.post(
        "/login", data={"token": guarded.token("read")}, headers={"Origin": "https://evil.example"}
    )
    assert answer.status_code == 403


def test_text_from_studies_is_escaped(service: Service) -> None:
    evil = "<script>alert(1)</script>"
    study = service.submitted(spec(name="plain"))
    lease = service.store.claim(study, "tester:1:1", lease_s=60)
    record = service.store.study(study)
    service.store.set_status(
        study, record.status, expect=[record.status], message=evil, lease=lease
    )
    for path in (
        f"/studies/{study}",
        f"/studies?model={evil}",
        f"/best?model={evil}",
        f"/studies/{evil}",
        f"/login?next={evil}",
    ):
        assert evil not in service.http.get(path).text
    assert "&lt;script&gt;" in service.http.get(f"/studies/{study}").text


def test_the_page_links_to_the_ray_job(service: Service) -> None:
    study = service.http.post("/api/v1/studies", json=spec()).json()["study"]["id"]
    url = f"http://127.0.0.1:8265/#/jobs/{study}"
    api.run_study(service.store, study, about={"ray": {"job": study, "url": url}})
    assert (
        f'<a href="{url}" rel="noreferrer">{study}</a>'
        in service.http.get(f"/studies/{study}").text
    )
    assert service.http.get(f"/api/v1/studies/{study}").json()["study"]["ray"] == {
        "job": study,
        "url": url,
    }


def test_the_page_of_a_long_study_shows_its_newest_events(service: Service) -> None:
    study = service.submitted(spec(name="long"))
    with service.store.database.write() as connection:
        lines = [("study.note", {"message": f"note {number}"}) for number in range(1, 1101)]
        history.append(connection, locking.find(connection, study).key, lines)
    page = service.http.get(f"/studies/{study}").text
    shown = re.findall(r">Study note: note (\d+)\.<", page)
    assert shown == [str(number) for number in range(1100, 1060, -1)]


def test_the_history_omits_events_for_programs(
    service: Service,
) -> None:
    study = service.submitted(spec(name="told"))
    lease = service.store.claim(study, "tester:1:1", lease_s=60)
    run_trial(service.store, lease, measured(pending(0)))
    decided = ("study.decided", {"decision": 1, "cause": {"event": "Tick"}})
    failed = {"number": 1, "attempt": 1, "failure": {"kind": "WORKER_LOST", "message": "it died"}}
    with service.store.database.write() as connection:
        lines = [("attempt.ended", failed), *[decided] * MAX_EVENTS]
        history.append(connection, locking.find(connection, study).key, lines)
    service.store.release(lease)
    page = service.http.get(f"/studies/{study}").text
    shown = page.partition("History: the newest events")[2].partition("</table>")[0]
    assert ">Trial 1: attempt 1 ended: worker lost: it died.<" in shown
    assert ">Trial 0 proposed: " in shown
    assert not any(word in shown for word in ("study.", "trial.", "attempt.", lease.owner))
    reported = [
        line for event in service.store.events(study) if (line := history_line(event.to_dict()))
    ]
    assert shown.count('<td class="line">') == len(reported)


def test_studies_are_found_by_status_in_capitals_or_small_letters(service: Service) -> None:
    with service.client() as client:
        ended, waiting = (
            client.submit(spec(name=name))["study"]["id"] for name in ("ended", "waiting")
        )
        client.cancel(ended)
        for word in ("cancelled", "CANCELLED", "Cancelled"):
            page = service.http.get("/studies", params={"status": word}).text
            assert '<option value="CANCELLED" selected>cancelled</option>' in page
            assert f"/studies/{ended}" in page
            assert f"/studies/{waiting}" not in page
            found = {s["id"] for s in client.studies(status=word)["studies"]}
            assert ended in found
            assert waiting not in found


def test_pages_write_counts_in_groups_of_three_digits(service: Service) -> None:
    with service.client() as client:
        study = client.submit(spec(name="counted"))["study"]
    listed = {**study, "trials": {"COMPLETED": 12_000, "FAILED": 345}}
    values = {
        "asked": dict.fromkeys(("status", "model", "cluster", "owner", "tag"), ""),
        "wanted": None,
        "statuses": [],
    }
    assert (
        b">12,345</td>"
        in render("studies.html", studies=[listed], more=False, page=1, **values).body
    )
    for template in (assets.dashboards() / "web").glob("*.html"):
        assert "format(" not in template.read_text().replace("|format(", ""), (
            "there is one filter for it: thousands"
        )


def test_the_page_of_a_study_without_trials_has_no_dead_links(
    service: Service,
) -> None:
    study = service.submitted(spec(name="vain"))
    assert "No trials yet." in service.http.get(f"/studies/{study}").text
    message = "no GPU is visible; name what is here (`cluster: local`, not `<b>`)"
    service.store.set_status(
        study, StudyStatus.FAILED, expect=[StudyStatus.QUEUED], message=message
    )
    page = service.http.get(f"/studies/{study}").text
    assert "(<code>cluster: local</code>, not <code>&lt;b&gt;</code>)." in page
    assert "No config was measured." in page
    assert not any(
        f'href="/studies/{study}/{part}"' in page for part in ("export", "ranking", "compare")
    )
    assert f'href="/compare?study={study}"' in page


def test_a_study_whose_trials_all_failed_shows_reasons_at_the_top(service: Service) -> None:
    study = service.submitted(spec(name="all-failed"))
    lease = service.store.claim(study, "tester:1:1", lease_s=600)
    service.store.set_status(study, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    for number in range(2):
        run_trial(service.store, lease, failed(pending(number)))
    page = service.http.get(f"/studies/{study}").text
    assert page.index("2 trials failed: 2 out of memory.") < page.index("trials-heading")
    of_trial = service.http.get(f"/studies/{study}/trials/1").text
    assert "How it failed" in of_trial
    assert "has no result" not in of_trial, "the same in other words"


def test_the_best_config_is_shown_once(service: Service) -> None:
    study = service.submitted(spec(name="alone"))
    lease = service.store.claim(study, "tester:1:1", lease_s=600)
    service.store.set_status(study, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    run_trial(service.store, lease, measured(pending(0)))
    page = service.http.get(f"/studies/{study}").text
    answer = page[
        page.index('class="answer"') : page.index("</section>", page.index('class="answer"'))
    ]
    assert answer.count("tp1 pp1 dp8 mb1") == 1


def test_a_study_links_to_export_and_figures_after_the_first_measurement(
    service: Service,
) -> None:
    study = service.submitted(spec(name="growing"))
    offered = (
        f'href="/studies/{study}/export"',
        f'href="/studies/{study}/ranking"',
        '<h2 id="figures-heading">',
    )
    waiting = service.http.get(f"/studies/{study}").text
    assert not any(words in waiting for words in offered)
    lease = service.store.claim(study, "tester:1:1", lease_s=60)
    run_trial(service.store, lease, measured(pending(0)))
    page = service.http.get(f"/studies/{study}").text
    assert all(words in page for words in offered)


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_nodes_of_a_trial_are_shown_if_there_are_several(service: Service, nodes: int) -> None:
    cluster = f"h100-sxm-{nodes}x8"
    study = service.submitted(spec(name=f"placed-{nodes}", cluster=cluster))
    lease = service.store.claim(study, "tester:1:1", lease_s=60)
    placed = [{"trial": 5, "node": "vm", "ranks": [0, 1], "gpus": []}]
    waiting = [{"trial": 6, "reason": "no ranks are free"}]
    service.store.set_status(
        study,
        StudyStatus.FAILED,
        expect=[StudyStatus.QUEUED],
        lease=lease,
        result={"placed": placed, "waiting": waiting},
    )
    page = service.http.get(f"/studies/{study}").text
    assert ("Trial 5 had ranks 0 to 1 on vm (CPU)." in page) is (nodes == 2)
    assert "Trial 6 waits: no ranks are free." in page


def test_the_header_marks_the_current_page(service: Service) -> None:
    for path in ("/studies", "/plan", "/best", "/compare", "/submit"):
        page = service.http.get(path).text
        assert re.findall(r'href="([^"]+)" aria-current="page"', page) == [path]
    study = service.submitted(spec(name="below"))
    assert "aria-current" not in service.http.get(f"/studies/{study}").text


def test_error_pages_show_the_problem(service: Service) -> None:
    answer = service.http.get("/studies/absent")
    assert answer.status_code == 404
    assert "There is no study" in answer.text
    assert service.http.get("/studies?status=odd").status_code == 422
    missing = service.http.get("/nowhere", headers={"Accept": "text/html"})
    assert missing.status_code == 404
    assert "There is no page at /nowhere" in missing.text
    assert '<div class="who">' in missing.text  # whoever is known elsewhere is known here
    assert service.http.get("/studies?page=99999999").status_code == 200


def test_the_empty_plan_page_has_an_explanation_and_an_example(
    service: Service,
) -> None:
    empty = service.http.get("/plan").text
    link = re.search(r'<a href="(/plan\?[^"]+)">Show the plan for this example', empty)
    assert link
    planned = service.http.get(unescape(link[1])).text
    assert "<h2>Try first</h2>" in planned
    assert "Show the plan for this example" not in planned


def test_a_plan_explains_its_map(service: Service) -> None:
    asked = {"model": "llama-8b", "cluster": "h100-sxm-4x8", "seq_len": "8192", "batch": "512"}
    page = service.http.get("/plan", params=asked).text
    assert 'class="tile plain' in page
    assert 'class="tile predicted' not in page, "nothing is measured that they would differ from"
    assert "Dashed" not in page
    # the baseline's row is faster than what the map shows of its cell, and does not fit
    assert re.search(
        r"tp=1 pp=1: \S+ tokens/s predicted; up to \S+ with a lower chance of fitting", page
    )
    assert "another config in the cell may be faster, but is less likely to fit" in page


def test_a_plan_shows_assumptions_and_its_command(service: Service) -> None:
    asked = {"model": "gemma-3-1b", "cluster": "h100-sxm-1x8", "seq_len": "2048", "batch": "64"}
    page = service.http.get("/plan", params={**asked, "trainer": "megatron"}).text
    assert "Assumed: attention is counted over all 2,048 tokens" in page
    assert "--seq-len 2048 --batch 64 --trainer megatron</code>" in page
    assert "--batch 64</code>" in service.http.get("/plan", params=asked).text


def test_a_plan_shows_all_mistakes_of_its_form_at_once(service: Service) -> None:
    asked = {
        "model": "llama-9b",
        "cluster": "h100",
        "seq_len": "long",
        "batch": "-3",
        "trainer": "megatrn",
    }
    page = service.http.get("/plan", params=asked).text
    assert page.count('<p class="bad" role="alert">') == 5
    for word in ("llama-9b", "h100", "long", "-3", "megatrn"):
        assert word in page.partition("</form>")[2]
    right = service.http.get(
        "/plan",
        params={
            "model": "llama-8b",
            "cluster": "h100-sxm-1x8",
            "seq_len": "4096",
            "batch": "64",
            "trainer": "",
        },
    ).text
    assert "<h2>Try first</h2>" in right
    assert "All speeds are predicted." in right
    first = re.search(r"<dt>Tokens per second</dt><dd>([^<]*)</dd>", right)
    assert first
    cells = re.findall(r'<text class="cell"[^>]*>([^<]*)</text>', right)
    assert first[1] in cells, "the map shows of each cell what the table ranks first"
