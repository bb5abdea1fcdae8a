"""Temporary folders: what a killed process leaves is removed by the next one, and nothing else
is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.store.upkeep.study_folder import StudyFolder
from autotune.temporary_folders import LOCK, TemporaryFolder, abandoned
from tests.shortcuts import present

ROOT = Path(__file__).resolve().parents[1]
OTHER_MEANS = re.compile(r"\b(mkdtemp|TemporaryDirectory)\(")
EXCEPT = {
    "autotune/temporary_folders.py",
    "autotune/service/supervise/ray_cluster.py",  # the place of a Ray cluster: removed with its processes, by whoever starts the next one
    "workers/autotune_workers/ray/cluster/connection.py",  # the same, by its watchdog
    "workers/autotune_workers/ray/cluster/slurm_step.py",  # in the working folder, for all nodes of a job
    "workers/autotune_workers/ray/sent_folders.py",  # removed at once, by a shell that waits for the end of the process
    "workers/autotune_workers/slurm/node_start.py",  # before it has any code of autotune; held once it has
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, of other processes, too."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def killed(code: str, *arguments: str) -> None:
    """Runs that code until it prints a line, and kills it."""
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert present(child.stdout).readline() == "ready\n"
    child.kill()
    child.communicate()


def aged(place: Path) -> list[Path]:
    """The folders there, as if they had been made long ago."""
    folders = sorted(place.glob("autotune-*"))
    for folder in folders:
        os.utime(folder / LOCK, (0, 0))
    return folders


def test_what_a_killed_process_leaves_is_removed_by_the_next_one(place: Path) -> None:
    killed(
        "import sys\n"
        "from autotune.temporary_folders import TemporaryFolder\n"
        "folder = TemporaryFolder('some')\n"
        "(folder.path / 'large').write_text('x')\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    [left] = aged(place)
    with TemporaryFolder("other"):
        assert left.exists(), "of another kind"
    with TemporaryFolder("some") as mine:
        assert list(place.iterdir()) == [mine]
        assert mine.stat().st_mode & 0o077 == 0
    assert not list(place.iterdir())


def test_folders_of_living_processes_other_machines_and_young_ones_stay(place: Path) -> None:
    living, elsewhere = TemporaryFolder("some"), place / "autotune-some-elsewhere"
    for folder, host in ((elsewhere, "another-machine"), (place / "autotune-some-young", "")):
        folder.mkdir()
        (folder / LOCK).write_text(host or os.uname().nodename)
    os.utime(living.path / LOCK, (0, 0))
    os.utime(elsewhere / LOCK, (0, 0))
    (place / "autotune-some-without-lock").mkdir()
    assert list(abandoned("some")) == []
    with TemporaryFolder("some"):
        assert len(list(place.iterdir())) == 5


def test_a_folder_that_is_kept_for_a_person_stays(place: Path) -> None:
    killed(
        "import sys\n"
        "from autotune.temporary_folders import TemporaryFolder\n"
        "TemporaryFolder('some').keep()\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    with TemporaryFolder("some"):
        assert len(list(place.iterdir())) == 2


def test_the_store_of_a_killed_study_is_removed_by_the_next_study(
    place: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    killed(
        "import sys; from pathlib import Path\n"
        "from autotune.store.upkeep.study_folder import StudyFolder\n"
        "with StudyFolder(Path(sys.argv[1])): print('ready', flush=True); sys.stdin.read()",
        str(folder),
    )
    [left] = aged(place)
    assert (left / "store.db").exists()
    with StudyFolder(folder):
        assert not left.exists()
    assert not list(place.iterdir())


def test_the_product_makes_temporary_folders_in_one_way() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for top in ("autotune", "workers")
        for path in (ROOT / top).rglob("*.py")
        if OTHER_MEANS.search(path.read_text(encoding="utf-8"))
    }
    assert found == EXCEPT
