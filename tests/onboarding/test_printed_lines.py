"""The patterns of a draft are those of the lines that each step prints; a clock, a loading time or an evaluation is none."""

from __future__ import annotations

import ast

import pytest

from autotune.onboarding.print_statements import patterns_of, print_statements

LOOP = "import time\nbegin = time.perf_counter()\nfor step in range(9):\n"


def proposed(text: str) -> dict[str, str]:
    return patterns_of(list(print_statements(ast.parse(text))))


@pytest.mark.parametrize(
    ("body", "metrics"),
    [
        ("    ms = 1000 * (time.perf_counter() - begin)\n    print(f'step:{step}/9 train_time:{ms:.0f}ms step_avg:{ms / step:.2f}ms')\n", {"step"}),
        ("    now = time.time()\n    print(f'step {step} time {now - begin:.2f}s loss {loss:.3f}')\n", {"step", "loss"}),
        ("    t1 = time.time()\n    dt = t1 - t0\n    t0 = t1\n    print(f'step {step} time {dt:.2f}s loss {loss:.3f}')\n", {"step", "step_time_s", "loss"}),
        ("    begin = time.time()\n    work()\n    print(f'step {step} time {time.time() - begin:.2f}s')\n", {"step", "step_time_s"}),
    ],
)  # fmt: skip
def test_a_time_since_the_start_is_no_step_time(body: str, metrics: set[str]) -> None:
    assert set(proposed(LOOP + body)) == metrics


def test_what_is_printed_before_the_loop_is_no_step() -> None:
    before = "print(f'init dataloader time: {time.time() - begin:.2f}s')\n"
    assert proposed(LOOP.replace("for step", before + "for step") + "    print(' | '.join([f'Step: {step}']))\n") == {}
    assert proposed("def main():\n    print(f'step {n} time {t:.2f}s')\nmain()\n") == {}


def test_the_line_of_an_evaluation_is_not_that_of_a_step() -> None:
    evaluates = "    if step % 50 == 0:\n        print(f'step {step}: train loss {train:.4f}, val loss {val:.4f}')\n"
    found = proposed(LOOP + evaluates + "    print(f'{step} | loss {5.5:.4f} | lr {lr:e} | {ms:.2f}ms')\n")
    assert set(found) == {"loss"}
    assert "train" not in found["loss"]
    logs = evaluates.replace("step % 50", "step % args.log_interval")
    assert set(proposed(LOOP + logs)) == {"step", "loss"}, "a line of its own interval is that of the steps"
    in_function = "def report(step, loss):\n    print(f'step {step} loss {loss:.3f}')\n"
    assert set(proposed(in_function + LOOP + "    report(step, loss)\n")) == {"step", "loss"}
