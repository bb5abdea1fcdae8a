"""Attention's kernels by length: never slower over a longer sequence, never above the best that was
measured, and near published curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import Calibration, calibration_for, estimate
from autotune.cost.time.attention import REFERENCE, attention_reached
from autotune.cost.time.attention_kernels import FASTEST, LIMITS, generation
from autotune.cost.time.compute import score_moved_bytes
from autotune.cost.traits import TRAITS, loop_traits, traits_of
from autotune.spec import ClusterSpec, ConfigTable, ParallelConfig, Workload, catalog

LENGTHS = [2**k for k in range(9, 23)]
ALONE = ConfigTable.of([ParallelConfig(recompute="full")])
CAUSAL = {
    "flash2": [191, 260, 298, 319, 333, 335],
    "cudnn": [292, 423, 521, 579, 602, 616],
}
"""TFLOP/s forward over 512 to 16,384 tokens, heads of 128, H100 (arXiv 2407.08608, figure 5)"""


def workload(gpu: str, seq_len: int, trainer: str = "deepspeed", **others: object) -> Workload:
    return Workload(
        model=catalog.model("llama-8b"), cluster=ClusterSpec.of(gpu, num_nodes=1), seq_len=seq_len, global_batch_size=8, trainer=trainer, **others
    )  # type: ignore[arg-type]  # fmt: skip


def reached(gpu: str, seq_len: int, trainer: str = "deepspeed") -> float:
    asked = workload(gpu, seq_len, trainer)
    return float(attention_reached(asked, ALONE, calibration_for(asked), traits_of(trainer))[0])


@pytest.mark.thorough
@pytest.mark.parametrize("gpu", [name for name in catalog.gpu_names() if name != "cpu"])
def test_a_longer_sequence_is_never_attended_slower_per_flop_nor_faster_than_was_ever_measured(
    gpu: str,
) -> None:
    spec = catalog.gpu(gpu)
    for trainer in TRAITS:
        found = np.array([reached(gpu, length, trainer) for length in LENGTHS])
        assert (np.diff(found) >= 0).all(), (trainer, found)
        assert found.max() <= FASTEST[generation(spec)] * spec.clock, (trainer, found)


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100-sxm", "b200-sxm", "mi300x", "l40s"])
@pytest.mark.parametrize("trainer", ["nanotron", "megatron", "hf_trainer", "torchtitan"])
def test_steps_of_longer_sequences_take_longer(gpu: str, trainer: str) -> None:
    times = [
        estimate(workload(gpu, n, trainer), ParallelConfig(dp=8, recompute="full")).step_time_s
        for n in LENGTHS
    ]
    assert (np.diff(times) > 0).all()


@pytest.mark.parametrize("kernel", CAUSAL)
def test_shorter_sequences_lose_what_published_kernels_lose(kernel: str) -> None:
    lengths = [512, 1024, 2048, 4096, 8192]
    found = np.array(
        [reached("h100-sxm", n, "nanotron" if kernel == "flash2" else "megatron") for n in lengths]
    )
    published = np.array(CAUSAL[kernel][:5])
    assert found / found[-1] == pytest.approx(published / published[-1], rel=0.25)


def test_what_a_fit_found_is_reached_at_its_length_whatever_the_limit() -> None:
    for gpu, trainer in (("h100-sxm", "megatron"), ("a100-80gb", "command"), ("b200-sxm", "nemo")):
        constants = calibration_for(workload(gpu, int(REFERENCE), trainer))
        assert reached(gpu, int(REFERENCE), trainer) == pytest.approx(
            constants.attention_efficiency
        )


def test_the_program_decides_the_kernel_on_hopper_and_its_user_where_it_does_not() -> None:
    slow, between, fast = (
        reached("h200-sxm", 1 << 22, trainer) for trainer in ("torchtitan", "deepspeed", "megatron")
    )
    assert slow == pytest.approx(LIMITS["hopper", "flash2"], rel=0.02)
    assert fast == pytest.approx(LIMITS["hopper", "cudnn"], rel=0.02)
    assert slow < between < fast


def test_a_stated_kernel_is_that_of_its_program_and_loses_the_same_beside_itself() -> None:
    plain = workload("h200-sxm", 1 << 22, "torchtitan")
    for kernel, trainer in (("flash2", "nanotron"), ("flash3", "megatron"), ("cudnn", "megatron")):
        asked = replace(workload("h200-sxm", 1 << 22), attention_kernel=kernel)
        level = calibration_for(asked).level
        found = float(
            attention_reached(asked, ALONE, calibration_for(asked), loop_traits(asked))[0]
        )
        assert found / level == pytest.approx(reached("h200-sxm", 1 << 22, trainer), rel=0.02)
    unstated, fast = (
        calibration_for(replace(plain, trainer="deepspeed", attention_kernel=k))
        for k in ("", "flash3")
    )
    lost = [1.0 / c.attention_efficiency - 1.0 / c.attention_limit for c in (unstated, fast)]
    assert lost[0] == pytest.approx(lost[1])


@pytest.mark.parametrize(
    ("length", "seconds"), [(131072, 47.204), (196608, 94.483), (262144, 159.125)]
)
def test_long_sequences_on_h200_take_what_was_published(length: int, seconds: float) -> None:
    """DeepSpeed on eight H200 with FlashAttention-3 and the optimizer on the host
    (stas00/ml-engineering, insights/when-to-upgrade-gpus)."""
    asked = replace(workload("h200-sxm", length), attention_kernel="flash3")
    config = ParallelConfig(dp=8, zero_stage=3, recompute="full", loss="fused", offload="optimizer")
    assert estimate(asked, config).step_time_s == pytest.approx(seconds, rel=0.15)


def test_the_host_updates_at_its_own_speed_whatever_the_level_of_the_program() -> None:
    asked = workload("h200-sxm", 8192)
    config = ParallelConfig(dp=8, zero_stage=3, offload="optimizer")
    constants = calibration_for(asked)
    assert constants.level > 1
    known = replace(constants, level=1.0, program_level=1.0)
    found, plain = (
        estimate(asked, config, calibration=c).time_parts_s.optimizer for c in (constants, known)
    )
    assert found == pytest.approx(plain)


def test_trials_over_long_sequences_teach_the_limit_and_calibrations_of_before_have_the_kernels() -> (
    None
):
    asked = workload("h200-sxm", 1 << 18)
    constants = calibration_for(asked)
    faster = replace(constants, attention_limit=1.2 * constants.attention_limit)
    times = [
        estimate(asked, ParallelConfig(dp=8), calibration=c).step_time_s
        for c in (constants, faster)
    ]
    assert 1.1 < times[0] / times[1] < 1.2
    before = {
        name: value for name, value in constants.to_dict().items() if name != "attention_limit"
    }
    assert estimate(asked, ParallelConfig(dp=8), calibration=Calibration.from_dict(before)).step_time_s == pytest.approx(times[0])  # fmt: skip


def test_a_ring_sees_a_part_of_the_keys_at_a_time() -> None:
    asked = workload("b200-sxm", 1 << 20)
    table = ConfigTable.of([ParallelConfig(cp=8, cp_style=style) for style in ("heads", "ring")])
    heads, ring = attention_reached(asked, table, calibration_for(asked), traits_of("deepspeed"))
    assert ring == pytest.approx(calibration_for(asked).attention_efficiency)
    assert heads > ring


def test_compilation_halves_what_stored_scores_move_where_no_kernel_fuses_them() -> None:
    tables = [
        ConfigTable.of([ParallelConfig(precision=p, compile=c)])
        for p in ("bf16", "fp32")
        for c in (False, True)
    ]
    constants = Calibration(score_bytes=12.0)
    moved = {name: [float(score_moved_bytes(t, constants, TRAITS[name])[0]) for t in tables] for name in ("command", "megatron")}  # fmt: skip
    assert moved == {"command": [24.0, 12.0, 24.0, 24.0], "megatron": [12.0, 12.0, 24.0, 24.0]}


def test_compilation_of_a_program_that_stores_its_scores_gains_much_of_what_was_published() -> None:
    """nanoGPT of December 2022 on one A100 of 40 GB, 12 sequences of 1,024 tokens: 250 ms a step,
    135 ms compiled (its README). GELU was eager too, which is not counted."""
    asked = Workload(
        model=catalog.model("gpt2-small"), cluster=ClusterSpec.of("a100-40gb", num_nodes=1, gpus_per_node=1), trainer="command",
        seq_len=1024, global_batch_size=12, unfused_attention=True,
    )  # fmt: skip
    eager, compiled = estimate(asked, [ParallelConfig(micro_batch_size=12, compile=c) for c in (False, True)]).step_time_s  # fmt: skip
    assert compiled == pytest.approx(0.135, rel=0.1)
    assert 1.25 < eager / compiled < 250 / 135
