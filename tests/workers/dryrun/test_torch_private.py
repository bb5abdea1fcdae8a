"""Two modules name what torch does not promise to keep; it is there in the release that is installed, and another release is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import autotune_workers.dryrun as package
from autotune.errors import RunnerError
from autotune_workers.dryrun import torch_private
from autotune_workers.training.torch_version import check_torch_version

ALLOWED = {"torch_private.py", "torch_patches.py"}
PRIVATE = re.compile(r"\btorch(?:\.\w+)*\._\w+|from torch[\w.]* import .*\b_\w+")


def test_other_modules_name_nothing_private_of_torch() -> None:
    (folder,) = package.__path__
    named = {
        path.name: found
        for path in Path(folder).glob("*.py")
        if path.name not in ALLOWED and (found := PRIVATE.findall(path.read_text().replace("torch.ops.", "")))
    }
    assert not named


@pytest.mark.parametrize("name", torch_private.__all__)
def test_name_is_there(name: str) -> None:
    assert hasattr(torch_private, name)


def test_another_release_of_torch_is_refused_with_a_remedy() -> None:
    with pytest.raises(RunnerError, match=r"torch 2\.99\.0 is installed") as caught:
        check_torch_version("2.99.0")
    assert "pip install" in caught.value.remedy
