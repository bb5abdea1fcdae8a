"""The deployment files: as their schemas say, and every command, option, variable and port in them
is one that exists. No engine runs here."""

from __future__ import annotations

import configparser
import contextlib
import importlib.resources
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml

from autotune.cli import application
from autotune.extras import MODULES
from autotune.service.http.app import create_app
from autotune.service.metrics import scrape_targets
from autotune.service.options import ServiceOptions
from autotune.settings import settings
from autotune.store.in_memory import MemoryStore

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
    return yaml.safe_load(found[-1])


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
    """Every autotune command line in the files, those of their comments included."""
    job = documents("rayjob.yaml")[0]["spec"]["entrypoint"]
    service = next(c["args"] for c in containers("raycluster.yaml") if c["name"] == "autotune")
    text = "\n".join(file.read_text() for file in sorted(FOLDER.iterdir()) if file.is_file())
    said = re.findall(
        r"(?:autotune|--|`autotune) (token create [\w -]+?)\s*(?:#|\\|`|$)", text, re.M
    )
    assert len(said) >= 4
    return [
        shlex.split(unit()["Service"]["ExecStart"])[1:],
        docker_words("CMD"),
        shlex.split(job)[1:],
        service,
        *map(shlex.split, sorted(set(said))),
    ]


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words[:2]))
def test_every_command_line_is_one_that_the_program_takes(words: list[str]) -> None:
    command: Any = typer.main.get_command(application())
    while words and hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    assert command.make_context("autotune", list(words), resilient_parsing=False).params


def test_the_unit_is_complete_and_confined() -> None:
    service = unit()["Service"]
    assert service["User"] == "autotune"
    assert service["KillMode"] == "mixed"  # SIGTERM to the service alone
    assert service["ProtectSystem"] == "strict"
    assert service["Environment"].startswith("AUTOTUNE_DATA=")
    families = set(
        service["RestrictAddressFamilies"].split()
    )  # the last: what getifaddrs needs, and so gloo, NCCL and Ray
    assert families == {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"}
    assert unit()["Install"]["WantedBy"] == "multi-user.target"


def test_the_token_of_the_unit_is_made_where_its_service_looks_for_it() -> None:
    service = unit()["Service"]
    assert "--require-token" in service["ExecStart"].split(), (
        "other users of the machine need one too"
    )
    home = f"/var/lib/{service['StateDirectory']}"
    assert service["Environment"] == f"AUTOTUNE_DATA={home}"
    made = f"-u {service['User']}[ -]+env AUTOTUNE_DATA={home} {service['ExecStart'].split()[0]} token create "
    added = f"useradd --system --home-dir {home} --create-home {service['User']}\n"
    for text in (
        (FOLDER / "autotune.service").read_text(),
        (ROOT / "docs" / "how-to" / "deploy.md").read_text(),
    ):
        assert re.search(made, text)
        assert re.search(added, text)


def test_the_image_copies_what_there_is_and_runs_as_nobody_in_particular() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M):
        *sources, _ = line.split()
        assert all((ROOT / source).exists() for source in sources), line
    assert text.index("USER 10001") < text.index(
        "ENTRYPOINT"
    )  # a number: Kubernetes cannot tell whether a name is root
    assert ".[all]" in text, "the image serves, runs trials and joins Ray clusters"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (everything,) = extras["all"]
    assert set(everything.removeprefix("autotune-parallel[").rstrip("]").split(",")) == set(MODULES)
    assert docker_words("ENTRYPOINT") == ["autotune"]


def test_the_composition_is_one_that_compose_takes() -> None:
    """By the published schema of compose files (https://github.com/compose-spec/compose-spec)."""
    schema = (
        importlib.resources.files("check_jsonschema.builtin_schemas.vendor") / "compose-spec.json"
    )
    (composition,) = documents("compose.yaml")
    jsonschema.validate(composition, json.loads(schema.read_text()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(composition | {"servises": {}}, json.loads(schema.read_text()))


def test_the_composition_keeps_to_loopback_and_keeps_secrets_in_files() -> None:
    (composition,) = documents("compose.yaml")
    services = composition["services"]
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert re.search(r":v?\d+\.\d+", service["image"]) or "build" in service, (
            f"{name} names its version"
        )
    assert "ports" not in services["database"]
    assert (FOLDER / services["autotune"]["build"]["context"]).resolve() == ROOT
    used = {name for service in services.values() for name in service.get("secrets", [])}
    assert used == set(composition["secrets"])
    mounts = [v.split(":")[0] for s in services.values() for v in s.get("volumes", [])]
    assert {m for m in mounts if not m.startswith(".")} == set(composition["volumes"])
    assert all((FOLDER / m).exists() for m in mounts if m.startswith("."))
    address = services["autotune"]["environment"]["AUTOTUNE_STORE"]
    assert settings({"AUTOTUNE_STORE": address}).store == address
    assert "password=" not in address.lower()


def test_the_secrets_are_made_once_and_for_nobody_else(tmp_path: Path) -> None:
    script = shutil.copy(FOLDER / "make-secrets", tmp_path)

    def made() -> dict[str, str]:
        subprocess.run([script], check=True, capture_output=True)
        return {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}

    first = made()
    (composition,) = documents("compose.yaml")
    assert set(first) == {Path(secret["file"]).name for secret in composition["secrets"].values()}
    assert first["pgpass"] == f"database:5432:autotune:autotune:{first['postgres_password']}\n"
    assert len(first["postgres_password"]) == len(first["grafana_password"]) == 48
    assert {file.stat().st_mode & 0o077 for file in (tmp_path / "secrets").iterdir()} == {0}
    assert made() == first


def test_prometheus_and_grafana_find_what_the_composition_mounts() -> None:
    (composition,) = documents("compose.yaml")
    (metrics,) = documents("prometheus.yml")
    (job,) = metrics["scrape_configs"]
    assert job["job_name"] == "autotune", "the alerts ask for it"
    assert job["metrics_path"] == scrape_targets.PATH
    assert job["static_configs"] == [{"targets": ["autotune:8600"]}]
    assert "autotune" in docker_words("CMD"), "the name that Prometheus asks for is an allowed one"
    assert (
        Path(job["authorization"]["credentials_file"]).name
        in composition["services"]["prometheus"]["secrets"]
    )
    volumes = dict(v.split(":")[:2] for v in composition["services"]["grafana"]["volumes"])
    (source,) = yaml.safe_load(
        (FOLDER / "grafana" / "datasources" / "prometheus.yaml").read_text()
    )["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")
    (provider,) = yaml.safe_load((FOLDER / "grafana" / "dashboards" / "autotune.yaml").read_text())[
        "providers"
    ]
    assert volumes["../grafana"] == provider["options"]["path"]


OBJECT, INTEGER, BOOLEAN, TEXT = (
    {"type": kind} for kind in ("object", "integer", "boolean", "string")
)
GROUP = {"rayStartParams": OBJECT, "template": OBJECT}
WORKERS = GROUP | {
    "groupName": TEXT,
    "replicas": INTEGER,
    "minReplicas": INTEGER,
    "maxReplicas": INTEGER,
}
RAY_SPEC = {
    "rayVersion": TEXT,
    "authOptions": OBJECT,
    "headGroupSpec": {"properties": GROUP},
    "workerGroupSpecs": {"items": {"properties": WORKERS, "required": sorted(WORKERS)}},
}
"""fields of RayCluster that the manifests use, by ray.io_rayclusters.yaml of KubeRay 1.5.1; pod
templates are checked by Kubernetes' own schema"""
JOB_SPEC = {
    "entrypoint": TEXT,
    "shutdownAfterJobFinishes": BOOLEAN,
    "ttlSecondsAfterFinished": INTEGER,
    "activeDeadlineSeconds": INTEGER,
    "backoffLimit": INTEGER,
    "rayClusterSpec": {"properties": RAY_SPEC},
}
POD_ENDPOINT = {"port": TEXT, "path": TEXT, "interval": TEXT}
MONITOR_SPEC = {
    "selector": OBJECT,
    "jobLabel": TEXT,
    "endpoints": {"items": {"properties": POD_ENDPOINT | {"authorization": OBJECT}}},
    "podMetricsEndpoints": {"items": {"properties": POD_ENDPOINT}},
}
CUSTOM = {
    "RayCluster": RAY_SPEC,
    "RayJob": JOB_SPEC,
    "ServiceMonitor": MONITOR_SPEC,
    "PodMonitor": MONITOR_SPEC,
}


def closed(schema: Any) -> Any:
    """A schema in which every object takes the named fields alone."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    more = (
        {"additionalProperties": False, "type": "object"}
        if isinstance(schema.get("properties"), dict)
        else {}
    )
    return {key: closed(value) for key, value in schema.items()} | more


def templates(document: Any) -> list[Any]:
    """Every pod template in a manifest."""
    if isinstance(document, list):
        return [found for part in document for found in templates(part)]
    if not isinstance(document, dict):
        return []
    own = [document["template"]] if "template" in document else []
    return own + [found for value in document.values() for found in templates(value)]


MANIFESTS = {
    "raycluster.yaml": ["RayCluster", "Deployment", "Service"],
    "rayjob.yaml": ["RayJob"],
    "postgresql.yaml": ["StatefulSet", "Service"],
    "monitoring.yaml": ["ServiceMonitor", "PodMonitor"],
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_manifests_are_ones_that_kubernetes_takes(name: str) -> None:
    found = documents(name)
    assert [d["kind"] for d in found] == MANIFESTS[name]
    for document in found:
        if fields := CUSTOM.get(document["kind"]):
            jsonschema.validate(document["spec"], closed({"properties": fields}))
        else:
            kubernetes_validate.validate(document, "1.33", strict=True)
        for template in templates(document):
            pod = {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "pod"},
                "template": template,
            }
            kubernetes_validate.validate(pod, "1.33", strict=True)
            assert template["spec"]["securityContext"]["runAsNonRoot"]
            for container in template["spec"]["containers"]:
                assert {"readinessProbe", "livenessProbe"} <= set(container)
                assert container["resources"]["limits"]
                assert not container["securityContext"]["allowPrivilegeEscalation"]
    clusters = [
        d["spec"].get("rayClusterSpec", d["spec"]) for d in found if d["kind"].startswith("Ray")
    ]
    for cluster in clusters:
        assert cluster["authOptions"] == {"mode": "token"}
        assert (
            f"ray=={cluster['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()
        )


def test_probes_ask_what_the_service_answers() -> None:
    (service,) = (c for c in containers("raycluster.yaml") if c["name"] == "autotune")
    with contextlib.closing(MemoryStore()) as store:
        routes = create_app(store, ServiceOptions(port=0)).openapi()["paths"]
    for probe in ("readinessProbe", "livenessProbe"):
        asked = service[probe]["httpGet"]
        assert asked["path"] in routes
        assert asked["httpHeaders"][0]["value"] in service["args"], (
            "the probe's name is an allowed one"
        )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (
        (FOLDER / "autotune.service")
        .read_text()
        .replace("/opt/autotune/bin/autotune", shutil.which("true") or "")
    )
    # the unit's own user is made by hand
    text = re.sub(r"^(User|Group)=.*$", r"\1=root", text, flags=re.M)
    (tmp_path / "autotune.service").write_text(text)
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "autotune.service")],
        capture_output=True,
        text=True,
    )
    assert [line for line in found.stderr.splitlines() if "autotune.service" in line] == []
