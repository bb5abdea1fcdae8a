"""Jobs of the cluster's schedulers: what they say, and how they start the nodes of a launch.
Trainings really run in tests/workers/test_jobs.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import CatalogError, ExportError, SpecError
from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.catalog import cluster_of
from autotune.trainers import Launch, trainer, trainer_names, write_launch
from autotune.trainers.launch_files import MASTER_ADDR, MASTER_PORT, NODE_RANK
from autotune.trainers.schedulers import SCHEDULERS, job_of, scheduler, split_options
from autotune.trainers.schedulers.kubernetes import FOLDER, NO_IMAGE, SOURCE

MODEL = ModelSpec(name="tiny", num_layers=2, hidden_size=32, num_attention_heads=2, vocab_size=256)
CONFIG = ParallelConfig(tp=8, dp=2)
TUNED = {
    "study": {"id": "abc", "name": "GPT-2: two nodes_v1.0"},
    "model": "tiny",
    "cluster": "h100-sxm-2x8",
    "trainer": "command",
    "runner": "ray",
    "autotune": "0.1.0",
    "config": "tp8 pp1 dp2 mb1 acc1 bf16",
    "tokens_per_s": 1234567.0,
    "step_time_s": 0.25,
    "step_time_spread": 0.012,
    "steps": 14,
    "final_rounds": 2,
    "measured_at": "2026-01-02T03:04:05+00:00",
    "trials": {"measured": 9, "failed": 1},
    "default": {
        "config": "tp1",
        "tokens_per_s": 600000.0,
        "step_time_s": 0.5,
        "step_time_spread": 0.01,
    },
    "speedup": 2.06,
}
LAUNCH = Launch(
    argv=("echo", f"rank={NODE_RANK}", f"at={MASTER_ADDR}:{MASTER_PORT}", "a $(b) 'c'"),
    files={"model/config.json": '{"layers": 2}\n', "train.toml": "steps = 3\nname = '''\n  x'''\n"},
    tuned=TUNED,
)


def workload(cluster: str = "h100-sxm", nodes: int = 2, per_node: int = 8) -> Workload:
    gpus = cluster_of(cluster, num_nodes=nodes, gpus_per_node=per_node)
    return Workload(model=MODEL, cluster=gpus, seq_len=32, global_batch_size=8)


def job(name: str, launch: Launch = LAUNCH, **options: Any) -> dict[str, Any]:
    on = scheduler(name)
    rest, values = split_options(on, options)
    assert rest == {}
    return job_of(on, launch, workload(), CONFIG, values)


def manifest(**options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config_map, job_set = yaml.safe_load_all(job("kubernetes", **options)["files"]["job.yaml"])
    return config_map, job_set


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_job_says_how_its_config_was_found(name: str, tmp_path: Path) -> None:
    made = job(name)
    assert (made["nodes"], made["ranks_per_node"], made["gpus_per_node"]) == (2, 8, 8)
    write_launch(LAUNCH, tmp_path, job=made)
    texts = [(tmp_path / file).read_text() for file in ("launch.sh", *made["files"])]
    for text in texts:
        comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
        for fact in ("tp8 pp1 dp2 mb1 acc1 bf16", "GPT-2: two nodes_v1.0 (abc)", "1,234,567 tokens/s", "spread 1.2%",
                     "2026-01-02T03:04:05", "before the finals: 9 measured runs", "600,000 tokens/s", "2.06x"):  # fmt: skip
            assert fact in comments
    written = json.loads((tmp_path / "launch.json").read_text())
    assert written["tuned"] == TUNED
    assert written["job"]["scheduler"] == name
    assert set(made["files"]) <= set(written["sha256"])


def test_names_cannot_leave_their_comment() -> None:
    hostile = "x\n$(touch pwned)\r`y`\u2028"
    tuned = {**TUNED, "study": {"id": "abc", "name": hostile}, "model": "m\nrm -rf ."}
    launch = Launch(argv=("run",), tuned=tuned)
    for name in SCHEDULERS:
        texts = (launch.script, *job(name, launch)["files"].values())
        assert all("touch pwned" in text for text in texts)
        for text in texts:
            for line in text.splitlines():
                assert "touch pwned" not in line or line.lstrip().startswith("# ")
                assert "rm -rf" not in line or line.lstrip().startswith("# ")


def test_a_launch_that_was_not_tuned_says_nothing_of_it() -> None:
    assert "Config:" not in Launch(argv=("run",)).script
    assert "tuned" not in Launch(argv=("run",)).to_dict()


def test_no_option_of_a_scheduler_is_one_of_a_trainer() -> None:
    theirs = {option.name for name in trainer_names() for option in trainer(name).options}
    for one in SCHEDULERS.values():
        assert not theirs & {option.name for option in one.options}


def test_unknown_schedulers_and_wrong_options_are_named() -> None:
    with pytest.raises(CatalogError, match="slurm"):
        scheduler("slum")
    rest, values = split_options(scheduler("slurm"), {"partition": "gpu", "data": "x"})
    assert (rest, values) == (
        {"data": "x"},
        {"time": "", "partition": "gpu", "account": "", "qos": ""},
    )
    with pytest.raises(SpecError, match="text"):
        split_options(scheduler("slurm"), {"partition": 3})
    with pytest.raises(SpecError, match="one word"):
        job("slurm", partition="gpu --wrap=reboot")


def test_a_file_of_the_trainer_is_not_overwritten_by_the_job() -> None:
    with pytest.raises(
        ExportError, match=r"ray_job\.py is written by both the trainer and the ray job"
    ):
        job("ray", Launch(argv=("run",), files={"ray_job.py": ""}))


def test_sbatch_reads_the_sizes_and_what_the_site_asks_for(tmp_path: Path) -> None:
    text = job("slurm", partition="gpu", time="04:00:00")["files"]["job.sbatch"]
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    commands = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    asked = [
        line.removeprefix("#SBATCH ") for line in lines[:commands] if line.startswith("#SBATCH ")
    ]
    assert {
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--partition=gpu",
        "--time=04:00:00",
    } <= set(asked)
    assert "--job-name=autotune-gpt-2-two-nodes-v1-0" in asked
    assert not any("account" in line for line in asked)
    assert "##SBATCH --account=NAME" in lines
    (tmp_path / "job.sbatch").write_text(text)
    subprocess.run(["bash", "-n", tmp_path / "job.sbatch"], check=True, timeout=600)


def test_the_job_set_holds_what_its_schema_asks_for() -> None:
    config_map, job_set = manifest(image="registry/train:1", namespace="ml")
    assert (config_map["apiVersion"], config_map["kind"]) == ("v1", "ConfigMap")
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    name = job_set["metadata"]["name"]
    assert name == config_map["metadata"]["name"] == "autotune-gpt-2-two-nodes-v1-0"
    assert config_map["metadata"]["namespace"] == job_set["metadata"]["namespace"] == "ml"
    (group,) = job_set["spec"]["replicatedJobs"]
    assert group["replicas"] == 1
    spec = group["template"]["spec"]
    assert (
        spec["completionMode"],
        spec["completions"],
        spec["parallelism"],
        spec["backoffLimit"],
    ) == (
        "Indexed",
        2,
        2,
        0,
    )
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert container["image"] == "registry/train:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert variables["MASTER_ADDR"] == f"{name}-{group['name']}-0-0.{name}"
    assert variables["MASTER_PORT"] == str(container["ports"][0]["containerPort"])
    assert len(f"{name}-{group['name']}-0-999") <= 63
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in pod["volumes"]}
    (files,) = (one["configMap"] for one in pod["volumes"] if "configMap" in one)
    assert files["name"] == name
    texts = {item["path"]: config_map["data"][item["key"]] for item in files["items"]}
    assert texts == {**LAUNCH.files, "launch.sh": LAUNCH.script}
    (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"


def test_an_image_is_asked_for_and_a_launch_that_is_too_large_is_refused() -> None:
    made = job("kubernetes")
    assert NO_IMAGE in made["files"]["job.yaml"]
    assert any("--option image=NAME" in remark for remark in made["notes"])
    assert not any("--option image" in remark for remark in job("kubernetes", image="x")["notes"])
    with pytest.raises(ExportError, match="a ConfigMap holds at most"):
        job("kubernetes", Launch(argv=("run",), files={"large.txt": "x" * (1 << 20)}))


@pytest.mark.parametrize("index", [0, 1])
def test_a_pod_starts_the_node_of_its_index(tmp_path: Path, index: int) -> None:
    config_map, job_set = manifest(image="x")
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    source, folder = tmp_path / "files", tmp_path / "launch"
    (items,) = (one["configMap"]["items"] for one in pod["volumes"] if "configMap" in one)
    for item in items:  # as the kubelet does: links to a folder whose name begins with a dot
        path = source / "..data" / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(config_map["data"][item["key"]])
    for name in {item["path"].partition("/")[0] for item in items}:
        (source / name).symlink_to(Path("..data") / name)
    folder.mkdir()
    command = [
        word.replace(SOURCE, str(source)).replace(FOLDER, str(folder))
        for word in container["command"]
    ]
    variables = {one["name"]: one["value"] for one in container["env"]}
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", "JOB_COMPLETION_INDEX": str(index), **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert done.stdout == f"rank={index} at={variables['MASTER_ADDR']}:29500 a $(b) 'c'\n"
    assert (folder / "model" / "config.json").read_text() == LAUNCH.files["model/config.json"]


def test_the_driver_of_a_ray_job_is_python_with_the_sizes_of_the_job() -> None:
    made = job("ray")
    found: dict[str, Any] = {}
    text = made["files"]["ray_job.py"]
    compile(text, "ray_job.py", "exec")
    exec(
        "\n".join(
            line
            for line in text.splitlines()
            if line.split(" = ")[0].endswith(("NODES", "PER_NODE"))
        ),
        found,
    )
    assert (found["NODES"], found["CPUS_PER_NODE"], found["GPUS_PER_NODE"]) == (2, 8, 8)
    assert "autotune" not in {
        line.split()[1].partition(".")[0]
        for line in text.splitlines()
        if line.startswith(("import", "from"))
    }
    assert made["start"] == "ray job submit --working-dir . -- python ray_job.py"


def test_ranks_on_cpus_reserve_no_gpus() -> None:
    on_cpus = workload("cpu", nodes=2, per_node=1)
    for name in ("slurm", "ray", "kubernetes"):
        _, values = split_options(scheduler(name), {})
        made = job_of(scheduler(name), LAUNCH, on_cpus, ParallelConfig(dp=2), values)
        assert (made["nodes"], made["ranks_per_node"], made["gpus_per_node"]) == (2, 1, 0)
        (text,) = made["files"].values()
        assert "gpus-per-node" not in text
        assert "nvidia" not in text


def test_the_shell_says_what_each_node_is_told() -> None:
    made = job("shell")
    assert (made["files"], made["start"]) == ({}, "NODE_RANK=0 MASTER_ADDR=HOST sh launch.sh")
    assert "NODE_RANK from 0 to 1" in made["notes"][0]
    alone = Launch(argv=(sys.executable, "-c", "print(1)"))
    assert job("shell", alone)["start"] == "sh launch.sh"
