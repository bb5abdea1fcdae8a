"""Figures of a study over HTTP, and the views of studies that they are made from."""

from __future__ import annotations

import csv
import html
import io
import xml.etree.ElementTree as ET

import pytest

from autotune.report.figures import FIGURES
from tests.service.running import API, Service, bearer, spec, until


@pytest.fixture(scope="module")
def finished(tuning: Service) -> str:
    """A study that has ended."""
    with tuning.client() as client:
        study: str = client.submit(spec(name="drawn"))["study"]["id"]
        client.wait(study)
    return study


@pytest.mark.thorough
def test_each_figure_is_on_the_page_with_data_and_drawing(tuning: Service, finished: str) -> None:
    listed = tuning.http.get(f"{API}/studies/{finished}/figures").json()
    names = [figure["name"] for figure in listed["figures"]]
    assert {*names, *(absent["name"] for absent in listed["missing"])} == set(FIGURES) - {
        "running_steps"
    }
    assert len(names) >= 10
    page = tuning.http.get(f"/studies/{finished}").text
    for figure in listed["figures"]:
        assert f'<figure class="autotune-figure" id="{figure["name"]}">' in page
        assert figure["csv"] in page
        data = tuning.http.get(figure["csv"])
        assert data.headers["content-type"].startswith("text/csv")
        rows = list(csv.reader(io.StringIO(data.text)))
        assert len({len(row) for row in rows}) == 1
        assert len(rows) > 1
        drawing = tuning.http.get(figure["svg"])
        assert drawing.headers["content-type"] == "image/svg+xml"
        assert "default-src 'none'" in drawing.headers["content-security-policy"]
        assert ET.fromstring(drawing.text).tag.endswith("svg")
    for absent in listed["missing"]:
        assert f"{absent['title']} (needs {absent['needs']})" in html.unescape(page)


def test_a_missing_figure_states_what_it_needs(service: Service, guarded: Service) -> None:
    study = service.submitted(spec(name="waiting"))
    answer = service.http.get(f"{API}/studies/{study}/figures/best_so_far.csv")
    assert answer.status_code == 404
    assert "needs a measured trial" in answer.json()["error"]["message"]
    page = service.http.get("/studies/waiting/report").text
    assert "Not drawn yet" in page
    assert "Best so far over trials (needs a measured trial" in page
    assert guarded.http.get(f"{API}/studies/{study}/figures").status_code == 401
    reader = bearer(guarded.token("read"))
    # of another store
    assert guarded.http.get(f"{API}/studies/{study}/figures", headers=reader).status_code == 404


@pytest.mark.thorough
def test_a_view_is_computed_once_per_revision(tuning: Service, finished: str) -> None:
    views = tuning.service.views
    assert views.result("drawn").trials is views.result(finished).trials
    assert views.figures(finished)[0] is views.figures(finished)[0]
    drawn = views.figures(finished)
    tuning.store.annotations.change_tags(finished, add=["seen"])
    assert views.result(finished).record.tags == ("seen",)
    assert views.figures(finished)[0] is not drawn[0]


@pytest.mark.thorough
def test_running_trials_are_updated_between_events(tuning: Service) -> None:
    runner = {"kind": "simulated", "noise": 0.0, "outlier_every": 0, "time_scale": 1.0}
    budget = {"max_trials": 6, "min_gain": 0}  # far longer than a busy machine takes to look at it
    with tuning.client() as client:
        study = client.submit(spec(name="stepping", runner=runner, budget=budget))["study"]["id"]
        part = until(
            lambda: (
                "of at most" in (text := tuning.http.get(f"/studies/{study}/running").text) and text
            )
        )
        assert "<progress" in part
        until(lambda: "left" in tuning.http.get(f"/studies/{study}/running").text)
        assert 'data-from="/studies/' in tuning.http.get(f"/studies/{study}").text
        data = f"{API}/studies/{study}/figures/running_steps.csv"
        # a trial may end in between
        until(lambda: tuning.http.get(data).text.startswith("trial,config,step"))
        client.act(study, "cancel")
        client.wait(study)
    assert "<li>" not in tuning.http.get(f"/studies/{study}/running").text
