"""As whom a service's programs run, and what they see of its environment."""

from __future__ import annotations

import os
import time

import pytest

from autotune.settings import PROGRAM_ENVIRONMENT, PROGRAM_USER
from autotune_workers.process.children import inherited_environment
from autotune_workers.process.keeper.owner import KeeperProcess
from autotune_workers.process.program.environment import program_environment
from autotune_workers.process.program.places import ProgramOrder

SECRETS = {
    "AUTOTUNE_STORE": "postgresql://autotune:secret@db/autotune",
    "AUTOTUNE_TOKEN": "at_1_secret",
    "PGPASSWORD": "secret",
    "RAY_AUTH_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "HF_TOKEN": "secret",
}
CODE = """
touch written || exit 1
echo uid=$(id -u)
echo groups=$(id -G)
echo files=$(ls)
echo rights=$(grep NoNewPrivs /proc/self/status | tail -c 2)
if cat /proc/$PPID/environ >/dev/null 2>&1; then echo parent=readable; else echo parent=denied; fi
env
"""


def told_by_a_program() -> dict[str, str]:
    """What a program says of its process, or the reason why it was refused."""
    keeper = KeeperProcess(detached=False)
    try:
        order = ProgramOrder(argv=("/bin/sh", "-c", CODE), files={"settings/a.json": "{}"})
        keeper.begin(order, address="127.0.0.1")
        lines: list[str] = []
        end_s = time.monotonic() + 600.0
        while time.monotonic() < end_s:
            for message in keeper.receive():
                if message["event"] == "refused":
                    return {"refused": message["reason"]}
                if message["event"] == "lines":
                    lines += [
                        line[-1] if isinstance(line, list) else line for line in message["lines"]
                    ]
                if message["event"] == "ended":
                    assert message["code"] == 0, lines
                    return dict(line.split("=", 1) for line in lines if "=" in line)
            time.sleep(0.02)
        raise AssertionError(f"the program did not end: {lines}")
    finally:
        keeper.close(30.0)


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("secrets")
def test_a_program_of_a_service_sees_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_SETTING", "1")
    # without a service the environment is the user's own
    assert "AWS_SECRET_ACCESS_KEY" in program_environment()
    assert not {"AUTOTUNE_STORE", "AUTOTUNE_TOKEN", "PGPASSWORD", "RAY_AUTH_TOKEN"} & set(
        program_environment()
    )
    monkeypatch.setenv(PROGRAM_ENVIRONMENT, "")
    assert not set(SECRETS) & set(program_environment())
    assert not {PROGRAM_ENVIRONMENT, "MY_SETTING"} & set(program_environment())
    assert {"PATH", "NCCL_DEBUG"} <= set(program_environment())
    monkeypatch.setenv(PROGRAM_ENVIRONMENT, "MY_SETTING,HF_TOKEN")
    assert {"MY_SETTING", "HF_TOKEN"} <= set(program_environment())


def test_a_program_is_told_nothing_of_the_job_that_autotune_runs_in_but_launchers_of_its_tasks_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "2",
        "PMI_RANK": "0",
        "PMIX_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
    }
    for name, value in {**job, "SLURMISH": "1"}.items():
        monkeypatch.setenv(name, value)
    assert not job.keys() & program_environment(("python", "train.py")).keys()
    assert not job.keys() & inherited_environment().keys()
    assert "SLURMISH" in program_environment()
    assert job.keys() <= program_environment(("/usr/bin/srun", "python", "train.py")).keys()
    assert job.keys() <= program_environment(with_job=True).keys()


def test_what_a_launcher_told_this_process_is_left_out_and_names_that_begin_alike_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "host",
        "NODE_RANK": "1",
        "LOCAL_WORLD_SIZE": "8",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "host",
        "PET_RDZV_ENDPOINT": "host:29400",
    }
    kept = {"RANKING_FILE": "a.csv", "MASTER_ADDRESS_BOOK": "b", "PET_MAX_RESTARTS": "0"}
    for name, value in {**given, **kept}.items():
        monkeypatch.setenv(name, value)
    assert (given | kept).keys() & program_environment().keys() == kept.keys()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs as another user")
@pytest.mark.usefixtures("secrets")
def test_a_program_runs_as_the_user_that_the_service_names(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    nobody = pwd.getpwnam("nobody")
    monkeypatch.setenv(PROGRAM_USER, "nobody")
    monkeypatch.setenv(PROGRAM_ENVIRONMENT, "")
    monkeypatch.chdir("/")
    told = told_by_a_program()
    assert "refused" not in told, told
    assert (told["uid"], told["HOME"]) == (str(nobody.pw_uid), nobody.pw_dir)
    assert "0" not in told["groups"].split()
    assert told["parent"] == "denied"
    assert told["rights"] == "1"  # what is setuid gives it none
    assert told["files"] == "outputs settings written"
    assert not [name for name, value in told.items() if "secret" in value]


def test_a_user_that_cannot_be_become_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROGRAM_USER, "no-such-user")
    assert "no-such-user" in told_by_a_program()["refused"]
