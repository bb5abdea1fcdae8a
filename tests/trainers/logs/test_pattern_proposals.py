"""Patterns that are guessed from a log read what the log says; a log without optimizer steps gets
none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.trainers.logs.formats import pattern_reader
from autotune.trainers.logs.pattern_proposals import METRICS, propose_patterns, steps_read
from autotune.trainers.logs.step_metrics import StepMetrics

NANO_GPT = """\
step 0: train loss 10.9897, val loss 10.9883
iter 0: loss 10.9896, time 41374.54ms, mfu -100.00%
iter 1: loss 10.9765, time 120.33ms, mfu -100.00%
iter 2: loss 10.8211, time 119.87ms, mfu -100.00%
iter 3: loss 10.6021, time 121.10ms, mfu 1.25%
"""
TORCHTITAN = """\
[rank0]:[titan] 2025-03-06 10:42:11,406 - root - INFO - Training starts at step 1.
[rank0]:[titan] 2025-03-06 10:42:13,312 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1376  \x1b[33mmemory:  1.50GiB(1.90%)  \x1b[34mtps: 7,173  \x1b[35mmfu: 0.04%\x1b[39m
[rank0]:[titan] 2025-03-06 10:42:13,951 - root - INFO - \x1b[31mstep:  2  \x1b[32mloss:  8.0913  \x1b[33mmemory:  1.66GiB(2.10%)  \x1b[34mtps: 25,637  \x1b[35mmfu: 0.15%\x1b[39m
[rank0]:[titan] 2025-03-06 10:42:14,588 - root - INFO - \x1b[31mstep:  3  \x1b[32mloss:  7.9934  \x1b[33mmemory:  1.66GiB(2.10%)  \x1b[34mtps: 25,731  \x1b[35mmfu: 0.15%\x1b[39m
"""
MEGATRON = """\
 [2025-03-06 10:42:13] iteration        1/     100 | consumed samples:           32 | elapsed time per iteration (ms): 8123.4 | throughput per GPU (TFLOP/s/GPU): 1.2 | learning rate: 1.000000E-06 | global batch size:    32 | lm loss: 1.083351E+01 | loss scale: 1.0 | grad norm: 21.324 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2025-03-06 10:42:14] iteration        2/     100 | consumed samples:           64 | elapsed time per iteration (ms): 312.7 | throughput per GPU (TFLOP/s/GPU): 31.2 | learning rate: 2.000000E-06 | global batch size:    32 | lm loss: 1.071210E+01 | loss scale: 1.0 | grad norm: 19.870 | number of skipped iterations:   0 | number of nan iterations:   0 |
 [2025-03-06 10:42:15] iteration        3/     100 | consumed samples:           96 | elapsed time per iteration (ms): 310.9 | throughput per GPU (TFLOP/s/GPU): 31.3 | learning rate: 3.000000E-06 | global batch size:    32 | lm loss: 9.640043E+00 | loss scale: 1.0 | grad norm: 12.003 | number of skipped iterations:   0 | number of nan iterations:   0 |
"""
LIGHTNING = """\
Epoch 0:  10%|█         | 10/100 [00:01<00:09,  9.87it/s, v_num=0, train_loss=2.310]
Epoch 0:  11%|█         | 11/100 [00:01<00:09,  9.88it/s, v_num=0, train_loss=2.290]
Epoch 0:  12%|█▏        | 12/100 [00:01<00:08,  9.91it/s, v_num=0, train_loss=2.250]
"""
HF_TRAINER = """\
{'loss': 10.83, 'grad_norm': 2.125, 'learning_rate': 5e-05, 'epoch': 0.01}
{'loss': 10.71, 'grad_norm': 2.031, 'learning_rate': 4.5e-05, 'epoch': 0.02}
{'loss': 10.42, 'grad_norm': 1.890, 'learning_rate': 4e-05, 'epoch': 0.03}
"""
HF_TRAINER_5 = """\
{'loss': '10.83', 'grad_norm': '2.125', 'learning_rate': '5e-05', 'epoch': '0.01'}
{'loss': '10.71', 'grad_norm': '2.031', 'learning_rate': '4.5e-05', 'epoch': '0.02'}
"""
PLAIN = """\
Epoch 1 step 5 loss=3.2 (0.12 s/step)
Epoch 1 step 6 loss=3.1 (0.11 s/step)
Epoch 1 step 7 loss=3.0 (0.12 s/step)
"""
DEEPSPEED = """\
steps: 10 loss: 5.1021 iter time (s): 0.812 samples/sec: 19.704
steps: 11 loss: 5.0934 iter time (s): 0.809 samples/sec: 19.777
"""
NANOTRON = """\
03/06/2025 10:42:13 [INFO|DP=0|PP=0|TP=0]: iteration: 1 / 100 | consumed_tokens: 32.8K | elapsed_time_per_iteration_ms: 511 | tokens_per_sec: 64.1K | tokens_per_sec_per_gpu: 8.01K | global_batch_size: 64 | lm_loss: 10.8 | lr: 1e-05
03/06/2025 10:42:14 [INFO|DP=0|PP=0|TP=0]: iteration: 2 / 100 | consumed_tokens: 65.5K | elapsed_time_per_iteration_ms: 498 | tokens_per_sec: 65.8K | tokens_per_sec_per_gpu: 8.22K | global_batch_size: 64 | lm_loss: 10.7 | lr: 2e-05
"""
MNIST = """\
Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.304251
Train Epoch: 1 [640/60000 (1%)]\tLoss: 1.831022
"""
OPEN_CLIP = """\
2026-01-01,10:00:01 | INFO | Train Epoch: 0 [  2560/10968539 (0%)] Data (t): 0.051 Batch (t): 0.443, 5567.2/s, 695.9/s/gpu LR: 0.000001 Logit Scale: 14.286 Loss: 8.417 (8.3)
2026-01-01,10:00:02 | INFO | Train Epoch: 0 [  5120/10968539 (0%)] Data (t): 0.049 Batch (t): 0.451, 5567.2/s, 695.9/s/gpu LR: 0.000001 Logit Scale: 14.286 Loss: 8.301 (8.3)
"""
LLAMA2_C = """\
step 0: train loss 10.4012, val loss 10.4110
0 | loss 10.4012 | lr 0.000000e+00 | 9412.31ms | mfu -100.00%
1 | loss 10.3012 | lr 5.000000e-07 | 412.31ms | mfu -100.00%
2 | loss 10.2012 | lr 1.000000e-06 | 409.12ms | mfu 5.12%
"""
NEMO = """\
Training epoch 0, iteration 1/99 | lr: 1e-06 | global_batch_size: 128 | global_step: 1 | reduced_train_loss: 10.92 | train_step_timing in s: 5.234 | consumed_samples: 256
Training epoch 0, iteration 2/99 | lr: 2e-06 | global_batch_size: 128 | global_step: 2 | reduced_train_loss: 10.61 | train_step_timing in s: 1.234 | consumed_samples: 384
"""
NEMO_BARS = """\
Epoch 0: :   0%|          | 4/100000 [00:10<, v_num=1, reduced_train_loss=10.50, global_step=3.000, consumed_samples=512.0, train_step_timing in s=1.251]
Epoch 0: :   0%|          | 5/100000 [00:11<, v_num=1, reduced_train_loss=10.40, global_step=4.000, consumed_samples=640.0, train_step_timing in s=1.239]
"""
INTERNEVO = """\
2026-01-01 12:26:58,293\tINFO train.py:323 in record_current_batch_training_metrics -- tflops=63.5 step=4 loss=11.5 tgs (tokens/gpu/second)=4240.4 lr=4e-07 fwd_bwd_time=3.6
2026-01-01 12:27:02,293\tINFO train.py:323 in record_current_batch_training_metrics -- tflops=63.5 step=5 loss=11.4 tgs (tokens/gpu/second)=4250.5 lr=4e-07 fwd_bwd_time=3.6
"""
RATES = """\
update 3 | 1,234 tok/s | gnorm 1.5 | loss 2.5
update 4 | 1,250 tok/s | gnorm 1.4 | loss 2.4
"""


@pytest.mark.parametrize(
    ("log", "last"),
    [
        (NANO_GPT, StepMetrics(step=3, loss=10.6021, step_time_s=0.1211)),
        (
            TORCHTITAN,
            StepMetrics(
                step=3, loss=7.9934, tokens_per_s_per_gpu=25731, peak_memory_bytes=1.66 * 2**30
            ),
        ),
        (MEGATRON, StepMetrics(step=3, loss=9.640043, step_time_s=0.3109, grad_norm=12.003)),
        (LIGHTNING, StepMetrics(step=12, loss=2.25, steps_per_s=9.91)),
        (HF_TRAINER, StepMetrics(loss=10.42, grad_norm=1.89)),
        (HF_TRAINER_5, StepMetrics(loss=10.71, grad_norm=2.031)),
        (PLAIN, StepMetrics(step=7, loss=3.0, step_time_s=0.12)),
        (DEEPSPEED, StepMetrics(step=11, loss=5.0934, step_time_s=0.809)),
        (NANOTRON, StepMetrics(step=2, loss=10.7, step_time_s=0.498)),
        (MNIST, StepMetrics(loss=1.831022)),
        (OPEN_CLIP, StepMetrics(loss=8.301, step_time_s=0.451)),
        (LLAMA2_C, StepMetrics(step=2, loss=10.2012, step_time_s=0.40912)),
        (NEMO, StepMetrics(step=2, loss=10.61, step_time_s=1.234)),
        (NEMO_BARS, StepMetrics(step=5, loss=10.4, step_time_s=1.239)),
        (INTERNEVO, StepMetrics(step=5, loss=11.4, tokens_per_s_per_gpu=4250.5)),
        (RATES, StepMetrics(step=4, loss=2.4, tokens_per_s=1250, grad_norm=1.4)),
    ],
)
def test_what_programs_print_is_read_by_the_patterns_that_are_proposed(
    log: str, last: StepMetrics
) -> None:
    lines = log.splitlines()
    read = pattern_reader(propose_patterns(lines))(lines[-1])
    assert read is not None
    for name in (
        "step",
        "loss",
        "grad_norm",
        "steps_per_s",
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "step_time_s",
    ):
        assert getattr(read, name) == (
            None if getattr(last, name) is None else pytest.approx(getattr(last, name))
        ), name
    assert read.peak_memory_bytes == (
        last.peak_memory_bytes and pytest.approx(last.peak_memory_bytes)
    )


@pytest.mark.parametrize(
    ("said", "metric"),
    [
        ("ms/step: 38.{n}", "step_time_ms"),
        ("sec/step=0.38{n}", "step_time_s"),
        ("it/s: 2.{n}", "steps_per_s"),
        ("tokens/sec=10{n}0", "tokens_per_s"),
        ("samples/sec: 1{n}.5", "samples_per_s"),
    ],
)
def test_a_unit_that_names_the_number_behind_it_does_not_measure_the_loss_before_it(
    said: str, metric: str
) -> None:
    lines = [f"step {n} loss 2.{90 - n} {said.format(n=n)}" for n in range(1, 6)]
    found = propose_patterns(lines)
    assert set(found) == {"step", metric, "loss"}
    read = pattern_reader(found)(lines[0])
    assert read is not None
    assert getattr(read, metric.replace("_ms", "_s")) == pytest.approx(
        {
            "step_time_ms": 0.0381,
            "step_time_s": 0.381,
            "steps_per_s": 2.1,
            "tokens_per_s": 1010.0,
            "samples_per_s": 11.5,
        }[metric]
    )


def test_a_loss_that_stands_before_a_bare_unit_is_no_rate() -> None:
    lines = [f"step {n} loss 2.{90 - n} it/s 1.{n}" for n in range(1, 6)]
    assert (
        "2.8"
        not in str(pattern_reader(propose_patterns(lines))(lines[0]))
        .partition("steps_per_s")[2]
        .partition(",")[0]
    )


def test_the_patterns_are_such_as_a_person_would_write() -> None:
    assert propose_patterns(PLAIN.splitlines()) == {
        "step": r"\bstep ([0-9]+)",
        "step_time_s": "([0-9.]+) s/step",
        "loss": r"\bloss=([0-9.]+|nan|inf)",
    }


def test_a_validation_loss_is_no_training_loss() -> None:
    assert ": loss" in propose_patterns(NANO_GPT.splitlines())["loss"], (
        "told from `train loss` and `val loss`"
    )
    assert (
        propose_patterns(["val loss 3.1", "val loss 3.0", "eval_loss=2.9", "eval_loss=2.8"]) == {}
    )


def test_steps_that_begin_anew_in_each_epoch_and_clocks_are_left_out() -> None:
    lines = [
        f"epoch {e} step {s} loss {4 - e - s / 10} elapsed {10 * e + 3 * s:.1f}s"
        for e in range(2)
        for s in range(3)
    ]
    assert set(propose_patterns(lines)) == {"loss"}


def test_a_batch_of_an_epochs_batches_is_a_step_and_the_epochs_own_time_is_not_its_time() -> None:
    lines = [
        f"| epoch   1 | {b:5d}/{171:5d} batches | ms/batch {b + 40:5.2f} | loss {7 - b / 9:5.2f}"
        for b in (2, 3, 4)
    ]
    ends = [
        "| end of epoch   1 | time: 75.31s | valid loss  6.10",
        "| end of epoch   2 | time: 74.90s | valid loss  5.93",
    ]
    proposal = propose_patterns([*lines, *ends])
    found = pattern_reader(proposal)(lines[-1])
    assert found is not None
    assert (found.step, found.step_time_s, found.loss) == (4, pytest.approx(0.044), 6.56)
    assert (
        pattern_reader(proposal)("| epoch   1 |  1200/29831 batches | ms/batch 4.00 | loss  6.60")
        is not None
    )
    assert propose_patterns(ends) == {}
    assert propose_patterns(["epoch 3 took 12.1 s", "epoch 4 took 12.3 s"]) == {}


def test_the_time_of_a_pass_is_no_steps_and_a_step_takes_as_long_as_each_of_its_passes() -> None:
    passes = "forward_time: {0}.4sec, backward_time: {0}.7sec"
    line = "train {0}th step, total_latency: 1{0}.9sec, " + passes + ", step_time: 0.{0}sec"
    assert propose_patterns([line.format(i) for i in range(1, 7)]) == {}
    assert propose_patterns([f"{passes.format(i)}, took 1,00{i}.5 s" for i in range(1, 7)])
    whole = [f"{passes.format(i)}, step_time: 19.{i}sec" for i in range(1, 7)]
    assert propose_patterns(whole) == {"step_time_s": r"\bstep_time: ([0-9.]+)sec"}


def test_bars_that_prepare_the_data_are_no_steps() -> None:
    bars = [
        f"Tokenizing train dataset:  {p}%|███  | {p}0/1000 [00:0{s}<00:01, 3234.65 examples/s]"
        for s, p in enumerate((10, 40, 90))
    ]
    loading = [
        f"Loading weights:  {p}%|███  | {p}/100 [00:00<00:00, 8167.75it/s]" for p in (10, 40, 90)
    ]
    assert propose_patterns([*bars, *loading]) == {}
    training = [f"{p}%|███  | {p}/100 [00:00<00:00, 3.75it/s]" for p in (10, 40, 90)]
    assert "steps_per_s" in propose_patterns([*bars, *training])


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["iter 1: loss 3.0"],
        ["loading shard 1", "loading shard 2", "loading shard 3"],
        ["GPU memory: 12 GiB", "GPU memory: 13 GiB"],
        ["Step 1: download", "Step 2: prepare"],
        ["Downloading 33% 12.3MB/s", "Downloading 66% 12.1MB/s"],
        ["hello world 3.4", "4 5 6", "\x00\x01", "nan nan"],
        ["WARNING:root:retry 3 in 0.5s", "WARNING:root:retry 4 in 1.0s"],
    ],
)
def test_what_is_no_training_gets_no_proposal(lines: list[str]) -> None:
    assert propose_patterns(lines) == {}


WORDS = st.sampled_from(
    [
        "loss",
        "step",
        "iter",
        "time",
        "s/it",
        "it/s",
        "grad_norm",
        "mem",
        "GiB",
        ":",
        "=",
        "|",
        "/",
        "ms",
        "(",
        "tok/s",
        "nan",
    ]
)
NUMBERS = st.one_of(st.integers(-5, 99999).map(str), st.floats(-10, 1e6).map(str))
LINES = st.lists(
    st.lists(st.one_of(WORDS, NUMBERS, st.text(max_size=5)), max_size=12).map(" ".join), max_size=12
)


@given(LINES)
def test_a_proposal_is_allowed_and_reads_steps_whatever_the_lines(lines: list[str]) -> None:
    proposal = propose_patterns(lines)
    assert list(proposal) == [metric for metric in METRICS if metric in proposal]
    assert not proposal or steps_read(proposal, lines) >= 2


def log(write: Callable[[int], str]) -> list[str]:
    return [line for i in range(1, 9) for line in write(i).splitlines()]


ROWS: list[tuple[str, Callable[[int], str], dict[str, float]]] = [
    ("rates of the job and of a device, rows of their own", lambda i: f"[batch={i}/90]:\n  Train loss/train/total: {6 - i / 100:.4f}\n  Train throughput/batches_per_sec: 7.6{i}\n  Train throughput/device/batches_per_sec: 0.9{i}", {"step": 8, "steps_per_s": 7.68, "loss": 5.92}),
    ("the device's row first", lambda i: f"[batch={i}/90]:\n  Train throughput/device/batches_per_sec: 0.9{i}\n  Train throughput/batches_per_sec: 7.6{i}", {"step": 8, "steps_per_s": 7.68}),
    ("Z loss and tokens of a device", lambda i: f"[step={i}/99]\n  train/CrossEntropyLoss={9 - i / 9:.3f}\n  train/ZLoss=0.{i}1\n  throughput/device/tokens_per_second=12{i}00.0", {"step": 8, "loss": 8.111, "tokens_per_s_per_gpu": 12800}),
    ("CE loss and TPS", lambda i: f"[step={i}/99,epoch=1]\n  optim/total grad norm=0.{i}\n  train/CE loss={9 - i / 9:.3f}\n  train/Z loss=0.00{i}1\n  throughput/device/TPS=12,{i}00\n  throughput/device/data loading (s)=0.00{i}", {"step": 8, "loss": 8.111, "tokens_per_s_per_gpu": 12800, "grad_norm": 0.8}),
    ("a clock and a running mean", lambda i: f"step:{i}/99 train_loss:{9 - i / 9:.3f} train_time:{95 * i}ms step_avg:95.{i}ms", {"step": 8, "loss": 8.111}),
    ("time of loading beside that of a batch", lambda i: f"step {i} loss {9 - i / 9:.3f} data time: 0.01{i}s batch time: 0.2{i}s", {"step": 8, "loss": 8.111, "step_time_s": 0.28}),
    ("losses of routers", lambda i: f"step {i} aux loss 0.0{i} z loss 0.00{i} router loss 0.1{i} loss {9 - i / 9:.3f}", {"step": 8, "loss": 8.111}),
    ("an evaluation now and then", lambda i: (f"step {i - 1}: train loss 5.{i}, val loss 5.6\n" if i % 4 == 1 else "") + f"{i} | loss {9 - i / 9:.4f} | lr 1.0e-04 | 12.0{i}ms", {"step": 8, "step_time_s": 0.01208, "loss": 8.1111}),
    ("rates with a letter behind them", lambda i: f"[rank 0] Step: {i} | Loss: {9 - i / 9:.4f} | Global batch size: 8.2K | Tokens/s: 12.{i}K | Tokens/s/GPU: 1.{i}K", {"step": 8, "loss": 8.1111}),
]  # fmt: skip


@pytest.mark.parametrize(("write", "last"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_each_step_is_read_once_and_by_its_own_figures(
    write: Callable[[int], str], last: dict[str, float]
) -> None:
    lines = log(write)
    proposal = propose_patterns(lines)
    assert steps_read(proposal, lines) == 8
    read, held = pattern_reader(proposal), dict[str, float]()
    for line in write(8).splitlines():
        if (found := read(line)) is not None:
            held |= {
                f.name: getattr(found, f.name)
                for f in fields(found)
                if type(getattr(found, f.name)) in (int, float)
            }
    held = {name: value for name, value in held.items() if name != "resolution_s"}
    assert held == pytest.approx(last)
