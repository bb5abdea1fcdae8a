"""What several modules look at."""

from __future__ import annotations

import pytest

from autotune_workers.probe.injected.profile import ASKED
from tests.workers.probe.watching import Watched, torchrun, watched


@pytest.fixture(scope="session")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """A program on two ranks under torchrun, each with all parameters, profiled in two of its 14
    steps."""
    command = torchrun("decoder.py", "--wrap=ddp", "--accumulate=2", "--steps=14")
    return watched(command, cwd=tmp_path_factory.mktemp("replicated"), env={ASKED: "2"})
