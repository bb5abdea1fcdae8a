"""Observed runs where people look for results: the list, the service, the best configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.store import open_store
from autotune.testing.stores import a_study, an_observed_run
from tests.cli.conftest import Done, run
from tests.service.conftest import service
from tests.service.running import API, Service

__all__ = ["run", "service"]


def test_the_list_shows_observed_runs_apart_from_studies(run: Callable[..., Done], tmp_path: Any) -> None:
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
    found = run("best", "--model", "tiny", "--cluster", "gpu-1x8", "--store", address, "--json").document
    assert found["source"] != "measured"


def test_the_service_and_its_client_hand_them_out(service: Service) -> None:
    kept = [service.store.keep_observed(an_observed_run(a_study(), program=name)) for name in ("a.py", "b.py")]
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
