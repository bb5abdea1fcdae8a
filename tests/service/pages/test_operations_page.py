"""The page on operations, followed as its readers follow it: its own lines, with services in
processes of their own, real HTTP, a real PostgreSQL. Its proxy is in `test_proxies`.

What the page says is read from its text, so that a page that says something else is followed
otherwise, or fails here.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import typer

from autotune import cli
from tests.docs.pages import ROOT, blocks, commands
from tests.postgresql import PostgresServer, postgres_server
from tests.service.running import API, DEADLINE_S, Service, bearer, slow_spec, spec, until
from tests.service.served import serving

pytestmark = pytest.mark.alone

PAGE = ROOT / "docs/operations.md"
TEXT = PAGE.read_text(encoding="utf-8")
TYPED = [c.line for block in blocks(PAGE) if block.language == "console" for c in commands(block)]
"""what the page has readers type, in its order"""
SAID = re.findall(r"`((?:autotune |GET |pg_)[^`]+)`", TEXT)
"""commands and addresses that its sentences name"""


def typed(*words: str) -> str:
    """The one line of the page with these words."""
    (line,) = [line for line in TYPED if all(word in line for word in words)]
    return line


def said(*words: str) -> str:
    """The first command of the page's sentences with these words."""
    return next(line for line in SAID if all(word in line for word in words))


def rows(heading: str) -> list[list[str]]:
    """The rows of the table with that heading, without the quotes of code."""
    body = TEXT.partition(heading)[2].partition("\n\n")[0]
    return [
        [cell.strip() for cell in row.strip("|").split(" | ")]
        for row in body.splitlines()
        if row.startswith("| `")
    ]


def run(line: str, store: str, *more: str, code: int = 0) -> str:
    """What a command line prints; `store`: where AUTOTUNE_STORE points to."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("AUTOTUNE_STORE", store)
        patch.setenv("AUTOTUNE_DATA", str(Path(store).parent))
        found = cli.run([*shlex.split(line)[1:], *more])
    assert found == code, (line, found, err.getvalue())
    return err.getvalue() if code else out.getvalue()


def ask(url: str, method: str, path: str, token: str = "", **more: Any) -> httpx.Response:
    headers = bearer(token) if token else {}
    return httpx.request(
        method, url + path, headers=headers, timeout=DEADLINE_S, trust_env=False, **more
    )


@pytest.mark.thorough
def test_the_documented_tokens_allow_what_their_scopes_state(tmp_path: Path) -> None:
    store, create = str(tmp_path / "results.db"), typed("token create", "--expires")
    named = re.search(r"--scope (\w+)", create)
    scopes = [row[0].strip("`") for row in rows("| scope | allows |")]
    assert named[1] in scopes
    made = {
        scope: json.loads(
            run(create.replace(named[0], f"--scope {scope}"), store, "--owner", scope, "--json")
        )
        for scope in scopes
    }
    program = tmp_path / "programs" / "train.py"
    program.parent.mkdir()
    program.write_text("print('hello')\n", encoding="utf-8")
    theirs = spec(trainer={"kind": "accelerate", "script": str(program)}, runner="local", cluster="cpu-1x1", model="nano-gpt",
                  space={"world_sizes": [1], "micro_batch_size": [1], "precision": ["fp32"]})  # fmt: skip
    with serving(tmp_path, "--program-root", str(program.parent), "--max-studies", "1") as (
        _,
        answer,
    ):
        url = answer["url"]
        assert ask(url, "GET", f"{API}/studies").status_code == 401
        allowed: dict[str, list[bool]] = {}
        running = ask(
            url, "POST", f"{API}/studies", made["submit"]["token"], json=slow_spec()
        ).json()["study"]["id"]
        for scope, of in made.items():
            token = of["token"]
            tried = [
                ask(url, "GET", f"{API}/studies", token),
                ask(url, "POST", f"{API}/plan", token, json=spec()),
                ask(url, "POST", f"{API}/studies", token, json=spec(name=scope)),
                ask(url, "POST", f"{API}/studies", token, json=theirs),
                ask(url, "POST", f"{API}/studies/{running}/pause", token)
                if scope != "submit"
                else None,
            ]
            allowed[scope] = [one is not None and one.is_success for one in tried]
            assert all(one is None or one.status_code in (200, 201, 202, 403) for one in tried), [
                (scope, one.status_code, one.text[:300]) for one in tried if one is not None
            ]
        assert allowed == {
            "read": [True, True, False, False, False],
            "submit": [True, True, True, False, False],
            "run": [True, True, True, True, False],
            "admin": [True, True, True, True, True],
        }
        listed = run(typed("token list"), store)
        assert all(of["id"] in listed for of in made.values())
        assert not any(of["token"] in listed for of in made.values())
        revoke = said("token revoke").replace("ID", made["admin"]["id"])
        run(revoke, store)
        # at once
        assert ask(url, "GET", f"{API}/studies", made["admin"]["token"]).status_code == 401
        assert "submit" in run(typed("token audit"), store)


@pytest.mark.thorough
def test_the_documented_health_shows_more_with_a_token(tmp_path: Path) -> None:
    store = str(tmp_path / "results.db")
    token = json.loads(run(typed("token create", "--expires"), store, "--json"))["token"]
    addresses = [line.removeprefix("GET ") for line in SAID if line.startswith("GET ")]
    assert len(addresses) >= 2
    with serving(tmp_path, "--require-token") as (_, answer):
        url = answer["url"]
        health = next(address for address in addresses if address.endswith("health"))
        bare, full = ask(url, "GET", health).json(), ask(url, "GET", health, token).json()
        assert set(bare) < set(full)
        for probe in re.findall(r"`(/health/\w+)`", TEXT):
            assert ask(url, "GET", API + probe).status_code == 200, probe
        for address in addresses:
            assert ask(url, "GET", address, token).status_code == 200, address


def followed(folder: Path, line: str) -> None:
    """The page's `serve` line on its database: a study is run to its end, and the store holds
    it."""
    store = shlex.split(line)[shlex.split(line).index("--store") + 1]
    with serving(folder, "--store", store) as (_, answer):
        study = ask(answer["url"], "POST", f"{API}/studies", json=spec()).json()["study"]["id"]
        until(
            lambda: (
                ask(answer["url"], "GET", f"{API}/studies/{study}").json()["study"]["status"]
                == "COMPLETED"
            )
        )
    run(next(line for line in TYPED if line == "autotune store check"), store)
    assert study in run("autotune list", store)


@pytest.mark.thorough
def test_the_documented_service_on_postgresql_with_its_backup(tmp_path: Path) -> None:
    line = next(
        line for line in TYPED if "postgresql://" in line and "target_session_attrs" not in line
    )
    (address,) = re.findall(r"postgresql://\S+", line)
    with postgres_server() as server:
        database = server.new_database()
        followed(tmp_path, line.replace(address, database))
        assert {said("pg_dump"), said("pg_restore")} == {"pg_dump", "pg_restore"}
        restored = server.new_database()
        copy(server, database, restored)
        before, after = (run("autotune list", store, "--json") for store in (database, restored))
        assert json.loads(before)["studies"] == json.loads(after)["studies"] != []


def copy(server: PostgresServer, database: str, into: str) -> None:
    """By the two programs that the page names."""
    dump = subprocess.run(
        [server.programs / "pg_dump", "--format=custom", database],
        capture_output=True,
        check=True,
        timeout=DEADLINE_S,
    )
    subprocess.run(
        [server.programs / "pg_restore", "--no-owner", f"--dbname={into}"],
        input=dump.stdout, capture_output=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip


@pytest.mark.thorough
def test_the_documented_service_finds_the_writable_server_of_two(tmp_path: Path) -> None:
    line = typed("target_session_attrs")
    with postgres_server() as first, postgres_server(standby_of=first) as standby:
        ports = f"{standby.port},{first.port}"  # the one that takes no writes is asked first
        at = line.replace("autotune?", f"{urlsplit(first.url()).path[1:]}?").replace(
            "host=db1,db2", "host=127.0.0.1,127.0.0.1"
        )
        followed(tmp_path, at.replace("port=5432,5432", f"port={ports}"))


@pytest.mark.thorough
def test_the_documented_backup_is_restored_after_the_service_stopped(tmp_path: Path) -> None:
    store, kept = str(tmp_path / "results.db"), tmp_path / "backup.db"
    backup, restore = typed("store backup"), said("store restore")
    at = {line: line.replace("backup.db", str(kept)) for line in (backup, restore)}
    assert set(at.values()) != {backup, restore}
    with serving(tmp_path) as (_, answer):
        study = ask(answer["url"], "POST", f"{API}/studies", json=spec()).json()["study"]["id"]
        until(
            lambda: (
                ask(answer["url"], "GET", f"{API}/studies/{study}").json()["study"]["status"]
                == "COMPLETED"
            )
        )
        run(at[backup], store)
        run(at[backup], store, code=2)  # the target must not exist
        later = ask(answer["url"], "POST", f"{API}/studies", json=spec(name="later")).json()[
            "study"
        ]["id"]
        until(
            lambda: (
                ask(answer["url"], "GET", f"{API}/studies/{later}").json()["study"]["status"]
                == "COMPLETED"
            )
        )
        assert "open" in run(at[restore], store, code=1)  # it is in use
    before = json.loads(run(at[restore], store, "--json"))["kept"]
    listed = run("autotune list", store)
    assert study in listed
    assert later not in listed
    assert later in run("autotune list", before)
    run(said("store migrate"), store)
    for line in TYPED:
        if line.startswith("autotune store check"):
            run(line, store)


def test_the_documented_options_and_variables_exist() -> None:
    found = rows("| `serve` option | meaning |")
    options = {name: row[1] for row in found for name in re.findall(r"--[\w-]+", row[0])}
    serve = typer.main.get_command(cli.application()).commands["serve"]  # type: ignore[attr-defined]
    known = {
        name: parameter.default
        for parameter in serve.params
        for name in parameter.opts
        if name.startswith("--")
    }
    assert options
    assert set(options) <= set(known)
    # of other pages
    assert set(known) - set(options) <= {
        "--store",
        "--json",
        "--print-monitoring",
    }
    assert known["--max-waiting"] == int(re.findall(r"\d+", options["--max-waiting"])[0])
    assert known["--port"] == int(re.findall(r"\d+", options["--port"])[0])
    variables = {row[0].strip("`") for row in rows("| variable | meaning |")}
    assert {"AUTOTUNE_DATA", "AUTOTUNE_STORE"} < variables
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "autotune").rglob("*.py")
    )
    assert {name for name in variables if name not in sources} == set()


def test_the_documented_limits_are_the_services(service: Service) -> None:
    limits = TEXT.partition("- Bodies are limited to")[2].partition("\n")[0]
    of_bodies, of_texts = (int(number) for number in re.findall(r"(\d+) KiB", limits))
    (mistakes,) = re.findall(r"lists the first (\w+) errors", TEXT)
    assert (of_bodies * 1024, mistakes) == (service.options.max_body_bytes, "ten")

    def status(content: str, kind: str) -> int:
        return service.http.post(
            f"{API}/studies", content=content, headers={"Content-Type": kind}
        ).status_code

    assert status(json.dumps(spec()) + " " * (of_bodies << 10), "application/json") == 413
    assert status(json.dumps(spec()) + " " * ((of_bodies - 2) << 10), "application/json") == 201
    padding = "#" * ((of_texts << 10) - 1) + "\n"
    assert status(padding + json.dumps(spec()), "application/yaml") in (413, 422)
    assert status(padding[2048:] + json.dumps(spec()), "application/yaml") == 201
    wrong = service.http.post(
        f"{API}/studies", json=spec() | {f"unknown_{i}": i for i in range(30)}
    )
    assert wrong.status_code == 422
    assert len(wrong.json()["error"]["problems"]) == 10
    of_one, of_all = map(int, re.findall(r"may have (\d+) of (\d+) event streams", TEXT)[0])
    assert (service.options.max_streams_per_caller, service.options.max_streams) == (of_one, of_all)
