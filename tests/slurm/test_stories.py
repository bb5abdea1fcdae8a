"""Studies on a real Slurm: from the login node to a winner, and through all that ends a job before
it is done.

The jobs, nodes and signals are real; nodes are namespaces of this machine, each with a /tmp of its
own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.cli.source import LocalSource
from autotune.errors import NotFoundError
from autotune.store.upkeep.study_folder import opened_copy
from tests.nodes.network import until
from tests.nodes.slurm_cluster import SlurmCluster, slurm_cluster, what_is_missing

pytestmark = [
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing()),
    pytest.mark.alone,
]

AUTOTUNE = str(Path(sys.executable).with_name("autotune"))
WAIT_S = 600.0
"""for what takes seconds on an idle machine"""
SIMULATED: dict[str, Any] = {
    "name": "simulated",
    "model": "nano-gpt",
    "cluster": {"gpu": "cpu", "num_nodes": 2, "gpus_per_node": 4},
    "workload": {"seq_len": 256, "global_batch_size": 64},
    "space": {"tp": [1, 2, 4], "micro_batch_size": [1, 2, 4], "precision": ["fp32"]},
    "budget": {"max_trials": 3},
    "searcher": "cost_ranked",
    "runner": "simulated",
}
PROGRAM = """
import argparse, os, time
words = argparse.ArgumentParser()
words.add_argument("--batch-size", type=int)
words.add_argument("--width", type=int)
batch = words.parse_args().batch_size
if "SEEN" in os.environ:
    told = [name for name in os.environ if name.startswith("SLURM_")]
    with open(os.environ["SEEN"] + os.uname().nodename, "w") as seen:
        print("GPUs", os.environ.get("CUDA_VISIBLE_DEVICES", "none"), "of Slurm", *told, file=seen)
for step in range(1, 13):
    time.sleep(0.3)
    print(f"step {step} loss: 2.5 step time: {0.3 + 0.01 * batch}", flush=True)
"""
PATIENT = {"start_timeout_s": 600, "step_timeout_s": 600, "trial_timeout_s": 1200}
SLEEPING: dict[str, Any] = {
    "name": "sleeping",
    "model": "nano-gpt",
    "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 1},
    "workload": {"seq_len": 32, "global_batch_size": 48},
    "space": {
        "world_sizes": [1],
        "micro_batch_size": [1, 2, 3, 4, 6, 8, 12, 16, 24, 48],
        "precision": ["fp32"],
    },
    "knobs": {"width": list(range(1, 11))},
    "budget": {"max_trials": 100, "max_wall_s": "1h", "min_gain": 0},
    "measure": {
        "warmup_steps": 1,
        "min_steps": 8,
        "max_steps": 8,
        "first_look": 0,
        "finalists": 1,
        "final_rounds": 1,
        **PATIENT,
    },
    "calibrate": False,
    "check": False,
    "searcher": "random",
    "trainer": {
        "kind": "command",
        "argv": [sys.executable, "train.py", "--batch-size={micro_batch_size}", "--width={width}"],
        "metrics": {
            "step": "^step ([0-9]+)",
            "loss": "loss: ([0-9.]+)",
            "step_time_s": "step time: ([0-9.]+)",
        },
        "fixed": {"precision": "fp32"},
        "env": {"ACC": "{accumulation_steps}"},
    },
    "runner": "local",
    "slurm": {"time": "30min"},
}


SPREAD: dict[str, Any] = {
    **SLEEPING,
    "name": "spread",
    "cluster": {"gpu": "cpu", "num_nodes": 2, "gpus_per_node": 1},
    "space": {
        **SLEEPING["space"],
        "world_sizes": [2],
        "micro_batch_size": [1, 2, 3, 4, 6, 8, 12, 24],
    },
    "runner": "ray",
}
"""a program on two nodes, by Ray"""
NATIVE: dict[str, Any] = {
    **{key: value for key, value in SPREAD.items() if key not in ("trainer", "check", "knobs")},
    "name": "native",
    "workload": {"seq_len": 16, "global_batch_size": 4},
    "space": {
        "world_sizes": [2],
        "micro_batch_size": [1, 2],
        "precision": ["fp32"],
        "zero_stage": [0],
    },
    "budget": {"max_trials": 1, "max_wall_s": "1h", "min_gain": 0},
    "measure": {
        "warmup_steps": 1,
        "min_steps": 2,
        "max_steps": 2,
        "first_look": 0,
        "finalists": 0,
        **PATIENT,
    },
}
"""warm ranks on two nodes"""


class LoginNode:
    """Where people work: commands of autotune beside those of Slurm, in a folder that all nodes
    see."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        home = folder / "home"
        (home / ".ray").mkdir(parents=True)
        # what an earlier Ray of this user left there
        (home / ".ray/auth_token").write_text("0" * 64)
        drop = {
            "AUTOTUNE_STORE",
            "RAY_ADDRESS",
            "RAY_AUTH_MODE",
            "RAY_AUTH_TOKEN",
            "RAY_AUTH_TOKEN_PATH",
        }
        self.environment = {
            k: v for k, v in os.environ.items() if k not in drop and not k.startswith("SLURM")
        }
        self.environment |= {**cluster.environment, "HOME": str(home)}
        (folder / "train.py").write_text(PROGRAM)

    def autotune(self, *words: str, code: int | None = 0) -> str:
        """What the command prints on stdout."""
        done = self.run(AUTOTUNE, *words)
        assert code is None or done.returncode == code, (
            f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout if code == 0 else done.stdout + done.stderr

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A command in the folder."""
        return subprocess.run(
            argv,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )

    def submit(self, spec: dict[str, Any], **changes: Any) -> str:
        """The number of the job of the study."""
        document = {**spec, **changes}
        (self.folder / "spec.yaml").write_text(yaml.safe_dump(document))
        return str(
            json.loads(self.autotune("tune", "spec.yaml", "--on", "slurm", "--submit", "--json"))[
                "job"
            ]["id"]
        )

    def status(self, name: str) -> dict[str, Any]:
        """The study as the login node sees it, read in this process, which costs less; empty before
        the first copy."""
        with contextlib.suppress(NotFoundError), opened_copy(self.folder / name) as store:
            for study in store.studies(limit=1):
                return LocalSource(store).status(study.id)
        return {}

    def completed(self, name: str) -> int:
        """How many trials have been measured."""
        return int(self.status(name).get("study", {}).get("trials", {}).get("COMPLETED", 0))

    def wait_for_trials(self, name: str, least: int) -> None:
        """Until so many were measured."""
        until(lambda: self.completed(name) >= least, WAIT_S, f"{least} trials: {self.said(name)}")

    def measuring(self, spec: dict[str, Any], trials: int = 1, **changes: Any) -> str:
        """The number of a job that has measured so many trials."""
        job = self.submit(spec, **changes)
        self.wait_for_trials(spec["name"], trials)
        return job

    def goes_on(self, name: str, by: int = 1) -> None:
        """Until so many more were measured."""
        self.wait_for_trials(name, self.completed(name) + by)

    def finished(self, job: str, name: str) -> dict[str, Any]:
        """The study once its job is over, and both are complete."""
        assert self.cluster.wait_for(job) == "COMPLETED", self.said(name)
        found = self.status(name)
        assert found["study"]["status"] == "COMPLETED"
        return found

    def end(self, job: str, name: str, how: str) -> str:
        """Stops or cancels the study; the state in which its job ends."""
        self.autotune(how, "--in", name)
        return self.cluster.wait_for(job)

    def said(self, name: str) -> str:
        """All that the study's jobs printed."""
        return "\n".join(
            log.read_text(errors="replace")
            for log in sorted((self.folder / name).glob("job-*.out"))
        )

    def is_left(self) -> list[str]:
        """Processes of trials and of Ray on the nodes."""
        return [
            part
            for node in self.cluster.nodes
            for part in ("raylet", "gcs_server", "autotune")
            if node.is_on and node.processes(part)
        ]


@pytest.fixture
def shared(tmp_path: Path) -> list[str]:
    """Folders that all nodes see."""
    root = Path(__file__).resolve().parents[2]
    return [str(path) for path in {tmp_path, Path(sys.prefix), root} if path.is_relative_to("/tmp")]


@pytest.fixture
def login(shared: list[str], tmp_path: Path) -> Iterator[LoginNode]:
    """Two nodes of four CPUs."""
    with slurm_cluster(2, shared=shared) as cluster:
        yield LoginNode(cluster, tmp_path)


@pytest.fixture
def login_on_fuse(shared: list[str], tmp_path: Path) -> Iterator[LoginNode]:
    """Two nodes whose shared folder is a file system in user space."""
    folder, behind = tmp_path / "fuse", tmp_path / "behind"
    folder.mkdir()
    behind.mkdir()
    subprocess.run(["bindfs", str(behind), str(folder)], check=True)
    try:
        with slurm_cluster(2, shared=[*shared, str(folder)]) as cluster:
            yield LoginNode(cluster, folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def login_of(shared: list[str], tmp_path: Path) -> Iterator[Callable[..., LoginNode]]:
    """Another number of nodes, or nodes with GPUs or a time of grace."""
    with contextlib.ExitStack() as opened:

        def start(nodes: int = 2, **options: Any) -> LoginNode:
            cluster = opened.enter_context(slurm_cluster(nodes, shared=shared, **options))
            return LoginNode(cluster, tmp_path)

        yield start


def test_from_the_login_node_to_a_winner(login: LoginNode) -> None:
    job = login.submit(SIMULATED, slurm={"time": "10min"})
    assert login.cluster.wait_for(job) == "COMPLETED", login.said("simulated")
    found = json.loads(login.autotune("status", "--in", "simulated", "--json"))
    assert found["study"]["status"] == "COMPLETED"
    assert found["best"]["config"]
    assert found["job"]["id"] == job
    assert found["job"]["state"] == "COMPLETED"
    assert sorted(path.name for path in (login.folder / "simulated").iterdir()) == [
        f"job-{job}.out",
        "job.json",
        "job.sbatch",
        "store.db",
        "study.yaml",
    ]
    refused = login.autotune(
        "tune", "spec.yaml", "--on", "slurm", "--option", "partition=nope", code=2
    )
    assert "invalid partition specified: nope" in refused


@pytest.mark.slow
def test_ray_runs_on_all_nodes_of_the_job_and_leaves_nothing(login: LoginNode) -> None:
    job = login.submit(NATIVE)
    found = login.finished(job, "native")
    places = {row["node"] for row in found["study"]["result"]["placed"]}
    assert places == {node.name for node in login.cluster.nodes}
    until(lambda: not login.is_left(), 60)
    assert not list((login.folder / "native").glob(".ray-*")), (
        "the token and the head's address are gone"
    )
    for node in login.cluster.nodes:
        assert not list((login.cluster.folder / f"own-{node.name}/tmp").glob("at-*/session*"))
    assert (login.folder / "home/.ray/auth_token").read_text() == "0" * 64


@pytest.mark.slow
def test_programs_run_on_all_nodes_without_ray_and_leave_nothing(login: LoginNode) -> None:
    job = login.submit(SPREAD, runner="slurm", budget={"max_trials": 3})
    found = login.finished(job, "spread")
    assert found["best"]["config"]
    assert {row["node"] for row in found["study"]["result"]["placed"]} == {
        node.name for node in login.cluster.nodes
    }
    until(lambda: not login.is_left(), 60)
    for node in login.cluster.nodes:
        left = list((login.cluster.folder / f"own-{node.name}/tmp").glob("autotune-*"))
        assert not left, "no folder of a keeper or a trial"


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["ray", "slurm"])
def test_salloc_on_the_login_node_runs_on_the_nodes(login: LoginNode, runner: str) -> None:
    here = {
        **SPREAD,
        "runner": runner,
        "cluster": "slurm",
        "space": {**SPREAD["space"], "world_sizes": [2]},
    }
    (login.folder / "spec.yaml").write_text(yaml.safe_dump(here))
    (login.folder / "results").mkdir()
    words = [
        "salloc",
        "-N2",
        "-c1",
        "--time=30",
        AUTOTUNE,
        "tune",
        "spec.yaml",
        "--in",
        "results",
        "--max-trials",
        "1",
    ]
    done = login.run(*words)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = login.status("results")
    assert found["study"]["status"] == "COMPLETED"
    assert found["study"]["cluster"] == "cpu-2x1", "one CPU on each of two nodes"
    assert {row["node"] for row in found["study"]["result"]["placed"]} == {
        node.name for node in login.cluster.nodes
    }


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["ray", "slurm"])
def test_a_cancelled_job_ends_paused_and_the_next_one_goes_on(
    login: LoginNode, runner: str
) -> None:
    job = login.measuring(SPREAD, runner=runner)
    login.cluster.run("scancel", job)
    login.cluster.wait_for(job)
    until(lambda: not (login.folder / "spread/runs.json").exists(), 120, login.said("spread"))
    assert login.status("spread")["study"]["status"] == "PAUSED"
    assert not list((login.folder / "spread").glob(".ray-*"))
    before = login.completed("spread")
    assert before >= 1
    until(lambda: not login.is_left(), 60)
    again = login.submit(SPREAD, runner=runner)
    login.wait_for_trials("spread", before + 1)
    assert login.end(again, "spread", "stop") == "COMPLETED"
    assert "(spread), continued after" in login.said("spread")


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local", "slurm"])
def test_a_winner_is_named_before_the_limit(login: LoginNode, runner: str) -> None:
    job = login.submit(SLEEPING, runner=runner, slurm={"time": "3min"})
    found = login.finished(job, "sleeping")
    assert "left, reserved for the finals" in found["study"]["result"]["stop_reason"]
    assert found["study"]["result"]["final_rounds"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local", "slurm"])
def test_at_the_limit_a_study_that_may_go_on_pauses_and_its_job_begins_again(
    login: LoginNode, runner: str
) -> None:
    job = login.submit(SLEEPING, runner=runner, slurm={"time": "2min", "requeue": True})
    until(lambda: login.cluster.job(job)["Restarts"] == "1", WAIT_S, login.said("sleeping"))
    found = login.status("sleeping")
    assert found["study"]["status"] == "PAUSED"
    assert found["study"]["message"] == "its job's time limit has been reached"
    # a busy machine may make one trial longer than any before it; that no other begins is a law of
    # `tests/study/controller/test_job_time.py`
    assert found["study"]["trials"].get("CANCELLED", 0) <= 1
    until(
        lambda: login.cluster.job(job)["JobState"] in ("PENDING", "RUNNING"),
        WAIT_S,
        login.said("sleeping"),
    )
    login.wait_for_trials("sleeping", int(found["study"]["trials"]["COMPLETED"]) + 1)
    login.end(job, "sleeping", "cancel")


@pytest.mark.slow
def test_a_job_that_a_person_requeues_goes_on(login: LoginNode) -> None:
    job = login.measuring(SLEEPING, 2, slurm={"time": "30min", "requeue": True})
    login.cluster.run("scontrol", "requeue", job)
    until(lambda: login.cluster.job(job)["Restarts"] == "1", WAIT_S, login.said("sleeping"))
    login.goes_on("sleeping")
    assert "(sleeping), continued after" in login.said("sleeping")
    login.end(job, "sleeping", "cancel")


@pytest.mark.slow
def test_a_job_that_waits_says_what_for(login: LoginNode) -> None:
    others = login.cluster.run(
        "sbatch", "--parsable", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 900"
    )
    until(lambda: login.cluster.job(others)["JobState"] == "RUNNING", WAIT_S)
    job = login.submit(SIMULATED, slurm={"time": "10min"})
    until(lambda: login.cluster.job(job)["Reason"] in ("Resources", "Priority"), WAIT_S)
    said = login.autotune("status", "--in", "simulated", code=2)
    assert re.search(
        rf"there are no results in simulated yet: job {job}: PENDING \((Resources|Priority)\)", said
    )
    login.cluster.run("scancel", others)
    assert login.cluster.wait_for(job) == "COMPLETED", login.said("simulated")


@pytest.mark.slow
def test_what_an_allocation_cannot_hold_is_said_before_anything_starts(login: LoginNode) -> None:
    """Fewer nodes than the smallest config, one CPU for several ranks; and what doctor and init
    know of it."""
    (login.folder / "results").mkdir()
    large = {
        "cluster": {"gpu": "cpu", "num_nodes": 3, "gpus_per_node": 1},
        "workload": {"seq_len": 32, "global_batch_size": 36},
    }
    space = {"world_sizes": [3], "micro_batch_size": [1, 2], "precision": ["fp32"]}
    (login.folder / "spec.yaml").write_text(yaml.safe_dump({**SPREAD, **large, "space": space}))
    done = login.run(
        "salloc", "-N2", "-c4", "--time=30", AUTOTUNE, "tune", "spec.yaml", "--in", "results"
    )
    assert done.returncode == 2, done.stderr
    assert re.search(
        r"the smallest config in the space needs 3 nodes, but the job \d+ has 2", done.stderr
    )
    space = {**NATIVE["space"], "world_sizes": [4]}
    wide = {**NATIVE, "cluster": {"gpu": "cpu", "num_nodes": 2, "gpus_per_node": 2}, "space": space}
    (login.folder / "spec.yaml").write_text(yaml.safe_dump(wide))
    done = login.run(
        "salloc", "-N2", "-c1", "--time=30", AUTOTUNE, "tune", "spec.yaml", "--in", "results"
    )
    assert done.returncode == 2, done.stderr
    assert "has 2 ranks on each node and one CPU per rank, but the job" in done.stderr
    assert "--cpus-per-task=2" in done.stderr
    done = login.run(
        "salloc", "-N2", "-c1", "--time=30", "srun", "-N1", "-n1", AUTOTUNE, "doctor", "--json"
    )
    (told,) = (check for check in json.loads(done.stdout)["checks"] if check["name"] == "Slurm")
    assert "2 nodes" in told["detail"], told
    assert "--cpus-per-task" in told["remedy"]
    (login.folder / "train_it.py").write_text(PROGRAM)
    done = login.run(
        "salloc", "-N2", "--time=30", AUTOTUNE, "init", "train_it.py", "--model", "nano-gpt"
    )
    assert "has 2 nodes, but `cluster: local` is only this node" in done.stderr


@pytest.mark.slow
def test_when_ray_dies_before_the_job_the_study_pauses_all_the_same(login: LoginNode) -> None:
    job = login.measuring(SPREAD)
    for node in login.cluster.nodes:
        for pid in node.processes("gcs_server"):
            os.kill(pid, signal.SIGKILL)
    login.cluster.run("scancel", job)
    login.cluster.wait_for(job)
    until(lambda: not (login.folder / "spread/runs.json").exists(), 120, login.said("spread"))
    assert login.status("spread")["study"]["status"] == "PAUSED"
    until(lambda: not login.is_left(), 60)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("bindfs") is None, reason="a file system in user space needs the package bindfs"
)
def test_a_folder_that_is_unfit_for_the_store_holds_copies_of_it(login_on_fuse: LoginNode) -> None:
    """On FUSE, locks of two machines need not meet. A store there is refused; a job's folder there
    is right, its store is on the node's own disk."""
    login = login_on_fuse
    (login.folder / "spec.yaml").write_text(yaml.safe_dump({**SIMULATED, "cluster": "cpu-1x2"}))
    refused = login.autotune(
        "tune", "spec.yaml", "--store", f"sqlite:///{login.folder}/results.db", code=2
    )
    assert "fuse" in refused
    assert "--in" in refused
    job = login.submit(SIMULATED, slurm={"time": "10min"})
    login.finished(job, "simulated")
    assert (login.folder / "simulated/store.db").stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local", "slurm"])
def test_the_signal_before_the_limit_pauses(login: LoginNode, runner: str) -> None:
    job = login.measuring(SLEEPING, 2, runner=runner)
    login.cluster.run("scancel", "--batch", "--signal=USR1", job)
    assert login.cluster.wait_for(job) == "FAILED"
    found = login.status("sleeping")
    assert (found["study"]["status"], found["study"]["message"]) == (
        "PAUSED",
        "its job's time limit has been reached",
    )


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["ray", "slurm"])
def test_a_preempted_job_pauses_in_its_time_of_grace_and_goes_on(
    login_of: Callable[..., LoginNode], runner: str
) -> None:
    login = login_of(grace_s=60)
    job = login.measuring(SPREAD, runner=runner, slurm={"time": "30min", "requeue": True})
    urgent = login.cluster.run(
        "sbatch",
        "--parsable",
        "-p",
        "urgent",
        "-N2",
        "--exclusive",
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 20",
    )
    until(lambda: login.status("spread")["study"]["status"] == "PAUSED", 180, login.said("spread"))
    assert login.cluster.wait_for(urgent, timeout_s=300) == "COMPLETED"
    login.goes_on("spread")
    assert int(login.cluster.job(job)["Restarts"]) >= 1
    login.end(job, "spread", "cancel")


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["ray", "slurm"])
def test_a_lost_node_has_its_job_begin_again(login: LoginNode, runner: str) -> None:
    job = login.measuring(SPREAD, runner=runner, slurm={"time": "30min", "requeue": True})
    node = login.cluster.nodes[1]
    node.lose_power()
    until(lambda: login.cluster.job(job)["Restarts"] == "1", WAIT_S, login.said("spread"))
    node.boot()
    login.cluster.join(node)
    login.goes_on("spread")
    login.end(job, "spread", "cancel")


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["ray", "slurm"])
def test_a_spare_node_takes_the_place_of_a_lost_one(
    login_of: Callable[..., LoginNode], runner: str
) -> None:
    login = login_of(3)
    job = login.measuring(SPREAD, runner=runner, slurm={"time": "30min", "spare_nodes": 1})
    used = {row["node"] for row in login.status("spread")["study"]["result"]["placed"]}
    lost = next(node for node in login.cluster.nodes[1:] if node.name in used)
    lost.lose_power()
    login.goes_on("spread", 2)
    found = login.status("spread")
    assert lost.name not in {row["node"] for row in found["study"]["result"]["placed"]}
    assert login.cluster.job(job)["Restarts"] == "0"
    assert login.end(job, "spread", "stop") == "COMPLETED", login.said("spread")


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["ray", "slurm"])
def test_two_jobs_share_nodes(login: LoginNode, runner: str) -> None:
    shared = {"time": "30min", "exclusive": False, "cpus-per-task": 2}
    jobs = [login.submit(SPREAD, name=name, runner=runner, slurm=shared) for name in ("one", "two")]
    for name in ("one", "two"):
        login.wait_for_trials(name, 1)
    assert {login.cluster.job(job)["JobState"] for job in jobs} == {"RUNNING"}
    for name in ("one", "two"):
        login.autotune("stop", "--in", name)
    assert {login.cluster.wait_for(job) for job in jobs} == {"COMPLETED"}
    until(lambda: not login.is_left(), 60)


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["ray", "slurm"])
def test_programs_see_the_gpus_of_their_job_and_no_word_of_slurm(
    login_of: Callable[..., LoginNode], runner: str
) -> None:
    login = login_of(2, gpus=[2, 2])
    gpus = {
        "cluster": "h100-sxm-2x2",
        "space": {
            **SLEEPING["space"],
            "world_sizes": [4],
            "precision": ["bf16"],
            "micro_batch_size": [1],
        },
    }
    env = {**SLEEPING["trainer"]["env"], "SEEN": f"{login.folder}/seen-"}
    trainer = {**SLEEPING["trainer"], "fixed": {"precision": "bf16"}, "env": env}
    job = login.submit(
        SLEEPING, **gpus, name="gpus", trainer=trainer, runner=runner, budget={"max_trials": 1}
    )
    login.cluster.wait_for(job)
    seen = {
        path.name.removeprefix("seen-"): path.read_text().strip()
        for path in login.folder.glob("seen-*")
    }
    assert seen == {node.name: "GPUs 0,1 of Slurm" for node in login.cluster.nodes}, login.said(
        "gpus"
    )


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local", "ray", "slurm"])
def test_slurms_controller_may_crash(login: LoginNode, runner: str) -> None:
    job = login.measuring(SLEEPING, 2, runner=runner, slurm={"time": "30min"})
    time.sleep(8.0)  # it saves its state every few seconds, and forgets what is younger
    login.cluster.restart_controller()
    login.goes_on("sleeping", 2)
    assert login.end(job, "sleeping", "stop") == "COMPLETED", login.said("sleeping")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "runner"),
    [("torchrun", "ray"), ("torchrun", "slurm"), ("lightning", "ray"), ("lightning", "slurm")],
)
def test_programs_of_several_nodes_run_as_trials(
    login: LoginNode, launcher: str, runner: str
) -> None:
    if launcher == "lightning":
        pytest.importorskip("lightning")
        program = LIGHTNING
    else:
        program = TORCHRUN
    (login.folder / "spread.py").write_text(program)
    metrics = {
        "step": "^step ([0-9]+)",
        "loss": "loss: ([0-9.]+)",
        "step_time_s": "step time: ([0-9.]+)",
    }
    trainer = {
        "kind": "command",
        "argv": ["torchrun", "spread.py", "--batch-size={micro_batch_size}", "--width={width}"],
        "metrics": metrics,
        "fixed": {"precision": "fp32"},
        "env": {"ACC": "{accumulation_steps}"},
    }
    job = login.submit(
        SPREAD, name=launcher, runner=runner, trainer=trainer, check=False, budget={"max_trials": 2}
    )
    assert login.cluster.wait_for(job) == "COMPLETED", login.said(launcher)
    found = login.status(launcher)
    assert found["study"]["trials"]["COMPLETED"] >= 3, login.said(launcher)


TORCHRUN = """
import argparse, time, torch, torch.distributed as dist
words = argparse.ArgumentParser(); words.add_argument("--batch-size", type=int); words.add_argument("--width"); words.parse_args()
dist.init_process_group("gloo")
assert dist.get_world_size() == 2
for step in range(1, 11):
    began = time.monotonic(); x = torch.ones(1000); dist.all_reduce(x); time.sleep(0.1)
    if dist.get_rank() == 0: print(f"step {step} loss: {float(x[0])} step time: {time.monotonic() - began}", flush=True)
dist.destroy_process_group()
"""
LIGHTNING = """
import argparse, os, time, torch, lightning as L
from torch.utils.data import DataLoader, TensorDataset
words = argparse.ArgumentParser(); words.add_argument("--batch-size", type=int); words.add_argument("--width"); batch = words.parse_args().batch_size
accumulation = int(os.environ["ACC"])
class Model(L.LightningModule):
    def __init__(self):
        super().__init__(); self.layer = torch.nn.Linear(8, 1); self.began = time.monotonic()
    def training_step(self, rows, index):
        time.sleep(0.01); return self.layer(rows[0]).mean().abs() + 1
    def on_train_batch_end(self, outputs, rows, index):
        if (index + 1) % accumulation: return
        now = time.monotonic()
        if self.global_rank == 0: print(f"step {self.global_step} loss: {float(outputs['loss'])} step time: {now - self.began}", flush=True)
        self.began = now
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.0)
if __name__ == "__main__":
    trainer = L.Trainer(max_steps=10, accumulate_grad_batches=accumulation, accelerator="cpu", devices=1, num_nodes=2, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    assert trainer.world_size == 2
    trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(20 * accumulation * batch, 8)), batch_size=batch))
"""
