"""Which paths lie in an allowed folder, once links are followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.service.http.specs import find_within


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a dataset of two files, and an environment whose interpreter is a link to
    elsewhere."""
    folder = tmp_path / "allowed"
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "corpus.bin").touch()
    (folder / "corpus.idx").touch()
    (folder / "[a].bin").touch()
    (tmp_path / "python3").touch()
    (folder / "venv" / "bin" / "python").symlink_to(tmp_path / "python3")
    return folder


@pytest.mark.parametrize("text", ["corpus", "../allowed/corpus", "[a]"])
def test_prefixes_of_file_names_match_only_with_partial(root: Path, text: str) -> None:
    assert find_within(text, [root], partial=True) == root / Path(text).name
    assert find_within(text, [root]) is None


@pytest.mark.parametrize("text", ["corp*s", "[c]orpus", "?orpus", "none", "../python"])
def test_a_prefix_is_not_a_pattern_and_stays_in_its_folder(root: Path, text: str) -> None:
    assert find_within(text, [root], partial=True) is None


def test_a_link_is_followed_unless_as_named(root: Path) -> None:
    assert find_within("venv/bin/python", [root]) is None
    assert find_within("venv/bin/python", [root], as_named=True) == root / "venv" / "bin" / "python"


@pytest.mark.parametrize("text", ["..", "venv/../..", "venv/bin/../../..", "a\0b", "/", "x" * 5000])
@pytest.mark.parametrize("as_named", [False, True])
def test_paths_outside_and_invalid_paths_are_rejected(
    root: Path, text: str, as_named: bool
) -> None:
    assert find_within(text, [root], as_named=as_named) is None


def test_the_first_folder_with_the_file_is_used(root: Path, tmp_path: Path) -> None:
    assert find_within("corpus.bin", [tmp_path / "none", tmp_path, root]) == root / "corpus.bin"
    assert find_within("corpus.bin", []) is None
