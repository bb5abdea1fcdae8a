"""What Ray reports of its nodes does not reach the standard output, and a connection that is of no
use is ended."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from ray._private import worker as of_ray

from autotune.errors import JobEndedError, RunnerError
from autotune.slurm.allocation import Allocation
from autotune_workers.ray.cluster import connection, slurm_step
from autotune_workers.ray.cluster.connection import LOG, reports_are_logged
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
    driver = SimpleNamespace(
        gcs_error_subscriber=Subscriber(stop), current_job_id=of_ray.JobID.from_int(1)
    )
    of_ray.listen_error_messages(driver, stop)  # type: ignore[arg-type]


def test_reports_of_nodes_are_logged_and_not_printed(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with reports_are_logged(), caplog.at_level(logging.INFO, logger=LOG.name):
        hear_a_report()
    assert capsys.readouterr().out == ""
    assert "the node has been marked dead" in caplog.text


def test_another_connection_of_this_process_prints_them_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with reports_are_logged():
        pass
    hear_a_report()
    assert "the node has been marked dead" in capsys.readouterr().out


def test_a_runner_whose_cluster_does_not_answer_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


class Unconnected(connection.RayCluster):
    """Of a head at this address, which it has not asked anything yet."""

    address = ""

    def __init__(self, address: str) -> None:
        self.address = address
        self._retry_at_s, self._unanswered = 0.0, ""
        self._silent_since_s = None
        self._questions = []


def test_an_answer_is_not_waited_for_once_the_head_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CHECK_S", 0.05)
    monkeypatch.setattr(connection, "ANSWERLESS_S", 0.3)
    head = socket.create_server(("127.0.0.1", 0))
    host, port = head.getsockname()
    cluster, never = Unconnected(f"{host}:{port}"), threading.Event()
    try:
        assert cluster.ask(lambda: never.wait(0.5) or 7) == 7, (
            "a head that accepts connections has its time"
        )
        head.close()
        with pytest.raises(RunnerError, match=r"accepted no connection for 300 ms"):
            cluster.ask(never.wait)
        with pytest.raises(RunnerError, match=r"accepted no connection for 300 ms"):
            cluster.ask(lambda: 7)
    finally:
        never.set()
        head.close()


def test_whoever_asks_after_the_end_of_the_job_is_told_of_it_each_time() -> None:
    class EndedStep(slurm_step.RayStep):
        job = Allocation(job="7", num_nodes=2, node_list="n[1-2]")

        def __init__(self) -> None:
            """Nothing is started."""

        @property
        def has_ended(self) -> bool:
            return True

    cluster, never = Unconnected("127.0.0.1:1"), threading.Event()
    cluster._step = EndedStep()
    for _ in range(2):
        with pytest.raises(JobEndedError, match="job 7 was preempted or cancelled"):
            cluster.ask(never.wait)
    never.set()


def run_without_rays_variables(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_")
    } | variables
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


STARTED = """
import os, ray
from autotune_workers.ray.cluster.connection import RayCluster
cluster = RayCluster(address=None, num_cpus=1, num_gpus=0, dashboard=False)
path = os.environ["RAY_AUTH_TOKEN_PATH"]
print(oct(os.stat(path).st_mode & 0o777), os.environ["RAY_AUTH_MODE"], cluster.totals()["CPU"])
cluster.close()
print(os.path.exists(path), [name for name in os.environ if name.startswith("RAY_AUTH_")])
"""


@pytest.mark.alone
@pytest.mark.thorough
def test_a_cluster_that_is_started_here_has_a_token_of_its_own_and_leaves_none_in_the_home(
    tmp_path: Path,
) -> None:
    done = run_without_rays_variables(STARTED, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["0o600 token 1.0", "False []"]
    assert not (tmp_path / ".ray").exists()


ENDED_AS_IT_CONNECTS = """
import os, signal, threading, time
import ray._private.node as of_ray
from ray._private.worker import global_worker
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append("heard"))
from autotune_workers.ray.cluster.connection import RayCluster
start = of_ray.Node.start_head_processes
def hit(node):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=hit_again, daemon=True).start()
    return start(node)
def hit_again():
    while not hasattr(global_worker, "core_worker"):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGTERM)
of_ray.Node.start_head_processes = hit
cluster = RayCluster(address=None, num_cpus=1, num_gpus=0, dashboard=False)
os.kill(os.getpid(), signal.SIGTERM)
print(*heard, cluster.totals()["CPU"])
cluster.close()
"""


@pytest.mark.alone
@pytest.mark.thorough
def test_a_signal_while_ray_starts_is_heard_as_at_any_other_time() -> None:
    done = run_without_rays_variables(ENDED_AS_IT_CONNECTS)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["heard heard heard 1.0"]), (
        done.stderr
    )
