"""Two of the scripts, from their spec to a launch that is started by hand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.benchmarks.programs.__main__ import RUNS, carry_out

pytestmark = [pytest.mark.alone, pytest.mark.slow]
STEPS = 12


@pytest.mark.parametrize("name", ["single", "ddp"])
def test_a_script_is_tuned_exported_and_launched_as_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    (run,) = [run for run in RUNS if run.name == name]
    outcome = carry_out(run, tmp_path, None, STEPS)
    assert len(outcome.result.trials) >= 8
    assert outcome.result.failed == ()
    # more on a machine that others use, while the winner is unclear
    assert outcome.result.final_rounds == len(outcome.ratios) >= 3
    assert (outcome.result.speedup or 1) >= 1, (
        "none is claimed where the machine was too noisy to tell"
    )
    assert outcome.steps == len(outcome.losses) == STEPS
    assert f"`{name}.py`" in outcome.row
