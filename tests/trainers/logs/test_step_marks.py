"""Marks of step lines: whatever a trainer reads of a log has one, so that no step is lost in a
flood of other lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.trainers import trainer, trainer_names
from autotune.trainers.logs.patterns import mark

LINES = [
    line.strip().strip("'\",")
    for path in sorted((Path(__file__).parents[1]).rglob("*"))
    if path.suffix in (".log", ".txt", ".py")
    for line in path.read_text(encoding="utf-8").splitlines()
] + [
    '{"step": 3, "step_time_s": 0.41, "loss": 2.31}',
    "step: 14  loss: 3.24405  grad_norm: 0.8319  memory: 9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%",
]


@pytest.mark.parametrize("name", sorted(trainer_names()))
def test_each_line_that_is_read_has_a_mark_and_passes_the_test(name: str) -> None:
    whose = trainer(name)
    read, test = whose.reader(), whose.step_line_test()
    found = [line for line in LINES if read(line) is not None]
    assert found
    assert all(test.may_tell(line) for line in found)
    assert (
        not test.marks
        or [line for line in found if not any(mark in line for mark in test.marks)] == []
    )


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^step (\d+)", "step "),
        (r"loss: ([0-9.]+)", "loss: "),
        (r"(?i)loss: ([0-9.]+)", ""),
        (r"(?:loss|Loss)=([0-9.]+)", "="),
        (r"(\d+)", ""),
        (r"a?bc*dd(e)", "dd"),
        (r"[[:alpha:]]bc(d)", ""),
        (r"\pLbc(d)", ""),
        (r"[[]bc(d)", "[bc"),
    ],
)
def test_the_mark_of_a_pattern_is_in_all_that_it_matches(pattern: str, text: str) -> None:
    assert mark(pattern) == text
