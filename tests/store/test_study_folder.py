"""A study's folder on a shared file system: complete copies, one process at a time, wishes from
elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from autotune import api
from autotune.cli.source import FolderSource, open_source, study_and_store
from autotune.errors import ConflictError, NotFoundError, SpecError, StoreUnavailableError
from autotune.spec import Wanted
from autotune.store import open_store
from autotune.store.connection import file_systems
from autotune.store.upkeep import study_folder
from autotune.store.upkeep.study_folder import COPY, HOLDER, StudyFolder, opened_copy, request
from autotune.temporary_folders import LOCK
from tests.nodes.network import until
from tests.shortcuts import present
from tests.store.forging import rows

SPEC = {
    "name": "small",
    "model": "nano-gpt",
    "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 1},
    "workload": {"seq_len": 32, "global_batch_size": 8},
    "space": {"micro_batch_size": [1, 2], "precision": ["fp32"]},
    "runner": "simulated",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "study"
    path.mkdir()
    return path


def submitted(path: Path) -> str:
    """The id of a study that is new to the store."""
    with closing(open_store(path)) as store:
        return api.submit_study(store, api.load_study(SPEC), SPEC).id


def test_the_store_is_copied_and_the_next_process_continues_it(folder: Path) -> None:
    with StudyFolder(folder) as home:
        study = submitted(home.path)
        home.changed()

        def is_copied() -> bool:
            try:
                with opened_copy(folder) as store:
                    return [record.id for record in store.studies(limit=1)] == [study]
            except NotFoundError:
                return False

        until(is_copied, 60)
        local = home.path
    assert not local.exists(), "nothing stays on the node"
    assert sorted(path.name for path in folder.iterdir()) == [COPY]
    assert (folder / COPY).stat().st_mode & 0o077 == 0
    assert rows(folder / COPY, "PRAGMA integrity_check") == [("ok",)]
    with StudyFolder(folder) as home, closing(open_store(home.path)) as store:
        assert store.study(study).study.name == "small"


def test_the_folder_may_be_on_a_shared_file_system(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {folder} rw - lustre mgs:/scratch rw,localflock\n"
    )
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)
    with pytest.raises(SpecError, match="which is lustre") as refused:
        open_store(folder / "results.db")
    assert "--in FOLDER" in refused.value.remedy
    with StudyFolder(folder) as home:
        study = submitted(home.path)
    with opened_copy(folder) as store:
        assert store.study(study).study.name == "small"


def test_two_processes_do_not_run_one_study(folder: Path) -> None:
    other = "import sys, time; from pathlib import Path; from autotune.store.upkeep.study_folder import StudyFolder\n"
    other += (
        "with StudyFolder(Path(sys.argv[1]), job='7'): print('runs', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", other, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert present(child.stdout).readline() == "runs\n"
    with (
        pytest.raises(ConflictError, match=f"is being run by job 7, process {child.pid} on"),
        StudyFolder(folder, job="8"),
    ):
        pass
    child.kill()
    child.communicate()
    with StudyFolder(folder, job="8"):
        assert json.loads((folder / HOLDER).read_text())["job"] == "8", (
            "a process of this machine that is gone is seen at once"
        )


def test_a_restarted_job_takes_over_the_folder(folder: Path) -> None:
    (folder / HOLDER).write_text(json.dumps({"process": "elsewhere:1:1:abc", "job": "7"}))
    with StudyFolder(folder, job="7"):
        pass


def test_only_a_dead_process_of_another_machine_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_folder, "SILENT_S", 0.5)
    monkeypatch.setattr(study_folder, "LOOK_S", 0.1)
    (folder / HOLDER).write_text(json.dumps({"process": "elsewhere:1:1:abc", "job": "7"}))
    with StudyFolder(folder, job="8"):
        pass


def test_a_process_that_lost_the_folder_stops_writing_and_pauses(folder: Path) -> None:
    wishes: list[str] = []
    with StudyFolder(folder, on_request=wishes.append, on_error=wishes.append) as home:
        submitted(home.path)
        home.changed()
        until((folder / COPY).exists, 60)
        before = (folder / COPY).read_bytes()
        (folder / HOLDER).write_text(json.dumps({"process": "elsewhere:1:1:abc", "job": "9"}))
        home.changed()
        until(lambda: "pause" in wishes, 60)
    assert "another process is running the study" in wishes[0]
    assert (folder / COPY).read_bytes() == before
    assert json.loads((folder / HOLDER).read_text())["job"] == "9"


def test_requests_are_handled_once_and_only_while_a_process_runs(folder: Path) -> None:
    with pytest.raises(ConflictError, match="no process is running the study"):
        request(folder, "pause")
    (folder / "wish-cancel").touch()
    heard: list[str] = []
    with StudyFolder(folder, on_request=heard.append):
        request(folder, "pause")
        until(lambda: bool(heard), 60)
    assert heard == ["pause"], "what was left for a job that is gone is not for this one"


def test_the_login_node_reads_each_new_copy(folder: Path) -> None:
    with pytest.raises(NotFoundError, match="no results in"):
        FolderSource(folder)
    with StudyFolder(folder) as home:
        study = submitted(home.path)
        home.copy()
        with open_source(str(folder), None) as source:
            assert source.status(study)["study"]["status"] == "QUEUED"
            with closing(open_store(home.path)) as store:
                api.act(store, study, "pause")
            os.utime(folder / COPY, ns=(0, 0))  # a clock that stands still
            home.copy()
            assert source.status(study)["study"]["status"] == "PAUSED"
            assert source.record(study)["record"]["wanted"] == str(Wanted.PAUSE)
        assert study_and_store("", None, None, folder) == (study, str(folder))
    with pytest.raises(SpecError, match="this command needs a study"):
        study_and_store("", None, None, None)
    with pytest.raises(SpecError, match="--in cannot be combined with --store"):
        study_and_store("", "x.db", None, folder)


def test_a_failed_last_copy_is_an_error_and_the_local_store_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    home = StudyFolder(folder).__enter__()
    submitted(home.path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailableError, match="No space left") as said:
        home.__exit__()
    monkeypatch.undo()
    assert str(home.path) in said.value.remedy
    assert home.path.exists()
    assert not home.path.with_name(LOCK).exists(), "or the next study would remove it"


def test_a_local_store_that_was_not_copied_is_not_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with StudyFolder(folder, on_error=said.append) as home:
        assert home.path.with_name(LOCK).exists()
        monkeypatch.setattr(StudyFolder, "copy", lambda _: os.listdir("/no/folder"))
        submitted(home.path)
        home.changed()
        until(lambda: bool(said), 60)
        assert not home.path.with_name(LOCK).exists()
        monkeypatch.undo()
    assert "cannot be copied" in said[0]
    assert not home.path.exists(), "the last copy has all of it"
