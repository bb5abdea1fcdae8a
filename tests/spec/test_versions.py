"""Measurements are found by the versions that they were made with."""

from __future__ import annotations

import pytest

from autotune.errors import SpecError
from autotune.spec.runs.versions import has_versions, parse_versions

KNOWN = {"torch": "2.12.1+cu130", "cuda": "13.0", "commit": "1a2b3c4d5e6f"}


@pytest.mark.parametrize(
    ("words", "matches"),
    [
        ([], True),
        (["torch=2.12"], True),
        (["torch=2.12.1"], True),
        (["torch=2.12.1+cu130", "cuda=13"], True),
        (["torch=2.1"], False),
        (["torch=2.12", "cuda=12"], False),
        (["commit=1a2b"], True),
        (["commit=1a"], False),
        (["nccl=2.27"], False),
    ],
)
def test_a_version_matches_all_of_its_releases(words: list[str], matches: bool) -> None:
    assert has_versions(KNOWN, parse_versions(words)) is matches


@pytest.mark.parametrize("words", [["torch"], ["=2"], ["torch="], ["torch=2", "torch=3"]])
def test_malformed_versions_are_rejected(words: list[str]) -> None:
    with pytest.raises(SpecError, match="NAME=VERSION"):
        parse_versions(words)
