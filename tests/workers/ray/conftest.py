"""The cluster of the tests in this folder: two real nodes with two processors each, see
`tests.nodes`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.nodes.network import what_is_missing
from tests.nodes.ray_nodes import RayNodes, ray_nodes


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[RayNodes]:
    """A cluster of 2 nodes x 2 processors. A test that breaks a node repairs it."""
    if missing := what_is_missing():
        pytest.skip(missing)
    with ray_nodes(2, cpus=2) as cluster:
        yield cluster
