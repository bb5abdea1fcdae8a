from __future__ import annotations

from pathlib import Path

import pytest

from autotune.api import open_store
from autotune.cli import run
from autotune.errors import SpecError
from autotune.store.connection import file_systems
from autotune.store.connection.file_systems import mount_of
from tests.shortcuts import present

LINES = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:9 master:2 - nfs4 server:/export rw
31 30 0:41 / /home/ann/my\\040disk rw - ext4 /dev/sdb rw
32 22 0:42 / /scratch rw - lustre a@tcp:/fs rw,localflock
33 22 0:43 / /data rw - fuse.bindfs /x rw
34 22 0:44 / /secret rw - fuse.gocryptfs /y rw
35 22 0:45 / /twice rw - nfs a:/b rw
36 22 0:46 / /twice rw - xfs /dev/sdc rw
37 22 0:47 / /mnt rw - fuseblk /dev/sdd rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind", "shared"),
    [
        ("/var/tmp/a.db", "ext4", False),
        ("/home/ann/.local/a.db", "nfs4", True),
        ("/home/ann/my disk/a.db", "ext4", False),
        ("/homes/a.db", "ext4", False),
        ("/scratch/x/a.db", "lustre", True),
        ("/data/a.db", "fuse.bindfs", True),
        ("/secret/a.db", "fuse.gocryptfs", False),
        ("/twice/a.db", "xfs", False),
        ("/mnt/a.db", "fuseblk", False),
    ],
)
def test_the_mount_of_a_path_is_the_innermost_and_last(path: str, kind: str, shared: bool) -> None:
    found = present(mount_of(Path(path), LINES.splitlines()))
    assert (found.kind, found.is_shared) == (kind, shared)


def test_a_store_on_a_shared_file_system_is_rejected_before_it_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 1 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {tmp_path}/shared rw - nfs4 host:/home rw\n"
    )
    monkeypatch.setattr(file_systems, "MOUNTS", mounts)
    (tmp_path / "shared").mkdir()
    (tmp_path / "link").symlink_to("shared")
    for folder in ("shared", "link"):
        with pytest.raises(SpecError, match="which is nfs4") as refused:
            open_store(tmp_path / folder / "autotune.db")
        assert "PostgreSQL" in refused.value.remedy
    assert run(["submit", "laptop", "--store", str(tmp_path / "shared" / "autotune.db")]) == 2
    assert run(["doctor", "--store", str(tmp_path / "shared" / "autotune.db")]) == 1
    assert "nfs4" in capfd.readouterr().out
    assert list((tmp_path / "shared").iterdir()) == []
    open_store(tmp_path / "local.db").close()


def test_without_a_list_of_mounts_no_path_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "absent")
    open_store(tmp_path / "a.db").close()
