"""The environment, and nothing else, says where things are kept."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.settings import data_folder, expanded, settings, user_name


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


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a name and a home folder, as a container may start a process."""

    def unknown(_: object) -> object:
        raise KeyError("uid not found")

    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_DATA_HOME", "AUTOTUNE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)
    monkeypatch.setattr("os.getuid", lambda: 4242)


@pytest.mark.usefixtures("nobody")
def test_a_user_without_a_home_folder_is_told_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"HOME is not set.*set AUTOTUNE_DATA"):
        settings()
    assert data_folder({"AUTOTUNE_DATA": str(tmp_path)}) == tmp_path
    with pytest.raises(SpecError, match="'~/data' is unknown; write the full path"):
        data_folder({"AUTOTUNE_DATA": "~/data"})
    assert user_name() == "user 4242"


def test_the_home_folder_of_an_unknown_user_is_no_crash() -> None:
    with pytest.raises(SpecError, match=r"'~no-such-user/a\.db' is unknown") as raised:
        expanded("~no-such-user/a.db", field="store")
    assert raised.value.field == "store"
