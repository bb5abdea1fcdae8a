"""The patterns of a draft are those of the lines that each step prints; a clock, a loading time or
an evaluation is none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from autotune.onboarding.first_spec import first_draft
from autotune.onboarding.script.print_statements import is_known, patterns_of, print_statements
from autotune.onboarding.script.syntax import Text
from tests.shortcuts import write

LOOP = "import time\nbegin = time.perf_counter()\nfor step in range(9):\n"


def proposed(text: str) -> dict[str, str]:
    return patterns_of(list(print_statements(Text(ast.parse(text)))))


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
    assert (
        proposed(
            LOOP.replace("for step", before + "for step")
            + "    print(' | '.join([f'Step: {step}']))\n"
        )
        == {}
    )
    assert proposed("def main():\n    print(f'step {n} time {t:.2f}s')\nmain()\n") == {}


def test_the_line_of_an_evaluation_is_not_that_of_a_step() -> None:
    evaluates = "    if step % 50 == 0:\n        print(f'step {step}: train loss {train:.4f}, val loss {val:.4f}')\n"
    found = proposed(
        LOOP + evaluates + "    print(f'{step} | loss {5.5:.4f} | lr {lr:e} | {ms:.2f}ms')\n"
    )
    assert set(found) == {"step", "step_time_ms", "loss"}
    assert "train" not in found["loss"]
    logs = evaluates.replace("step % 50", "step % args.log_interval")
    assert set(proposed(LOOP + logs)) == {"step", "loss"}, (
        "a line of its own interval is that of the steps"
    )
    in_function = "def report(step, loss):\n    print(f'step {step} loss {loss:.3f}')\n"
    assert set(proposed(in_function + LOOP + "    report(step, loss)\n")) == {"step", "loss"}


METER = "'Round {0} ({1} of {2})\\tTime {batch_time.val:.3f} ({batch_time.avg:.3f})\\tLoss {loss.val:.4f}'"


@pytest.mark.parametrize(
    ("body", "metrics"),
    [
        (f"    print({METER}.format(epoch, i, len(loader), batch_time=batch_time, loss=losses))\n", {"step_time_s", "loss"}),
        ("    logger.info('step %d loss %.3f', step, loss)\n", {"step", "loss"}),
        ("    logging.info(f'step {step} loss {loss:.3f}')\n", {"step", "loss"}),
        ("    logger.log(logging.INFO, 'step %d loss %.3f', step, loss)\n", {"step", "loss"}),
        ("    rank_zero_info('step {step} loss {loss:.3f}'.format(step=step, loss=loss))\n", {"step", "loss"}),
        ("    line = f'step {step} loss {loss:.3f}'\n    log_main(line)\n", {"step", "loss"}),
        ("    print('loss {1:.3f} step {0}'.format(step, loss))\n", {"step", "loss"}),
    ],
)  # fmt: skip
def test_loggers_and_formats_with_names_are_read(body: str, metrics: set[str]) -> None:
    assert set(proposed(LOOP + body)) == metrics


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "print('done')",
            "no line with a step or time or loss was recognized in the print statements of train.py",
        ),
        ("print(f'step {step} loss {loss:.3f}')", "no line with a time was recognized"),
        ("print(f'step {step} time {dt:.2f}s')", "no line with a loss was recognized"),
        ("print(f'step {step} time {dt:.2f}s loss {loss:.3f}')", ""),
    ],
)
def test_what_the_lines_do_not_say_is_said(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "train.py").write_text(
        f"import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int)\n{LOOP}    {line}\n"
    )
    notes = [
        note
        for note in first_draft(tmp_path / "train.py", folder=tmp_path).notes
        if "was recognized in" in note
    ]
    assert bool(notes) == bool(said)
    assert all(note.startswith(said) and "`metrics`" in note and "--run" in note for note in notes)


@pytest.mark.parametrize("line", ["print(f'it {step} of {total}')", "pass"])
def test_no_pattern_hides_a_progress_bar(tmp_path: Path, line: str) -> None:
    loop = LOOP.replace("for ", "import tqdm\nfor ", 1)
    (tmp_path / "train.py").write_text(
        f"import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int)\n{loop}    {line}\n"
    )
    draft = first_draft(tmp_path / "train.py", folder=tmp_path)
    assert "metrics" not in draft.document["trainer"]
    assert not [note for note in draft.notes if "was recognized in" in note]


def test_the_lines_of_a_module_count_where_the_script_has_none_of_steps(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "loop.py": f"{LOOP}    print(f'step {{step}} loss {{loss:.3f}}')\n",
            "train.py": "import argparse, loop\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int)\nprint(f'on {n} ranks')\n",
        },
    )
    draft = first_draft(tmp_path / "train.py", folder=tmp_path)
    assert set(draft.document["trainer"]["metrics"]) == {"step", "loss"}


def test_the_lines_of_a_function_that_evaluates_are_none_of_a_step() -> None:
    judges = "def evaluate(model):\n    for i in data:\n        print(f'Clip Loss: {loss:.3f}')\n"
    assert proposed(judges + LOOP + "    evaluate(model)\n") == {}
    trains = judges.replace("evaluate", "train_and_evaluate")
    assert set(proposed(trains + LOOP + "    train_and_evaluate(model)\n")) == {"loss"}


def test_lines_of_a_known_form_need_no_patterns() -> None:
    said = "f'Train: [{epoch}/{config.TRAIN.EPOCHS}][{idx}/{num_steps}]\\teta {eta}\\ttime {t:.4f}\\tloss {loss:.4f}'"
    printed = list(
        print_statements(
            Text(ast.parse(f"for idx, batch in enumerate(loader):\n    logger.info({said})\n"))
        )
    )
    assert is_known(printed)
    assert patterns_of(printed) == {}
