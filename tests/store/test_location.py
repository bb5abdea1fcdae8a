"""Addresses of stores: what is taken, what is refused, and that no password is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import SpecError, StoreUnavailableError
from autotune.store import open_store
from autotune.store.connection.location import find_location


@pytest.mark.parametrize(
    "address", ["some.db", "sqlite:///some.db", "sqlite+pysqlite:///some.db", Path("some.db")]
)
def test_a_path_and_its_url_are_the_same_location(
    address: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_location(address).path == tmp_path / "some.db"
    assert str(find_location(address)) == str(tmp_path / "some.db")


def test_the_default_is_in_the_users_data_folder(
    own_house: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert find_location().path == own_house / "autotune.db"
    monkeypatch.setenv("AUTOTUNE_STORE", f"sqlite:///{tmp_path}/mine.db")
    assert find_location().path == tmp_path / "mine.db"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_servers_are_reached_by_psycopg_and_hide_their_password(scheme: str) -> None:
    place = find_location(f"{scheme}://ada:s3cret@db.example:5433/tuning?sslmode=require")
    assert place.url.drivername == "postgresql+psycopg"
    assert place.url.password == "s3cret"
    assert "s3cret" not in str(place)
    assert not place.is_sqlite


BAD = [
    "",
    "  ",
    "a\0b",
    "sqlite://",
    "sqlite:///:memory:",
    "sqlite://host/file.db",
    "sqlite:///a.db?mode=ro",
    "sqlite+aiosqlite:///a.db",
    "postgresql://ada:s3cret@host",
    "postgresql+asyncpg://ada:s3cret@host/x",
    "postgresql://ada:s3cret@host:port/x",
    "mysql://ada:s3cret@host/x",
    "http://ada:s3cret@host/x",
    "://ada:s3cret@host",
]


@pytest.mark.parametrize("address", BAD)
def test_other_addresses_are_rejected_with_a_remedy(address: str) -> None:
    with pytest.raises(SpecError) as refused:
        open_store(address)
    assert refused.value.remedy
    assert "s3cret" not in str(refused.value)


def test_an_unreachable_server_is_unavailable_and_the_error_has_no_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreUnavailableError) as refused:
        open_store("postgresql://ada:s3cret@127.0.0.1:1/x")
    assert refused.value.remedy
    assert "s3cret" not in str(refused.value)


def test_only_the_users_data_folder_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path / "mine" / "data"))
    open_store().close()
    assert (tmp_path / "mine" / "data" / "autotune.db").is_file()
    with pytest.raises(
        StoreUnavailableError, match=r"the folder .*nosuch.* does not exist"
    ) as refused:
        open_store(tmp_path / "nosuch" / "store.db")
    assert refused.value.remedy
    assert not (tmp_path / "nosuch").exists()


def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a folder"):
        open_store(tmp_path)
    (tmp_path / "file").write_text("x" * 5000)
    with pytest.raises(StoreUnavailableError):
        open_store(tmp_path / "file" / "store.db")


def test_an_address_may_have_several_servers() -> None:
    pytest.importorskip("psycopg")
    options = "host=db1,db2&port=5432,5433&target_session_attrs=read-write"
    location = find_location(f"postgresql://autotune@/autotune?{options}")
    arguments = location.url.get_dialect()().create_connect_args(location.url)[1]
    assert (arguments["host"], arguments["port"]) == ("db1,db2", "5432,5433")
    assert arguments["target_session_attrs"] == "read-write"
