"""Prometheus itself: the alerts by its own rule tests, and its configuration and the dashboard's
queries against a running service."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune.service.metrics.scrape_targets import ScrapeTargets, prometheus_configuration
from autotune.settings import data_folder
from autotune_workers.process.machine import free_port
from tests.service.running import Service, slow_spec, spec, until

FOLDER = Path(__file__).resolve().parents[2] / "dashboards"
HOW = "Prometheus is not installed; run `bash .ci/install-services` (as root) to run these tests"
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("promtool") and shutil.which("prometheus")), reason=HOW
)


def promtool(*words: str, cwd: Path) -> str:
    """Runs it; its output. Fails the test when it fails."""
    done = subprocess.run(
        ["promtool", *words], cwd=cwd, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_prometheus
def test_each_alert_fires_in_its_case_and_not_otherwise(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "prometheus" / "alerts.yml", tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", cwd=tmp_path)


def test_every_alert_has_a_case() -> None:
    import yaml

    rules = yaml.safe_load((FOLDER / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    cases = Path(__file__).with_name("alerts_test.yml").read_text()
    quiet, loud = cases.split("- name: the service does not answer")
    for rule in rules:
        assert rule["alert"] in quiet
        assert rule["alert"] in loud


@contextmanager
def prometheus(folder: Path, *, every_s: int = 1, minute_s: int = 3) -> Iterator[httpx.Client]:
    """A server with the configuration that `serve --print-monitoring` prints, which scrapes every
    second and has alerts with 3 seconds for each minute."""
    rules = FOLDER / "prometheus" / "alerts.yml"
    faster = re.sub(
        r"(for: |\[)(\d+)m",
        lambda found: f"{found[1]}{minute_s * int(found[2])}s",
        rules.read_text(),
    )
    (folder / "alerts.yml").write_text(faster)
    text = (
        prometheus_configuration().replace("10s", f"{every_s}s").replace(str(rules), "alerts.yml")
    )
    (folder / "prometheus.yml").write_text(text)
    promtool("check", "config", "prometheus.yml", cwd=folder)
    port = free_port("127.0.0.1")
    words = [
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["prometheus", *words], cwd=folder, stdout=log, stderr=log)
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=600
        ) as client:
            yield client
    finally:
        process.terminate()
        process.wait(600)


def ask(client: httpx.Client, path: str, **query: Any) -> list[Any]:
    """The result of a query; none while the server starts."""
    try:
        answer = client.get(path, params=query)
    except httpx.TransportError:
        return []
    return list(answer.json()["data"]["result"]) if answer.status_code == 200 else []


def firing(client: httpx.Client) -> set[str]:
    """The alerts that fire."""
    return {
        series["metric"]["alertname"]
        for series in ask(client, "query", query='ALERTS{alertstate="firing"}')
    }


def service_expressions() -> list[str]:
    """The queries of all panels that read the service's own metrics."""
    panels = json.loads((FOLDER / "grafana" / "autotune.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [text.replace("$study", ".*") for text in found if "autotune_service" in text]


@pytest.mark.thorough
@needs_prometheus
def test_every_panel_of_the_service_has_data_at_every_scrape(
    tuning: Service, tmp_path: Path
) -> None:
    assert len(service_expressions()) >= 8
    with ScrapeTargets(tuning.url), prometheus(tmp_path) as client:
        assert (data_folder() / "prometheus" / "service.json").exists()
        with tuning.client() as asking:
            study = asking.submit(slow_spec())["study"]["id"]
            ended = asking.wait(asking.submit(spec())["study"]["id"])["study"]["id"]
            until(
                lambda: ask(
                    client, "query", query=f'autotune_service_study_trials{{study="{study}"}}'
                )
            )
            until(
                lambda: (
                    not ask(
                        client, "query", query=f'autotune_service_study_trials{{study="{ended}"}}'
                    )
                )
            )
            for text in service_expressions():
                until(lambda: ask(client, "query", query=text))  # noqa: B023  called at once
            began_s = time.time()
            # it must outlive the window: only active studies are counted
            other = slow_spec() | {"name": "beside"}
            beside = asking.submit(other)["study"]["id"]
            time.sleep(5.0)
            for text in service_expressions():
                found = ask(
                    client, "query_range", query=text, start=began_s, end=began_s + 4.0, step="1s"
                )
                # a study may be new
                since_s = [round(float(series["values"][0][0]) - began_s) for series in found]
                assert 0 in since_s, text
                assert [len(series["values"]) for series in found] == [
                    5 - since for since in since_s
                ], text
            assert ask(client, "query", query='up{job="autotune"}')[0]["value"][1] == "1"
            assert ask(client, "query", query='ALERTS{alertname!="AutotuneDiskFull"}') == []
            for each in (study, beside):
                asking.act(each, "cancel")


def test_counts_start_from_an_explicit_zero(service: Service) -> None:
    text = service.http.get("/api/v1/metrics").text
    for line in (
        'autotune_service_failures{kind="OUT_OF_MEMORY"} 0.0',
        'autotune_service_trials{status="FAILED"} 0.0',
        'autotune_service_studies{status="RUNNING"} 0.0',
        'autotune_service_check{check="store"} 1.0',
    ):
        assert line in text.splitlines()


def test_metrics_are_told_while_the_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.errors import StoreUnavailableError

    with Service(tmp_path / "service") as service:

        def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailableError("the store is away")

        for name in ("statistics", "ping"):
            monkeypatch.setattr(service.store, name, away)
        answer = service.http.get("/api/v1/metrics")
        assert answer.status_code == 200
        assert 'autotune_service_check{check="store"} 0.0' in answer.text
        assert "autotune_service_studies{" not in answer.text


def test_the_files_for_prometheus_name_the_service_and_the_nodes_of_ray(tmp_path: Path) -> None:
    nodes = [{"labels": {"job": "ray"}, "targets": ["10.0.0.1:44217"]}]
    with ScrapeTargets("http://127.0.0.1:8600", lambda: nodes):
        ray = data_folder() / "prometheus" / "ray.json"
        until(ray.exists)
        assert json.loads(ray.read_text()) == nodes
        assert (stat.S_IMODE(ray.stat().st_mode), stat.S_IMODE(ray.parent.stat().st_mode)) == (
            0o644,
            0o755,
        )
        assert stat.S_IMODE(data_folder().stat().st_mode) == 0o700, (
            "who may read them is decided by the data folder"
        )
        told = json.loads((data_folder() / "prometheus" / "service.json").read_text())
    assert told == [
        {
            "targets": ["127.0.0.1:8600"],
            "labels": {"job": "autotune", "__metrics_path__": "/api/v1/metrics"},
        }
    ]
