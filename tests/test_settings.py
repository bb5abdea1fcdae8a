"""The environment, and nothing else, says where things are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.settings import data_folder, settings


def test_defaults_lie_in_the_user_data_folder(own_house: Path) -> None:
    assert data_folder() == own_house
    assert settings().store == str(own_house / "autotune.db")
    assert settings().url is None
    assert settings().token is None
    assert not own_house.exists()


def test_variables_are_followed_and_empty_ones_are_none(tmp_path: Path) -> None:
    given = {
        "AUTOTUNE_DATA": str(tmp_path),
        "AUTOTUNE_URL": "http://127.0.0.1:8600",
        "AUTOTUNE_STORE": " ",
    }
    found = settings(given)
    assert found.data_folder == tmp_path
    assert found.store == str(tmp_path / "autotune.db")
    assert found.url == "http://127.0.0.1:8600"
    assert (
        settings({**given, "AUTOTUNE_STORE": "postgresql://db/autotune"}).store
        == "postgresql://db/autotune"
    )


def test_the_token_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_TOKEN", "not-to-be-seen")
    assert settings().token == "not-to-be-seen"
    assert "not-to-be-seen" not in repr(settings())
