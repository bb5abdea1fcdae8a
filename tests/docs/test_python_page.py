"""The Python reference names what exists."""

from __future__ import annotations

import pkgutil
import sys

import pytest

from tests.docs.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "site_build"))
from python_page import SECTIONS

NAMES = [name for names in SECTIONS.values() for name in names]


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_the_reference_exists_and_is_documented(name: str) -> None:
    found = pkgutil.resolve_name(name)
    assert found.__doc__, f"{name} has no docstring"
