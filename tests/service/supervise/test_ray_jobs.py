"""Studies as Ray jobs: against a hand-written fake of the job API, and (slow) against Ray
itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.errors import RunnerError
from autotune.service.options import ServiceOptions
from autotune.service.supervise import ray_jobs
from autotune.service.supervise.ray_cluster import own_token
from autotune.service.supervise.ray_jobs import RayLauncher, has_password, user_token
from autotune.service.supervise.supervisor import Supervisor
from autotune.service.supervise.worker import ray_job
from autotune.spec import StudyStatus
from autotune.store import SqlStore
from tests.service.running import DEADLINE_S, spec, until, watching

TOKEN = "ray-secret"


class PaperRay:
    """Answers like Ray's dashboard (`/api/jobs/`), and keeps jobs without running them."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.away = self.breaks_off = False
        ray = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, status: int, document: Any) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                name = self.path.removeprefix("/api/jobs").strip("/")
                if name.endswith("/stop") and ray.breaks_off:
                    self.close_connection = True
                elif ray.away:
                    self.answer(502, "away")
                elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.answer(401, "no token")
                elif self.command == "POST" and not name:
                    job = json.loads(body)
                    if job["submission_id"] in ray.jobs:
                        self.answer(500, "submission_id is taken")
                    else:
                        ray.jobs[job["submission_id"]] = {
                            **job,
                            "status": "RUNNING",
                            "driver_exit_code": None,
                        }
                        self.answer(200, {"submission_id": job["submission_id"]})
                elif self.command == "POST":
                    ray.jobs[name.removesuffix("/stop")]["status"] = "STOPPED"
                    self.answer(200, {"stopped": True})
                elif not name:
                    self.answer(200, list(ray.jobs.values()))
                else:
                    self.answer(200 if name in ray.jobs else 404, ray.jobs.get(name, "no such job"))

            do_GET = do_POST = handle_any  # noqa: N815  names of the base class

            def log_message(self, *arguments: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[PaperRay]:
    monkeypatch.setattr(ray_jobs, "POLL_S", 0.0)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    paper = PaperRay()
    yield paper
    paper.server.shutdown()
    paper.server.server_close()


def joined(ray: PaperRay, store_url: str = "/shared/results.db") -> RayLauncher:
    options = ServiceOptions(way="ray", ray_address=ray.url)
    return RayLauncher.open(options, store_url=store_url, url="http://tuning.example")


def submit(store: SqlStore) -> Any:
    return api.submit_study(store, api.load_study(spec()), spec())


def test_a_job_has_metadata_without_secrets(ray: PaperRay, store: SqlStore) -> None:
    record = submit(store)
    joined(ray).start(record)
    job = ray.jobs[record.id]
    assert job["entrypoint"] == f"python -m autotune.service.supervise.worker {record.id}"
    assert job["metadata"] == {
        "job_name": "small",
        "autotune_study": record.id,
        "model": "gpt2-medium",
        "cluster": "h100-sxm-1x8",
        "url": f"http://tuning.example/studies/{record.id}",
        "dashboard": ray.url,
    }
    programs = ServiceOptions().study_environment
    assert job["runtime_env"] == {"env_vars": {"AUTOTUNE_STORE": "/shared/results.db", **programs}}
    other = submit(store)
    joined(ray, "postgresql://ann:secret@db/autotune").start(other)
    assert "secret" not in json.dumps(ray.jobs)


def test_a_jobs_process_knows_its_job(ray: PaperRay, store: SqlStore) -> None:
    record = submit(store)
    joined(ray).start(record)
    # as Ray adds it
    given = {
        **ray.jobs[record.id]["metadata"],
        "job_submission_id": f"{record.id}-2",
    }
    variable = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {}, "metadata": given})}
    assert ray_job(variable) == {
        "ray": {"job": f"{record.id}-2", "url": f"{ray.url}/#/jobs/{record.id}-2"}
    }
    assert ray_job({}) == {}


def test_a_study_started_twice_is_one_job(ray: PaperRay, store: SqlStore) -> None:
    record = submit(store)
    for _ in range(3):
        joined(ray).start(record)
    assert list(ray.jobs) == [record.id]


def test_a_lost_job_is_started_again_under_the_next_number(ray: PaperRay, store: SqlStore) -> None:
    record, launcher = submit(store), joined(ray)
    watch = Supervisor(store, launcher, max_studies=2, poll_s=0.02)
    with watching(watch):
        until(lambda: record.id in ray.jobs)
        ray.jobs[record.id] |= {"status": "FAILED", "driver_exit_code": 137}
        until(lambda: f"{record.id}-2" in ray.jobs)
        ray.jobs.pop(record.id)
        ray.jobs.pop(f"{record.id}-2")  # the head lost its memory
        until(lambda: record.id in ray.jobs)


def test_a_job_stopped_in_the_dashboard_cancels_the_study(ray: PaperRay, store: SqlStore) -> None:
    record = submit(store)
    watch = Supervisor(store, joined(ray), max_studies=2, poll_s=0.02)
    with watching(watch):
        until(lambda: record.id in ray.jobs)
        ray.jobs[record.id]["status"] = "STOPPED"
        until(lambda: store.study(record.id).status is StudyStatus.CANCELLED)


def test_a_later_service_watches_the_jobs_of_the_earlier(ray: PaperRay, store: SqlStore) -> None:
    running, stopped = submit(store), submit(store)
    first = joined(ray)
    first.start(running)
    first.start(stopped)
    first.close(1.0)
    # a joined cluster keeps its jobs
    assert [job["status"] for job in ray.jobs.values()] == [
        "RUNNING",
        "RUNNING",
    ]
    ray.jobs[stopped.id]["status"] = "STOPPED"
    watch = Supervisor(store, joined(ray), max_studies=2, poll_s=0.02)
    with watching(watch):
        until(lambda: store.study(stopped.id).status is StudyStatus.CANCELLED)
        assert watch.running == {running.id}
    assert list(ray.jobs) == [running.id, stopped.id]


def test_an_unreachable_job_is_not_dead(ray: PaperRay, store: SqlStore) -> None:
    record, launcher = submit(store), joined(ray)
    launcher.start(record)
    ray.away = True
    assert launcher.ended() == []
    assert "502" in launcher.health()
    ray.away = False
    assert launcher.ended() == []
    assert launcher.health() == ""
    launcher.kill(record.id)
    assert [(e.study, e.stopped_by_user) for e in launcher.ended()] == [(record.id, False)]


def test_an_end_is_reported_even_if_ray_fails_for_a_later_job(
    ray: PaperRay, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "PENDING_S", 0.0)
    (first, second), launcher = (submit(store), submit(store)), joined(ray)
    launcher.start(first)
    launcher.start(second)
    ray.jobs[first.id]["status"] = "SUCCEEDED"
    ray.jobs[second.id]["status"] = "PENDING"
    ray.breaks_off = True
    assert [e.study for e in launcher.ended()] == [first.id]
    assert "cannot be reached" in launcher.health()
    ray.breaks_off = False
    assert [e.study for e in launcher.ended()] == [second.id], (
        "it was stopped: it had been PENDING for too long"
    )
    assert launcher.studies == frozenset()


def test_a_job_that_starts_in_time_is_not_stopped(
    ray: PaperRay, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_jobs, "PENDING_S", 1000.0)
    record, launcher = submit(store), joined(ray)
    launcher.start(record)
    ray.jobs[record.id]["status"] = "PENDING"
    assert launcher.ended() == []
    ray.jobs[record.id]["status"] = "RUNNING"
    assert launcher.ended() == []
    monkeypatch.setattr(ray_jobs, "PENDING_S", 0.001)
    assert launcher.ended() == []
    assert ray.jobs[record.id]["status"] == "RUNNING"


def test_a_closed_launcher_lists_no_nodes_to_scrape(ray: PaperRay, store: SqlStore) -> None:
    launcher = joined(ray)
    # as when a cluster has died, while the thread that keeps the list of nodes asks
    launcher.close(1.0)
    with pytest.raises(RunnerError, match="no nodes"):
        launcher.scrape_targets()


def test_tokens_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, token = own_token()
    assert own_token() == (path, token)
    assert path.stat().st_mode & 0o077 == 0
    assert len(token) == 64
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    assert user_token({"RAY_AUTH_TOKEN": "direct", "RAY_AUTH_TOKEN_PATH": str(file)}) == "direct"
    assert user_token({"RAY_AUTH_TOKEN_PATH": str(file)}) == "from a file"
    assert user_token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")}) == ""
    with pytest.raises(RunnerError, match="dashboard"):
        RayLauncher.open(ServiceOptions(way="ray", ray_address="head:6379"), store_url="x", url="")


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("/data/results.db", False),
        ("postgresql://ann@db/autotune", False),
        ("postgresql://ann:pw@db/autotune", True),
        ("postgresql://db/autotune?password=pw", True),
    ],
)
def test_passwords_in_store_addresses_are_detected(url: str, secret: bool) -> None:
    assert has_password(url) is secret


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_on_ray_itself(store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three people submit six studies; one is stopped in Ray, the cluster dies with the service,
    and all end right."""
    import httpx

    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    store_url = str(tmp_path / "results.db")
    document = spec(
        runner={"kind": "simulated", "noise": 0.0, "outlier_every": 0, "time_scale": 0.5}
    )
    studies = [
        api.submit_study(store, api.load_study(document | {"seed": i}), document, owner=owner).id
        for i, owner in enumerate(["ann", "bob", "eve"] * 2)
    ]
    options = ServiceOptions(way="ray", port=0)
    launcher = RayLauncher.open(options, store_url=store_url, url="http://here")
    watch = Supervisor(store, launcher, max_studies=3, poll_s=0.2)
    with watching(watch):
        assert (
            httpx.get(
                f"{launcher.dashboard}/api/jobs/", timeout=DEADLINE_S, trust_env=False
            ).status_code
            == 401
        )
        until(lambda: store.study(studies[0]).status is StudyStatus.RUNNING)
        headers = {"Authorization": f"Bearer {own_token()[1]}"}
        jobs = httpx.get(
            f"{launcher.dashboard}/api/jobs/", headers=headers, timeout=DEADLINE_S, trust_env=False
        ).json()
        ours = [job for job in jobs if job["submission_id"]]
        assert {job["metadata"]["autotune_study"] for job in ours} <= set(studies)
        assert {job["metadata"]["model"] for job in ours} == {"gpt2-medium"}
        httpx.post(
            f"{launcher.dashboard}/api/jobs/{studies[0]}/stop",
            headers=headers,
            timeout=DEADLINE_S,
            trust_env=False,
        )
        until(lambda: store.study(studies[0]).status is StudyStatus.CANCELLED)
        until(lambda: store.study(studies[1]).status is StudyStatus.COMPLETED)
        reported = api.document(api.result_of(store, studies[1]))["study"]["ray"]
        assert reported == {"job": studies[1], "url": f"{launcher.dashboard}/#/jobs/{studies[1]}"}
        detail = httpx.get(
            f"{launcher.dashboard}/api/jobs/{reported['job']}",
            headers=headers,
            timeout=DEADLINE_S,
            trust_env=False,
        ).json()
        assert detail["metadata"]["url"] == f"http://here/studies/{studies[1]}"  # and back
    launcher = RayLauncher.open(options, store_url=store_url, url="http://here")
    watch = Supervisor(store, launcher, max_studies=3, poll_s=0.2)
    with watching(watch):
        until(lambda: all(store.study(study).status.is_terminal for study in studies))
    ends = [store.study(study).status for study in studies]
    assert ends == [StudyStatus.CANCELLED] + [StudyStatus.COMPLETED] * 5
    for study in studies:
        assert [e.kind for e in store.events(study)].count("study.completed") <= 1
