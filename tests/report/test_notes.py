"""Notes of trials: what many rows of a table share is written once, under it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.report.notes import SHARED_BY, brief_note, infeasible_line, notes_of
from autotune.report.terminal import (
    SPEEDS,
    by_config,
    speeds_line,
    study_configs_table,
)
from autotune.spec import Failure, FailureKind, Trial, TrialPurpose, TrialStatus
from tests.report.test_terminal import shown
from tests.report.worlds import out_of_memory, trial

CANNOT_WIN = (
    "cannot win: all of its first 3 steps took more than 1.1 times what may still win, 0.1 s"
)


def stopped(number: int, reason: str = CANNOT_WIN) -> Trial:
    found = trial(number, micro_batch_size=1 + number)
    return replace(found, status=TrialStatus.STOPPED, reason=reason)


def infeasible(number: int, reason: str) -> Trial:
    return replace(
        trial(number),
        status=TrialStatus.INFEASIBLE,
        reason=reason,
        measurement=None,
        reward=None,
        attempts=0,
    )


def test_a_note_that_many_rows_share_is_written_once_under_the_table() -> None:
    found = [stopped(number) for number in range(1, 19)]
    text = shown(study_configs_table(by_config(found)), width=200)
    assert text.count("all of its first 3 steps") == 1
    assert "cannot win (18 trials): all of its first 3 steps" in text
    assert text.count("cannot win") == 19


def test_notes_with_the_same_short_form_share_a_line_with_one_example() -> None:
    found = [
        out_of_memory(2),
        out_of_memory(5),
        replace(out_of_memory(7), failure=replace(out_of_memory(7).failure, message="rank 1 too")),
    ]  # type: ignore[type-var]
    assert notes_of(found).shared == (
        "out of memory (3 trials), for example trial 2: rank 3 ran out of memory",
    )


def test_a_long_note_without_a_short_form_is_replaced_by_a_number() -> None:
    reason = "the trainer of this study cannot run expert parallelism with sequence parallelism"
    notes = notes_of([infeasible(number, reason) for number in range(SHARED_BY)])
    assert set(notes.cells.values()) == {"(1)"}
    assert notes.shared == (f"(1) {SHARED_BY} trials: {reason}",)


def test_the_second_number_has_the_format_of_the_first() -> None:
    reasons = [
        f"the trainer of this study cannot run {knob} with sequence parallelism"
        for knob in ("experts", "adapters")
    ]
    notes = notes_of(
        [
            infeasible(10 * k + n, reason)
            for k, reason in enumerate(reasons)
            for n in range(SHARED_BY)
        ]
    )
    assert set(notes.cells.values()) == {"(1)", "(2)"}
    assert [line.split(" ")[0] for line in notes.shared] == ["(1)", "(2)"]


@pytest.mark.parametrize(
    "found",
    [
        [stopped(1), stopped(2)],
        [replace(trial(number), reason="re-measured: round 1 of 2") for number in range(SHARED_BY)],
        [stopped(number, "interrupted") for number in range(SHARED_BY)],
        [infeasible(number, f"law {number}") for number in range(SHARED_BY)],
    ],
    ids=["too few", "short enough", "nothing but the gist", "all different"],
)
def test_other_notes_stay_in_their_rows(found: list[Trial]) -> None:
    notes = notes_of(found)
    assert not notes.shared
    assert [notes.cells[t.number] for t in found] == [t.reason for t in found]


def test_the_live_view_has_no_caption_under_its_table() -> None:
    text = shown(
        study_configs_table(by_config([stopped(number) for number in range(9)]), steps={}),
        width=200,
    )
    assert "cannot win (9" not in text


def test_each_cause_of_errors_is_shown() -> None:
    def failed(number: int, exception: str) -> Trial:
        failure = Failure(
            kind=FailureKind.ERROR,
            message=f"rank {number} raised {exception}",
            exception=exception,
            rank=3,
        )
        return replace(out_of_memory(number), failure=failure)

    data = [failed(n, f"FileNotFoundError: shard {n}") for n in range(4)]
    shape = [failed(n, "ValueError: 7 heads") for n in range(4, 7)]
    other = [failed(9, "KeyError: 'tokens'")]
    notes = notes_of([*data, *shape, *other])
    assert notes.shared == (
        "error (4 trials), for example trial 0: FileNotFoundError: shard 0 (rank 3)",
        "error (1) (3 trials): ValueError: 7 heads (rank 3)",
    )
    assert (notes.cells[0], notes.cells[4]) == ("error", "error (1)")
    assert notes.cells[9] == "error: KeyError: 'tokens' (rank 3)"


def test_a_trial_on_a_throttled_gpu_has_a_note() -> None:
    hot = trial(3)
    readings = {"temperature_c": 88.0, "throttled_share": 0.12, "throttled": 1.0}
    hot = replace(hot, measurement=replace(hot.measurement, utilization=readings))
    assert (
        "throttled: a GPU at 88 C lowered its clocks for 12% of the time"
        in notes_of([hot]).cells[3]
    )


def test_infeasible_configs_are_one_line_with_the_most_frequent_reasons() -> None:
    assert infeasible_line({}) == ""
    assert infeasible_line({"megatron_compile": 1}).startswith("1 combination skipped: ")
    assert infeasible_line({"megatron_compile": 4, "tp_heads": 1000}) == (
        "1,004 combinations skipped: tp does not divide num_attention_heads (1,000), megatron cannot run this compile (4)"
    )
    many = {f"law_{n}": n for n in range(1, 8)}
    assert infeasible_line(many) == (
        "28 combinations skipped: law_7 (7), law_6 (6), law_5 (5), law_4 (4), other reasons (6)"
    )


def test_the_caption_of_a_table_explains_the_speeds() -> None:
    found = [replace(trial(0), purpose=TrialPurpose.BASELINE), trial(1)]
    assert speeds_line(found) == SPEEDS
    unmeasured = replace(out_of_memory(0), purpose=TrialPurpose.BASELINE)
    assert speeds_line([unmeasured, trial(1)], unmeasured) == (
        "Tokens/s count all steps and are as measured, because the baseline ran out of memory (trial 0); drift is not corrected, and no speedup is reported."
    )


def test_a_brief_note_keeps_the_problem_and_drops_what_the_kind_says() -> None:
    def failed(
        kind: FailureKind, message: str, exception: str = "", rank: int | None = None
    ) -> Trial:
        failure = Failure(kind=kind, message=message, exception=exception, rank=rank)
        return replace(trial(1), status=TrialStatus.FAILED, measurement=None, failure=failure)

    full = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 39.4 GiB"
    wrong = (
        "RuntimeError: shape '[1, 2, 3, 4, 5, 6, 7]' is invalid for input of size 4; see the log"
    )
    assert brief_note(failed(FailureKind.OUT_OF_MEMORY, full, rank=3), most=48) == (
        "out of memory: rank 3: Tried to allocate 2.00 GiB"
    )
    assert brief_note(failed(FailureKind.ERROR, "the trial failed", wrong, 2), most=48) == (
        "rank 2: shape '[1, 2, 3, 4, 5, 6, 7]' is invalid for input of size 4"
    )
    ranked = replace(
        trial(1),
        reason="number 1 in the cost model's ranking: 684k tokens/s, out of memory with probability 0%",
    )
    assert brief_note(ranked, most=48) == "number 1 in the cost model's ranking"
    assert brief_note(ranked, most=200) == ranked.reason
