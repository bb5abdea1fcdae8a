"""What a rank says of its memory is what the trial took."""

from __future__ import annotations

import pytest
import torch

from autotune_workers.training.measuring import measure
from autotune_workers.training.measuring.measure import PeakMemory

MIB = 1 << 20


@pytest.mark.thorough
@pytest.mark.parametrize(("files_after", "peak"), [(15, 90), (45, 60), (10, 90), (None, 90)])
def test_program_code_that_a_fresh_rank_runs_for_the_first_time_is_no_memory_of_the_trial(
    monkeypatch: pytest.MonkeyPatch, files_after: int | None, peak: int
) -> None:
    said: dict[str, int | None] = {"VmRSS": 230, "RssFile": 15 if files_after is not None else None}

    def status_bytes(key: str) -> int | None:
        value = said[key]
        return None if value is None else value * MIB

    monkeypatch.setattr(measure, "status_bytes", status_bytes)
    monkeypatch.setattr(measure, "_reset_high_water", lambda: True)
    memory = PeakMemory(torch.device("cpu"))
    memory.start()
    said.update(VmHWM=320, RssFile=files_after)
    assert memory.bytes() == peak * MIB


def test_where_the_mark_cannot_be_reset_the_peak_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_reset_high_water", lambda: False)
    memory = PeakMemory(torch.device("cpu"))
    memory.start()
    assert memory.bytes() is None
