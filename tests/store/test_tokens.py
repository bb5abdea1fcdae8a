"""The secrets of tokens are not in the database; what else the service keeps is in the contract suite."""

from __future__ import annotations

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
