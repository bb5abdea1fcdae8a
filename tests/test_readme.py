"""The README's commands are run as they stand, in their order, in one folder; its links lead somewhere; its map is true."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def commands() -> list[str]:
    """Every `$ ...` line of the console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [line.split("  #")[0].split(" # ")[0].strip() for line in lines]


def of_autotune() -> list[str]:
    return [line for line in commands() if line.startswith("autotune ")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what the commands name, so that what they write stays out of the tree."""
    shutil.copytree(ROOT / "search_spaces", tmp_path / "search_spaces")
    return tmp_path


@pytest.mark.timeout(900)
@pytest.mark.flaky(reruns=1)
def test_the_commands_work_in_their_order(folder: Path) -> None:
    lines = of_autotune()
    assert any(line.startswith("autotune tune ") for line in lines)
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "AUTOTUNE_STORE": str(folder / "results.db"),
        "XDG_DATA_HOME": str(folder / "data"),
    }
    for line in lines:
        if line.startswith("autotune serve"):
            continue  # runs until it is stopped: the service's own tests start it
        words = [os.path.expandvars(word) for word in shlex.split(line)]
        if words[1] in {"submit", "watch", "token", "pause", "resume", "stop", "cancel"}:
            continue  # need the service above: its own tests run them against a real one
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    wanted = [line.split()[1] for line in commands() if line.startswith("make ")]
    assert "tune" in wanted
    assert "test" in wanted
    for target in wanted:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_links_and_pictures_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README):
        if not target.startswith(("http://", "https://")):
            assert (ROOT / target).exists(), target


def test_the_map_of_folders_is_true() -> None:
    (block,) = re.findall(r"```text\n(pyproject\.toml.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines():
        for name in line.split("  ")[0].split():
            if not line.startswith(" "):
                assert (ROOT / name).exists(), name
