"""`runner: slurm`: programs on the nodes of a job by keepers that steps of srun hold, and what
becomes of them when nodes, steps and images fail."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.api import load_study
from autotune.errors import AutotuneError, JobEndedError, RunnerError
from autotune.ports import (
    AttemptEnded,
    AttemptId,
    AttemptQueued,
    AttemptStarted,
    LogRead,
    TrialRequest,
)
from autotune.slurm.allocation import SRUN
from autotune.spec import FailureKind
from autotune.store import MemoryStore
from autotune.study.assembly import assemble
from autotune.study.preflight import check_here, check_runner
from autotune.testing.runners import RunnerContract, ended, events_until_ended
from autotune.trainers.base.torchrun import Placement
from autotune_workers.runners.slurm import SlurmRunner
from autotune_workers.slurm import keeper_step, node_start, places
from tests.shortcuts import file_with
from tests.slurm.commands import job
from tests.workers.process import test_several_nodes as several
from tests.workers.process.test_program_runner import request as on_one_node

WAIT_S = 120.0
HOSTS = ["n1", "n2", "n3", "n4"]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of Slurm's commands, in a job of four nodes."""
    for name, value in job(tmp_path, HOSTS).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.fixture
def runner(slurm: Path) -> Iterator[SlurmRunner]:
    with SlurmRunner() as runner:
        yield runner


def one(runner: SlurmRunner, asked: TrialRequest) -> AttemptEnded:
    runner.start(asked)
    return ended(events_until_ended(runner, [asked.id]))


def poll_until(runner: SlurmRunner, wanted: Callable[[Any], bool]) -> list[Any]:
    """Events up to the first one that is wanted."""
    seen: list[Any] = []
    end_s = time.monotonic() + WAIT_S
    while not any(map(wanted, seen)):
        assert time.monotonic() < end_s, seen
        seen += runner.poll(0.5)
    return seen


def started(runner: SlurmRunner, asked: TrialRequest) -> AttemptId:
    runner.start(asked)
    poll_until(runner, lambda event: isinstance(event, AttemptStarted))
    return asked.id


def keepers() -> dict[str, int]:
    """Process numbers of the keepers by their nodes."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes()
            told = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"becomes it" in words and b"srun" not in words.split(b"\0")[2]:
            names = [
                word.partition(b"=")[2].decode()
                for word in told
                if word.startswith(b"SLURMD_NODENAME=")
            ]
            if words.split(b"\0")[1] == b"-I" and names[0] in HOSTS:
                found[names[0]] = int(entry)
    return found


@pytest.mark.thorough
class TestSlurmRunnerKeepsTheContract(RunnerContract):
    @pytest.fixture
    def request_for(self):
        return lambda number: on_one_node(number, "--step-s=0.01")

    def test_names_its_trainers_and_capacity(self, runner: SlurmRunner) -> None:
        assert runner.capacity == 4 * 8
        assert "command" in runner.trainers
        assert not {"native", "ray_train"} & set(runner.trainers)


def test_each_node_is_told_its_number_and_no_word_of_slurm(runner: SlurmRunner) -> None:
    asked = replace(several.program(0), with_log=True)
    runner.start(asked)
    events = events_until_ended(runner, [asked.id])
    end = ended(events)
    assert end.failure is None, end.failure
    assert end.measurement.peak_memory_bytes, "seen by the keepers"
    told = {
        e.node: line
        for e in events
        if isinstance(e, LogRead)
        for line in e.lines
        if line.startswith("told")
    }
    for node in (0, 1):
        assert f"'PET_NODE_RANK={node}'" in told[node]
        assert "GLOO_SOCKET_IFNAME=lo" in told[node]
    runner.close()
    assert several.left() == []
    assert keepers() == {}


@pytest.mark.thorough
def test_nothing_but_python_is_needed_in_a_container(
    runner: SlurmRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SRUN, "--container-image=bare.sqsh --container-mounts=/data")
    script = file_with(
        tmp_path / "train.py",
        "import os, sys, time\n"
        "print('sees', sys.executable, os.environ['SRUN_IMAGE'], [k for k in os.environ if k.startswith('SLURM_')], flush=True)\n"
        f"sys.path.insert(0, {str(Path(several.__file__).parent)!r}); from node_program import meet; meet(int(os.environ['NODE_RANK']))\n"
        "for step in range(9): print(f'iteration {step}: loss = 2.0\\niteration {step}: 10.0 ms', flush=True); time.sleep(0.05)\n",
    )
    asked = replace(
        several.on_two_nodes(
            0, ["python3", str(script), "{micro_batch_size}"], measure=several.BRIEF
        ),
        with_log=True,
    )
    runner.start(asked)
    events = events_until_ended(runner, [asked.id])
    assert ended(events).failure is None, ended(events).failure
    sees = [
        line
        for e in events
        if isinstance(e, LogRead)
        for line in e.lines
        if line.startswith("sees")
    ]
    assert sees == ["sees /usr/bin/python3 bare.sqsh []"] * 2, "the image's Python, not ours"
    absent = one(runner, several.on_two_nodes(1, ["no-such-program", "{micro_batch_size}"])).failure
    assert "there is no program 'no-such-program'" in absent.message


def test_what_is_sent_needs_no_other_file_and_no_newer_python() -> None:
    files = keeper_step.keepers_code()
    for path, text in {**files, "node_start.py": Path(node_start.__file__).read_text()}.items():
        tree = ast.parse(text, feature_version=(3, 10))
        outer = [
            n
            for n in tree.body
            if isinstance(n, ast.Import) or (isinstance(n, ast.ImportFrom) and not n.level)
        ]
        names = [
            n.module or "" if isinstance(n, ast.ImportFrom) else n.names[0].name for n in outer
        ]
        for name in names:
            if name.startswith("autotune"):
                own = name.replace(".", "/")
                assert (
                    f"{own}.py" in files
                    or f"{own}/__init__.py" in files
                    or name == "autotune_probe"
                ), f"{path}: {name}"
            else:
                assert name.partition(".")[0] in sys.stdlib_module_names, f"{path}: {name}"


def test_the_keeper_that_is_sent_finds_the_rest_of_autotune_where_the_node_has_it(
    tmp_path: Path,
) -> None:
    for path, text in keeper_step.keepers_code().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from autotune_workers.process.keeper import keeper\n"
        "from autotune import temporary_folders\n"
        "from autotune.trainers import trainer\n"
        "print(keeper.__file__, temporary_folders.__file__, trainer('torchtitan').name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    *sent, name = done.stdout.split()
    assert name == "torchtitan", done
    assert all(file.startswith(f"{tmp_path}/") for file in sent)


@pytest.mark.thorough
def test_a_lost_node_stays_out_until_slurm_starts_something_on_it(
    runner: SlurmRunner, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "LOOK_AGAIN_S", 0.5)
    monkeypatch.setattr(keeper_step, "LOOK_S", 1.0)
    monkeypatch.setattr(keeper_step, "END_S", 1.0)
    asked = several.program(0, "--step-s=0.5")
    started(runner, asked)
    (slurm / "down-n2").touch()
    os.kill(keepers()["n2"], signal.SIGKILL)
    failure = ended(events_until_ended(runner, [asked.id])).failure
    assert failure.kind is FailureKind.WORKER_LOST
    assert "n2" in failure.message
    on_others = several.program(0, attempt=2)
    runner.start(on_others)
    events = events_until_ended(runner, [on_others.id])
    assert ended(events).failure is None, ended(events).failure
    assert not (several.left()), "nothing of the first is left"
    on_all = on_all_nodes(2)
    runner.start(on_all)
    (queued,) = (
        e
        for e in poll_until(runner, lambda e: isinstance(e, AttemptQueued))
        if isinstance(e, AttemptQueued)
    )
    assert "n2 cannot be reached" in queued.reason
    (slurm / "down-n2").unlink()
    events = events_until_ended(runner, [on_all.id])
    assert ended(events).failure is None, "all four nodes are used again"


@pytest.mark.thorough
def test_a_node_that_never_starts_is_lost(
    runner: SlurmRunner, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SLOW_S", 2.0), ("LOOK_S", 5.0), ("END_S", 1.0)):
        monkeypatch.setattr(keeper_step, name, value)
    (slurm / "down-n4").touch()
    failure = one(runner, on_all_nodes(0)).failure
    assert failure.kind is FailureKind.WORKER_LOST
    assert "n4 is lost" in failure.message
    assert one(runner, several.program(1)).failure is None


@pytest.mark.thorough
def test_while_slurms_controller_is_away_an_attempt_waits(
    runner: SlurmRunner, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "LOOK_AGAIN_S", 1.0)
    (slurm / "away").touch()
    asked = several.program(0)
    runner.start(asked)
    poll_until(runner, lambda event: isinstance(event, AttemptQueued))
    (slurm / "away").unlink()
    events = events_until_ended(runner, [asked.id])
    assert ended(events).failure is None, ended(events).failure


def on_all_nodes(number: int) -> TrialRequest:
    """A trial of four nodes with one rank each."""
    asked = several.program(number)
    cluster = replace(asked.workload.cluster, num_nodes=4)
    options = {**asked.trainer_options, "fixed": {"dp": 4}}
    config = replace(asked.config, dp=4)
    return replace(
        asked,
        workload=replace(asked.workload, cluster=cluster),
        config=config,
        trainer_options=options,
    )


@pytest.mark.thorough
def test_a_step_that_cannot_start_is_an_error_with_the_words_of_srun(
    runner: SlurmRunner, monkeypatch: pytest.MonkeyPatch, slurm: Path
) -> None:
    monkeypatch.setenv(SRUN, "--container-image=empty.sqsh")
    file_with(
        slurm / "python3",
        "#!/bin/sh\necho 'slurmstepd: error: no python3 in this image' >&2\nexit 2\n",
    ).chmod(0o755)
    text = (
        (slurm / "srun")
        .read_text()
        .replace('"PATH": "/usr/bin:/bin"', f'"PATH": "{slurm}:/usr/bin:/bin"')
    )
    (slurm / "srun").write_text(text)
    failure = one(runner, several.program(0)).failure
    assert failure.kind is FailureKind.ERROR
    assert "no python3 in this image" in failure.message


@pytest.mark.thorough
def test_the_end_of_the_job_is_no_fault_of_the_config(runner: SlurmRunner, slurm: Path) -> None:
    started(runner, several.program(0, "--step-s=5"))
    (step,) = (file.name.partition("-")[2] for file in slurm.glob("step-*"))
    subprocess.run([slurm / "scancel", "--signal=TERM", f"7.{step}"], check=True)
    with pytest.raises(JobEndedError, match="preempted or cancelled"):
        poll_until(runner, lambda event: isinstance(event, AttemptEnded))
    runner.close()
    assert several.left() == []


@pytest.mark.thorough
def test_a_keeper_that_does_not_end_is_ended_by_the_steps_number(
    runner: SlurmRunner, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_step, "END_S", 1.0)
    attempt = started(runner, several.program(0, "--step-s=5"))
    stopped = keepers()["n1"]
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr("autotune_workers.process.program.attempt.GONE_S", 2.0)
    runner.cancel(attempt)
    end = ended(events_until_ended(runner, [attempt]))
    assert end.cancelled
    runner.close()
    assert "--signal=KILL 7." in (slurm / "scancel.log").read_text()
    assert several.left() == []


@pytest.mark.thorough
def test_who_does_not_know_the_token_is_sent_away(runner: SlurmRunner) -> None:
    runner.start(several.program(0, "--step-s=0.3"))
    port = runner._source._listener.getsockname()[1]  # type: ignore[attr-defined]
    said = {
        "token": "0" * 64,
        "node": "n1",
        "step": "1",
        "address": "127.0.0.1",
        "port": 1,
        "environment": {},
    }
    for words in (
        json.dumps(said).encode(),
        b"GET / HTTP/1.0\r\n\r",
        b"[]",
        b'{"token": 1}',
        b"\xff\xfe",
        b"[" * 300_000,
    ):
        with socket.create_connection(("127.0.0.1", port)) as caller:
            caller.sendall(words + b"\n")
            caller.setblocking(False)
            answer = None
            while answer is None:
                runner.poll(0.1)
                with contextlib.suppress(BlockingIOError):
                    answer = caller.recv(1)
            assert answer == b"", words
    poll_until(runner, lambda event: isinstance(event, AttemptEnded))


def refusal(call: Callable[[], object]) -> RunnerError:
    with pytest.raises(RunnerError) as refused:
        call()
    return refused.value


def test_outside_of_a_job_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    said = refusal(SlurmRunner)
    assert "this process is not in one" in said.message
    assert "--on slurm" in said.remedy


SPEC: dict[str, Any] = {
    "name": "programs",
    "model": "nano-gpt",
    "cluster": {"gpu": "cpu", "num_nodes": 2, "gpus_per_node": 1},
    "workload": {"seq_len": 32, "global_batch_size": 4},
    "space": {"world_sizes": [2], "precision": ["fp32"]},
    "trainer": {
        "kind": "command",
        "argv": [sys.executable, "-c", "print({micro_batch_size})"],
        "metrics": {"step": "^step ([0-9]+)", "step_time_s": "step time: ([0-9.]+)"},
        "fixed": {"precision": "fp32"},
        "env": {"ACC": "{accumulation_steps}"},
    },
    "runner": "slurm",
}


@pytest.mark.parametrize(
    ("changes", "words", "remedy"),
    [
        (
            {"trainer": "native"},
            "the 'native' trainer trains in autotune's own processes",
            "runner: ray",
        ),
        (
            {"trainer": {**SPEC["trainer"], "working_dir": "upload"}},
            "cannot upload a folder",
            "working_dir: shared",
        ),
        ({"runner": {"kind": "slurm", "gpus_per_node": -1}}, "gpus_per_node", ""),
        ({"runner": {"kind": "slurm", "address": "x"}}, "address", ""),
    ],
)
def test_what_it_can_run_nowhere_is_refused(
    changes: dict[str, Any], words: str, remedy: str
) -> None:
    with pytest.raises(AutotuneError) as refused:
        check_runner(load_study({**SPEC, **changes}))
    assert words in refused.value.message
    assert remedy in refused.value.remedy


def test_what_the_job_does_not_have_is_refused(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(**changes: Any) -> str:
        study = load_study({**SPEC, **changes})
        return refusal(lambda: check_here(study, assemble(study, MemoryStore()).space)).message

    wide = {"gpu": "cpu", "num_nodes": 8, "gpus_per_node": 1}
    assert "needs 8 nodes, but the job 7 has 4" in said(
        cluster=wide,
        space={**SPEC["space"], "world_sizes": [8]},
        workload={"seq_len": 32, "global_batch_size": 8},
    )
    gpus = {"cluster": "h100-sxm-2x8", "space": {"world_sizes": [16], "precision": ["bf16"]}}
    trainer = {**SPEC["trainer"], "fixed": {"precision": "bf16"}}
    asked = {**gpus, "trainer": trainer, "workload": {"seq_len": 32, "global_batch_size": 16}}
    assert "no GPU is visible in the job 7" in said(**asked)
    assert "there is no such program here" in said(
        trainer={**SPEC["trainer"], "argv": ["/no/such", "{micro_batch_size}"]}
    )
    monkeypatch.setenv(SRUN, "--container-image=bare.sqsh")
    local = {"cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 2}, "runner": "local"}
    assert "starts them outside" in said(**local)
    check = load_study(
        {**SPEC, "trainer": {**SPEC["trainer"], "argv": ["/in/the/image", "{micro_batch_size}"]}}
    )
    check_here(check, assemble(check, MemoryStore()).space)


def test_a_node_that_is_left_out_gets_no_program(slurm: Path) -> None:
    with SlurmRunner(leave_out=["n1.cluster"]) as runner:
        assert runner.capacity == 3 * 8
        two = Placement(nnodes=2, nproc_per_node=1)
        assert [runner.leave_out(node, two) for node in ("n9", "n2", "n3")] == [
            "absent",
            "left out",
            "needed",
        ]
        started(runner, several.program(0))
        assert runner._slurm._busy == {"n3", "n4"}
    with pytest.raises(AutotuneError, match=r"runner\.leave_out must be a list of names"):
        SlurmRunner(leave_out="n1")
