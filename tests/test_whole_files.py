"""Files that appear as a whole: under a name that no file has, with the right mode, and without a
trace where it fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.whole_files import part_of, whole_file


def test_the_file_has_its_old_content_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with whole_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
        assert part.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(IsADirectoryError), whole_file(path) as part:
        part.write_bytes(tmp_path.read_bytes())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_do_not_meet_and_a_name_may_have_full_length(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    with whole_file(path) as first, whole_file(path) as second:
        assert first != second
    assert list(tmp_path.iterdir()) == [path]


def test_a_part_that_its_user_puts_in_place_is_not_replaced_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with part_of(path) as part:
        part.replace(path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_mode_is_that_of_any_file_where_it_is_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "file", mode=0o666):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640
