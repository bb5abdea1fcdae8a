"""The deployment files: well formed, and every command, option, variable and port in them is one that exists. No engine runs here."""

from __future__ import annotations

import configparser
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from autotune.cli import application
from autotune.extras import MODULES
from autotune.settings import settings

FOLDER = Path(__file__).resolve().parents[2] / "dashboards" / "deploy"
ROOT = FOLDER.parents[1]


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((FOLDER / "autotune.service").read_text())
    return parser


def docker_words(instruction: str) -> list[str]:
    found = re.findall(rf"^{instruction} (\[.*\])$", (FOLDER / "Dockerfile").read_text(), re.M)
    words: list[str] = yaml.safe_load(found[-1])
    return words


def containers(name: str) -> list[Any]:
    found = []
    stack: list[Any] = documents(name)
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            found += node.get("containers", [])
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    return found


def commands() -> list[list[str]]:
    """Every autotune command line in the files."""
    job = documents("rayjob.yaml")[0]["spec"]["entrypoint"]
    service = next(c["args"] for c in containers("raycluster.yaml") if c["name"] == "autotune")
    return [
        shlex.split(unit()["Service"]["ExecStart"])[1:],
        docker_words("CMD"),
        shlex.split(job)[1:],
        service,
        ["token", "create", "--owner", "me", "--scope", "admin"],
    ]


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words[:2]))
def test_every_command_line_is_one_that_the_program_takes(words: list[str]) -> None:
    command: Any = typer.main.get_command(application())
    while words and hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    context = command.make_context("autotune", list(words), resilient_parsing=False)
    assert context.params


def test_the_unit_is_complete_and_confined() -> None:
    service = unit()["Service"]
    assert service["User"] == "autotune"
    assert service["KillMode"] == "mixed"  # SIGTERM to the service alone
    assert service["ProtectSystem"] == "strict"
    assert service["Environment"].startswith("AUTOTUNE_DATA=")
    assert unit()["Install"]["WantedBy"] == "multi-user.target"


def test_the_image_copies_what_there_is_and_runs_as_nobody_in_particular() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    assert text.index("USER autotune") < text.index("ENTRYPOINT")
    assert ".[all]" in text, "the image serves, runs trials and joins Ray clusters"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(everything.removeprefix("autotune[").rstrip("]").split(",")) == set(MODULES)
    assert docker_words("ENTRYPOINT") == ["autotune"]


def test_the_composition_keeps_to_loopback_and_keeps_secrets_in_files() -> None:
    (composition,) = documents("compose.yaml")
    services = composition["services"]
    assert all(port.startswith("127.0.0.1:") for port in services["autotune"]["ports"])
    assert "ports" not in services["database"]
    assert (FOLDER / services["autotune"]["build"]["context"]).resolve() == ROOT
    used = {name for service in services.values() for name in service.get("secrets", [])}
    assert used == set(composition["secrets"])
    volumes = {v.partition(":")[0] for s in services.values() for v in s.get("volumes", [])}
    assert volumes == set(composition["volumes"])
    address = services["autotune"]["environment"]["AUTOTUNE_STORE"]
    assert settings({"AUTOTUNE_STORE": address}).store == address
    assert "password=" not in address.lower()


@pytest.mark.parametrize(
    ("name", "kinds"), [("raycluster.yaml", ["RayCluster", "Deployment", "Service"]), ("rayjob.yaml", ["RayJob"])]
)
def test_the_manifests_have_what_their_kinds_ask_for(name: str, kinds: list[str]) -> None:
    found = documents(name)
    assert [d["kind"] for d in found] == kinds
    for document in found:
        assert document["metadata"]["name"]
        assert (
            document["apiVersion"]
            == {"RayCluster": "ray.io/v1", "RayJob": "ray.io/v1", "Deployment": "apps/v1", "Service": "v1"}[
                document["kind"]
            ]
        )
        cluster = (
            document["spec"].get("rayClusterSpec", document["spec"]) if document["kind"].startswith("Ray") else None
        )
        if cluster:
            assert cluster["authOptions"] == {"mode": "token"}
            assert cluster["headGroupSpec"]["template"]["spec"]["containers"]
            assert "rayStartParams" in cluster["headGroupSpec"]
    for container in containers(name):
        assert container["image"] == "autotune:latest"
        assert container["resources"]["limits"]
        for variable in container.get("env", []):
            assert "value" not in variable, "secrets come from secrets"
