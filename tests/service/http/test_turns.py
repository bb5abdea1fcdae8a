"""Owners take turns: a study says behind what it waits, and nobody fills the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune import cli
from autotune.service.options import ServiceOptions
from tests.service.running import API, Service, bearer, spec


@pytest.fixture
def crowded(tmp_path: Path) -> Service:
    """Runs no studies, and lets an owner have three that wait."""
    return Service(
        tmp_path, options=ServiceOptions(port=0, require_token=True, max_queued_per_owner=3)
    )


def test_waiting_studies_are_limited_per_owner(
    crowded: Service,
) -> None:
    with crowded as service:
        hog, other = (bearer(service.token("submit", name)) for name in ("hog", "other"))
        answers = [
            service.http.post(f"{API}/studies", json=spec(name=f"h{i}"), headers=hog, timeout=600)
            for i in range(4)
        ]
        assert [answer.status_code for answer in answers] == [201] * 3 + [429]
        error = answers[-1].json()["error"]
        assert error["message"].startswith("an owner may have at most 3 waiting studies")
        assert "autotune cancel" in error["remedy"]
        assert int(answers[-1].headers["retry-after"]) > 0
        assert (
            service.http.post(f"{API}/studies", json=spec(name="o"), headers=other).status_code
            == 201
        )
        first = answers[0].json()["study"]["id"]
        assert service.http.post(f"{API}/studies/{first}/cancel", headers=hog).status_code == 200
        assert (
            service.http.post(f"{API}/studies", json=spec(name="h4"), headers=hog).status_code
            == 201
        )


def test_a_waiting_study_shows_its_place_in_the_queue(
    crowded: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    with crowded as service:
        hog, other = (bearer(service.token("submit", name)) for name in ("hog", "other"))

        def submitted(name: str, who: dict[str, str]) -> str:
            answer = service.http.post(f"{API}/studies", json=spec(name=name), headers=who)
            return str(answer.json()["study"]["id"])

        def behind(study: str) -> object:
            return service.http.get(f"{API}/studies/{study}", headers=other).json()["study"][
                "waits_behind"
            ]

        first, second, third = (submitted(f"h{i}", hog) for i in range(3))
        mine = submitted("mine", other)
        service.service._queue = ([], float("-inf"))  # a reading serves for half a second
        assert [behind(study) for study in (first, mine, second, third)] == [
            {"studies": 0, "owners": 0},
            {"studies": 1, "owners": 1},
            {"studies": 2, "owners": 2},
            {"studies": 3, "owners": 2},
        ]
        cookie = {"Cookie": f"autotune_token={service.token('read')}"}
        assert (
            "It waits behind 2 studies of 2 owners"
            in service.http.get(f"/studies/{second}", headers=cookie).text
        )
        assert cli.run(["status", third, "--store", str(service.path)]) == 0
        assert "it waits behind 3 studies of 2 owners" in " ".join(capsys.readouterr().out.split())
        service.http.post(f"{API}/studies/{first}/cancel", headers=hog)
        service.service._queue = ([], float("-inf"))
        assert behind(mine) == {"studies": 1, "owners": 1}
        assert behind(second) == {"studies": 0, "owners": 0}, "of equals the oldest"
        assert behind(first) is None
