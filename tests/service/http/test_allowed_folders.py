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
def test_the_beginning_of_names_is_found_where_that_is_asked_for(root: Path, text: str) -> None:
    assert find_within(text, [root], partial=True) == root / Path(text).name
    assert find_within(text, [root]) is None


@pytest.mark.parametrize("text", ["corp*s", "[c]orpus", "?orpus", "none", "../python"])
def test_a_beginning_is_no_pattern_and_leads_to_no_other_folder(root: Path, text: str) -> None:
    assert find_within(text, [root], partial=True) is None


def test_a_link_is_followed_unless_it_is_what_is_named(root: Path) -> None:
    assert find_within("venv/bin/python", [root]) is None
    assert find_within("venv/bin/python", [root], as_named=True) == root / "venv" / "bin" / "python"


@pytest.mark.parametrize("text", ["..", "venv/../..", "venv/bin/../../..", "a\0b", "/", "x" * 5000])
@pytest.mark.parametrize("as_named", [False, True])
def test_what_lies_above_or_is_no_path_is_refused(root: Path, text: str, as_named: bool) -> None:
    assert find_within(text, [root], as_named=as_named) is None


def test_the_first_folder_that_has_it_counts(root: Path, tmp_path: Path) -> None:
    assert find_within("corpus.bin", [tmp_path / "none", tmp_path, root]) == root / "corpus.bin"
    assert find_within("corpus.bin", []) is None
