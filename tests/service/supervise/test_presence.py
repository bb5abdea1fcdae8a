"""Which stores are served on this machine, however their address is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.service.supervise.presence import FOLDER, announce_service, is_served
from autotune.settings import data_folder


def test_a_store_is_served_while_its_service_runs_whichever_form_its_address_has(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "results.db")
    with announce_service(path):
        assert is_served(path)
        assert is_served(f"sqlite:///{path}")
        assert not is_served(str(tmp_path / "other.db"))
    assert not is_served(path)


def test_no_password_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    with announce_service("postgres://ann:secret@db/autotune"):
        assert is_served("postgresql://ann:other@db/autotune")
        (file,) = (data_folder() / FOLDER).glob("*.json")
        assert "secret" not in file.read_text()
