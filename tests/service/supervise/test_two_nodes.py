"""The whole service on a Ray cluster of two node processes: people, studies, Ray's dashboard and
metrics, and a service that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune import api
from autotune.client import Client
from autotune.service.supervise.ray_cluster import RayHead
from autotune.store import open_store
from tests.ray_roles import played_node
from tests.service.running import DEADLINE_S, spec, until
from tests.service.test_command import served

pytestmark = pytest.mark.alone

OWNERS = ("ann", "bob", "eve")
LONG_S = 600.0


def real(owner: str) -> dict[str, Any]:
    """Trains a small model on two CPU ranks of the cluster."""
    return spec(
        name=f"real-of-{owner}",
        model="nano-gpt",
        cluster="cpu-1x2",
        workload={"seq_len": 32, "global_batch_size": 4},
        space={"tp": [1, 2], "micro_batch_size": [1, 2], "precision": ["fp32"]},
        budget={"max_trials": 2, "min_gain": 0},
        measure={
            "finalists": 0,
            "min_steps": 3,
            "max_steps": 4,
            "start_timeout_s": 300,
            "trial_timeout_s": 600,
        },
        runner="ray",
    )


def simulated(owner: str) -> dict[str, Any]:
    """Runs for some twenty seconds."""
    runner = {"kind": "simulated", "noise": 0.0, "outlier_every": 0, "time_scale": 0.5}
    return spec(
        name=f"simulated-of-{owner}", runner=runner, budget={"max_trials": 4, "min_gain": 0}
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_three_people_six_studies_two_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    monkeypatch.setenv(
        "PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    path = tmp_path / "results.db"
    store = open_store(path)
    tokens = {owner: store.tokens.create(owner, "submit")[1] for owner in OWNERS}
    # the machine has another cluster, too
    decoy, head = (
        RayHead.start(str(path)),
        RayHead.start(str(path)),
    )
    monkeypatch.setenv("RAY_AUTH_TOKEN", head.token)
    options = ("--runner", "ray", "--ray", head.dashboard, "--require-token", "--max-studies", "4")
    ask = httpx.Client(
        base_url=head.dashboard,
        headers={"Authorization": f"Bearer {head.token}"},
        timeout=60,
        trust_env=False,
    )
    try:
        with played_node(head.address, num_cpus=4):
            until(lambda: _living_nodes(ask) == 2)
            with served(tmp_path, *options) as (service, url):
                with ThreadPoolExecutor(len(OWNERS)) as people:
                    made = dict(
                        zip(
                            OWNERS,
                            people.map(lambda o: _submit(url, tokens[o], o), OWNERS),
                            strict=True,
                        )
                    )
                studies = [study for pair in made.values() for study in pair]
                assert len(set(studies)) == 6
                jobs = until(lambda: _jobs(ask, studies))
                study, job = next(iter(jobs.items()))
                record = store.study(study)
                assert job["metadata"] | {"url": "", "dashboard": ""} == {
                    "job_name": record.study.name,
                    "autotune_study": study,
                    "model": record.study.workload.model.name,
                    "cluster": record.study.workload.cluster.name,
                    "url": "",
                    "dashboard": "",
                }
                assert job["metadata"]["url"].endswith(f"/studies/{study}")
                assert not any(
                    token in json.dumps(jobs) for token in (*tokens.values(), head.token)
                )
                victim = made["eve"][1]
                until(lambda: victim in _jobs(ask, studies), LONG_S)
                ask.post(f"/api/jobs/{victim}/stop").raise_for_status()
                until(lambda: store.study(victim).status == "CANCELLED", LONG_S)
                service.send_signal(signal.SIGKILL)
                service.wait(DEADLINE_S)
            with served(tmp_path, *options) as (_, url):
                with ThreadPoolExecutor(len(OWNERS) + 1) as people:
                    # Ray forgets those of ended jobs
                    metrics = people.submit(until, lambda: _metrics(head), LONG_S)
                    ends = dict(
                        zip(
                            OWNERS,
                            people.map(lambda o: _watch(url, tokens[o], made[o]), OWNERS),
                            strict=True,
                        )
                    )
                assert ends["ann"] == ends["bob"] == ["COMPLETED", "COMPLETED"]
                assert ends["eve"] == ["COMPLETED", "CANCELLED"]
                reported = api.document(api.result_of(store, made["ann"][0]))["study"]
                assert reported["ray"]["url"] == f"{head.dashboard}/#/jobs/{reported['ray']['job']}"
                assert {place["node"] for place in reported["placed"]} == {socket.gethostname()}
                assert sorted(rank for place in reported["placed"] for rank in place["ranks"]) == [
                    0,
                    1,
                ]
                assert any(f'study="{made[owner][0]}"' in metrics.result() for owner in OWNERS)
        for study in studies:
            kinds = [event.kind for event in store.events(study)]
            assert kinds.count("study.completed") + kinds.count("study.cancelled") == 1
    finally:
        ask.close()
        head.close(60.0)
        decoy.close(60.0)
        store.close()


def _submit(url: str, token: str, owner: str) -> list[str]:
    with Client(url, token=token) as client:
        return [client.submit(document(owner))["study"]["id"] for document in (real, simulated)]


def _watch(url: str, token: str, studies: list[str]) -> list[str]:
    with Client(url, token=token) as client:
        for study in studies:
            sequences = [event["sequence"] for event in client.stream(study)]
            assert sequences == list(range(1, len(sequences) + 1))
        return [client.status(study)["study"]["status"] for study in studies]


def _living_nodes(ask: httpx.Client) -> int:
    found = ask.get("/nodes", params={"view": "summary"}).json()["data"]["summary"]
    return sum(node["raylet"].get("state") == "ALIVE" for node in found)


def _jobs(ask: httpx.Client, studies: list[str]) -> dict[str, dict[str, Any]]:
    """Ray's jobs of those studies, as its dashboard tells them."""
    found = ask.get("/api/jobs/").json()
    return {
        job["metadata"]["autotune_study"]: job for job in found if job["submission_id"] in studies
    }


def _metrics(head: RayHead) -> str:
    """What Ray's own Prometheus endpoints say of studies, once they say all of it."""
    targets = json.loads((Path(head.folder) / "prom_metrics_service_discovery.json").read_text())
    texts = []
    for target in (target for group in targets for target in group["targets"]):
        # an agent that starts is listed before it listens
        with contextlib.suppress(httpx.HTTPError):
            texts.append(httpx.get(f"http://{target}/metrics", trust_env=False, timeout=60).text)
    text = "\n".join(line for text in texts for line in text.splitlines() if "autotune_" in line)
    names = (
        "autotune_trials_total",
        "autotune_step_time_seconds_bucket",
        "autotune_tokens_per_second_per_gpu",
        "autotune_peak_memory_bytes",
    )
    return text if all(name in text for name in names) else ""
