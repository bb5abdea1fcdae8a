"""The configuration of Prometheus for this machine: `dashboards/prometheus/prometheus.yml` with the paths that it has here."""

from __future__ import annotations

from autotune import assets
from autotune.service.scrape_targets import FOLDER
from autotune.settings import data_folder

CONTAINER_FOLDER = "/data/prometheus"
"""where the containers of `dashboards/deploy` have what the service lists for Prometheus"""


def prometheus_configuration() -> str:
    """The text of a prometheus.yml."""
    folder = assets.dashboards() / "prometheus"
    text = (folder / "prometheus.yml").read_text(encoding="utf-8")
    text = text.replace(CONTAINER_FOLDER, str(data_folder() / FOLDER))
    return text.replace("- alerts.yml", f"- {folder / 'alerts.yml'}")
