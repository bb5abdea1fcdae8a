"""The Grafana dashboard and the alerts read only metrics that exist, and their files are what their
programs expect."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "dashboards"
RAY_NODE_METRICS = {
    "ray_node_cpu_utilization",
    "ray_node_mem_used_host",
    "ray_node_gpus_utilization",
    "ray_node_gram_used",
}
"""Names that Ray's own dashboards query
(ray/dashboard/modules/metrics/dashboards/default_dashboard_panels.py)."""


def exported() -> dict[str, set[str]]:
    """The names under which Ray exports our metrics, with their labels."""
    names: dict[str, set[str]] = {}
    for name, metric in yaml.safe_load(
        (FOLDER / "prometheus" / "metrics.yaml").read_text()
    ).items():
        assert metric["kind"] in ("counter", "gauge", "histogram")
        assert metric["help"]
        suffixes = {
            "counter": ["_total"],
            "gauge": [""],
            "histogram": ["_bucket", "_sum", "_count"],
        }[metric["kind"]]
        for suffix in suffixes:
            names[f"ray_{name}{suffix}"] = set(metric["labels"])
    return names


def dashboard() -> Any:
    return json.loads((FOLDER / "grafana" / "autotune.json").read_text())


def expressions() -> list[str]:
    panels = [
        target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])
    ]
    rules = yaml.safe_load((FOLDER / "prometheus" / "alerts.yml").read_text())
    return panels + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_only_known_metrics_are_read() -> None:
    known = exported()
    used = {name for text in expressions() for name in re.findall(r"\bray_\w+", text)}
    assert used <= known.keys() | RAY_NODE_METRICS
    bases = {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in known
    }
    assert {name.removesuffix("_bucket") for name in used} >= bases, (
        "every metric of ours is shown somewhere"
    )


def test_only_metrics_of_the_service_are_read_as_such() -> None:
    from autotune.ports import Statistics
    from autotune.service.metrics.study_metrics import Counters

    health = {"checks": {"store": "ok"}, "disk_free_bytes": 1}
    counters = Counters()
    counters.requests.labels("GET", "/", "200").inc()
    counters.seconds.labels("/").observe(0.1)
    text = counters.text(
        health, Statistics(studies={}, trials={}, failures={}, leased=0), [], streams=0
    ).decode()
    known = set(re.findall(r"^# TYPE (\w+)", text, re.M)) | {
        "autotune_service_request_seconds_bucket"
    }
    used = {
        name
        for expression in expressions()
        for name in re.findall(r"\bautotune_service_\w+", expression)
    }
    assert used <= known


def test_only_known_labels_are_read() -> None:
    known = exported()
    for text in expressions():
        for name, filters in re.findall(r"\b(ray_autotune_\w+)\{([^}]*)\}", text):
            assert set(re.findall(r"(\w+)\s*(?:=~|!=|=)", filters)) <= known[name] | {"le"}, text


def test_the_dashboard_is_importable() -> None:
    document = dashboard()
    assert document["uid"] == "autotune"
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    for panel in document["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    assert {variable["name"] for variable in document["templating"]["list"]} == {
        "datasource",
        "study",
    }


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_prometheus_finds_the_alerts() -> None:
    document = yaml.safe_load((FOLDER / "prometheus" / "prometheus.yml").read_text())
    assert all((FOLDER / "prometheus" / name).is_file() for name in document["rule_files"])


def test_nothing_listens_on_all_interfaces() -> None:
    """Everything stays on loopback, but for the service in the containers of deploy/, which then
    names the hosts it answers for."""
    paths = [p for p in FOLDER.rglob("*") if p.is_file() and p.suffix in (".yml", ".yaml", ".json")]
    assert paths
    for path in paths:
        lines = [line for line in path.read_text().splitlines() if "0.0.0.0" in line]
        assert not lines or path.parent.name == "deploy", path
        assert all("--allowed-host" in line for line in lines), path
