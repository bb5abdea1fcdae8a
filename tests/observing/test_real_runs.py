"""Real trainings on the CPU under `autotune run`: they print and end as they do alone, and what is
kept of them is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.spec import FailureKind, ObservedRun, Outcome
from autotune.store import open_store
from tests.observing import programs

LONG_S = 600.0
BIN = Path(sys.executable).parent
MODEL = ("--model", "nano-gpt")


@dataclass(frozen=True)
class Ran:
    out: str
    err: str
    code: int
    run: ObservedRun


def autotune(*words: str) -> list[str]:
    return [sys.executable, "-c", "from autotune.cli import main; main()", "run", *words]


def environment(folder: Path) -> dict[str, str]:
    ours = {
        "AUTOTUNE_STORE": str(folder / "results.db"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    return {
        **os.environ,
        **ours,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }


def kept(folder: Path) -> list[ObservedRun]:
    with closing(open_store(folder / "results.db")) as store:
        return store.observed()


def observed(
    folder: Path, program: str, command: Sequence[str], *options: str, before: str = ""
) -> Ran:
    """The command in a folder with that program, under autotune; `before`: what a shell does
    first."""
    (folder / "train.py").write_text(program)
    words = autotune(*options, "--", *command)
    shell = ["bash", "-c", f'{before}; exec "$@"', "bash", *words] if before else words
    done = subprocess.run(
        shell,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    (run,) = kept(folder)
    return Ran(done.stdout, done.stderr, done.returncode, run)


def test_a_plain_program_is_reviewed_before_measured_and_kept(tmp_path: Path) -> None:
    found = observed(
        tmp_path, programs.PLAIN, ["python", "train.py", "--batch-size", "4", "--then", "3"], *MODEL
    )
    assert found.code == found.run.exit_code == 3
    assert [line.split()[:2] for line in found.out.splitlines()] == [
        ["step", str(n)] for n in range(8)
    ]
    said = found.err.splitlines()
    assert all(line.startswith("autotune: ") for line in said)
    assert len(said) <= 5 + 2
    assert any("predicted: " in line for line in said)
    run = found.run
    assert (run.outcome, run.program) == (Outcome.FAILED, "train.py")
    assert run.failure.kind is FailureKind.ERROR
    assert (run.workload.model.name, run.workload.seq_len, run.config.global_batch_size) == (
        "nano-gpt",
        32,
        4,
    )
    assert run.workload.cluster.num_gpus == run.config.world_size == 1
    assert run.estimate is not None
    assert run.step_time_s is not None
    assert run.step_time_s > 0.1
    assert run.measurement.tokens_per_step == 4 * 32
    assert run.measurement.peak_memory_bytes is not None
    assert 50e6 < run.measurement.peak_memory_bytes < 8e9
    assert run.versions["torch"]
    assert run.versions["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"stored as observed run {run.id}" in said[-1]


TIMED = "import time\nfor n in range(10):\n    time.sleep(0.05)\n    print(f'step {n} loss {3.0 - n / 10:.3f} step_time 0.050 s', flush=True)\n"


def test_a_review_that_fails_loses_no_times(tmp_path: Path) -> None:
    found = observed(tmp_path, TIMED, ["python", "train.py"], "--cluster", "h100-nonsense")
    assert "not reviewed: " in found.err
    assert "measured: 50 ms a step" in found.err
    assert found.run.step_time_s == pytest.approx(0.05)


def test_a_store_that_does_not_answer_costs_no_review(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TIMED)
    words = autotune("--store", "postgresql://nobody@127.0.0.1:9/none", "--", "python", "train.py")
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert "reviewed without the results database: " in done.stderr
    assert "measured: 50 ms a step" in done.stderr
    assert "not kept: " in done.stderr
    assert done.returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("program", "command", "ranks", "prints_steps"),
    [
        (programs.PLAIN, ["torchrun", "--nproc-per-node=2", "train.py", "--batch-size=4"], 2, True),
        (
            programs.ACCELERATE,
            ["accelerate", "launch", "--cpu", "--num_processes=1", "train.py", "--batch-size=4"],
            None,
            True,
        ),
        (programs.HF_TRAINER, ["python", "train.py"], None, True),
        (programs.LIGHTNING, ["python", "train.py"], None, False),
    ],
    ids=["torchrun", "accelerate", "transformers", "lightning"],
)
def test_programs_of_launchers_and_libraries_are_measured(
    program: str, command: list[str], ranks: int | None, prints_steps: bool, tmp_path: Path
) -> None:
    options = MODEL if ranks else ()
    found = observed(tmp_path, program, command, *options)
    assert (found.code, found.run.outcome, found.run.failure) == (0, Outcome.COMPLETED, None)
    assert found.run.program == "train.py"
    if not prints_steps:  # into a pipe
        assert found.run.step_time_s is None
        assert "no step times were recognized in the output; `autotune run --diagnose`" in found.err
        return
    assert found.run.step_time_s is not None
    assert 0.001 < found.run.step_time_s < 60
    if ranks:
        assert found.run.config.dp == ranks
        assert found.run.config.global_batch_size == 4 * ranks


@pytest.mark.thorough
def test_memory_that_a_limit_denies_is_kept_as_such_with_its_evidence(tmp_path: Path) -> None:
    command = ["python", "train.py", "--then", "memory"]
    found = observed(tmp_path, programs.PLAIN, command, *MODEL, before="ulimit -v 8000000")
    assert found.code == 1
    assert found.run.outcome is Outcome.FAILED
    assert found.run.failure.kind is FailureKind.OUT_OF_MEMORY
    assert "memory" in found.run.failure.evidence
    assert found.run.step_time_s is not None


@pytest.mark.thorough
def test_a_run_that_skips_batches_without_memory_completes_and_teaches_nothing(
    tmp_path: Path,
) -> None:
    skips = programs.PLAIN.replace(
        "    began =", "    print('ran out of memory, skipped a batch')\n    began =", 1
    )
    found = observed(tmp_path, skips, ["python", "train.py"], *MODEL)
    assert (found.code, found.run.outcome) == (0, Outcome.COMPLETED)
    assert found.run.failure.kind is FailureKind.OUT_OF_MEMORY
    assert "completed after" in found.err
    assert "ran out of memory and continued" in found.err
    assert found.run.step_time_s is not None
    assert found.run.workload is not None
    assert found.run.as_trial() is None


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_ends_as_it_would(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs.PLAIN)
    words = autotune(*MODEL, "--", "python", "train.py", "--then", "wait")
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line == b"waits\n":
                break
        if number is signal.SIGKILL:  # of the command alone, as the kernel's memory killer does
            (pid,) = subprocess.run(
                ["pgrep", "-P", str(process.pid), "-f", "^python train.py"],
                capture_output=True,
                check=True,
            ).stdout.split()
            os.kill(int(pid), number)
        else:
            os.killpg(process.pid, number)
        err = process.stderr.read().decode()
        assert process.wait(LONG_S) == -number
    (run,) = kept(tmp_path)
    assert run.exit_code == -number
    assert run.step_time_s is not None
    if number is signal.SIGKILL:
        assert run.outcome is Outcome.FAILED
        assert "SIGKILL" in run.failure.message
    else:
        assert (run.outcome, run.failure) == (Outcome.INTERRUPTED, None)
        assert "autotune: interrupted after" in err


@pytest.mark.thorough
def test_secrets_are_masked_and_a_store_that_is_away_is_one_line(tmp_path: Path) -> None:
    command = ["python", "train.py", "--api-key=abcdef123456", "--then", "0"]
    found = observed(tmp_path, "raise RuntimeError('no entry for abcdef123456')\n", command)
    assert found.code == 1
    assert "abcdef123456" in found.err  # the program's own words are its own
    assert "abcdef123456" not in str(found.run.to_dict())
    away = subprocess.run(
        autotune("--store", "postgresql://nobody@127.0.0.1:9/none", "--", "sh", "-c", "echo out; exit 6"),
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=LONG_S, check=False,
    )  # fmt: skip
    assert (away.returncode, away.stdout) == (6, "out\n")
    assert "not kept: " in away.stderr
    assert all(line.startswith("autotune: ") for line in away.stderr.splitlines())
    assert len(away.stderr.splitlines()) <= 4


@pytest.mark.thorough
def test_one_document_holds_the_review_and_the_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs.PLAIN)
    words = autotune("--json", *MODEL, "--", "python", "train.py", "--batch-size", "4")
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=True,
    )
    document = json.loads(done.stdout)
    assert document["run"] == kept(tmp_path)[0].to_dict()
    assert document["review"]["label"]
    assert "step 7 loss" in done.stderr
