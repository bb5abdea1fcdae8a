"""The secrets of tokens are not in the database; what else the service keeps is in the contract suite."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autotune.store import MemoryStore
from autotune.store.tables import tokens


def test_a_token_is_kept_as_a_hash() -> None:
    store = MemoryStore()
    _, text = store.tokens.create("ada", "submit")
    with store.database.read() as connection:
        row = connection.execute(tokens.select()).one()
    store.close()
    secret = text.split("_", 2)[2]
    assert secret not in repr(row._mapping)
    assert len(row.hash) == 32


def test_a_token_that_many_requests_bring_at_once_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, hashed = MemoryStore(), []
    token, text = store.tokens.create("ada", "submit")
    scrypt = hashlib.scrypt

    def counted(*secret: Any, **options: Any) -> bytes:
        hashed.append(secret)
        return scrypt(*secret, **options)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(store.tokens.check, [text] * 60)) == {token}
    assert len(hashed) == 1
    assert store.tokens.check(text[:-1]) is None
    assert len(hashed) == 2
    store.close()
