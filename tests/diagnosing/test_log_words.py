"""What lines of logs say of what holds a run back."""

from __future__ import annotations

import pytest

from autotune.diagnosis.log_words import data_time_s, hint_of

HINTS = {
    "torch._dynamo hit config.recompile_limit (8)": "recompilation",
    "W0101 torch._dynamo hit config.cache_size_limit (8)": "recompilation",
    "[WARNING] 3 pytorch allocator cache flushes since last step. this happens when there is high memory pressure": "memory",
    "The 'train_dataloader' does not have many workers which may be a bottleneck.": "input",
    "node1:71:71 [0] NCCL INFO NET/IB : No device found.": "communication_between_nodes",
    "NCCL INFO Using network Socket": "communication_between_nodes",
    "flash attention is not available, using eager attention instead": "knob_without_effect",
    "torch.compile failed, falling back to eager": "knob_without_effect",
    "step 3 loss 4.2 time 0.3 s": "",
    "Setting `use_cache=False` with gradient checkpointing": "",
    "NCCL INFO Using network IBext": "",
}


@pytest.mark.parametrize(("line", "cause"), HINTS.items())
def test_lines_that_speak_of_a_cause(line: str, cause: str) -> None:
    found = hint_of(line)
    assert (found.cause if found else "") == cause


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("Epoch: [0][10/100] Time 0.52 (0.6) Data 0.31 s (0.3)", 0.31),
        ("iter 10 time: 0.5 data_time: 0.3 loss 2", 0.3),
        ("step 4 loss 2.0 time 0.5 s data 300 ms", 0.3),
        ("batch-generator: (12.5 ms, 13 ms)", 0.0125),
        ("step 4 loss 2.0 time 0.5 s", None),
        ("loaded data 64 samples", None),
        ("metadata: 3", None),
    ],
)
def test_the_time_that_a_line_says_was_spent_on_data(line: str, seconds: float | None) -> None:
    assert data_time_s(line) == (None if seconds is None else pytest.approx(seconds))
