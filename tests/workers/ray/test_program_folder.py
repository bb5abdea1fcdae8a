"""A program's folder, packed and unpacked: what is left out, what stays as it is, and what is too
large."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import RunnerError
from autotune_workers.ray.nodes.program_folder import MB, pack, unpack
from tests.workers.processes import until

pytest.importorskip("ray")


def write(root: Path, **texts: str) -> Path:
    """Files by path, with `__` for a slash."""
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def sent(folder: Path, to: Path) -> list[str]:
    """The names of the files that arrive."""
    unpack(pack(folder, limit_bytes=MB).data, to)
    return names(to)


def test_a_folder_arrives_as_it_was(tmp_path: Path) -> None:
    source, there = (
        write(tmp_path / "here", train_py="print(1)", data__small="abc"),
        tmp_path / "there",
    )
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    assert sent(source, there) == ["data/small", "run.sh", "train.py"]
    assert os.access(there / "run.sh", os.X_OK)
    assert not os.access(there / "train.py", os.X_OK)
    assert (there / "train.py").read_text() == "print(1)"


def test_what_ignore_files_name_is_left_out_at_every_depth(tmp_path: Path) -> None:
    source = write(
        tmp_path / "here",
        train_py="",
        runs__1__log="",
        src__a_py="",
        src__cache__x="",
        checkpoint="",
    )
    (source / ".gitignore").write_text("runs/\n*.log\n")
    (source / ".rayignore").write_text("/checkpoint\n")
    (source / "src" / ".gitignore").write_text("cache\n")
    assert sent(source, tmp_path / "there") == [
        ".gitignore",
        ".rayignore",
        "src/.gitignore",
        "src/a.py",
        "train.py",
    ]


def test_versions_environments_and_caches_are_left_out(tmp_path: Path) -> None:
    source = write(tmp_path / "here", train_py="")
    for name in (".git", ".venv", "venv", "__pycache__"):
        (source / "package" / name).mkdir(parents=True)
        (source / "package" / name / "file").write_text("")
    assert sent(source, tmp_path / "there") == ["train.py"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    source = write(tmp_path / "here", train_py="")
    outside = write(tmp_path / "outside", words="a b")
    (source / "data").symlink_to(outside)
    (source / "self").symlink_to(source)
    (source / "broken").symlink_to(tmp_path / "nowhere")
    assert sent(source, tmp_path / "there") == ["data/words", "train.py"]


def test_the_same_files_have_the_same_digest(tmp_path: Path) -> None:
    first = pack(write(tmp_path / "a", train_py="1"), limit_bytes=MB)
    again = pack(write(tmp_path / "b", train_py="1"), limit_bytes=MB)
    other = pack(write(tmp_path / "c", train_py="2"), limit_bytes=MB)
    assert first.digest == again.digest != other.digest


def test_a_folder_that_is_too_large_is_refused_with_its_largest_entries(tmp_path: Path) -> None:
    source = write(tmp_path / "here", train_py="x" * 10, small__a="x" * MB, small__b="x" * MB)
    (source / "model.bin").write_bytes(b"x" * 3 * MB)
    with pytest.raises(RunnerError) as refused:
        pack(source, limit_bytes=4 * MB)
    words = str(refused.value)
    assert "at most 4 MB" in words
    assert "has 5 MB; the largest entries are model.bin (3 MB), small/ (2 MB)" in words
    assert f"{source}/.rayignore" in words
    (source / ".rayignore").write_text("model.bin\n")
    pack(source, limit_bytes=4 * MB)


def test_an_unpacked_folder_goes_with_the_process_that_holds_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1")
    data = base64.b64encode(pack(tmp_path, limit_bytes=MB).data).decode()
    held = (
        "import base64, os, signal\n"
        "from autotune_workers.ray.sent_folders import UnpackedFolder\n"
        f"folder = UnpackedFolder(base64.b64decode({data!r}))\n"
        "print(folder.path, open(folder.path + '/mine.py').read(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", held], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    path, text = done.stdout.split(maxsplit=1)
    assert text.strip() == "x = 1"
    until(lambda: not Path(path).exists(), 300.0)
