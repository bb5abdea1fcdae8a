"""The steps of docs/extending.md, followed to the letter in a copy of the packages: files are
written, diffs applied, and the contract suites run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks

COPIED = ("autotune", "workers", "search_spaces", "dashboards", "tests")
STEPS = blocks(ROOT / "docs" / "extending.md")
LINES = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy of the packages and their tests."""

    folder: Path

    def follow(self, section: str) -> None:
        """Writes the files and applies the diffs of a section."""
        steps = [step for step in STEPS if _section(step) == section]
        assert steps, f"docs/extending.md has no steps under {section!r}"
        for step in steps:
            path = self.folder / step.title
            if step.language == "diff":
                path.write_text(applied(step, path.read_text(encoding="utf-8")), encoding="utf-8")
            else:
                assert not path.exists(), f"{step.title} is there already: show a diff"
                path.parent.mkdir(exist_ok=True)
                path.write_text(step.text, encoding="utf-8")
        self._install()

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What an interpreter that imports the copy makes of these arguments."""
        path = os.pathsep.join([str(self.folder), str(self.folder / "workers")])
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                "COLUMNS": "200",
            },
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    def passes(self, *tests: str) -> None:
        """Runs these tests there."""
        done = self.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert re.search(r"\d+ passed|\[100%\]", done.stdout), done.stdout

    def _install(self) -> None:
        """What `pip install --no-deps -e .` does for the names of entry points: it writes them into
        the package's metadata."""
        project = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))[
            "project"
        ]
        info = self.folder / f"{project['name']}-{project['version']}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        groups = [
            "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
            for group, entries in project["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n\n".join(groups) + "\n")


def applied(step: Block, text: str) -> str:
    """The text with the lines of a diff changed. Its context must occur exactly once."""
    lines = step.text.splitlines()
    before = "\n".join(line[1:] for line in lines if line[:1] in " -")
    after = "\n".join(line[1:] for line in lines if line[:1] in " +")
    assert text.count(before) == 1, (
        f"docs/extending.md:{step.line}: {step.title} must hold once:\n{before}"
    )
    return text.replace(before, after)


def _section(step: Block) -> str:
    return next(line[4:] for line in reversed(LINES[: step.line]) if line.startswith("### "))


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    leave = shutil.ignore_patterns("__pycache__", "benchmarks", "chaos")
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=leave)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return Copy(folder=tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("section", "tests", "command", "name"),
    [
        ("A model", "spec/test_catalog.py", "models", "tinyllama-1b"),
        ("A GPU", "spec/test_catalog.py", "clusters", "rtx-3070-1x8"),
        ("A searcher", "search/test_fewest_ranks.py", "searchers", "fewest_ranks"),
        ("A trainer", "trainers/test_json_settings.py", "trainers", "json_settings"),
        ("A runner", "workers/runners/test_constant.py", "runners", "constant"),
    ],
)
def test_what_is_added_passes_its_tests_and_is_listed(
    copy: Copy, section: str, tests: str, command: str, name: str
) -> None:
    copy.follow(section)
    copy.passes(f"tests/{tests}")
    assert _listed(copy, command, name)


@pytest.mark.thorough
def test_a_knob(copy: Copy) -> None:
    copy.follow("A knob")
    said = copy.python("-m", "autotune.testing.knobs").stdout
    named = set(
        re.findall(
            r"the (.+?) neither reads ddp_bucket_mb nor declares it neutral or impossible", said
        )
    )
    assert "trainer deepspeed" in named, f"{said}: who was not taught is named"
    assert {"trainer megatron", "cost model"}.isdisjoint(named), f"{said}: who was taught is not"
    copy.passes("tests/trainers/test_megatron.py", "tests/cost/test_estimated_knobs.py")


def _listed(copy: Copy, command: str, name: str) -> bool:
    done = copy.python("-c", f"from autotune.cli import main; main(['{command}', '--json'])")
    assert done.returncode == 0, done.stderr
    return f'"{name}"' in done.stdout
