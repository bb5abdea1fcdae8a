"""Exported jobs really train on two nodes: Slurm's commands as stand-ins that do what their manual
pages say, and a Ray cluster of two nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.spec import ModelSpec, ParallelConfig, Workload
from autotune.spec.catalog import cluster_of
from autotune.trainers import Launch, trainer, write_launch
from autotune.trainers.launch_files import NODE_RANK
from autotune.trainers.schedulers import job_of, scheduler, split_options
from autotune_workers.process.machine import free_port, is_alive
from tests.ray_roles import AUTH, go_away
from tests.workers.processes import CHECKOUT_PATH, until

pytestmark = [pytest.mark.thorough, pytest.mark.alone]

ROOT = Path(__file__).resolve().parents[2]
WORKLOAD = Workload(
    model=ModelSpec(
        name="tiny",
        num_layers=2,
        hidden_size=32,
        num_attention_heads=2,
        vocab_size=256,
        gated_mlp=True,
    ),
    cluster=cluster_of("cpu", num_nodes=2, gpus_per_node=1),
    seq_len=32,
    global_batch_size=4,
)
CONFIG = ParallelConfig(dp=2, micro_batch_size=1, accumulation_steps=2, precision="fp32")
SRUN = """
    #!{python}
    # srun(1): the command once for each task, one per node here, with SLURM_NODEID, SLURM_PROCID, SLURM_LOCALID and SLURM_NNODES of each; the exit
    # code is the highest of all tasks; --kill-on-bad-exit ends the others when one fails.
    import os, signal, subprocess, sys, time
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    words = sys.argv[1 + len(options):]
    assert set(options) == {{"--ntasks-per-node=1", "--cpu-bind=none", "--kill-on-bad-exit=1"}}, options
    def task(node):
        told = {{"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0", "SLURM_NNODES": "2"}}
        return subprocess.Popen(words, env={{**os.environ, **told}}, start_new_session=True)
    tasks = [task(node) for node in range(2)]
    while any(task.poll() is None for task in tasks):
        if any(task.poll() for task in tasks):
            for task in tasks:
                if task.poll() is None:
                    task.send_signal(signal.SIGTERM)
                    task.wait()
        time.sleep(0.05)
    sys.exit(max(abs(task.wait()) for task in tasks))
"""
SCONTROL = """
    #!/bin/sh
    # scontrol(1), show hostnames: the hosts of a host list, one a line
    [ "$1 $2 $3" = "show hostnames host[1-2]" ] || exit 1
    printf '127.0.0.1\\n127.0.0.2\\n'
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With this checkout on the path, its Python's programs, and the stand-ins before all
    others."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("srun", SRUN.format(python=sys.executable)), ("scontrol", SCONTROL)):
        (tools / name).write_text(textwrap.dedent(text).lstrip())
        (tools / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([CHECKOUT_PATH, os.environ.get("PYTHONPATH", "")]),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "host[1-2]",
        "SLURM_SUBMIT_DIR": str(tmp_path / "job"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def write(name: str, launch: Launch, folder: Path) -> None:
    on = scheduler(name)
    write_launch(launch, folder, job=job_of(on, launch, WORKLOAD, CONFIG, split_options(on, {})[1]))


def training() -> Launch:
    return trainer("native").launch(WORKLOAD, CONFIG, {"steps": 3})


def run(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def steps_of(output: str) -> list[int | None]:
    # Ray says first which actor printed it
    lines = (line.partition(") ")[2] or line for line in output.splitlines())
    return [found.step for line in lines if (found := trainer("native").parse_line(line))]


def test_slurm_starts_two_nodes_that_train_together(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    write("slurm", training(), tmp_path / "job")
    done = run(["bash", "job.sbatch"], tmp_path / "job", environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert steps_of(done.stdout) == [0, 1, 2, 3, 4]
    assert '"num_ranks": 2' in done.stdout


@pytest.mark.slow
def test_slurm_ends_all_nodes_when_one_fails(tmp_path: Path, environment: dict[str, str]) -> None:
    code = "import sys, time; sys.exit(7) if sys.argv[1] == '1' else time.sleep(600)"
    write("slurm", Launch(argv=(sys.executable, "-c", code, NODE_RANK)), tmp_path / "job")
    began_s = time.monotonic()
    done = run(["bash", "job.sbatch"], tmp_path / "job", environment)
    assert done.returncode not in (0, None)
    assert time.monotonic() - began_s < 60


def ray_start(folder: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A node of a Ray cluster as `ray start` makes it, on this machine's own address: plain drivers
    cannot join one on loopback."""
    no_ports = (
        "--dashboard-agent-listen-port=0",
        "--metrics-export-port=0",
        "--min-worker-port=0",
        "--max-worker-port=0",
    )
    sizes = (
        "--num-cpus=1",
        "--num-gpus=0",
        f"--object-store-memory={100 << 20}",
        "--disable-usage-stats",
    )
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        *arguments,
        *sizes,
        *no_ports,
    ]
    with open(os.path.join(folder, "log"), "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **AUTH, "PYTHONPATH": CHECKOUT_PATH},
        )


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray cluster of two nodes with one CPU each."""
    import ray.util

    port = free_port("")
    host = ray.util.get_node_ip_address()
    nodes: list[subprocess.Popen[bytes]] = []
    # the names of Ray's sockets are long
    with tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as short:
        try:
            arguments = (
                f"--port={port}",
                "--include-dashboard=false",
                f"--temp-dir={short}",
                f"--node-ip-address={host}",
            )
            nodes.append(ray_start(short, "--head", *arguments))
            until(lambda: answers(host, port), 900)
            nodes.append(ray_start(short, f"--address={host}:{port}", f"--node-ip-address={host}"))
            yield f"{host}:{port}"
        finally:
            for node in nodes:
                go_away(node)
                node.wait()


def answers(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


@pytest.mark.slow
def test_a_ray_job_starts_two_nodes_that_train_together(
    tmp_path: Path, environment: dict[str, str], cluster: str
) -> None:
    write("ray", training(), tmp_path / "job")
    done = run(
        [sys.executable, "ray_job.py"],
        tmp_path / "job",
        {**environment, **AUTH, "RAY_ADDRESS": cluster},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert set(steps_of(done.stdout + done.stderr)) >= {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_a_ray_job_ends_all_nodes_when_one_fails(
    tmp_path: Path, environment: dict[str, str], cluster: str
) -> None:
    pid = tmp_path / "pid"
    code = (
        "import os, subprocess, sys, time\n"
        "if sys.argv[1] == '1': time.sleep(3); sys.exit(7)\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open(sys.argv[2], 'w').write(f'{os.getpid()} {child.pid}')\n"
        "time.sleep(600)\n"
    )
    write("ray", Launch(argv=(sys.executable, "-c", code, NODE_RANK, str(pid))), tmp_path / "job")
    done = run(
        [sys.executable, "ray_job.py"],
        tmp_path / "job",
        {**environment, **AUTH, "RAY_ADDRESS": cluster},
    )
    assert done.returncode == 7, done.stdout[-2000:] + done.stderr[-4000:]
    assert "node 1: the command ended with exit code 7" in done.stdout
    assert not any(is_alive(int(number)) for number in pid.read_text().split())


def test_a_ray_job_that_is_stopped_leaves_nothing_running(
    tmp_path: Path, environment: dict[str, str], cluster: str
) -> None:
    code = "import os, sys, time; open(sys.argv[1] + sys.argv[2], 'w').write(str(os.getpid())); time.sleep(600)"
    write(
        "ray",
        Launch(argv=(sys.executable, "-c", code, str(tmp_path / "pid"), NODE_RANK)),
        tmp_path / "job",
    )
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "ray_job.py"],
            cwd=tmp_path / "job",
            env={**environment, **AUTH, "RAY_ADDRESS": cluster},
            stdout=log,
            stderr=log,
        )
    files = [tmp_path / f"pid{node}" for node in range(2)]
    end_s = time.monotonic() + 900
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < end_s, (tmp_path / "log").read_text()
        assert driver.poll() is None, (tmp_path / "log").read_text()
        time.sleep(0.2)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(900) == 143
    assert not any(is_alive(int(file.read_text())) for file in files)
