"""The secrets of tokens are not in the database; what else the service keeps is in the contract
suite."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autotune.errors import StoreUnavailableError
from autotune.store import MemoryStore
from autotune.store.tables import tokens
from autotune.store.writes.tokens import FAST


def test_a_token_is_stored_as_a_hash(memory: MemoryStore) -> None:
    _, text = memory.tokens.create("ada", "submit")
    with memory.database.read() as connection:
        row = connection.execute(tokens.select()).one()
    secret = text.split("_", 2)[2]
    assert secret not in repr(row._mapping)
    assert row.hash.startswith(FAST)
    assert secret.encode() not in row.hash


@pytest.fixture
def slow_hashes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The secrets that were hashed by scrypt."""
    hashed: list[Any] = []
    scrypt = hashlib.scrypt

    def counted(*secret: Any, **options: Any) -> bytes:
        hashed.append(secret)
        return scrypt(*secret, **options)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    return hashed


def hash_of(store: Any) -> bytes:
    with store.database.read() as connection:
        return bytes(connection.execute(tokens.select()).one().hash)


def with_old_hash(store: Any, text: str) -> bytes:
    """Gives the store's only token the hash that earlier releases wrote, and returns it."""
    with store.database.write() as connection:
        salt = connection.execute(tokens.select()).one().salt
        old = hashlib.scrypt(
            text.split("_", 2)[2].encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=32
        )
        connection.execute(tokens.update().values(hash=old))
    return old


def test_valid_and_invalid_tokens_take_a_fast_hash(
    memory: MemoryStore, slow_hashes: list[Any]
) -> None:
    token, text = memory.tokens.create("ada", "submit")
    assert memory.tokens.check(text) == token
    assert [
        memory.tokens.check(wrong) for wrong in (text[:-1], f"at_{'0' * 12}_x", "nonsense")
    ] == [None] * 3
    assert slow_hashes == []


def test_a_token_of_an_earlier_release_takes_scrypt_once(
    memory: MemoryStore, slow_hashes: list[Any]
) -> None:
    token, text = memory.tokens.create("ada", "submit")
    with_old_hash(memory, text)
    slow_hashes.clear()
    assert memory.tokens.check(text[:-1] + "~") is None
    assert len(slow_hashes) == 1
    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(memory.tokens.check, [text] * 60)) == {token}
    assert len(slow_hashes) == 2
    assert hash_of(memory).startswith(FAST)
    assert memory.tokens.check(text[:-1] + "~") is None
    assert len(slow_hashes) == 2


def test_an_old_token_is_valid_if_its_row_cannot_be_updated(
    memory: MemoryStore, slow_hashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    token, text = memory.tokens.create("ada", "submit")
    old = with_old_hash(memory, text)
    slow_hashes.clear()

    def away(**options: Any) -> Any:
        raise StoreUnavailableError("the database cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr(memory.database, "write", away)
        assert [memory.tokens.check(text) for _ in range(3)] == [token] * 3
    assert (len(slow_hashes), hash_of(memory)) == (1, old)


def test_a_revoked_token_of_an_earlier_release_takes_no_hash(
    memory: MemoryStore, slow_hashes: list[Any]
) -> None:
    token, text = memory.tokens.create("ada", "submit")
    with_old_hash(memory, text)
    slow_hashes.clear()
    memory.tokens.revoke(token.id)
    assert memory.tokens.check(text) is None
    assert slow_hashes == []
