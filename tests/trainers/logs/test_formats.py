"""What stock programs print is read as it is: dictionaries, progress bars, JSON lines, and patterns
in the units that programs use."""

from __future__ import annotations

import pytest

from autotune.errors import SpecError
from autotune.trainers import StepMetrics
from autotune.trainers.logs.formats import STOCK_LINES, ProgressBars, pattern_reader, stock_reader
from autotune.trainers.logs.pattern_proposals import is_known_log, propose_patterns


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}",
            StepMetrics(loss=2.31, grad_norm=1.2, ends_step=True),
        ),
        (
            "{'loss': '2.31', 'grad_norm': '1.2', 'learning_rate': '5e-05', 'epoch': '0.1'}",
            StepMetrics(loss=2.31, grad_norm=1.2, ends_step=True),
        ),
        ("{'loss': 4.5, 'learning_rate': 5e-05}", StepMetrics(loss=4.5, ends_step=True)),
        (
            "{'train_runtime': 10.0, 'train_samples_per_second': 12.5, 'train_loss': 2.0}",
            StepMetrics(samples_per_s=12.5),
        ),
        ('{"step": 3, "loss": 2.0}', StepMetrics(step=3, loss=2.0, ends_step=True)),
        ('{"loss": 2.0}', StepMetrics(loss=2.0)),
        ('{"step": 3, "tokens_per_s": 1000}', StepMetrics(step=3, tokens_per_s=1000.0)),
        ("{'eval_loss': 2.0, 'eval_runtime': 1.0}", None),
        ("  3%|▎         | 3/100 [00:01<00:40,  2.41it/s]", StepMetrics(step=3, ends_step=True)),
        ("  0%|          | 0/100 [00:00<?, ?it/s]", StepMetrics(step=0, ends_step=True)),
        (
            " 14%|█▍        | 1/7 [00:00<00:00, 16.99it/s, loss=5.6867]",
            StepMetrics(step=1, loss=5.6867, ends_step=True),
        ),
        (
            "Steps:  3%|▎ | 3/100 [00:01<00:40,  2.41it/s, lr=0.001, step_loss=0.482]",
            StepMetrics(step=3, loss=0.482, ends_step=True),
        ),
        (
            "  3%|▎         | 3/100 [00:01<00:40,  2.41it/s, val_loss=2.5]",
            StepMetrics(step=3, ends_step=True),
        ),
        (
            "Epoch 0:  12%|█▏  | 12/100 [00:24<02:56,  2.00s/it, loss=2.3]",
            StepMetrics(step=12, loss=2.3, ends_step=True),
        ),
        ("Loading checkpoint shards: 100%|██████████| 4/4 [00:01<00:00,  3.2it/s]", None),
        ("Map:  10%|█    | 1000/10000 [00:01<00:09, 999.2 examples/s]", None),
    ],
)
def test_lines_of_stock_programs(line: str, expected: StepMetrics | None) -> None:
    assert stock_reader()(line) == expected


def test_bars_of_further_epochs_go_on_counting_and_late_ranks_do_not_count() -> None:
    bars = ProgressBars()
    shown = [
        ("Epoch 0", 0),
        ("Epoch 0", 2),
        ("Epoch 0", 1),
        ("Epoch 0", 4),
        ("Epoch 1", 0),
        ("Epoch 1", 3),
    ]
    assert [
        bars.step_of(f"{what}: 10%|#   | {n}/4 [00:01<00:01, 2.0it/s]") for what, n in shown
    ] == [
        0,
        2,
        None,
        4,
        4,
        7,
    ]
    again = ProgressBars()
    assert [again.step_of(f"10%|# | {n}/3 [00:01<00:01, 2.0s/it]") for n in (1, 2, 3, 0, 2)] == [
        1,
        2,
        3,
        3,
        5,
    ]


@pytest.mark.parametrize(
    ("metrics", "line", "time_s"),
    [
        ({"step_time_us": r"([\d.]+) us"}, "step 3 2500.0 us", 0.0025),
        ({"step_time_ms": r"([\d.]+) ms"}, "step 3 2.5 ms", 0.0025),
        ({"tokens_per_s": r"([\d,]+) tok/s"}, "3 1,000 tok/s", 8.0),
        ({"tokens_per_s_per_gpu": r"([\d,]+) tok/s"}, "3 1,000 tok/s", 4.0),
        ({"steps_per_s": r"([\d.]+)it/s"}, " 3%|# | 3/100 [00:01<00:40,  4.00it/s]", 0.25),
        ({"step_time_s": r"([\d.]+)s/it"}, " 3%|# | 3/100 [00:01<00:40,  4.00s/it]", 4.0),
    ],
)
def test_times_and_rates_in_the_units_that_programs_print(
    metrics: dict[str, str], line: str, time_s: float
) -> None:
    found = pattern_reader(metrics)(line)
    assert found is not None
    assert not found.ends_step
    assert found.time_of(tokens_per_step=8000, sequences_per_step=4, num_ranks=2) == pytest.approx(
        time_s
    )


@pytest.mark.parametrize(
    ("word", "resolution_s"), [("0.41", 0.01), ("12", 1.0), ("1,024.5", 0.1), ("4e-3", 0.0)]
)
def test_a_printed_time_is_as_exact_as_its_last_digit(word: str, resolution_s: float) -> None:
    found = pattern_reader({"step_time_s": r"time ([-\d.,e]+)"})(f"time {word}")
    assert found is not None
    assert found.resolution_s == pytest.approx(resolution_s)


@pytest.mark.parametrize(
    ("metrics", "ending"),
    [
        ({"step": r"step (\d+)", "loss": r"loss ([\d.]+)"}, "step 3"),
        ({"loss": r"loss ([\d.]+)"}, "loss 2.0"),
    ],
)
def test_without_a_time_the_lines_that_number_steps_or_name_a_loss_end_them(
    metrics: dict[str, str], ending: str
) -> None:
    read = pattern_reader(metrics)
    found = read(ending)
    assert found is not None
    assert found.ends_step
    other = read("loss 2.0" if "step" in metrics else "nothing")
    assert other is None or not other.ends_step


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"token_per_s": "(x)"}, "did you mean tokens_per_s"),
        ({"grad_norm": r"norm ([\d.]+)"}, "must identify steps"),
    ],
)
def test_unknown_metrics_and_those_that_end_no_step_are_refused(
    metrics: dict[str, str], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        pattern_reader(metrics)


def bar(said: str, done: int, total: int) -> str:
    return f"{said}{100 * done // total}%|#   | {done}/{total} [00:01<00:01, 10.0it/s]"


def test_a_bar_whose_text_changes_is_one_bar() -> None:
    bars = ProgressBars()
    told = [bars.step_of(bar(f"step {i} loss {5 - i / 100:.3f}: ", i + 1, 30)) for i in range(6)]
    assert told == [1, 2, 3, 4, 5, 6]
    epochs = ProgressBars()
    shown = [(epoch, i) for epoch in (1, 2, 3) for i in range(5)]
    told = [
        epochs.step_of(bar(f"epoch {e} iter {i}: train loss {5 - i / 9:.3f}. lr 6e-4: ", i, 4))
        for e, i in shown
    ]
    assert told == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12]


def test_a_bar_inside_an_unfinished_one_counts_nothing() -> None:
    bars = ProgressBars()
    shown = [(1, 10), (2, 10), (1, 5), (5, 5), (3, 10), (9, 10), (10, 10), (1, 10), (2, 10)]
    assert [bars.step_of(bar("", done, total)) for done, total in shown] == [
        1,
        2,
        None,
        None,
        3,
        9,
        10,
        11,
        12,
    ]


def test_a_line_with_only_a_step_number_is_kept_beside_patterns_of_times() -> None:
    read = pattern_reader(
        {"step": r"\bbatch=([0-9]+)", "steps_per_s": r"t/batches_per_sec: ([0-9.]+)"}
    )
    assert read("[batch=3/90]:") == StepMetrics(step=3)
    assert read("    Train throughput/batches_per_sec: 7.69") == StepMetrics(steps_per_s=7.69)
    assert read("    Train throughput/device/batches_per_sec: 0.96") is None


COMPOSER = """\
[batch={n}/100]:
\t Train time/batch: {i}
\t Train loss/train/total: {loss}
\t Train loss/train/z_loss: 0.0{n}
\t Train throughput/batches_per_sec: 7.6923
\t Train throughput/device/batches_per_sec: 0.9615
\t Train l2_norm/grad/global: 1.{n}"""
OLMO = """\
2026-01-01 00:00:00.000\thost:0\tolmo.train:800\tINFO\t[step={n}/1000,epoch=0]
    train/CrossEntropyLoss={loss}
    train/ZLoss=0.0{n}
    throughput/device/tokens_per_second=1,234
    throughput/device/batches_per_second=0.3
    optim/total_grad_norm=1.{n}"""
OLMO_CORE = """\
[step={n}/1000,epoch=1,eta=0:10:00]
    train/CE loss={loss}
    train/Z loss=0.0{n}
    optim/total grad norm=1.{n}"""
OLMO_FIRST = OLMO.replace(",epoch=0", "")
FAIRSEQ = """\
2026-01-01 00:00:00 | INFO | train_inner | {{"epoch": 1, "update": 0.1, "loss": "{loss}", "nll_loss": "9.9", "wps": "1234", "ups": "2.1", "num_updates": "{n}", "gnorm": "1.{n}"}}"""
FAIRSEQ_LINES = "2026-01-01 00:00:00 | INFO | train_inner | epoch 001:   {n} / 160368 loss={loss}, ppl=611.12, wps=57.3, ups=0.04, wpb=1613, bsz=80, num_updates={n}, lr=2.8e-05, gnorm=1.{n}, train_wall=13, wall=1236"
FAIRSEQ_SIMPLE = "epoch 001:     {n} / 100 loss={loss}, nll_loss=9.9, ups=2.1, num_updates={n}, lr=0.1, gnorm=1.{n}"

TIMM = "Train: 0 [{n:>4d}/16 ({n:>3d}%)]  Loss: {loss} (6.9)  Time: 0.540s,  250.11/s  (0.8s, 150.22/s)  LR: 1.0e-05  grad_norm: 1.{n}"
LITGPT = "Epoch 1 | iter {n}0 step {n} | loss train: {loss}, val: n/a | iter time: 81.12 ms (step) grad_norm 1.{n}"
LITGPT_FIRST = (
    "iter {n}0 step {n}: loss {loss}, iter time: 81.12ms (optimizer.step) grad_norm 1.{n}"
)


@pytest.mark.parametrize(
    "form",
    [
        TIMM,
        LITGPT,
        LITGPT_FIRST,
        COMPOSER,
        OLMO,
        OLMO_FIRST,
        OLMO_CORE,
        FAIRSEQ,
        FAIRSEQ_LINES,
        FAIRSEQ_SIMPLE,
    ],
)
def test_logs_of_trainers_are_known_by_their_form_and_no_other_row_is_a_loss_or_a_step(
    form: str,
) -> None:
    read = stock_reader()
    lines = [
        line for n in (1, 2, 3) for line in form.format(n=n, i=n - 1, loss=f"5.{n}").splitlines()
    ]
    found = [told for line in lines if (told := read(line)) is not None]
    assert [told.step for told in found if told.ends_step] == [1, 2, 3]
    assert [told.loss for told in found if told.loss is not None] == [5.1, 5.2, 5.3]
    assert [told.grad_norm for told in found if told.grad_norm is not None] == [1.1, 1.2, 1.3]
    assert {told.counts for told in found} == {"steps"}
    assert all(
        told.time_of(tokens_per_step=1, sequences_per_step=1, num_ranks=1) is None for told in found
    )
    assert all(STOCK_LINES.may_tell(line) for line in lines if stock_reader()(line) is not None)
    assert all(
        any(mark in line for mark in STOCK_LINES.marks)
        for line in lines
        if stock_reader()(line) is not None
    )


@pytest.mark.parametrize(
    "form",
    [
        "Epoch: [{e}][{n:>4d}/5]\tTime  0.123 ( 0.456)\tData  0.012 ( 0.345)\tLoss 6.{n}1e+00 (6.9912e+00)\tAcc@1 0.00 ( 0.10)",
        "Epoch: [{e}]  [ {n}/5]  eta: 1:12:15  lr: 0.000001  loss: 6.{n}1 (6.9)  time: 0.4123  data: 0.0021  max mem: 15345",
        "Train: data epoch: [{e}]  [   {n}/5]  eta: 0:12:15  lr: 0.000001  loss: 6.{n}1  time: 0.4123  data: 0.0000",
        "2026/01/01 10:00:00 - mmengine - INFO - Epoch(train) [{e}][  {n}/5]  lr: 2.0e-05  eta: 1:10:00  time: 0.5123  loss: 6.{n}1",
        "[2026-01-01 10:00:00 swin] (main.py 180): INFO Train: [{e}/300][{n}/5]\teta 0:12:15 lr 0.000001\ttime 0.51 (0.89)\tloss 6.{n}1 (6.95)",
    ],
)
def test_numbers_of_loaded_batches_are_micro_batches_and_go_on_over_epochs(form: str) -> None:
    read = stock_reader()
    lines = [form.format(e=epoch, n=n) for epoch in (0, 1) for n in range(5)]
    assert is_known_log(lines), "no pattern takes the time of a batch for that of a step"
    assert propose_patterns(lines) == {}
    found = [told for line in lines if (told := read(line)) is not None]
    assert [told.step for told in found] == list(range(10))
    assert [told.loss for told in found] == [
        pytest.approx(6.01 + n / 10) for _ in (0, 1) for n in range(5)
    ]
    assert {told.counts for told in found} == {"micro-batches"}
    late = read(lines[2])
    assert late is not None
    assert late.step == 9, "of the epoch before, by another rank: no further step"
    assert all(map(STOCK_LINES.may_tell, lines))
    assert all(any(mark in line for mark in STOCK_LINES.marks) for line in lines)


@pytest.mark.parametrize(
    "line",
    [
        "Test: [  3/98]  eta: 0:00:12  loss: 0.5 (0.7)  time: 0.1",
        "Epoch(val) [1][  50/200]  eta: 0:10:00  time: 0.5  loss: 1.2",
        '2026-01-01 | INFO | valid | {"epoch": 1, "valid_loss": "5.1", "valid_num_updates": "12"}',
        '2026-01-01 | INFO | train | {"epoch": 1, "train_loss": "5.1", "train_num_updates": "100"}',
        "    Train throughput/device/batches_per_sec: 0.96",
        "    train/Z loss=0.01",
    ],
)
def test_rows_of_other_things_are_no_steps(line: str) -> None:
    assert stock_reader()(line) is None


def test_bars_in_a_log_of_lightnings_count_micro_batches_and_others_say_nothing_of_it() -> None:
    shown = bar("Epoch 0: ", 3, 100)
    read = stock_reader()
    assert read("GPU available: False, used: False") is None
    told = read(shown)
    assert told is not None
    assert (told.step, told.counts) == (3, "micro-batches")
    plain = stock_reader()(shown)
    assert plain is not None
    assert plain.counts == ""
