"""Scrape targets for Prometheus in files at a stable path, the service itself and the nodes of its
Ray cluster, and the configuration of Prometheus for this machine.

    DATA/prometheus/service.json    this service
    DATA/prometheus/ray.json        the nodes of the cluster, as Ray's dashboard lists them; empty without Ray

DATA is the user's data folder. The format is Prometheus' file-based discovery
(https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config). Ray
writes such a file too, but in a folder that changes with each start. The files remain when the
service ends, so that Prometheus notices that it is down. The configuration is
`dashboards/prometheus/prometheus.yml` with this machine's paths.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from autotune import assets
from autotune.errors import AutotuneError
from autotune.settings import data_folder, own_folder
from autotune.whole_files import whole_file

log = logging.getLogger("autotune.service")

FOLDER = "prometheus"
PATH = "/api/v1/metrics"
INTERVAL_S = 10.0
"""time between two updates of the files, seconds"""
Targets = list[dict[str, Any]]


class ScrapeTargets:
    """Keeps the files up to date in a thread while the context is open."""

    def __init__(self, url: str, ray_targets: Callable[[], Targets] = list) -> None:
        """`url`: the service's address. `ray_targets`: returns the nodes of its cluster; raises
        `RunnerError` while Ray is unavailable."""
        self._service = [
            {
                "targets": [url.split("://")[1]],
                "labels": {"job": "autotune", "__metrics_path__": PATH},
            }
        ]
        self._ray_targets = ray_targets
        self._closing = threading.Event()

    def __enter__(self) -> None:
        write_targets("service", self._service)
        threading.Thread(target=self._follow, name="scrape-targets", daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self._closing.set()

    def _follow(self) -> None:
        while True:
            try:
                write_targets("ray", self._ray_targets())
            except AutotuneError:
                log.debug("Ray currently lists no nodes to scrape")  # the last list stays
            except OSError as error:
                log.warning("the list of nodes for Prometheus could not be written: %s", error)
            if self._closing.wait(INTERVAL_S):
                return


def write_targets(name: str, targets: Targets) -> None:
    """Replace a file atomically, readable for other users, because Prometheus reads it at any time
    and usually as another user."""
    folder = own_folder(FOLDER)
    folder.chmod(0o755)
    with whole_file(folder / f"{name}.json") as part:
        part.write_text(json.dumps(targets, indent=1))
        part.chmod(0o644)


CONTAINER_FOLDER = "/data/prometheus"
"""folder of the scrape targets in the containers of `dashboards/deploy`"""


def prometheus_configuration() -> str:
    """Return the text of a prometheus.yml."""
    folder = assets.dashboards() / "prometheus"
    text = (folder / "prometheus.yml").read_text(encoding="utf-8")
    text = text.replace(CONTAINER_FOLDER, str(data_folder() / FOLDER))
    return text.replace("- alerts.yml", f"- {folder / 'alerts.yml'}")
