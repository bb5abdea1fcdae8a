"""Observed runs where people look for results: the list, the service, the best configs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from autotune.store import open_store
from autotune.testing.stores import a_study, an_observed_run
from tests.cli.conftest import Done, run
from tests.service.conftest import service
from tests.service.running import API, Service

__all__ = ["run", "service"]


def test_the_list_shows_observed_runs_apart_from_studies(
    run: Callable[..., Done], tmp_path: Any
) -> None:
    address = str(tmp_path / "runs.db")
    assert "no observed runs" in run("list", "--observed", "--store", address).err
    store = open_store(address)
    kept = store.keep_observed(an_observed_run(a_study()))
    store.keep_observed(an_observed_run(None, program="other.py"))
    store.close()
    shown = run("list", "--observed", "--store", address).out.splitlines()
    assert len(shown) == 3
    assert shown[2].split("\t")[:3] == [kept.id, "train.py", "tiny on gpu-1x8"]
    document = run("list", "--observed", "--store", address, "--json").document
    assert [one["kind"] for one in document["runs"]] == ["observed", "observed"]
    assert document["runs"][1] == kept.to_dict()
    assert run("list", "--store", address, "--json").document["studies"] == []
    found = run(
        "best", "--model", "tiny", "--cluster", "gpu-1x8", "--store", address, "--json"
    ).document
    assert found["source"] != "measured"


def test_the_service_and_its_client_hand_them_out(service: Service) -> None:
    kept = [
        service.store.keep_observed(an_observed_run(a_study(), program=name))
        for name in ("a.py", "b.py")
    ]
    with service.client() as client:
        first = client.observed(limit=1)
        assert first["runs"] == [kept[1].to_dict()]
        assert client.observed(limit=1, offset=first["next_offset"]) == {
            "runs": [kept[0].to_dict()],
            "next_offset": None,
        }
        assert [run["id"] for run in client.observed(program="a.py")["runs"]] == [kept[0].id]
        assert client.observed(outcome="failed")["runs"] == []
    assert service.http.get(f"{API}/observed", params={"outcome": "WON"}).status_code == 422


def test_runs_are_found_by_the_versions_that_they_were_measured_with(
    run: Callable[..., Done], service: Service, tmp_path: Any
) -> None:
    by_torch = {}
    for torch in ("2.11.0", "2.12.0", "2.12.1"):
        seen = an_observed_run(a_study(), program=f"{torch}.py")
        kept = service.store.keep_observed(
            replace(seen, versions={"torch": torch, "python": "3.12.3"})
        )
        by_torch[torch] = kept.id
    with service.client() as client:
        found = client.observed(version=["torch=2.12", "python=3.12"], limit=1)
        assert [one["id"] for one in found["runs"]] == [by_torch["2.12.1"]]
        rest = client.observed(version=["torch=2.12"], offset=found["next_offset"])
        assert ([one["id"] for one in rest["runs"]], rest["next_offset"]) == (
            [by_torch["2.12.0"]],
            None,
        )
        assert client.observed(version=["torch=2.1"])["runs"] == []
    assert service.http.get(f"{API}/observed", params={"version": "torch"}).status_code == 422
    address = str(tmp_path / "none.db")
    assert "add --observed" in run("list", "--version", "torch=2", "--store", address).err
    assert (
        "no observed runs match"
        in run("list", "--observed", "--version", "torch=2", "--store", address).err
    )
