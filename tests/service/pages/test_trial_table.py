"""The table of a study's trials: sorted, filtered, in pages, and the same figures as everywhere
else."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from autotune.report.terminal import format_count
from autotune.results.answers import result_from
from autotune.results.result import Result
from autotune.service.pages.trial_table import PAGE, TrialQuery, trial_table
from autotune.spec import TrialPurpose
from tests.report.worlds import record, trial, trials
from tests.service.running import API, Service, spec


def numbers(result: Result, **asked: str) -> list[int]:
    return [row["number"] for row in trial_table(result, TrialQuery.of(asked))["rows"]]


@pytest.fixture(scope="module")
def small() -> Result:
    """Trials 0, 1, 3 and 4 of 1.0, 0.8, 0.5 and 0.9 s; trial 2 ran out of memory."""
    return result_from(record(), trials())


@pytest.fixture(scope="module")
def many() -> Result:
    """Trials 0 to 124, each slower than the one before."""
    return result_from(
        record(), [trial(n, step_time_s=1.0 + n, micro_batch_size=n + 1) for n in range(125)]
    )


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"sort": "-number"}, [4, 3, 2, 1, 0]),
        ({"sort": "-measured"}, [3, 1, 4, 0, 2]),
        ({"sort": "measured"}, [0, 4, 1, 3, 2]),
        ({"sort": "step"}, [3, 1, 4, 0, 2]),
        ({"status": "FAILED"}, [2]),
        ({"status": "failed"}, [2]),
        ({"where": "micro_batch_size=4"}, [3]),
        ({"where": "dp=8, zero_stage=1"}, [4]),
        ({"where": "MB8"}, [2]),
        ({"where": "dp=8 mb8", "status": "COMPLETED"}, []),
    ],
)
def test_trials_are_sorted_and_filtered_by_status_knobs_and_words(
    small: Result, asked: dict[str, str], found: list[int]
) -> None:
    """Those without a value in the sorted column come last."""
    assert numbers(small, **asked) == found


def test_the_heads_of_the_table_show_and_change_its_order(small: Result) -> None:
    heads = {
        head["name"]: head
        for head in trial_table(small, TrialQuery.of({"sort": "-measured"}))["heads"]
    }
    assert heads["Measured"]["sorting"] == "descending"
    assert heads["Measured"]["address"] == "?sort=measured#trials"
    assert heads["Memory"]["address"] == "?sort=-memory#trials"


def test_a_config_has_one_row_unless_every_run_is_requested() -> None:
    runs = [trial(0, step_time_s=1.0), trial(1, step_time_s=0.5, micro_batch_size=2)]
    finals = [
        replace(t, number=n, purpose=TrialPurpose.FINAL)
        for n, t in enumerate([*runs, *runs], start=2)
    ]
    result = result_from(record(), [*runs, *finals])
    table = trial_table(result, TrialQuery.of({}))
    assert [(row["number"], row["runs"]) for row in table["rows"]] == [(0, 3), (1, 3)]
    assert (table["all"], table["trials"], table["other_runs"]) == (2, 6, "?runs=each#trials")
    assert all(row["spent"] > 0 for row in table["rows"])
    each = trial_table(result, TrialQuery.of({"runs": "each", "sort": "-number"}))
    assert [row["number"] for row in each["rows"]] == [5, 4, 3, 2, 1, 0]
    assert each["other_runs"] == "?sort=-number#trials"
    assert {head["name"] for head in table["heads"] if not head["is_wide"]} == {
        "#",
        "Config",
        "Status",
        "Measured",
    }


def test_filters_are_in_the_links_and_wrong_ones_are_rejected(
    small: Result, service: Service
) -> None:
    table = trial_table(
        small, TrialQuery.of({"status": "COMPLETED", "where": "dp=8", "sort": "-step"})
    )
    assert (table["found"], table["all"]) == (4, 5)
    assert table["heads"][0]["address"] == "?status=COMPLETED&where=dp%3D8#trials"
    study = service.submitted(spec(name="filtered"))
    for query in ("sort=speed", "status=odd", "where=tpp%3D2"):
        assert service.http.get(f"/studies/{study}?{query}").status_code == 422
    assert (
        service.http.get(f"/studies/{study}?page=9999999&sort=-step&where=tp%3D2").status_code
        == 200
    )


def test_pages_have_each_trial_once_and_keep_the_filters(many: Result) -> None:
    shown, query = list[int](), {"sort": "-step", "where": "dp=8"}
    for page in ("1", "2", "3"):
        table = trial_table(many, TrialQuery.of({**query, "page": page}))
        shown += [row["number"] for row in table["rows"]]
        assert table["first"] == PAGE * (int(page) - 1) + 1
    assert shown == list(range(124, -1, -1))
    assert table["before"] == "?sort=-step&where=dp%3D8&page=2#trials"
    assert table["after"] == ""
    assert numbers(many, page="99") == list(range(100, 125))


@pytest.mark.thorough
def test_the_winner_has_the_same_figures_everywhere(tuning: Service) -> None:
    """After final rounds that measured it at another speed than the search did."""
    runner = {"kind": "simulated", "noise": 0.05, "outlier_every": 0}
    with tuning.client() as client:
        study = client.submit(
            spec(
                name="raced",
                runner=runner,
                measure={"finalists": 2},
                budget={"max_trials": 4, "min_gain": 0},
            )
        )["study"]["id"]
        client.wait(study)
    stored = tuning.store.trials(study)
    assert any(t.purpose is TrialPurpose.FINAL for t in stored)
    status = tuning.http.get(f"{API}/studies/{study}").json()["best"]
    speed, number = status["measurement"]["tokens_per_s"], status["number"]
    searched = next(t for t in stored if t.number == number).measurement
    # the finals measured another one
    assert searched.tokens_per_s != pytest.approx(speed, rel=1e-6)
    assert (
        tuning.http.get(f"{API}/studies/{study}/best").json()["best"]["measurement"]["tokens_per_s"]
        == speed
    )
    page = tuning.http.get(f"/studies/{study}").text
    word = format_count(speed)
    assert f"<dt>Tokens per second</dt><dd>{word}</dd>" in page
    assert cells_of(page)[3] == word
    assert cells_of(tuning.http.get(f"/studies/{study}/report").text)[4] == word
    assert f"<dd>{word}</dd>" in tuning.http.get(f"/studies/{study}/trials/{number}").text
    rows = tuning.http.get(f"{API}/studies/{study}/figures/best_so_far.csv").text.splitlines()
    assert [float(row.split(",")[4]) for row in rows if row.startswith(f"{number},")] == [speed]
    assert json.loads(tuning.http.get(f"{API}/studies/{study}").text)["best"]["number"] == number


def cells_of(page: str) -> list[Any]:
    """The cells of the winner's row."""
    row = re.search(r'<tr class="?won"?>(.*?)</tr>', page, re.DOTALL)
    assert row
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row[1], re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in cells]
