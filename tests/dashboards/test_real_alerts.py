"""Every alert in a real Prometheus against `autotune serve` itself: it fires in its case, no other
fires with it, and it ends with its case.

The cases are real: a database server that is stopped, a disk that fills, a controller that is
frozen, a Ray that does not answer, a service that is killed. The rules are those that ship, with 5
seconds for each minute.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune.client import Client
from autotune.store import open_store
from tests.dashboards.test_prometheus import FOLDER, firing, needs_prometheus, prometheus
from tests.postgresql import postgres_server
from tests.service.running import slow_spec, spec, until
from tests.service.test_command import served

LONG_S = 900.0
CALM_S = 5.0
"""for so long, after each case has shown itself, nothing else may fire"""


class Disk:
    """A file system of its own, of a size that can be changed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._run("mount", "-t", "tmpfs", "-o", "size=4g", "tmpfs", str(folder))

    def resize(self, size: str) -> None:
        """Changes its size; nothing is written for it."""
        self._run("mount", "-o", f"remount,size={size}", str(self.folder))

    def close(self) -> None:
        """Takes it away."""
        self._run("umount", "--lazy", str(self.folder))

    def _run(self, *words: str) -> None:
        subprocess.run(words, check=True, capture_output=True, timeout=60)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        made = Disk(tmp_path / "data")
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"a file system of its own cannot be mounted (root may): {error}")
    yield made
    made.close()


def failing(kind: str, *trials: int, time_scale: float = 20.0) -> dict[str, Any]:
    """A study whose trials of these numbers fail; the others run for `time_scale` seconds per
    simulated one."""
    faults = [{"kind": kind, "trial": number} for number in trials]
    document = slow_spec()
    return document | {
        "name": kind,
        "space": {"tp": [1, 2, 4], "micro_batch_size": [1, 2, 4, 8], "precision": ["bf16"]},
        "budget": {"max_trials": 10, "min_gain": 0},
        "runner": document["runner"] | {"faults": faults, "time_scale": time_scale},
    }


def fires(client: httpx.Client, *alerts: str) -> None:
    """Waits until exactly these fire, and sees that for a while nothing else does."""
    until(lambda: firing(client) == set(alerts), LONG_S)
    end_s = time.monotonic() + CALM_S
    while time.monotonic() < end_s:
        assert firing(client) <= set(
            alerts
        )  # a scrape of a busy machine may be late, and the alert away until the next
        time.sleep(0.5)


def pid_of(owner: str) -> int:
    """The process that holds a lease, by the lease's owner (HOST:PID:...)."""
    return int(owner.split(":")[1])


@pytest.mark.slow
@pytest.mark.alone
@needs_prometheus
def test_each_alert_fires_in_its_case_alone_and_ends_with_it(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(disk.folder))
    with postgres_server() as database, prometheus(tmp_path, every_s=3, minute_s=5) as client:
        address = database.new_database()
        store = open_store(address)
        with served(disk.folder, "--store", address) as (service, url), Client(url) as asking:
            asking.wait(asking.submit(spec())["study"]["id"])
            calm = asking.submit(slow_spec())["study"]["id"]
            fires(client)

            oom = failing("out_of_memory", 0, 1, 2, 3)  # four of four, from the first one on
            many = asking.submit(oom)["study"]["id"]
            fires(client, "AutotuneManyFailures")
            assert alerting(client, "study") == {many}
            asking.act(many, "cancel")
            fires(client)

            database.stop()
            fires(client, "AutotuneStoreDown")
            database.start()
            fires(client)

            disk.resize("1g")
            fires(client, "AutotuneDiskFull")
            disk.resize("4g")
            fires(client)

            lease = until(lambda: store.holder(calm))
            os.kill(pid_of(lease.owner), signal.SIGSTOP)
            try:
                fires(client, "AutotuneControllerStuck")
            finally:
                os.kill(pid_of(lease.owner), signal.SIGCONT)
            fires(client)

            # both within the window of the alert
            losses = failing("worker_lost", 0, 1, time_scale=1.0)
            lost = asking.submit(losses)["study"]["id"]
            fires(client, "AutotuneWorkersLost")
            asking.act(lost, "cancel")
            fires(client)  # as soon as the window has passed

            service.send_signal(signal.SIGKILL)
            service.wait(60)
            fires(client, "AutotuneServiceDown")
        dead_ray = ("--runner", "ray", "--ray", "http://127.0.0.1:9")
        with served(disk.folder, "--store", address, *dead_ray) as (_, url), Client(url) as asking:
            fires(client, "AutotuneSupervisorFailing")
            asking.act(calm, "cancel")  # its process has outlived the service that was killed
            asking.wait(calm)
        store.close()


def alerting(client: httpx.Client, label: str) -> set[str]:
    """The values of a label of what fires."""
    found = client.get("query", params={"query": 'ALERTS{alertstate="firing"}'}).json()["data"][
        "result"
    ]
    return {str(series["metric"][label]) for series in found}


def test_each_alert_has_its_case_here() -> None:
    import yaml

    rules = yaml.safe_load((FOLDER / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    text = Path(__file__).read_text()
    assert all(f'fires(client, "{rule["alert"]}")' in text for rule in rules)
