"""A trial on one rank: what it measures, when it ends, what it refuses, and that it leaves nothing
behind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from autotune.cost import model_flops_per_token
from autotune.errors import RunnerError
from autotune.ports import TrialRequest
from autotune.spec import FailureKind, Measurement, MeasureSpec, ParallelConfig
from autotune_workers.process.machine import status_bytes
from autotune_workers.training.run_trial import RankContext, StepReport, TrialFailed, run_trial
from tests.workers.trial_ranks import request, run_jobs

PLAIN = "micro_batch_size=2,precision=fp32"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[RankContext]:
    """A gang of one in this process."""
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        yield RankContext(rank=0, world_size=1, device=torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def reference_losses(asked: TrialRequest, context: RankContext, steps: int) -> tuple[float, ...]:
    """Losses of the first optimizer steps when one fp32 rank trains on the same data from the same
    weights, without any knob."""
    batch, size = asked.config.global_batch_size, asked.config.micro_batch_size
    config = ParallelConfig(
        micro_batch_size=size, accumulation_steps=batch // size, precision="fp32"
    )
    measure = replace(
        asked.measure, warmup_steps=0, min_steps=steps, max_steps=steps, precision=0.0
    )
    return run_trial(
        replace(asked, config=config, measure=measure), context, go_on
    ).measurement.losses


def go_on(_: StepReport) -> bool:
    return True


def test_measurement_says_what_was_done(alone: RankContext) -> None:
    asked = request("llama", PLAIN, measure=MeasureSpec(warmup_steps=2, min_steps=3, max_steps=3))
    steps: list[StepReport] = []
    result = run_trial(asked, alone, lambda step: steps.append(step) or True)
    seen = result.measurement
    assert [s.step for s in steps] == [0, 1, 2, 3, 4]
    assert seen.step_times_s == tuple(s.time_s for s in steps[2:])
    assert seen.losses == tuple(s.loss for s in steps[2:])
    assert all(s.finite and not s.skipped for s in steps)
    assert seen.tokens_per_step == 2 * 32
    assert seen.tokens_per_s == pytest.approx(64 / np.mean(seen.step_times_s))
    assert seen.flops_per_token == model_flops_per_token(asked.workload.model, 32)
    assert seen.mfu == pytest.approx(seen.tokens_per_s * seen.flops_per_token / 1e11)
    assert seen.setup_s > 0
    assert result.stopped == ""
    assert steps[0].loss == pytest.approx(math.log(256), rel=0.01), "an untrained model guesses"


def test_runner_can_ask_for_the_end(alone: RankContext) -> None:
    result = run_trial(request("llama", PLAIN, steps=50), alone, lambda step: step.step < 2)
    assert len(result.measurement.losses) == 3
    assert result.stopped


@pytest.mark.thorough
def test_trial_that_cannot_win_ends_early(alone: RankContext) -> None:
    result = run_trial(request("llama", PLAIN, steps=6, beat_step_time_s=1e-9), alone, go_on)
    assert "cannot win" in result.stopped
    assert result.measurement.step_times_s


@pytest.mark.thorough
def test_batches_are_the_same_for_every_cut_of_a_step(alone: RankContext) -> None:
    """Losses before any update: the same sequences, whatever the micro-batch."""
    losses = [
        run_trial(
            request("gpt", f"precision=fp32,{cut}", trainer_options={"learning_rate": 0.0}),
            alone,
            go_on,
        ).measurement.losses
        for cut in ("micro_batch_size=4", "micro_batch_size=1,accumulation_steps=4")
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][0] != losses[0][1], "but other ones in every step"


@pytest.mark.thorough
def test_seed_moves_weights_and_data(alone: RankContext) -> None:
    first, again, other = (
        run_trial(request("gpt", PLAIN, seed=s), alone, go_on).measurement.losses for s in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.thorough
def test_reference_is_one_fp32_rank_without_knobs(alone: RankContext) -> None:
    asked = request(
        "llama", "dp=2,micro_batch_size=1,accumulation_steps=2,precision=bf16,zero_stage=3"
    )
    plain = run_trial(request("llama", "micro_batch_size=4,precision=fp32"), alone, go_on)
    np.testing.assert_allclose(
        reference_losses(asked, alone, 2), plain.measurement.losses, rtol=1e-5
    )


def test_diverging_training_fails_with_what_it_saw(alone: RankContext) -> None:
    asked = request("llama", PLAIN, steps=40, trainer_options={"learning_rate": 1e8})
    with pytest.raises(TrialFailed) as caught:
        run_trial(asked, alone, go_on)
    failure = caught.value.failure
    assert failure.kind is FailureKind.DIVERGED
    assert failure.step is not None
    assert failure.step >= 1
    assert caught.value.measurement is not None
    assert len(caught.value.measurement.losses) == failure.step + 1


@pytest.mark.thorough
def test_not_a_number_fails_at_once(alone: RankContext) -> None:
    asked = request("llama", PLAIN, steps=40, trainer_options={"learning_rate": 1e38})
    with pytest.raises(TrialFailed, match="finite") as caught:
        run_trial(asked, alone, go_on)
    assert caught.value.failure.kind is FailureKind.DIVERGED
    assert caught.value.failure.step == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "config", "law"),
    [
        ("llama", "micro_batch_size=2,precision=tf32", "tf32"),
        ("llama", "micro_batch_size=2,precision=fp8", "fp8"),
        ("llama", "micro_batch_size=2,precision=fp32,virtual_stages=2", "virtual_stages"),
        ("llama", "dp=2,precision=fp32", "number of ranks"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    alone: RankContext, model: str, config: str, law: str
) -> None:
    with pytest.raises(TrialFailed, match=law) as caught:
        run_trial(request(model, config), alone, go_on)
    assert caught.value.failure.kind is FailureKind.INVALID


@pytest.mark.thorough
@pytest.mark.parametrize("value", [math.nan, -1.0, "fast"])
@pytest.mark.parametrize("option", ["learning_rate", "loss_scale"])
def test_an_option_is_a_number(alone: RankContext, option: str, value: object) -> None:
    with pytest.raises(TrialFailed, match=option):
        run_trial(request("llama", PLAIN, trainer_options={option: value}), alone, go_on)


@pytest.mark.thorough
def test_refusals_of_gangs_come_from_every_rank_before_anything_is_built(tmp_path: Path) -> None:
    refused = {
        "pp=2,precision=fp32,micro_batch_size=4": "micro-batches",
        "pp=2,precision=fp32,accumulation_steps=3,pp_schedule=interleaved_1f1b,virtual_stages=4": "num_layers",
        "pp=2,precision=fp32,accumulation_steps=2,pp_schedule=interleaved_zero_bubble,virtual_stages=2,recompute=full": "recompute",
        "pp=2,precision=fp32,accumulation_steps=2,pp_schedule=interleaved_zero_bubble,virtual_stages=2,compile=true": "compile",
        "pp=2,precision=fp32,accumulation_steps=2,pp_schedule=interleaved_zero_bubble,virtual_stages=2,zero_stage=3": "zero_stage",
        "pp=2,precision=fp32,accumulation_steps=2,virtual_stages=2": "virtual_stages",
        "dp=2,ep=2,precision=fp32": "num_experts",
    }
    jobs = [{"model": "llama", "config": config} for config in refused]
    good = {"model": "llama", "config": "dp=2,precision=fp32"}
    results = run_jobs({2: [*jobs, good]}, tmp_path)
    assert len(results) == len(jobs) + 1
    for result in results[:-1]:
        assert result["failure"]["kind"] == "INVALID", result
        assert refused[result["config"]] in result["failure"]["message"]
    assert "measurement" in results[-1]


@pytest.mark.thorough
def test_profile_adds_up_to_the_step(alone: RankContext) -> None:
    measurement = run_trial(request("llama", PLAIN, profile=True), alone, go_on).measurement
    parts = dict(measurement.breakdown_s)
    overlapped = parts.pop("communication_overlapped")
    assert set(parts) == {"compute", "optimizer", "communication", "bubble", "host", "input"}
    assert parts["compute"] > 0
    assert parts["optimizer"] > 0
    assert parts["bubble"] == 0
    assert 0 <= overlapped <= sum(parts.values())


@pytest.mark.thorough
def test_peak_memory_is_the_trials_own(alone: RankContext) -> None:
    """A process that once held a lot, and holds a lot now, measures no more than a fresh one."""
    ballast = torch.ones(1 << 27)  # 512 MiB, held
    del ballast
    held = torch.ones(1 << 25)
    peak = run_trial(request("llama", PLAIN), alone, go_on).measurement.peak_memory_bytes
    if status_bytes("VmHWM") is None or peak is None:
        pytest.skip("this system does not tell the peak of a process")
    assert held.sum() > 0
    assert 0 < peak < 128 << 20


@pytest.mark.thorough
def test_larger_batches_take_more_memory(alone: RankContext) -> None:
    small, large = (
        run_trial(
            request("llama", f"precision=fp32,micro_batch_size={size}"), alone, go_on
        ).measurement.peak_memory_bytes
        for size in (1, 128)
    )
    if small is None or large is None:
        pytest.skip("this system does not tell the peak of a process")
    # 128 sequences x 32 tokens x 256 logits x 4 bytes, held at least twice
    assert large - small > 2 * 127 * 32 * 256 * 4 / 2


@pytest.mark.thorough
def test_text_and_token_files_are_read(alone: RankContext, tmp_path: Path) -> None:
    text, ids = tmp_path / "text.txt", tmp_path / "ids.bin"
    text.write_bytes(b"a rose is a rose is a rose; " * 40)
    np.frombuffer(text.read_bytes(), dtype=np.uint8).astype("<u2").tofile(ids)
    losses = [
        run_trial(request("llama", PLAIN, data=str(path)), alone, go_on).measurement.losses
        for path in (text, ids)
    ]
    assert losses[0] == losses[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("content", "name", "problem"),
    [
        (b"short", "a.txt", "more than seq_len"),
        (None, "missing.txt", "cannot be read"),
        (b"\xff\xff" * 99, "a.bin", "vocab_size"),
    ],
)
def test_unusable_data_is_an_error_of_the_caller(
    alone: RankContext, tmp_path: Path, content: bytes | None, name: str, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RunnerError, match=problem):
        run_trial(request("llama", PLAIN, data=str(tmp_path / name)), alone, go_on)


@pytest.mark.thorough
def test_trial_leaves_the_rank_as_it_was(alone: RankContext) -> None:
    groups = dict(dist.distributed_c10d._world.pg_map)
    precision = torch.get_float32_matmul_precision()
    for config in (PLAIN, f"{PLAIN},zero_stage=3", f"{PLAIN},zero_stage=1,recompute=full"):
        run_trial(request("llama", config), alone, go_on)
    assert dict(dist.distributed_c10d._world.pg_map) == groups
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.slow
def test_compiled_layers_train_alike(tmp_path: Path) -> None:
    base = "dp=2,micro_batch_size=2,precision=fp32"
    ways = (
        "compile=true",
        "compile=true,zero_stage=3,recompute=full",
        "compile=true,activation_budget=20",
    )
    configs = [base, *(f"{base},{way}" for way in ways)]
    plain, *compiled = run_jobs({2: [{"model": "llama", "config": c} for c in configs]}, tmp_path)
    for result in compiled:
        np.testing.assert_allclose(
            result["measurement"]["losses"], plain["measurement"]["losses"], rtol=2e-5
        )


@pytest.mark.thorough
def test_gang_reports_every_rank_and_ranks_and_accumulation_tell_the_same_gradient_noise(
    tmp_path: Path,
) -> None:
    # one noise scale for all steps
    still = {
        "steps": 60,
        "trainer_options": {"learning_rate": 0.0},
    }

    def job(config: str, **changes: Any) -> dict[str, Any]:
        return {
            "model": "llama",
            "config": f"{config},micro_batch_size=4,precision=fp32",
            "changes": still | changes,
        }

    accumulated, ranks = run_jobs(
        {1: [job("accumulation_steps=2")], 2: [job("dp=2", profile=True)]}, tmp_path
    )
    assert ranks["measurement"]["num_ranks"] == 2
    assert len(ranks["measurement"]["rank_peak_memory_bytes"]) in (0, 2)
    peaks = ranks["measurement"]["step_peak_memory_bytes"]
    assert len(peaks) in (0, len(ranks["measurement"]["step_times_s"]))
    assert peaks == sorted(peaks)
    assert ranks["measurement"]["breakdown_s"]["communication"] > 0
    noises = [Measurement.from_dict(r["measurement"]) for r in (accumulated, ranks)]
    for noise in noises:
        low, high = noise.gradient_noise_interval or (math.nan, math.nan)
        assert low <= (noise.gradient_noise_scale or math.nan) <= high < math.inf
    one, two = (noise.gradient_noise_scale for noise in noises)
    assert one == pytest.approx(two, rel=0.3)


@pytest.mark.slow
def test_every_way_to_cut_the_weights_tells_the_same_gradient_noise(tmp_path: Path) -> None:
    def job(model: str, config: str) -> dict[str, Any]:
        changes = {"steps": 6, "trainer_options": {"learning_rate": 0.0}}
        return {
            "model": model,
            "config": f"micro_batch_size=2,precision=fp32,{config}",
            "changes": changes,
        }

    # 257 words: one rank's shard is padded
    ranks = [job("gpt", f"dp=2,zero_stage={stage}") for stage in range(4)]
    ranks.append(job("gpt", "dp=2,zero_stage=3,accumulation_steps=2"))
    ranks.append(job("gpt", "dp=2,accumulation_steps=2"))
    cut = [
        job("llama", f"tp=2,accumulation_steps=2{more}") for more in ("", ",sequence_parallel=true")
    ]
    results = run_jobs({1: [job("llama", "accumulation_steps=2")], 2: [*ranks, *cut]}, tmp_path)
    one, replicated, *others = (r["measurement"]["gradient_noise_scale"] for r in results)
    assert one > 0
    assert replicated > 0
    assert others[:3] == pytest.approx([replicated] * 3, rel=1e-3)
    assert others[3] == pytest.approx(others[4], rel=1e-3)
    assert others[5:] == pytest.approx([one] * 2, rel=1e-3)
