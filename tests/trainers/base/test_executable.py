"""Which file a launch starts, and which Python runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.trainers import Launch
from autotune.trainers.base.executable import find_executable, python_of


def script(path: Path, first_line: str) -> str:
    path.write_text(f"{first_line}\n")
    path.chmod(0o755)
    return str(path)


def test_a_name_is_looked_for_in_the_launchs_path_and_last_beside_this_python(
    tmp_path: Path,
) -> None:
    mine = script(tmp_path / "mytrain", "#!/bin/sh")
    assert find_executable(Launch(argv=("mytrain",), env={"PATH": str(tmp_path)})) == mine
    assert find_executable(Launch(argv=("mytrain",))) == ""
    beside = find_executable(Launch(argv=(Path(sys.executable).name,), env={"PATH": str(tmp_path)}))
    assert Path(beside) == Path(sys.executable)


def test_a_python_program_is_the_named_environments_or_none(tmp_path: Path) -> None:
    """What PATH has would train with another Python; a program without Python, as a shell, may come
    from there."""
    (tmp_path / "env" / "bin").mkdir(parents=True)
    script(tmp_path / "torchrun", f"#!{sys.executable}")
    shell = script(tmp_path / "mysh", "#!/bin/sh")

    def found(name: str) -> str:
        return find_executable(
            Launch(argv=(name,), env={"PATH": str(tmp_path)}, python=str(tmp_path / "env"))
        )

    assert found("torchrun") == found("python3") == ""
    assert found("mysh") == shell
    own = script(tmp_path / "env" / "bin" / "torchrun", f"#!{sys.executable}")
    assert found("torchrun") == own


def test_a_program_that_pip_starts_through_a_shell_is_of_another_python_too(tmp_path: Path) -> None:
    """pip and uv write so where the interpreter's path is long or has a space."""
    folder = tmp_path / "other env" / "bin"
    folder.mkdir(parents=True)
    python = script(folder / "python", "#!/bin/sh")
    started = script(
        folder / "torchrun", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport sys"
    )
    own = script(
        folder / "accelerate",
        f"#!/bin/bash\n# ours\nexec '{python}' -m accelerate.commands.launch \"$@\"",
    )
    assert python_of(started, {}) == python_of(own, {}) == python
    assert (
        find_executable(
            Launch(argv=("torchrun",), env={"PATH": str(folder)}, python="/nowhere/env")
        )
        == ""
    )
    assert python_of(script(tmp_path / "quoted", "#!/bin/sh\nexec 'an open quote"), {}) == ""


def test_a_path_is_relative_to_the_folder_of_the_launch(tmp_path: Path) -> None:
    script(tmp_path / "train.sh", "#!/bin/sh")
    assert find_executable(Launch(argv=("./train.sh",), cwd=str(tmp_path))) == str(
        tmp_path / "train.sh"
    )
    assert find_executable(Launch(argv=("./absent.sh",), cwd=str(tmp_path))) == ""


def test_the_python_of_a_script_is_in_its_first_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert python_of("/usr/bin/python3.11", {}) == "/usr/bin/python3.11"
    assert python_of(script(tmp_path / "torchrun", f"#!{sys.executable}"), {}) == sys.executable
    python = script(tmp_path / "python3", "#!/bin/sh")
    assert (
        python_of(
            script(tmp_path / "tool", "#!/usr/bin/env -S python3 -u"), {"PATH": str(tmp_path)}
        )
        == python
    )
    assert python_of(script(tmp_path / "shell", "#!/bin/sh"), {}) == ""
    assert python_of(str(tmp_path / "absent"), {}) == ""
