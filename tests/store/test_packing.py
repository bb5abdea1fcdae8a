"""A trial's document as it is packed and read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import StoreCorruptError
from autotune.store.packing import pack_document, unpack_document

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None))
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@pytest.mark.thorough
@given(st.dictionaries(st.text(), values))
def test_documents_are_read_as_json_reads_them(document: dict[str, Any]) -> None:
    """To the last bit of each number; also half a surrogate pair, as of a file's name in a
    message."""
    assert repr(unpack_document(pack_document(document))) == repr(
        json.loads(json.dumps(document, sort_keys=True))
    )


def test_a_damaged_document_raises_store_corrupt_error() -> None:
    packed = pack_document({"reason": "drawn at random"})
    for damaged in (b"", b"\x02" + packed[1:], packed[:-7], packed[:12] + b"\xff" + packed[13:]):
        with pytest.raises(StoreCorruptError, match="cannot be read"):
            unpack_document(damaged)
