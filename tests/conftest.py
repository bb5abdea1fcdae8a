"""What every test shares: no test reads or writes this machine's own data, settings or tokens, and
none depends on how busy it is."""

from __future__ import annotations

import functools
import os
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.matrix import draw_all_examples, examples

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Examples are the same every time, and a loaded machine is no failure."""
    if "not thorough" not in config.option.markexpr:
        draw_all_examples()
    checks = [HealthCheck.too_slow]
    settings.register_profile(
        "tests",
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=checks,
        max_examples=examples(100),
    )
    settings.load_profile("tests")


def pytest_sessionstart() -> None:
    """Ends at once where the installed metadata is older than pyproject.toml: what was registered
    since would not be found."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, entries in declared.items():
        missing = sorted(
            set(entries) - {entry.name for entry in metadata.entry_points(group=group)}
        )
        if missing:
            names = ", ".join(missing)
            pytest.exit(
                f"{group}: {names} of pyproject.toml is not installed; run: pip install --no-deps -e .",
                3,
            )


def pytest_itemcollected(item: pytest.Item) -> None:
    """The Makefile finds the files of tests that run alone by that word: one that inherits the mark
    under another name would be in no round."""
    if item.get_closest_marker("alone") is not None and not re.search(
        r"mark\.alone|ALONE", _text(item.path)
    ):
        raise pytest.UsageError(
            f"{item.nodeid} is marked alone: write the mark, or ALONE, in its file"
        )


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def own_house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Redirects the user's data, config and cache folders under `tmp_path` and clears all
    AUTOTUNE_* variables.

    Child processes inherit it, for it goes through the environment. Returns the data folder.
    """
    for name in list(os.environ):
        if name.startswith("AUTOTUNE_"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    for name, folder in (
        ("XDG_DATA_HOME", "data"),
        ("XDG_CONFIG_HOME", "config"),
        ("XDG_CACHE_HOME", "cache"),
    ):
        monkeypatch.setenv(name, str(home / folder))
    return home / "data" / "autotune"
