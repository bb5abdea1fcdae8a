"""The commands serve, token and those that ask a service, as a person types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from autotune import cli
from autotune.client import Client
from autotune.store import open_store
from tests.service.running import DEADLINE_S, slow_spec, spec, until
from tests.service.served import served

pytestmark = pytest.mark.alone
Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command line prints on stdout, or with `err` on stderr; it must end with that code."""

    def command(*words: str, code: int = 0, err: bool = False) -> str:
        capsys.readouterr()
        assert cli.run([*words]) == code
        captured = capsys.readouterr()
        return captured.err if err else captured.out

    return command


@pytest.mark.thorough
def test_serve_submit_watch_kill_serve_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec()))
    with served(tmp_path) as (process, url):
        monkeypatch.setenv("AUTOTUNE_URL", url)
        done = json.loads(said("submit", str(file), "--wait", "--json"))
        study = done["study"]["id"]
        assert done["study"]["status"] == "COMPLETED"
        assert json.loads(said("best", study, "--json"))["best"]["config"] == done["best"]["config"]
        said("export", study, "--to", "megatron", "-o", str(tmp_path / "launch"))
        assert (tmp_path / "launch" / "launch.sh").exists()
        store_url = ["--store", str(tmp_path / "results.db")]
        assert said("report", study) == said("report", study, *store_url)
        assert said("compare", study, "small") == said("compare", study, "small", *store_url)
        file.write_text(json.dumps(slow_spec()))
        slow = json.loads(said("submit", str(file), "--json"))["study"]["id"]
        with Client(url) as client:
            until(lambda: client.status(slow)["study"]["trials"].get("RUNNING"))
        process.kill()
        process.wait(DEADLINE_S)
    assert "cannot be reached" in said("list", "--url", url, code=3, err=True)
    with (
        served(tmp_path) as (_, url),
        Client(url) as client,
        closing(open_store(tmp_path / "results.db")) as store,
    ):
        assert client.status(slow)["study"]["status"] == "RUNNING"
        said("cancel", slow, "--url", url)
        until(lambda: store.holder(slow) is None)


@pytest.mark.thorough
def test_history_and_pages_are_served_while_ray_is_unavailable(tmp_path: Path) -> None:
    with (
        served(tmp_path, "--runner", "ray", "--ray", "http://127.0.0.1:1") as (_, url),
        Client(url) as client,
    ):
        study = client.submit(spec())["study"]["id"]
        health = until(
            lambda: (
                (found := httpx.get(f"{url}/api/v1/health", timeout=DEADLINE_S).json())["status"]
                == "failing"
                and found
            )
        )
        assert (
            "Ray's dashboard at http://127.0.0.1:1 cannot be reached"
            in health["checks"]["supervisor"]
        )
        for probe in ("live", "ready"):  # a restart would not bring Ray back, and pages are served
            assert (
                httpx.get(f"{url}/api/v1/health/{probe}", timeout=DEADLINE_S).json()["status"]
                == "ok"
            )
        assert httpx.get(f"{url}/studies/{study}", timeout=DEADLINE_S).status_code == 200
        assert client.status(study)["study"]["status"] == "QUEUED"


@pytest.mark.thorough
def test_submit_notes_that_no_service_runs_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(slow_spec()))
    words = ["submit", str(file), "--store", str(tmp_path / "results.db")]
    remark = "no service on this machine runs this store's studies"
    assert remark in said(*words, err=True)
    with served(tmp_path) as (process, _):
        assert remark not in said(*words, err=True)
        process.kill()  # leaves its file behind
        process.wait(DEADLINE_S)
        assert remark in said(*words, err=True)


@pytest.mark.thorough
def test_a_token_is_created_shown_once_used_and_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    store = ["--store", str(tmp_path / "results.db")]
    made = json.loads(
        said(
            "token",
            "create",
            "--scope",
            "submit",
            "--owner",
            "ann",
            "--expires",
            "2h",
            "--json",
            *store,
        )
    )
    assert made["expires_at"] is not None
    with served(tmp_path, "--require-token") as (_, url):
        monkeypatch.setenv("AUTOTUNE_URL", url)
        assert json.loads(said("list", "--json", code=1))["error"]["kind"] == "service"
        monkeypatch.setenv("AUTOTUNE_TOKEN", made["token"])
        said("list", "--json")
        said("token", "revoke", made["id"], *store)
        said("list", "--json", code=1)
    listed = said("token", "list", "--json", *store)
    assert json.loads(listed)["tokens"][0]["revoked_at"]
    assert made["token"].split("_")[2] not in listed
    (newest,) = json.loads(said("token", "audit", "--limit", "1", "--json", *store))["audit"]
    assert newest["action"] in ("token.revoke", "refused")
    (first,) = json.loads(said("token", "audit", "--limit", "1", "--after", "0", "--json", *store))[
        "audit"
    ]
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
def test_bad_input_is_reported_with_exit_code_2(words: list[str], said: Said) -> None:
    output = said(*words, code=2, err=True)
    assert output.startswith("error: ")
    assert "Traceback" not in output
