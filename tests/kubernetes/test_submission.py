"""A study as a RayJob: what the manifest says, that Kubernetes would take it, and what is refused
before."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from autotune import cli
from autotune.kubernetes.deadline import LIMIT, START_S, left_s
from tests.cli.conftest import Done
from tests.dashboards.test_deploy import CUSTOM, closed, templates

SPEC: dict[str, Any] = {
    "name": "two nodes",
    "model": "gpt2-medium",
    "cluster": "h100-sxm-2x8",
    "workload": {"seq_len": 1024, "global_batch_size": 512},
    "space": {"tp": [1], "micro_batch_size": [4, 8], "precision": ["bf16"]},
    "searcher": "random",
}
TRAINER = {
    "kind": "command",
    "argv": [
        "python",
        "train.py",
        "--config=conf/base.yaml",
        "{micro_batch_size}",
        "{accumulation_steps}",
        "{precision}",
    ],
    "metrics": {"step": "^step ([0-9]+)", "step_time_s": "time: ([0-9.]+)"},
}
JOB = {
    "image": "registry/train:1",
    "time": "4h",
    "namespace": "ml",
    "queue": "team-a",
    "store": "autotune-store",
    "env_from": ["hf-token"],
    "volumes": [{"claim": "data", "path": "/data"}],
    "cpus": 64,
    "memory": "512Gi",
    "node_selector": {"gpu": "h100"},
}
Tune = Callable[..., Done]


@pytest.fixture
def tune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tune:
    """The command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOTUNE_STORE", raising=False)

    def run(*words: str, **changes: Any) -> Done:
        Path("spec.yaml").write_text(yaml.safe_dump({**SPEC, "kubernetes": JOB, **changes}))
        capsys.readouterr()
        code = cli.run(["tune", "spec.yaml", "--on", "kubernetes", *words])
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


def manifest(folder: str = "two-nodes") -> tuple[dict[str, Any], dict[str, Any]]:
    """The ConfigMap and the RayJob, which Kubernetes would take."""
    config_map, job = yaml.safe_load_all(Path(folder, "job.yaml").read_text())
    kubernetes_validate.validate(config_map, "1.33", strict=True)
    jsonschema.validate(job["spec"], closed({"properties": CUSTOM["RayJob"]}))
    for template in templates(job):
        pod = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "pod"},
            "template": template,
        }
        kubernetes_validate.validate(pod, "1.33", strict=True)
    return config_map, job


def test_a_study_of_two_nodes_is_a_job_with_a_worker(tune: Tune) -> None:
    done = tune()
    assert done.code == 0, done.err
    assert done.out.strip() == f"kubectl apply -f {Path.cwd()}/two-nodes/job.yaml"
    config_map, job = manifest()
    assert job["metadata"] == {
        "name": "autotune-two-nodes",
        "namespace": "ml",
        "labels": {"kueue.x-k8s.io/queue-name": "team-a"},
    }
    assert yaml.safe_load(config_map["data"]["0-study.yaml"])["name"] == "two nodes"
    spec = job["spec"]
    assert spec["entrypoint"] == "autotune tune /autotune/study/study.yaml"
    assert spec["shutdownAfterJobFinishes"] is True, "Kueue admits no other"
    assert spec["activeDeadlineSeconds"] == 4 * 3600 + START_S
    cluster = spec["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert (workers["replicas"], workers["minReplicas"], workers["maxReplicas"]) == (1, 1, 1)
    for group in (cluster["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == "registry/train:1"
        sizes = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
        assert container["resources"] == {"requests": sizes, "limits": sizes}
        env = {variable["name"]: variable for variable in container["env"]}
        assert env[LIMIT]["value"] == "14400"
        assert env["AUTOTUNE_STORE"]["valueFrom"]["secretKeyRef"] == {
            "name": "autotune-store",
            "key": "url",
        }
        assert container["envFrom"] == [{"secretRef": {"name": "hf-token"}}]
        assert pod["nodeSelector"] == {"gpu": "h100"}
        assert {"name": "volume-0", "persistentVolumeClaim": {"claimName": "data"}} in pod[
            "volumes"
        ]


def test_one_node_has_no_workers_and_results_may_lie_on_a_volume(tune: Tune) -> None:
    job = {
        "image": "a",
        "results": "/data/my studies",
        "volumes": [{"claim": "d", "path": "/data"}],
    }
    assert tune(cluster="h100-sxm-1x8", kubernetes=job).code == 2, "blanks"
    job["results"] = "/data/studies/"
    done = tune(cluster="h100-sxm-1x8", kubernetes=job)
    assert done.code == 0, done.err
    spec = manifest()[1]["spec"]
    assert "workerGroupSpecs" not in spec["rayClusterSpec"]
    assert "activeDeadlineSeconds" not in spec
    entry = "mkdir -p /data/studies/two-nodes && autotune tune /autotune/study/study.yaml --in /data/studies/two-nodes"
    assert spec["entrypoint"] == entry
    (container,) = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert container["env"] == []


def test_the_program_comes_along_and_what_is_forgotten_is_named(tune: Tune, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "train.py").write_text("print('here')")
    (tmp_path / "conf/base.yaml").write_text("a: 1\n")
    forgot = tune(trainer=TRAINER)
    assert forgot.code == 2
    assert 'files: ["conf/base.yaml", "train.py"]' in forgot.err
    done = tune(trainer=TRAINER, kubernetes={**JOB, "files": ["train.py", "conf/base.yaml"]})
    assert done.code == 0, done.err
    config_map, job = manifest()
    assert yaml.safe_load(config_map["data"]["0-study.yaml"])["trainer"]["cwd"] == "/autotune/study"
    pod = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    (copier,) = pod["initContainers"]
    (files,) = (volume["configMap"]["items"] for volume in pod["volumes"] if "configMap" in volume)
    for item in files:  # what the copier does, here
        path = tmp_path / "pod/files" / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config_map["data"][item["key"]])
    (tmp_path / "pod/study").mkdir()
    words = [word.replace("/autotune/", f"{tmp_path}/pod/") for word in copier["command"]]
    subprocess.run(words, check=True)
    assert (tmp_path / "pod/study/conf/base.yaml").read_text() == "a: 1\n"
    assert (tmp_path / "pod/study/train.py").read_text() == "print('here')"


def test_paths_are_those_of_the_pods(tune: Tune, tmp_path: Path) -> None:
    (tmp_path / "code/conf").mkdir(parents=True)
    for name in ("code/train.py", "code/conf/base.yaml", "tokens.txt"):
        (tmp_path / name).write_text("a: 1\n" * 9)
    trainer = {
        **TRAINER,
        "cwd": "code",
        "python": "/opt/conda",
        "env": {"CONF": f"{tmp_path}/code/conf"},
    }
    job = {**JOB, "files": ["code/train.py", "code/conf/base.yaml"]}
    forgot = tune(trainer=trainer, kubernetes=job, data="tokens.txt")
    assert forgot.code == 2
    assert 'files: ["tokens.txt"]' in forgot.err
    done = tune(
        trainer=trainer,
        kubernetes={**job, "files": [*job["files"], "tokens.txt"]},
        data="tokens.txt",
    )
    assert done.code == 0, done.err
    spec = yaml.safe_load(manifest()[0]["data"]["0-study.yaml"])
    assert spec["trainer"]["cwd"] == "/autotune/study/code"
    assert spec["trainer"]["python"] == "/opt/conda", "of the image"
    assert spec["trainer"]["env"] == {"CONF": "/autotune/study/code/conf"}
    assert spec["data"] == "/autotune/study/tokens.txt"
    assert str(tmp_path) not in yaml.safe_dump(spec)
    in_image = tune(name="image", trainer={**TRAINER, "cwd": "/opt/in-the-image"})
    assert in_image.code == 0, in_image.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kubernetes": None}, "needs an image"),
        ({"kubernetes": {"time": "4h"}}, "image"),
        ({"kubernetes": {**JOB, "store": None}}, "no location is set for the results"),
        (
            {"kubernetes": {**JOB, "store": None, "results": "/scratch"}},
            "on none of kubernetes.volumes",
        ),
        (
            {"kubernetes": {**JOB, "store": None, "results": "/data/../x"}},
            "on none of kubernetes.volumes",
        ),
        ({"kubernetes": {**JOB, "files": ["no.py"]}}, "there is no file 'no.py'"),
        ({"kubernetes": {**JOB, "files": ["../x"]}}, "there is no file '../x'"),
        ({"kubernetes": {**JOB, "time": 240}}, "may mean minutes"),
        ({"kubernetes": {**JOB, "memory": "lots"}}, "memory"),
        ({"kubernetes": {**JOB, "quue": "a"}}, "queue"),
        ({"kubernetes": {**JOB, "volumes": [{"claim": "d", "path": "data"}]}}, "path"),
        ({"cluster": "local"}, "must request known nodes"),
        ({"cluster": "slurm"}, "slurm"),
        ({"runner": "local"}, "cannot use the 2 pods"),
        (
            {"trainer": {**TRAINER, "env": {"WANDB_API_KEY": "0123456789abcdef"}}},
            "looks like a secret",
        ),
        ({"space": {"tp": [5]}}, "nearest miss"),
    ],
)
def test_a_wrong_job_is_refused(tune: Tune, changes: dict[str, Any], words: str) -> None:
    done = tune(**changes)
    assert done.code in (1, 2)
    assert words in done.err
    assert not Path("two-nodes").exists()


def test_options_of_the_command_line_are_those_of_the_spec(tune: Tune) -> None:
    words = ["--option", "image=a:2", "--option", "time=90min", "--option", "retries=0"]
    words += ["--option", "env_from=a,b"]
    assert tune(*words, kubernetes={"store": "s"}).code == 0
    spec = manifest()[1]["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 90 * 60 + START_S)
    refused = tune("--submit")
    assert refused.code == 2
    assert "kubectl" in refused.err


def test_the_limit_counts_from_the_start_of_the_container() -> None:
    assert left_s({}) is None
    limit_s = 30 * 86400  # this process may run for hours by now
    left = left_s({LIMIT: str(limit_s)}, of=os.getpid())
    assert left is not None
    assert limit_s / 2 < left < limit_s
    time.sleep(0.3)
    later = left_s({LIMIT: str(limit_s)}, of=os.getpid())
    assert later is not None
    assert 0.2 < left - later < 60
