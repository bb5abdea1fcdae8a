"""What Slurm calls a job whose study paused follows from the exit code of its command."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import cli
from autotune.store.upkeep.study_folder import WISH
from tests.slurm.commands import job
from tests.slurm.test_stories import SIMULATED


def tune(folder: Path, during: Callable[[], Any], **changes: Any) -> int:
    """The exit code of a study that is disturbed once its first trial has been copied to the
    folder."""
    results = folder / "results"
    results.mkdir()
    document = {**SIMULATED, "runner": {"kind": "simulated", "time_scale": 0.5}, **changes}
    (folder / "spec.yaml").write_text(yaml.safe_dump(document))

    def disturb() -> None:
        while not (results / "store.db").exists():
            time.sleep(0.05)
        during()

    thread = threading.Thread(target=disturb)
    thread.start()
    code = cli.run(["tune", str(folder / "spec.yaml"), "--in", str(results)])
    thread.join()
    return code


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("requeue", "by", "code"),
    [(True, "USR1", 0), (False, "USR1", 130), (False, "pause", 0), (True, "TERM", 130)],
)
def test_a_pause_is_a_failure_of_its_job_when_nothing_begins_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requeue: bool, by: str, code: int
) -> None:
    for name, value in job(tmp_path, ["n1"]).items():
        monkeypatch.setenv(name, value)
    ends: dict[str, Callable[[], Any]] = {
        "USR1": lambda: os.kill(os.getpid(), signal.SIGUSR1),
        "TERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
        "pause": (tmp_path / "results" / f"{WISH}pause").touch,
    }
    assert tune(tmp_path, ends[by], slurm={"requeue": requeue}) == code
    assert (tmp_path / "requeued").exists() == (requeue and by == "USR1")
