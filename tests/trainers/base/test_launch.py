"""Launches on a disk: whole or not at all, nothing foreign harmed, nothing outside the folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import ExportError
from autotune.trainers import Launch, write_launch
from autotune.trainers.launch_files import MASTER_ADDR, MASTER_PORT, NODE_RANK

LAUNCH = Launch(
    argv=("run", "--x", "a b"),
    env={"A": "1"},
    files={"a.txt": "one\n", "sub/b.json": "{}"},
    notes=("beware",),
)


def test_a_second_export_replaces_its_own_files(tmp_path: Path) -> None:
    write_launch(LAUNCH, tmp_path)
    write_launch(Launch(argv=("run",), files={"a.txt": "two\n"}), tmp_path)
    assert (tmp_path / "a.txt").read_text() == "two\n"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(ExportError, match="exists and was not written by an export"):
        write_launch(LAUNCH, tmp_path)
    assert (tmp_path / "a.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_edited_files_are_left_alone(tmp_path: Path) -> None:
    write_launch(LAUNCH, tmp_path)
    (tmp_path / "a.txt").write_text("edited")
    with pytest.raises(ExportError, match="has been edited since"):
        write_launch(Launch(argv=("run",), files={"a.txt": "two\n"}), tmp_path)
    assert (tmp_path / "a.txt").read_text() == "edited"


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (inside / "sub").symlink_to(outside)
    with pytest.raises(ExportError, match="a part of its path is a link"):
        write_launch(LAUNCH, inside)
    (inside / "sub").unlink()
    (inside / "a.txt").symlink_to(outside / "stolen")
    with pytest.raises(ExportError, match="not a plain file"):
        write_launch(LAUNCH, inside)
    assert os.listdir(outside) == []


@pytest.mark.parametrize(
    "name",
    [
        "../a",
        "/etc/x",
        "a/../b",
        ".hidden",
        "a\n",
        "a b",
        "",
        "launch.json",
        "launch.sh",
        "x" * 200,
        "a/b/c/d/e",
    ],
)
def test_unsafe_names_are_refused(name: str) -> None:
    with pytest.raises(ExportError, match="plain relative name"):
        Launch(argv=("x",), files={name: ""})


@pytest.mark.parametrize("argv", [(), ("a\0b",)])
def test_a_command_is_needed(argv: tuple[str, ...]) -> None:
    with pytest.raises(ExportError):
        Launch(argv=argv)


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        write_launch(LAUNCH, tmp_path / "file")


def test_the_manifest_lists_everything(tmp_path: Path) -> None:
    write_launch(LAUNCH, tmp_path)
    document = json.loads((tmp_path / "launch.json").read_text())
    assert document["argv"] == ["run", "--x", "a b"]
    assert set(document["sha256"]) == {"a.txt", "sub/b.json", "launch.sh"}


def test_a_broken_manifest_protects_all_files(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text('{"sha256": 3}')
    with pytest.raises(ExportError, match=r"launch\.json exists"):
        write_launch(LAUNCH, tmp_path)


def test_the_script_quotes_what_a_shell_would_read(tmp_path: Path) -> None:
    hostile = "$(touch pwned) `touch pwned` ; touch pwned '\""
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['V'], os.getcwd()]))"
    launch = Launch(
        argv=(sys.executable, "-c", code, hostile),
        env={"V": hostile},
        files={"a.txt": ""},
        notes=("x\ntouch pwned",),
    )
    write_launch(launch, tmp_path / "out")
    done = subprocess.run(
        [tmp_path / "out" / "launch.sh", "more"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        cwd=tmp_path,
    )
    argv, value, where = json.loads(done.stdout)
    assert argv == [hostile, "more"]
    assert value == hostile
    assert Path(where) == (tmp_path / "out").resolve()
    assert not list(tmp_path.rglob("pwned"))


def test_the_same_script_starts_every_node_of_a_job(tmp_path: Path) -> None:
    code = "import json, os, sys; print(json.dumps([*sys.argv[1:], os.environ['MEET']]))"
    meeting = f"{MASTER_ADDR}:{MASTER_PORT}"
    launch = Launch(
        argv=(sys.executable, "-c", code, f"--node-rank={NODE_RANK}", meeting),
        env={"MEET": meeting},
    )
    assert launch.is_spread
    write_launch(launch, tmp_path)

    def started(**told: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "launch.sh"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, **told},
        )

    assert json.loads(started(NODE_RANK="1", MASTER_ADDR="a b").stdout) == [
        "--node-rank=1",
        "a b:29500",
        "a b:29500",
    ]
    assert json.loads(started(NODE_RANK="0", MASTER_ADDR="n", MASTER_PORT="7").stdout)[1] == "n:7"
    assert "MASTER_ADDR: set this to the address of node 0" in started(NODE_RANK="1").stderr
    assert "NODE_RANK: set this to the node number" in started(MASTER_ADDR="n").stderr
    one = launch.on_node(1, master_addr="n", master_port=7)
    assert (one.argv[3:], one.env, one.is_spread) == (
        ("--node-rank=1", "n:7"),
        {"MEET": "n:7"},
        False,
    )


def test_a_variable_from_the_environment_is_asked_for_by_the_script(tmp_path: Path) -> None:
    launch = Launch(
        argv=("/bin/sh", "-c", 'echo "$A_TOKEN"'), env={"A_TOKEN": "from-environment", "B": "1"}
    )
    write_launch(launch, tmp_path)
    script = [str(tmp_path / "launch.sh")]
    done = subprocess.run(
        ["/bin/sh", *script], env={"A_TOKEN": "given"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "given\n"
    failed = subprocess.run(
        ["/bin/sh", *script], env={}, capture_output=True, text=True, check=False
    )
    assert failed.returncode != 0
    assert "A_TOKEN: set this variable" in failed.stderr
    assert launch.command_line.startswith('A_TOKEN="$A_TOKEN" B=1 ')


def test_a_launch_with_secrets_can_be_read_by_its_owner_alone(tmp_path: Path) -> None:
    open_to_all = write_launch(
        Launch(argv=("python", "train.py"), env={"MODE": "fast"}), tmp_path / "plain"
    )
    hidden = write_launch(
        Launch(argv=("python", "train.py"), env={"WANDB_API_KEY": "abcdef123456"}),
        tmp_path / "secret",
    )
    assert {path.name: path.stat().st_mode & 0o777 for path in open_to_all} == {
        "launch.sh": 0o755,
        "launch.json": 0o644,
    }
    assert {path.name: path.stat().st_mode & 0o777 for path in hidden} == {
        "launch.sh": 0o700,
        "launch.json": 0o600,
    }
