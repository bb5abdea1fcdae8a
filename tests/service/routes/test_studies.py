"""Submitting, running and asking, over real HTTP with real child processes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from autotune import api, cli
from autotune.cli.source import LocalSource
from autotune.errors import CatalogError, ConflictError, InfeasibleError, NotFoundError, SpecError
from autotune.mcp.spec_tools import SpecTools
from autotune.mcp.study_tools import StudyTools
from autotune.ports import KeepTrial
from autotune.service.options import ServiceOptions
from autotune.service.routes import events
from autotune.testing.stores import decide, failed, measured, pending, run_trial, running_study
from tests.service.running import API, Service, slow_spec, spec, until


def test_a_study_is_submitted_run_and_read(tuning: Service) -> None:
    with tuning.client() as client:
        study = client.submit(spec(name="first"))["study"]
        assert study["status"] == "QUEUED"
        done = client.wait(study["id"], timeout_s=900)
        assert done["study"]["status"] == "COMPLETED"
        assert done["speedup"] > 1
        local = LocalSource(tuning.store)
        assert client.status("first") == json.loads(json.dumps(local.status(study["id"])))
        assert client.trials(study["id"]) == json.loads(json.dumps(local.trials(study["id"])))
        assert client.result(study["id"]) == api.result_of(tuning.store, study["id"])
        assert client.best(study["id"], top=3)["configs"][0]["config"] == done["best"]["config"]
        assert client.best(study["id"], pareto=True)["configs"][0]["merits"]["stability"] > 0
        again = client.best(study["id"], metric="cost", stability_weight=0.0)
        assert again == json.loads(
            json.dumps(local.best(study["id"], metric="cost", stability_weight=0.0))
        )
        assert client.explain(study["id"]) == json.loads(json.dumps(local.explain(study["id"])))
        assert client.explain(study["id"], 0)["trial"]["number"] == 0
        assert client.best_across(model="gpt2-medium", top=2)["best"] is None
        found = client.best_across(model="gpt2-medium", runner="simulated", top=2)
        assert found["configs"][0]["study"]["id"] == study["id"]
        assert client.best_across(model="nothing")["best"] is None
        asked: dict[str, Any] = {
            "model": "gpt2-medium",
            "cluster": "h100-sxm-1x8",
            "runner": "simulated",
        }
        asked["metric"] = "cost"
        judged = client.best_across(**asked, stability_weight=1.0)
        assert judged["objective"] == {"metric": "cost", "stability_weight": 1.0}
        assert judged["configs"] == json.loads(
            json.dumps(local.best_across(**asked, stability_weight=1.0)["configs"])
        )
        with pytest.raises(SpecError, match="one model and one cluster"):
            client.best_across(metric="cost")
        launch = client.export(study["id"], "megatron", {"steps": 7})
        job = client.export(study["id"], "megatron", {"steps": 7, "account": "team"}, on="slurm")[
            "job"
        ]
        assert "#SBATCH --account=team" in job["files"]["job.sbatch"]
        assert job["start"] == "sbatch job.sbatch"
        assert launch["config"] == done["best"]["config"]
        assert "--train-iters" in " ".join(launch["argv"])
        assert "7" in launch["argv"] or any(word.endswith("=7") for word in launch["argv"])


def test_the_stream_has_all_events_and_ends(tuning: Service) -> None:
    with tuning.client() as client:
        study = client.submit(spec(name="streamed"))["study"]["id"]
        reported = list(client.stream(study))
        assert [event["sequence"] for event in reported] == list(range(1, len(reported) + 1))
        assert "study.completed" in [event["kind"] for event in reported]
        assert reported[: len(client.events(study))] == client.events(study)[: len(reported)]
        rest = list(client.stream(study, after=len(reported) - 2))
        assert [event["sequence"] for event in rest][:2] == [len(reported) - 1, len(reported)]
    accept = {"Accept": "text/event-stream", "Last-Event-ID": str(len(reported))}
    with tuning.http.stream("GET", f"{API}/studies/{study}/events", headers=accept) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("event:")]
    assert lines[-1] == "event: end"
    until(lambda: tuning.service.streams == 0)


def test_the_stream_of_a_study_deleted_between_two_polls_ends(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "STREAM_POLL_S", 1.0)
    study = service.http.post(f"{API}/studies", json=spec()).json()["study"]["id"]
    accept = {"Accept": "text/event-stream"}
    with service.http.stream("GET", f"{API}/studies/{study}/events", headers=accept) as answer:
        lines = answer.iter_lines()
        assert "event: study.submitted" in [next(lines) for _ in range(6)]
        time.sleep(0.2)  # it has found nothing more, and rests
        api.act(service.store, study, "cancel")
        api.delete_study(service.store, study)
        list(lines)  # to its end
    with service.client() as client, pytest.raises(NotFoundError):
        list(client.stream(study))
    until(lambda: service.service.streams == 0)


@pytest.mark.thorough
def test_a_running_study_is_paused_resumed_and_cancelled(tuning: Service) -> None:
    with tuning.client() as client:
        asked = slow_spec()
        asked["runner"] |= {"time_scale": 1.0}  # a pause waits for the running trial
        study = client.submit(asked)["study"]["id"]
        until(lambda: client.status(study)["study"]["status"] == "RUNNING")
        assert client.pause(study)["study"]["wanted"] == "pause"
        until(lambda: client.status(study)["study"]["status"] == "PAUSED")
        assert client.resume(study)["study"]["status"] in ("RUNNING", "QUEUED")
        until(lambda: study in tuning.supervisor.running)
        assert client.cancel(study)["study"]["wanted"] == "cancel"
        until(lambda: client.status(study)["study"]["status"] == "CANCELLED")
        until(lambda: study not in tuning.supervisor.running)
        with pytest.raises(ConflictError):
            client.act(study, "resume")


def test_one_idempotency_key_creates_one_study(service: Service) -> None:
    with service.client() as client:
        first = client.submit(spec(), idempotency_key="k-1")["study"]
        assert client.submit(spec(), idempotency_key="k-1")["study"]["id"] == first["id"]
        with pytest.raises(ConflictError) as caught:
            client.submit(spec(seed=5), idempotency_key="k-1")
        assert caught.value.field == "idempotency_key"
        assert client.submit(spec())["study"]["id"] != first["id"]


def test_lists_are_filtered_and_paged(service: Service) -> None:
    with service.client() as client:
        made = [
            client.submit(spec(name=f"page-{i}", model="gpt2-large"))["study"]["id"]
            for i in range(5)
        ]
        first = client.studies(model="gpt2-large", limit=3)
        assert [s["id"] for s in first["studies"]] == made[:1:-1]
        assert first["next_offset"] == 3
        rest = client.studies(model="gpt2-large", limit=3, offset=3)
        assert [s["id"] for s in rest["studies"]] == made[1::-1]
        assert rest["next_offset"] is None
        assert client.studies(status="COMPLETED", model="gpt2-large")["studies"] == []
        assert [s["name"] for s in client.studies(name="page-2")["studies"]] == ["page-2"]


def test_a_queued_study_is_paused_and_stopped(service: Service) -> None:
    with service.client() as client:
        study = client.submit(spec())["study"]["id"]
        assert client.act(study, "pause")["study"]["status"] == "PAUSED"
        assert client.act(study, "resume")["study"]["status"] == "QUEUED"
        assert client.act(study, "stop")["study"]["status"] == "CANCELLED"
        actions = [line.action for line in service.store.audit_events() if line.subject == study]
        assert actions == ["study.submit", "study.pause", "study.resume", "study.stop"]


def test_a_plan_needs_no_hardware_and_stores_nothing(service: Service) -> None:
    with service.client() as client:
        before = len(client.studies(limit=1000)["studies"])
        plan = client.plan(spec(), top=3)
        assert [row["rank"] for row in plan["configs"]] == [1, 2, 3]
        assert plan["feasible"] == 6
        assert plan["assumed"] == []
        long = spec(model="gemma-3-1b", workload={"seq_len": 2048, "global_batch_size": 64})
        assert "limits some or all layers to 512" in client.plan(long, top=1)["assumed"][0]
        assert len(client.studies(limit=1000)["studies"]) == before


def test_a_service_plans_specs_that_it_may_not_run(tmp_path: Path) -> None:
    """A plan runs nothing, so the runner and the data of its spec do not matter."""
    options = ServiceOptions(port=0, runners={"local": frozenset()})
    form = {"model": "gpt2-medium", "cluster": "h100-sxm-1x8", "seq_len": "1024", "batch": "64"}
    with Service(tmp_path / "service", options=options) as service, service.client() as client:
        for changes in (
            {"runner": "simulated"},
            {"runner": "ray"},
            {"runner": {"kind": "ray", "cpus_per_rank": 2}},
            {"runner": "local", "data": "corpus.bin"},
        ):
            asked = spec(**changes)
            assert client.plan(asked, top=1)["feasible"] == 6
            assert SpecTools(None).plan(asked, top=1).feasible == 6
            with pytest.raises(SpecError, match=r"does not allow the|the data must be"):
                client.submit(asked)
        with pytest.raises(CatalogError, match="runer"):
            client.plan(spec(runner="runer"))
        page = service.http.get("/plan", params=form).text
        assert 'role="alert"' not in page


def test_a_plan_compares_the_requested_clusters(service: Service) -> None:
    with service.client() as client:
        plan = client.plan(spec(), top=1, clusters=["h100-sxm-1x8", "a100-80gb-1x8"], tokens=1e9)
        assert [choice["cluster"] for choice in plan["clusters"]] == [
            "h100-sxm-1x8",
            "a100-80gb-1x8",
        ]
        assert all(choice["bill"] for choice in plan["clusters"])
        assert "clusters" not in client.plan(spec(), top=1)
        with pytest.raises(SpecError, match="tokens works only with clusters"):
            client.plan(spec(), tokens=1e9)


def test_impossible_requests_are_rejected_with_a_reason(service: Service) -> None:
    with service.client() as client:
        with pytest.raises(SpecError) as unknown:
            client.submit(spec(modell="x"))
        assert (unknown.value.field, unknown.value.remedy) == ("modell", "did you mean model?")
        with pytest.raises(InfeasibleError):
            client.submit(spec(model="llama-405b"))
        with pytest.raises(NotFoundError):
            client.status("nothing")
        with pytest.raises(NotFoundError):
            client.export(client.submit(spec())["study"]["id"], "megatron")


def test_yaml_specs_are_accepted(service: Service) -> None:
    import yaml

    answer = service.http.post(
        f"{API}/studies",
        content=yaml.safe_dump(spec()),
        headers={"Content-Type": "application/yaml"},
    )
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{API}/studies/{answer.json()['study']['id']}"


def test_health_and_metrics_show_the_state(tuning: Service) -> None:
    with tuning.client() as client:
        health = client.health()
        assert health["status"] == "ok"
        assert set(health["checks"].values()) == {"ok"}
    text = tuning.http.get(f"{API}/metrics").text
    assert 'autotune_service_studies{status="' in text
    assert "autotune_service_request_seconds_bucket" in text


@pytest.mark.thorough
def test_a_study_that_runs_is_reported_and_compared_over_the_service(
    service: Service, tmp_path: Path
) -> None:
    lease = running_study(service.store, api.load_study(spec(name="runs")))
    page = tmp_path / "report.html"
    assert cli.run(["report", lease.study, "--url", service.url, "-o", str(page)]) == 0
    assert "runs" in page.read_text()
    assert (
        cli.run(["report", lease.study, "--url", service.url, "-o", str(page.with_suffix(".md"))])
        == 0
    )
    assert f"]({service.url}/studies/{lease.study})" in page.with_suffix(".md").read_text()
    assert cli.run(["compare", lease.study, "runs", "--url", service.url]) == 0


def test_a_trial_is_exported_the_same_way_everywhere(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = running_study(service.store, api.load_study(spec(name="exported")))
    run_trial(service.store, lease, measured(pending(0)))
    run_trial(service.store, lease, failed(pending(1)))
    decide(service.store, lease, KeepTrial(trial=pending(2)))
    local, study = LocalSource(service.store), lease.study
    with service.client() as client:
        for number, note in (
            (0, ""),
            (1, "trial 1 failed (out of memory"),
            (2, "has not been measured"),
        ):
            served = client.export(study, "native", {"steps": 3}, trial=number)
            assert served["config"] == pending(number).config.to_dict()
            assert note in " ".join(served["notes"])
            assert served == json.loads(
                json.dumps(local.export(study, "native", {"steps": 3}, trial=number))
            )
            asked = ["export", study, "--to", "native", "--option", "steps=3", "--json"]
            assert cli.run([*asked, "--trial", str(number), "--url", service.url]) == 0
            assert json.loads(capsys.readouterr().out) == {**served, "written": []}
            launch = StudyTools(local).export_launch(study, "native", {"steps": "3"}, number)
            assert launch.config == str(pending(number).config)
            assert launch.notes == served["notes"]
        assert cli.run([*asked, "--option", "steps=4", "--url", service.url]) == 2
        twice = f"/studies/{study}/export/native?option=steps=3&option=steps=4"
        for told in (capsys.readouterr().err, service.http.get(API + twice).text):
            assert "the option steps is given twice" in told
        best = client.export(study, "native")
        assert best["config"] == pending(0).config.to_dict()
        assert not any(note.startswith("trial") for note in best["notes"])
        for source in (client, local):
            with pytest.raises(NotFoundError, match="no trial 7"):
                source.export(study, "native", trial=7)


def test_lists_are_filtered_and_paged_the_same_way_everywhere(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [service.submitted(spec(name="paged")) for _ in range(3)][::-1]
    service.store.annotations.change_tags(ids[1], add=["kept"])
    local = LocalSource(service.store)
    with service.client() as client:
        for asked, found in (
            ({"name": "paged", "limit": 2}, ids[:2]),
            ({"name": "paged", "limit": 2, "offset": 2}, ids[2:]),
            ({"name": "paged", "tag": "kept"}, ids[1:2]),
            ({"name": "paged", "owner": "nobody"}, []),
        ):
            served = client.studies(**asked)
            assert [study["id"] for study in served["studies"]] == found
            assert served == json.loads(json.dumps(local.studies(**asked)))
            words = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
            assert cli.run(["list", *words, "--url", service.url, "--json"]) == 0
            assert json.loads(capsys.readouterr().out) == served
            assert [study.id for study in StudyTools(local).list_studies(**asked)] == found
        assert client.studies(name="paged", limit=2)["next_offset"] == 2
        first = client.events(ids[0], limit=1)
        assert first == json.loads(json.dumps(local.events(ids[0], limit=1)))
        assert len(first) == 1
    for option, value in (("--gpu", "h100"), ("--outcome", "failed"), ("--version", "torch=2")):
        assert cli.run(["list", option, value]) == 2
        assert f"{option} applies to runs, but the command lists studies" in capsys.readouterr().err
    assert cli.run(["list", "--observed", "--tag", "a", "--owner", "b"]) == 2
    assert "--owner and --tag apply to studies, but --observed" in capsys.readouterr().err


def test_a_client_can_request_a_review(service: Service) -> None:
    text = "torchrun --nproc_per_node 8 t.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1 --block_size 4096 --bf16 True\n"
    with service.client() as client:
        found = client.review({"run.sh": text}, cluster="h200-sxm", batch=8)
    assert found["missing"] == []
    assert found["estimate"]["step_time_s"] > 0
