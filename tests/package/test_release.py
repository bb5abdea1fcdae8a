"""A release says one version everywhere, is the same whoever builds it, and nothing tells anyone to
install the stranger's package `autotune`."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

from autotune import __version__
from autotune.extras import DISTRIBUTION, is_own, own_requirements

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STRANGER = re.compile(
    r"(?:pip3?|pipx|uv|uvx)\b[^\n`]*\s['\"]?autotune(?=[\s'\"\[=<>~!;,.`)]|$)", re.MULTILINE
)
"""an installer that is told `autotune`, which on PyPI is another project"""
ALLOWED = ("pip uninstall", "--spec", "--from", "uninstall --quiet --yes autotune")
SHOWN = (
    "*.py",
    "*.md",
    "*.html",
    "*.yaml",
    "*.js",
    "Makefile",
    "Dockerfile",
    "*.ipynb",
    "*.service",
)


def test_one_version_everywhere() -> None:
    assert PROJECT["version"] == __version__
    image = (ROOT / "dashboards" / "deploy" / "Dockerfile").read_text()
    assert f'org.opencontainers.image.version="{__version__}"' in image
    assert PROJECT["name"] == DISTRIBUTION
    for key in ("description", "readme", "keywords", "classifiers", "license", "requires-python"):
        assert PROJECT[key]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pip install autotune", True),
        ("pip install 'autotune[ray]'", True),
        ("uv pip install --upgrade autotune", True),
        ("pipx install autotune==0.1.0", True),
        ("pip install 'autotune-parallel[ray]'", False),
        ("/opt/autotune/bin/pip install '.[all]'", False),
        ("pip install ./autotune", False),
    ],
)
def test_what_would_install_a_strangers_package_is_found(line: str, found: bool) -> None:
    assert bool(STRANGER.search(line)) is found


def test_nothing_tells_anyone_to_install_a_strangers_package() -> None:
    said = []
    for top in (
        "autotune",
        "workers",
        "docs",
        "dashboards",
        "examples",
        "search_spaces",
        "skills",
        ".",
    ):
        for pattern in SHOWN:
            paths = (ROOT / top).glob(pattern) if top == "." else (ROOT / top).rglob(pattern)
            for path in paths:
                for found in STRANGER.finditer(path.read_text(encoding="utf-8")):
                    if not any(word in found[0] for word in ALLOWED):
                        said.append((path.relative_to(ROOT).as_posix(), found[0]))
    assert said == []


def test_the_installed_package_is_known_by_its_command() -> None:
    assert any(is_own(one) for one in metadata.distributions())
    assert any(re.match(r"torch\b.*extra == .native", line) for line in own_requirements())


def test_a_strangers_package_of_that_name_is_not_ours(tmp_path: Path) -> None:
    info = tmp_path / "autotune-0.0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: autotune\nVersion: 0.0.3\n")
    assert not is_own(metadata.Distribution.at(info))


@pytest.mark.thorough
def test_builds_are_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice from the checkout, and the wheel once more from the unpacked sdist, which lies
    elsewhere and has other file times."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1764288000")
    first, second = build(ROOT, tmp_path / "first"), build(ROOT, tmp_path / "second")
    assert first == second
    assert set(first) == {
        f"autotune_parallel-{__version__}{end}" for end in ("-py3-none-any.whl", ".tar.gz")
    }
    with tarfile.open(tmp_path / "first" / f"autotune_parallel-{__version__}.tar.gz") as sdist:
        sdist.extractall(tmp_path, filter="data")
    again = build(tmp_path / f"autotune_parallel-{__version__}", tmp_path / "third", "-t", "wheel")
    assert again.items() <= first.items()
    with ZipFile(tmp_path / "third" / f"autotune_parallel-{__version__}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
        (information,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        header = HeaderParser().parsestr(wheel.read(information).decode())
    assert (header["Name"], header["Version"]) == (DISTRIBUTION, __version__)
    assert not [name for name in names if name.endswith((".pyc", ".db"))]


@pytest.mark.thorough
def test_a_release_has_none_of_the_passwords_that_lie_in_its_checkout(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    checkout.mkdir()
    for source in ("pyproject.toml", *targets["targets"]["sdist"]["include"]):
        if (ROOT / source).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", "images")
            shutil.copytree(ROOT / source, checkout / source, ignore=unwanted)
        else:
            shutil.copy(ROOT / source, checkout / source)
    secrets = checkout / "dashboards" / "deploy" / "secrets"
    secrets.mkdir(exist_ok=True)
    (secrets / "postgres_password").write_text("hunter2")
    build(checkout, tmp_path / "dist")
    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as sdist:
        names = sdist.getnames()
    with ZipFile(next((tmp_path / "dist").glob("*.whl"))) as wheel:
        names += wheel.namelist()
    assert any(name.endswith("deploy/make-secrets") for name in names)
    assert not [name for name in names if "postgres_password" in name]


def build(source: Path, folder: Path, *options: str) -> dict[str, str]:
    """Checksums of what is built of a source, by file name."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), *options]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=600)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
