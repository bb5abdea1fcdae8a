"""What the module of private names takes from torch is there in the release that is installed;
`test_torch_version` looks who else names such things."""

from __future__ import annotations

import pytest

from autotune_workers.dryrun import torch_private


@pytest.mark.parametrize("name", torch_private.__all__)
def test_name_is_there(name: str) -> None:
    assert hasattr(torch_private, name)
