"""The view of a running study on terminals of any size, and what is said of a study in words."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from autotune.cli.live import LiveView
from autotune.cli.study_text import (
    answer_lines,
    baseline_runner_up,
    configs_table,
    export_command,
    print_study,
    runs_line,
    speedup_line,
    studies_table,
    tied_line,
)
from autotune.results.answers import result_from
from autotune.reward import slowed
from autotune.spec import TrialPurpose, TrialStatus, config_changes
from autotune.study.controller.finals.finalists import expected_runs
from autotune.study.progress import StudyOpened, TrialAsked, TrialEnded, TrialStarted
from tests.matrix import sampled
from tests.report.worlds import record, trial, trials


def terminal(width: int, height: int) -> Console:
    return Console(
        file=io.StringIO(), width=width, height=height, color_system=None, force_terminal=True
    )


def view_of(console: Console, count: int = 60) -> LiveView:
    """A study in its searching phase; the first of its trials is the best, the last one runs."""
    view = LiveView(record().study, console=console)
    view.trials = {n: trial(n, step_time_s=1.0 + n, micro_batch_size=1 + n) for n in range(count)}
    view.trials[count - 1] = replace(
        view.trials[count - 1], status=TrialStatus.RUNNING, measurement=None
    )
    view.steps = {count - 1: 12}
    view.best, view.phase, view.message = (
        1,
        "searching",
        "a message that is far too long for a line " * 9,
    )
    return view


@pytest.mark.thorough
@pytest.mark.parametrize("width", sampled([40, 80, 110, 200], [80]))
def test_the_view_is_one_line_shorter_than_the_screen(width: int) -> None:
    for height in range(2, 51):
        console = terminal(width, height)
        lines = console.render_lines(view_of(console), console.options, pad=False)
        assert len(lines) <= height - 1, (width, height)
        assert all(sum(segment.cell_length for segment in line) <= width for line in lines)


def test_the_view_fills_the_screen_and_always_shows_the_best() -> None:
    console = terminal(80, 24)
    console.print(view_of(console))
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert len(lines) == 23
    assert lines[0].startswith("searching   ")
    assert lines[1].startswith("best ")
    assert any(line.split()[:4] == ["1★", "tp1", "pp1", "dp8"] for line in lines)
    assert any(line.split()[:1] == ["59"] and "step 12" in line for line in lines)


def rows_of(console: Console, view: LiveView) -> dict[str, list[str]]:
    """The cells of each row by its number, with those of the heading."""
    console.file = io.StringIO()
    console.print(view)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    return {line[0].rstrip("★"): line[1:] for line in lines if line and line[0][0] in "#0123456789"}


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_printed_figure_stays_and_is_marked_while_re_measured(width: int) -> None:
    """The finals run at half the speed of the search: pooled figures, and all that are relative to
    the baseline, would fall by half."""
    default, *others = (
        trial(n, step_time_s=1.0 - n / 10, micro_batch_size=1 + n) for n in range(5)
    )
    slow = [
        replace(t, number=n, purpose=TrialPurpose.FINAL, measurement=slowed(t.measurement, 2.0))
        for n, t in enumerate((default, others[3], others[2], others[2], others[3], default), 5)
    ]
    console = terminal(width, 24)
    view = LiveView(record().study, console=console)
    view.on_event(StudyOpened(record=record(), past=(default,)))
    first, figures = {}, {}
    for ended in (*others, *slow):
        view.on_event(
            TrialAsked(trial=replace(ended, status=TrialStatus.PENDING, measurement=None))
        )
        view.on_event(TrialStarted(number=ended.number, attempt=1))
        view.on_event(TrialEnded(trial=ended))
        rows = rows_of(console, view)
        figures = {
            number: next(cell for cell in reversed(cells) if cell.endswith("k"))
            for number, cells in rows.items()
            if number != "#"
        }
        for number, figure in figures.items():
            assert first.setdefault(number, figure) == figure.lstrip("~")
        is_marked = [number for number, figure in figures.items() if figure.startswith("~")]
        raced = {t.config for t in slow if t.number <= ended.number}
        assert is_marked == [str(t.number) for t in (default, *others) if t.config in raced]
    assert len(figures) == 5, "one row per config"
    assert {"stable", "spent", "memory"} <= set(rows_of(console, view)["#"])
    assert " + 6 of 6 to 25 finals" in view._summary()


def test_final_runs_are_counted_against_the_announced_number() -> None:
    """With one search trial there is one config to re-measure beside the baseline."""
    one = replace(record().study, budget=replace(record().study.budget, max_trials=1))
    view = LiveView(one, console=terminal(80, 24))
    default, other = trial(0), trial(1, step_time_s=0.5, micro_batch_size=2)
    final = replace(default, number=2, purpose=TrialPurpose.FINAL)
    view.on_event(StudyOpened(record=replace(record(), study=one), past=(default, other, final)))
    assert "up to 4 finals" in expected_runs(one)
    assert " 1 search trial + 1 of 4 to 11 finals" in view._summary()


def test_preparation_time_is_not_part_of_the_shown_time() -> None:
    view = LiveView(record().study, console=terminal(80, 24))
    assert "elapsed" not in view._summary()
    view.on_event(StudyOpened(record=record(elapsed_s=0.0), past=()))
    assert "<1 s elapsed" in view._summary()


def test_a_view_without_trials() -> None:
    console = terminal(80, 24)
    console.print(LiveView(record().study, console=console))
    assert console.file.getvalue().startswith("starting")  # type: ignore[attr-defined]


def test_a_continued_study_keeps_its_elapsed_time() -> None:
    """Else its trials seem to take next to nothing, and so does the rest of the study."""
    console = terminal(80, 24)
    view = LiveView(record().study, console=console)
    view.on_event(StudyOpened(record=replace(record(), elapsed_s=600.0), past=tuple(trials())))
    assert view._summary().endswith("10m 00s elapsed, at most 50m 00s left")


def test_the_view_leaves_nothing_in_the_scrollback() -> None:
    console = terminal(80, 12)
    view = view_of(console)
    with view:
        view._live.refresh()
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert screen_after(written, height=12) == ([], [])


def screen_after(written: str, *, height: int) -> tuple[list[str], list[str]]:
    """What a terminal shows after these bytes, and what scrolled off its upper edge; blank lines
    left out.

    Knows what rich writes for a live display: line ends, cursor up, erase line, and private modes,
    which it ignores.
    """
    scrolled: list[str] = []
    screen, row = [""] * height, 0
    for code, text, end in re.findall(r"(\x1b\[[?\d;]*[A-Za-z])|([^\x1b\r\n]+)|([\r\n])", written):
        if end == "\n":
            row += 1
            if row == height:
                scrolled.append(screen.pop(0))
                screen.append("")
                row -= 1
        elif code.endswith("A"):
            row = max(0, row - int(code[2:-1] or 1))
        elif code.endswith("K"):
            screen[row] = ""
        elif text:
            screen[row] += text
    return [line for line in screen if line.strip()], [line for line in scrolled if line.strip()]


def test_trials_are_counted_by_purpose_and_status() -> None:
    ran = [
        *trials(),
        replace(trial(5), status=TrialStatus.STOPPED),
        *(replace(trial(n), purpose=TrialPurpose.FINAL) for n in (6, 7)),
    ]
    assert runs_line(ran) == (
        "5 search trials, the baseline, 2 finals (6 completed, 1 stopped early, 1 failed)"
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"final_rounds": 3}, "2.00x the baseline (re-measured side by side)"),
        ({"final_rounds": 0}, "2.00x the baseline (each measured once)"),
        (
            {"final_rounds": 0, "study": {"status": "RUNNING"}},
            "2.00x the baseline (not yet re-measured)",
        ),
        ({"best": {"config": {"tp": 1}}}, "no speedup; the baseline is the best"),
        (
            {"best": {"config": {"tp": 1}}, "study": {"status": "RUNNING"}},
            "no speedup; the baseline is the best so far",
        ),
        ({"baseline": None}, ""),
        ({"speedup": None}, ""),
        ({"best": None}, ""),
        ({"study": None}, ""),
    ],
)
def test_a_speedup_states_how_it_was_measured(changes: dict[str, Any], line: str) -> None:
    document = {
        "study": {"status": "COMPLETED"},
        "best": {"config": {"tp": 2}},
        "baseline": {"config": {"tp": 1}},
        "speedup": 2.0,
        "final_rounds": 2,
    }
    assert speedup_line(document | changes) == line


def test_configs_show_gpus_and_across_studies_the_runner() -> None:
    found = trial(1).to_dict()
    study = {"model": "nano-llama", "cluster": "cpu-1x4", "runner": "simulated", "id": "s1"}
    console = terminal(200, 24)
    console.print(configs_table([found]))
    console.print(configs_table([{"study": study, "best": found}]))
    narrow = terminal(80, 24)
    narrow.print(configs_table([found]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "GPUs" in text
    assert "simulated" in text
    first = narrow.file.getvalue().splitlines()[1]  # type: ignore[attr-defined]
    assert first.split()[:9] == ["1", "tp1", "pp1", "dp8", "mb1", "acc8", "bf16", "8", "65.5k"]


def table_at(width: int, table: Any) -> str:
    console = terminal(width, 24)
    console.print(table)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (130, ["id", "name", "status", "model", "cluster", "runs", "speedup", "created"]),
        (80, ["id", "name", "status", "runs", "speedup"]),
        (62, ["id", "name", "status", "speedup"]),
    ],
)
def test_a_narrow_list_of_studies_keeps_ids_whole(width: int, heads: list[str]) -> None:
    study = {
        "id": "wx37vkv6fs",
        "name": "gpt2-medium-8xh100",
        "status": "COMPLETED",
        "model": "gpt2-medium",
        "cluster": "h100-sxm-1x8",
        "trials": {"COMPLETED": 20, "INFEASIBLE": 3},
        "speedup": 8.27,
        "result": {"final_rounds": 2, "speedup_low": 7.38, "speedup_high": 9.28},
        "created_at": "2026-11-29T18:02:41+00:00",
    }
    first, row = table_at(width, studies_table([study])).splitlines()
    assert first.split() == heads
    assert row.split()[0] == "wx37vkv6fs"
    assert "completed" in row
    assert "8.27x (95% CI 7.38-9.28)" in row


def test_a_narrow_table_across_studies_keeps_the_id_of_the_study() -> None:
    study = {"model": "nano-llama", "cluster": "cpu-1x4", "runner": "simulated", "id": "wx37vkv6fs"}
    lines = table_at(80, configs_table([{"study": study, "best": trial(1).to_dict()}])).splitlines()
    assert lines[0].split() == ["#", "config", "GPUs", "tokens/s", "model", "cluster", "study"]
    assert lines[1].split()[0] == "1"
    assert lines[1].rstrip().endswith("wx37vkv6fs")


def test_the_view_of_a_remote_study_equals_the_view_of_a_local_one() -> None:
    console = terminal(110, 24)
    view = LiveView(record().study, console=console)
    found = [trial(n, step_time_s=1.0 + n, micro_batch_size=1 + n) for n in range(5)]
    running = replace(found[4], status=TrialStatus.RUNNING, measurement=None)
    study = {"status": "RUNNING", "message": "on its way", "elapsed_s": 90.0}
    view.show({"study": study}, result_from(record(), (*found[:4], running)))
    console.print(view)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("running   ")
    assert "on its way" in text
    assert "best " in text
    assert re.search(r"4 +tp1.*running", text)


def test_the_runner_up_to_the_baseline_has_its_configs_figure() -> None:
    default, faster = trial(0, step_time_s=1.0), trial(1, step_time_s=0.8, micro_batch_size=2)
    best = default.to_dict() | {"number": 0}
    document = {"best": best, "baseline": best}
    ratio = faster.measurement.tokens_per_s / default.measurement.tokens_per_s
    assert ratio > 1
    odd_round = replace(
        faster, number=9, purpose=TrialPurpose.FINAL, measurement=slowed(faster.measurement, 0.1)
    )
    reported = baseline_runner_up(document, [default, faster, odd_round])
    assert reported == f"; trial 1 was {ratio:.2f}x as fast over 2 runs: not confirmed"
    assert (
        baseline_runner_up(document, [default, faster])
        == f"; trial 1 was {ratio:.2f}x as fast in one run: not confirmed"
    )
    slower = replace(faster, measurement=slowed(default.measurement, 2.0))
    assert (
        baseline_runner_up(document, [default, slower])
        == "; the next best, trial 1, reached 50% of the best tokens/s"
    )


def test_a_study_ends_in_ten_lines_with_the_answer_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    default = replace(trial(0, step_time_s=1.0), purpose=TrialPurpose.BASELINE)
    won = trial(3, step_time_s=0.5, micro_batch_size=2)
    failed = replace(trial(4, micro_batch_size=4), status=TrialStatus.FAILED, measurement=None)
    finals = [
        replace(t, number=n, purpose=TrialPurpose.FINAL)
        for n, t in ((5, default), (6, won), (7, won), (8, default))
    ]
    document = {
        "study": {"id": "abc", "name": "small", "status": "COMPLETED", "message": "done", "trainer": "native", "elapsed_s": 67.0, "ended_at": "x"},
        "best": won.to_dict(),
        "baseline": default.to_dict(),
        "speedup": 2.0,
        "speedup_low": 1.8,
        "speedup_high": 2.2,
        "final_rounds": 2,
        "notes": ["The machine became slower.", "Another note."],
        "infeasible": {"degrees": 12},
    }  # fmt: skip
    print_study(document, [t.to_dict() for t in (default, won, failed, *finals)])
    shown = capsys.readouterr()
    rows = [line for line in shown.out.splitlines() if line[:1].isdigit()]
    assert [row.split("\t")[2] for row in rows] == ["3", "3", "1"], (
        "one row per config, with its runs"
    )
    ending = shown.out.splitlines()[1 + len(rows) + 1 :] + shown.err.splitlines()
    assert len(ending) <= 10
    assert [line for line in ending if line.startswith("note")] == [
        "note       The machine became slower.",
        "note       Another note.",
    ]
    assert "failed     1 error (`autotune logs abc TRIAL` shows one)" in ending
    assert ending[0] == "change     mb 1 -> 2"
    assert ending[1] == "speedup    2.00x the baseline (95% CI 1.80-2.20, re-measured side by side)"
    assert ending[-1] == "export     autotune export abc --to native -o launch/"
    assert "12" not in shown.out.split("change")[1].replace("abc", "")
    print_study(document, [t.to_dict() for t in (default, won, *finals)], verbose=True)
    assert "12 combinations" in capsys.readouterr().out


def test_at_80_columns_the_answer_takes_ten_lines() -> None:
    """With rivals, failures, a note and a long config: every line but a note fits."""
    default = replace(trial(0, step_time_s=1.0), purpose=TrialPurpose.BASELINE)
    won = trial(1, step_time_s=0.5, tp=2, pp=2, dp=2, micro_batch_size=2, zero_stage=1)
    rival = trial(2, step_time_s=0.5, tp=2, pp=2, dp=2, micro_batch_size=4)
    failed = [replace(trial(n), status=TrialStatus.FAILED, measurement=None) for n in (3, 4)]
    document = {
        "study": {"id": "n474rnesy7", "name": "laptop", "status": "COMPLETED", "message": "the budget of 14 trials is spent", "trainer": "native", "elapsed_s": 967.0},
        "best": won.to_dict(), "baseline": default.to_dict(), "speedup": 2.0, "speedup_low": 1.81, "speedup_high": 2.21, "final_rounds": 6, "tied_with": [2],
        "notes": ["trial 7 was not re-measured", "another"],
    }  # fmt: skip
    found = [default, won, rival, *failed]
    lines = [f"{name:10} {text}" for name, text in answer_lines(document, found)]
    lines.append(f"export     {export_command(document)}")
    assert sum(-(-len(line) // 80) for line in lines) <= 10, lines
    for line in lines:
        assert len(line) <= 80 or line.startswith(("note", "tied")), line
    assert (
        "tied       statistically tied with trial 2; it differs in mb 2 -> 4, zero 1 -> 0" in lines
    )
    assert tied_line(document | {"tied_with": [2, 7]}, found).startswith(
        "statistically tied with trials 2 and 7; trial 2 differs in mb"
    )


def test_a_faster_config_than_the_best_has_a_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    default = replace(trial(0, step_time_s=1.0), purpose=TrialPurpose.BASELINE)
    tied = replace(
        trial(1, step_time_s=0.8, micro_batch_size=2),
        reason="tied with the best; expected gain 5.0% over the best so far",
    )
    slower = replace(
        trial(2, step_time_s=2.0, micro_batch_size=4),
        reason="expected gain 9.0% over the best so far",
    )
    document = {
        "study": {"id": "abc", "name": "small", "status": "COMPLETED", "message": "", "trainer": "native", "elapsed_s": 67.0, "ended_at": "x"},
        "best": default.to_dict(), "baseline": default.to_dict(), "tied_with": [1],
    }  # fmt: skip
    print_study(document, [t.to_dict() for t in (default, tied, slower)])
    notes = [
        line.split("\t")[-1] for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()
    ]
    assert notes == ["", "tied with the best", ""]


def test_a_ranking_marks_configs_stopped_early() -> None:
    ended, stopped = trial(1), replace(trial(2, micro_batch_size=2), status=TrialStatus.STOPPED)
    rows = [{**ended.to_dict(), "note": ""}, {**stopped.to_dict(), "note": "measured once"}]
    text = table_at(200, configs_table(rows))
    assert text.count("stopped early") == 1
    assert "stopped early; measured once" in text
    across = [{"study": dict.fromkeys(("model", "cluster", "runner", "id"), "x"), "best": rows[1]}]
    assert "stopped early" in table_at(200, configs_table(across))


def test_changes_use_the_words_of_labels() -> None:
    base = trial(0).config
    assert config_changes(base, base) == ""
    after = replace(base, zero_stage=3, compile=True, recompute="full", extra={"bucket_mb": 4})
    reported = config_changes(base, after)
    assert reported == "recompute none -> full, zero 0 -> 3, compile off -> on, bucket_mb None -> 4"
