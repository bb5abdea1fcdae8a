"""Half of a character, as a program's JSON line may hold, is no traceback wherever a study is
shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.spec import StudyStatus
from autotune.store import open_store
from autotune.testing.stores import a_study, failed, pending, run_trial


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("store")
    store = open_store(folder / "a.db")
    study = store.submit(a_study("half"), {}).id
    lease = store.claim(study, "tester:1:1", lease_s=600)
    store.set_status(study, StudyStatus.RUNNING, expect=[StudyStatus.QUEUED], lease=lease)
    run_trial(store, lease, failed(pending(0)))
    store.set_status(study, StudyStatus.COMPLETED, expect=[StudyStatus.RUNNING], lease=lease)
    store.close()
    return f"sqlite:///{folder}/a.db"


@pytest.mark.parametrize(
    "command", ["logs half 0", "status half", "report half -o {folder}/new/report.html"]
)
def test_a_lone_surrogate_is_shown_as_a_question_mark(
    url: str, tmp_path: Path, command: str
) -> None:
    words = command.format(folder=tmp_path).split()
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words, "--store", url],
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    if words[0] != "status":
        text = (
            (tmp_path / "new/report.html").read_text()
            if words[0] == "report"
            else done.stdout.decode()
        )
        assert "Error: ?" in text
