"""The commands serve, token and those that ask a service, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune import cli
from autotune.client import Client
from autotune.store import open_store
from tests.service.running import DEADLINE_S, slow_spec, spec, until
from tests.service.served import served

pytestmark = pytest.mark.alone


@pytest.mark.thorough
def test_serve_submit_watch_kill_serve_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec()))
    with served(tmp_path) as (process, url):
        monkeypatch.setenv("AUTOTUNE_URL", url)
        assert cli.run(["submit", str(file), "--wait", "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert done["study"]["status"] == "COMPLETED"
        assert cli.run(["best", done["study"]["id"], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["best"]["config"] == done["best"]["config"]
        folder = tmp_path / "launch"
        assert cli.run(["export", done["study"]["id"], "--to", "megatron", "-o", str(folder)]) == 0
        assert (folder / "launch.sh").exists()
        page = tmp_path / "report.html"
        assert cli.run(["report", done["study"]["id"], "-o", str(page)]) == 0
        here = tmp_path / "here.html"
        store_url = ["--store", str(tmp_path / "results.db")]
        assert cli.run(["report", done["study"]["id"], "-o", str(here), *store_url]) == 0
        assert page.read_text() == here.read_text()
        capsys.readouterr()
        assert cli.run(["compare", done["study"]["id"], "small"]) == 0
        remote = capsys.readouterr().out
        assert cli.run(["compare", done["study"]["id"], "small", *store_url]) == 0
        assert remote == capsys.readouterr().out
        file.write_text(json.dumps(slow_spec()))
        assert cli.run(["submit", str(file), "--json"]) == 0
        slow = json.loads(capsys.readouterr().out)["study"]["id"]
        with Client(url) as client:
            until(lambda: client.status(slow)["study"]["trials"].get("RUNNING"))
        process.kill()
        process.wait(DEADLINE_S)
    assert cli.run(["list", "--url", url]) == 3
    assert "cannot be reached" in capsys.readouterr().err
    with served(tmp_path) as (_, url), Client(url) as client:
        assert client.status(slow)["study"]["status"] == "RUNNING"
        assert cli.run(["cancel", slow, "--url", url]) == 0
        store = open_store(tmp_path / "results.db")
        until(lambda: store.holder(slow) is None)
        store.close()


@pytest.mark.thorough
def test_history_and_pages_are_served_while_ray_is_away_and_studies_wait(tmp_path: Path) -> None:
    with served(tmp_path, "--runner", "ray", "--ray", "http://127.0.0.1:1") as (_, url), Client(url) as client:
        study = client.submit(spec())["study"]["id"]
        health = until(
            lambda: (
                (found := httpx.get(f"{url}/api/v1/health", timeout=DEADLINE_S).json())["status"] == "failing" and found
            )
        )
        assert "Ray's dashboard at http://127.0.0.1:1 cannot be reached" in health["checks"]["supervisor"]
        for probe in ("live", "ready"):  # a restart would not bring Ray back, and pages are served
            assert httpx.get(f"{url}/api/v1/health/{probe}", timeout=DEADLINE_S).json()["status"] == "ok"
        assert httpx.get(f"{url}/studies/{study}", timeout=DEADLINE_S).status_code == 200
        assert client.status(study)["study"]["status"] == "QUEUED"


@pytest.mark.thorough
def test_submit_says_when_nothing_serves_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(slow_spec()))
    words = ["submit", str(file), "--store", str(tmp_path / "results.db")]
    remark = "no service on this machine runs the studies of this store"
    assert cli.run(words) == 0
    assert remark in capsys.readouterr().err
    with served(tmp_path) as (process, _):
        assert cli.run(words) == 0
        assert remark not in capsys.readouterr().err
        process.kill()  # leaves its file behind
        process.wait(DEADLINE_S)
        assert cli.run(words) == 0
        assert remark in capsys.readouterr().err


@pytest.mark.thorough
def test_a_token_is_made_shown_once_used_and_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "results.db")
    assert (
        cli.run(
            ["token", "create", "--scope", "submit", "--owner", "ann", "--expires", "2h", "--json", "--store", store]
        )
        == 0
    )
    made = json.loads(capsys.readouterr().out)
    assert made["expires_at"] is not None
    with served(tmp_path, "--require-token") as (_, url):
        monkeypatch.setenv("AUTOTUNE_URL", url)
        assert cli.run(["list", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["error"]["kind"] == "service"
        monkeypatch.setenv("AUTOTUNE_TOKEN", made["token"])
        assert cli.run(["list", "--json"]) == 0
        capsys.readouterr()
        assert cli.run(["token", "revoke", made["id"], "--store", store]) == 0
        assert cli.run(["list", "--json"]) == 1
    capsys.readouterr()
    assert cli.run(["token", "list", "--json", "--store", store]) == 0
    listed = capsys.readouterr().out
    assert json.loads(listed)["tokens"][0]["revoked_at"]
    assert made["token"].split("_")[2] not in listed
    assert cli.run(["token", "audit", "--limit", "1", "--json", "--store", store]) == 0
    (newest,) = json.loads(capsys.readouterr().out)["audit"]
    assert newest["action"] in ("token.revoke", "refused")
    assert cli.run(["token", "audit", "--limit", "1", "--after", "0", "--json", "--store", store]) == 0
    (first,) = json.loads(capsys.readouterr().out)["audit"]
    assert first["action"] == "token.create"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ["serve", "--host", "0.0.0.0", "--port", "0", "--runner", "local"],
        ["serve", "--runner", "nothing"],
        ["serve", "--runner", "local", "--port", "0", "--program-root", "/no/such/folder"],
        ["serve", "--runner", "local", "--port", "0", "--program-user", "no-such-user"],
        ["token", "create", "--scope", "root"],
        ["token", "create", "--expires", "soon"],
        ["token", "revoke", "nothing"],
        ["list", "--url", "ftp://x"],
    ],
)
def test_bad_input_is_said_and_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(words) == 2
    captured: Any = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
