"""What lines of logs say of what holds a run back."""

from __future__ import annotations

import pytest

from autotune.diagnosis.log_hints import RECOMPILED, cause_in, data_time_s, hints_of, named_rank

HINTS = {
    "torch._dynamo hit config.recompile_limit (8)": "recompilation",
    "W0101 torch._dynamo hit config.cache_size_limit (8)": "recompilation",
    "[WARNING] 3 pytorch allocator cache flushes since last step. this happens when there is high memory pressure": "memory",
    "The 'train_dataloader' does not have many workers which may be a bottleneck.": "input",
    "node1:71:71 [0] NCCL INFO NET/IB : No device found.": "communication_between_nodes",
    "NCCL INFO Using network Socket": "communication_between_nodes",
    "flash attention is not available, using eager attention instead": "knob_without_effect",
    "torch.compile failed, falling back to eager": "knob_without_effect",
    "[titan] 2026-01-01 - root - WARNING - 3 CUDA memory allocation retries.": "memory",
    "CUDA Malloc retires : 4": "memory",
    "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: [3]": "slow_rank",
    "0 CUDA memory allocation retries.": "",
    "|       cudaMalloc retries: 0      |": "",
    "straggler detection is enabled": "",
    "step 3 loss 4.2 time 0.3 s": "",
    "Setting `use_cache=False` with gradient checkpointing": "",
    "NCCL INFO Using network IBext": "",
}


@pytest.mark.parametrize(("line", "cause"), HINTS.items())
def test_lines_that_speak_of_a_cause(line: str, cause: str) -> None:
    assert (cause_in(line) or "") == cause


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


def test_a_few_recompilations_are_usual() -> None:
    line = "V1128 torch/_dynamo/guards.py:4000] [0/{}] [__recompiles] Recompiling function forward in train.py:12"
    assert hints_of([line.format(1)] * (RECOMPILED - 1)) == ()
    assert [cause for cause, _ in hints_of(line.format(at) for at in range(RECOMPILED))] == [
        "recompilation"
    ]


def test_of_each_cause_the_first_line_is_kept() -> None:
    lines = [
        "2 CUDA memory allocation retries.",
        "thermal throttling",
        "9 CUDA memory allocation retries.",
    ]
    assert hints_of(lines) == (("memory", lines[0]), ("clocks", lines[1]))


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("Affected ranks: [3]", 3),
        ("rank 12 is slower", 12),
        ("Affected ranks: [3, 4]", None),
        ("some ranks", None),
    ],
)
def test_the_rank_that_a_line_is_about(line: str, rank: int | None) -> None:
    assert named_rank(line) == rank
