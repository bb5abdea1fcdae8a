"""What Ray reports of its nodes does not reach the standard output, and a connection that is of no use is ended."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from ray._private import worker as of_ray

from autotune.errors import RunnerError
from autotune_workers.ray.connection import LOG, reports_are_logged
from autotune_workers.runners import ray as runners_ray


class Subscriber:
    """Gives one report of a lost node, and then asks the thread to stop."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def subscribe(self) -> None:
        """Nothing to do."""

    def poll(self) -> tuple[None, dict[str, Any]]:
        self._stop.set()
        return None, {"job_id": None, "error_message": "the node has been marked dead"}


def hear_a_report() -> None:
    """Runs Ray's own reading of reports once."""
    stop = threading.Event()
    driver = SimpleNamespace(gcs_error_subscriber=Subscriber(stop), current_job_id=of_ray.JobID.from_int(1))
    of_ray.listen_error_messages(driver, stop)  # type: ignore[arg-type]


def test_reports_of_nodes_are_logged_and_not_printed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with reports_are_logged(), caplog.at_level(logging.INFO, logger=LOG.name):
        hear_a_report()
    assert capsys.readouterr().out == ""
    assert "the node has been marked dead" in caplog.text


def test_another_connection_of_this_process_prints_them_again(capsys: pytest.CaptureFixture[str]) -> None:
    with reports_are_logged():
        pass
    hear_a_report()
    assert "the node has been marked dead" in capsys.readouterr().out


def test_a_runner_whose_cluster_does_not_answer_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Headless:
        closed = False

        def __init__(self, **options: object) -> None:
            """Connects."""

        def totals(self) -> dict[str, float]:
            raise RunnerError("the head does not answer")

        def close(self) -> None:
            Headless.closed = True

    monkeypatch.setattr(runners_ray, "RayCluster", Headless)
    with pytest.raises(RunnerError, match="does not answer"):
        runners_ray.RayRunner()
    assert Headless.closed
