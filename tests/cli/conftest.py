"""Runs command lines in this process, on a store of the test's own and the simulated runner."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import cli
from autotune.plan.fit import dry_runs
from tests.dry_run_fake import FakeDryRunner

SPEC: dict[str, Any] = {
    "name": "small",
    "model": "gpt2-small",
    "cluster": "a100-40gb-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 64},
    "space": {
        "tp": [1, 2],
        "pp": [1, 2],
        "micro_batch_size": [1, 2, 4],
        "precision": ["bf16"],
        "zero_stage": [0, 1],
    },
    "budget": {"max_trials": 4},
    "searcher": "cost_ranked",
    "runner": {"kind": "simulated", "noise": 0.01},
}


@dataclass(frozen=True)
class Done:
    """What a command line came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Runs one command line in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_STORE", str(tmp_path / "results.db"))

    def command(*words: object) -> Done:
        capsys.readouterr()
        code = cli.run([str(word) for word in words])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return command


@pytest.fixture
def output_of(run: Callable[..., Done]) -> Callable[..., str]:
    """What a command line that works prints on stdout."""

    def command(*words: object) -> str:
        done = run(*words)
        assert done.code == 0, done.err
        return done.out

    return command


@pytest.fixture
def refusal(run: Callable[..., Done]) -> Callable[..., str]:
    """What a command line that ends with this exit code says on stderr."""

    def command(*words: object, code: int = 2) -> str:
        done = run(*words)
        assert done.code == code, done.err
        return done.err

    return command


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes the small spec, changed by keyword (None leaves a key out), and returns its path."""

    def spec(**changes: Any) -> Path:
        document = {key: value for key, value in (SPEC | changes).items() if value is not None}
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return spec


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDryRunner:
    """The dry runner that the command uses."""
    runner = FakeDryRunner()
    monkeypatch.setattr(dry_runs, "dry_runner", lambda: runner)
    return runner
