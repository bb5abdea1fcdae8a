"""A study whose spec holds secrets: whatever shows it to others, in pages, answers, reports, tools
and logs, shows *** instead."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mcp import Client

from autotune import api, cli
from autotune.cli.source import LocalSource
from autotune.mcp import make_server
from autotune.report.markdown_page import markdown_report
from autotune.report.page import html_report
from autotune.service.options import ServiceOptions
from tests.service.running import DEADLINE_S, Service

VALUES = ("SECRET-argv-123", "SECRET-env-456", "SECRET-url-789", "SECRET-next-012")
PROGRAM = """
import json, os, sys
print("key", os.environ["WANDB_API_KEY"], "taken", os.environ["TAKEN_TOKEN"], flush=True)
if "--mb=4" in sys.argv:
    raise SystemExit(f"lost with {sys.argv[-1]} and {os.environ['WANDB_API_KEY']} and {os.environ['TAKEN_TOKEN']}")
for step in range(8):
    print(json.dumps({"step": step, "step_time_s": 0.01, "loss": 3.0}), flush=True)
"""


def spec(folder: Path) -> dict[str, object]:
    (folder / "program.py").write_text(PROGRAM)
    return {
        "name": "secretive",
        "model": "nano-gpt",
        "cluster": "cpu-1x1",
        "workload": {"seq_len": 64, "global_batch_size": 8},
        "space": {"world_sizes": [1], "micro_batch_size": [1, 4], "precision": ["fp32"]},
        "runner": "local",
        "budget": {"max_trials": 2},
        "measure": {"warmup_steps": 1, "min_steps": 7, "max_steps": 7, "finalists": 0},
        "searcher": "grid",
        "check": False,
        "calibrate": False,
        "trainer": {
            "kind": "command",
            "cwd": str(folder),
            "argv": [
                sys.executable,
                "program.py",
                "--mb={micro_batch_size}",
                "--acc={accumulation_steps}",
                "--db=postgresql://ada:SECRET-url-789@host/db",
                "--token",
                "SECRET-next-012",
                "--api-key=SECRET-argv-123",
            ],
            "env": {"WANDB_API_KEY": "SECRET-env-456", "TAKEN_TOKEN": "from-environment"},
        },
    }


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str, list[str]]]:
    """A service with such a study, which has run real programs, and what was told while it ran."""
    folder = tmp_path_factory.mktemp("secrets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAKEN_TOKEN", "SECRET-taken-345")
        patch.setenv("AUTOTUNE_DATA_DIR", str(folder / "data"))
        with Service(
            folder / "service", options=ServiceOptions(port=0, require_token=True)
        ) as service:
            told: list[str] = []
            result = api.tune(
                spec(folder),
                store=service.store,
                on_event=lambda event: told.append(getattr(event, "message", "")),
            )
            yield service, result.record.id, told


def leaks(text: str) -> list[str]:
    return [
        value
        for value in (*VALUES, "SECRET-taken-345")
        if value in text or value.replace("-", "%2D") in text
    ]


def token(service: Service, scope: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {service.token(scope, owner=scope)}"}


ADDRESSES = (
    "/api/v1/studies", "/api/v1/studies/{id}", "/api/v1/studies/{id}/record", "/api/v1/studies/{id}/trials", "/api/v1/studies/{id}/events",
    "/api/v1/studies/{id}/export/command", "/api/v1/studies/{id}/explain", "/studies/{id}", "/studies/{id}/report",
    "/studies/{id}/export", "/studies/{id}/trials/0", "/studies/{id}/trials/1", "/submit?from={id}", "/studies/{id}/figures",
)  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_others_see_no_secret(shown: tuple[Service, str, list[str]], address: str) -> None:
    service, study, _ = shown
    with httpx.Client(
        base_url=service.url,
        headers=token(service, "submit"),
        follow_redirects=True,
        timeout=DEADLINE_S,
    ) as client:
        answer = client.get(address.format(id=study))
    assert answer.status_code == 200
    assert leaks(answer.text) == []


def test_the_owner_exports_what_was_launched(shown: tuple[Service, str, list[str]]) -> None:
    service, study, _ = shown
    address = f"/api/v1/studies/{study}/export/command"
    with httpx.Client(base_url=service.url, timeout=DEADLINE_S) as client:
        theirs = client.get(address, headers=token(service, "read")).json()
        own = client.get(address, headers=token(service, "admin")).json()
    assert theirs["env"]["WANDB_API_KEY"] == "***"
    assert "--api-key=***" in theirs["argv"]
    assert own["env"]["WANDB_API_KEY"] == "SECRET-env-456"
    assert {"--api-key=SECRET-argv-123", "SECRET-next-012"} <= set(own["argv"])
    assert own["env"]["TAKEN_TOKEN"] == "from-environment"
    assert api.export_document(service.store, study, "command", {})["argv"] == own["argv"]


def test_reports_tools_and_messages_have_no_secrets(shown: tuple[Service, str, list[str]]) -> None:
    service, study, told = shown
    result = api.result_of(service.store, study)
    assert leaks(html_report(result.record, result.trials)) == []
    assert leaks(markdown_report(result.record, result.trials)) == []
    assert leaks("\n".join(told)) == []
    (said,) = [line for line in told if "secrets" in line]
    assert all(
        word in said
        for word in ("WANDB_API_KEY", "token", "api-key", "env: {WANDB_API_KEY: from-environment}")
    )

    async def export() -> str:
        async with Client(
            make_server(LocalSource(service.store), store=None, may_submit=False)
        ) as client:
            return str(
                await client.call_tool("export_launch", {"study": study, "trainer": "command"})
            )

    assert leaks(asyncio.run(export())) == []


COMMANDS = (
    "status {id}", "list", "best {id}", "best", "explain {id}", "compare {id} {id}", "logs {id}", "logs {id} 0", "logs {id} 1",
    "report {id}", "report {id} --format markdown", "export {id} --to command", "export {id} --to command --on slurm",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_only_the_json_export_prints_secrets(
    shown: tuple[Service, str, list[str]],
    line: str,
    form: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    service, study, _ = shown
    code = cli.run([*line.format(id=study).split(), "--store", str(service.path), *form])
    output = capsys.readouterr()
    assert code == 0, output.err
    assert leaks(output.err) == []
    if line.startswith("export") and form:  # a program reads it, to start the launch
        assert "the output contains the secrets in the spec" in output.err
        assert json.loads(output.out)["env"]["WANDB_API_KEY"] == "SECRET-env-456"
        return
    assert leaks(output.out) == []
    if line.startswith("export"):
        assert "secrets in the spec are shown as ***" in output.err


def test_an_export_into_a_folder_has_secrets_only_for_its_owner(
    shown: tuple[Service, str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service, study, _ = shown
    line = [
        "export",
        study,
        "--to",
        "command",
        "--store",
        str(service.path),
        "-o",
        str(tmp_path / "launch"),
    ]
    assert cli.run(line) == 0
    written = [path for path in (tmp_path / "launch").iterdir() if leaks(path.read_text())]
    assert written
    assert all(path.stat().st_mode & 0o077 == 0 for path in written)


def test_output_of_the_program_is_stored_without_secrets(
    shown: tuple[Service, str, list[str]],
) -> None:
    service, study, _ = shown
    failures = [trial.failure for trial in service.store.trials(study) if trial.failure is not None]
    assert failures
    kept = str([(failure.message, failure.exception, failure.log_tail) for failure in failures])
    assert "lost with" in kept
    assert leaks(kept) == []
    folder = (
        next(line for line in failures[0].log_tail if "keeps the logs" in line)
        .split(" in ")[-1]
        .rstrip("]")
    )
    (log,) = Path(folder).glob("node-*.log")
    assert "key *** taken ***" in log.read_text()
    assert leaks(log.read_text()) == []


def test_the_answer_to_a_submission_notes_secrets_in_the_spec(tmp_path: Path) -> None:
    options = ServiceOptions(port=0, require_token=True, program_roots=(tmp_path,))
    settings = {"wandb": {"enabled": True, "api_key": "SECRET-env-456"}}
    asked = spec(tmp_path) | {
        "runner": "simulated",
        "trainer": {"kind": "deepspeed", "settings": settings},
    }
    with (
        Service(tmp_path / "service", options=options) as service,
        httpx.Client(base_url=service.url, timeout=DEADLINE_S) as client,
    ):
        headers = token(service, "run")
        answer = client.post("/api/v1/studies", headers=headers, json=asked)
        plain = client.post("/api/v1/studies", headers=headers, json=asked | {"trainer": "native"})
    assert (answer.status_code, plain.status_code) == (201, 201), answer.text + plain.text
    (said,) = answer.json()["notes"]
    assert "(api_key)" in said
    assert leaks(answer.text) == []
    assert plain.json()["notes"] == []
