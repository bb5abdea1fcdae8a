"""Figures of a log that disagree with the spec or with the clock are doubted; those that agree, or
differ as right ones may, are not."""

from __future__ import annotations

import pytest

from autotune import api
from autotune.spec import ParallelConfig, Study
from autotune.study.check.doubts import doubts_of, is_clock
from autotune.trainers.logs.printed_rates import printed_rate
from tests.shortcuts import present
from tests.small_studies import spec

# 16 sequences
CONFIG = ParallelConfig(dp=2, micro_batch_size=4, accumulation_steps=2, precision="fp32")
TIMES = (1.0, 0.5, 0.5, 0.5)


def study() -> Study:
    command = {
        "kind": "command",
        "argv": ["train", "--batch={micro_batch_size}", "--accum={accumulation_steps * dp}"],
    }
    space = {"world_sizes": [2], "micro_batch_size": [4], "precision": ["fp32"]}
    return api.load_study(
        spec(
            trainer=command,
            runner="local",
            space=space,
            workload={"seq_len": 128, "global_batch_size": 16},
        )
    )


def doubts(*lines: str, pace_s: float = 0.5, time_from: str = "log") -> list[str]:
    arrivals = [(10 + i * pace_s, i) for i in range(4)]
    return list(doubts_of(study(), CONFIG, lines, TIMES, arrivals, time_from))


@pytest.mark.parametrize(
    ("line", "per_s", "unit"),
    [
        ("it 7 | 500.0 ms/it | 13.25k tok/s", 13250, "tokens/s"),
        ("step 3 loss 2.1 throughput=13,250 tokens/sec", 13250, "tokens/s"),
        ("tokens_per_sec: 13250.5 lr: 1e-3", 13250.5, "tokens/s"),
        ("{'step': 3, 'tokens/s/gpu': 4720}", 4720, "tokens/s/GPU"),
        ("1.2M tokens per second", 1.2e6, "tokens/s"),
        ("samples/s: 31.5 | 900 MiB", 31.5, "samples/s"),
    ],
)
def test_rates_are_read_as_programs_print_them(line: str, per_s: float, unit: str) -> None:
    found = present(printed_rate([line, line]))
    assert (found.per_s, found.unit) == (pytest.approx(per_s), unit)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "loss 2.31 tokens/s: nan",
            "3.1 it/s",
            "'train_samples_per_second': 12.5",
            "tokens: 4096",
            "0 tokens/s",
        ),
        "tokenizing 12 examples",
    ],
)
def test_other_figures_are_no_rates(line: str) -> None:
    assert printed_rate([line]) is None


@pytest.mark.parametrize(
    "rate",
    [
        "4,096 tokens/s",
        "2.05k tok/s/gpu",
        "32 samples/s",
        "2048 tokens/s",
        "16 samples/s",
        "4.9k tok/s",
    ],
)
def test_rates_that_agree_or_are_those_of_one_rank_are_not_doubted(rate: str) -> None:
    assert doubts(rate, rate) == []


def test_a_batch_that_the_spec_does_not_know_is_doubted() -> None:
    (found,) = doubts("1 tokens/s", "8.19k tokens/s", "8.19k tokens/s")
    assert "prints 8,190 tokens/s at 500 ms per step, which is 4,095 tokens a step" in found
    assert "the spec says 2,048 (seq_len 128 x global_batch_size 16). Correct `workload`" in found


@pytest.mark.parametrize(
    ("pace_s", "time_from", "words"),
    [
        (
            1.5,
            "log",
            "says 500 ms per step, but steps arrive every 1.5 s; the timer may leave out part",
        ),
        (
            0.05,
            "log",
            "arrive every 50 ms; the time may cover several steps, or be in a different unit",
        ),
        (1.5, "rate", "Correct `workload`"),
    ],
)
def test_a_time_that_the_clock_does_not_confirm_is_doubted(
    pace_s: float, time_from: str, words: str
) -> None:
    (found,) = doubts(pace_s=pace_s, time_from=time_from)
    assert words in found


def test_a_time_that_the_clock_confirms_or_tells_is_not_doubted() -> None:
    assert doubts(pace_s=0.7) == doubts(pace_s=1.5, time_from="arrival") == []


def test_few_steps_that_are_over_at_once_are_not_doubted() -> None:
    assert (
        list(
            doubts_of(study(), CONFIG, (), (0.1, 0.01, 0.01), [(1.0, 0), (1.2, 1), (1.3, 2)], "log")
        )
        == []
    )
    assert list(doubts_of(study(), CONFIG, (), (0.1,), [], "log")) == []


@pytest.mark.parametrize(
    ("times_s", "clock"),
    [
        ((0.026, 0.047, 0.070, 0.090, 0.110), True),  # the time since the start
        ((2.0, 2.5, 3.0, 3.5, 4.0), True),
        ((0.10, 0.11, 0.12, 0.13, 0.14), False),  # slower and slower, but not twice
        ((0.1, 0.3, 0.2, 0.4, 0.5), False),
        ((0.1, 0.1, 0.1, 0.1, 9.0), False),
        ((0.1, 0.2, 0.3), False),
    ],
)
def test_times_that_only_grow_are_a_clock(times_s: tuple[float, ...], clock: bool) -> None:
    assert is_clock(times_s) is clock
    found = list(doubts_of(study(), CONFIG, (), times_s, [], "log"))
    assert any("reads a clock" in text for text in found) is clock
