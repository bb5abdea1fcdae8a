"""What a rank says of its GPU, and which tensors reach which kernels, with a fake NVML and a fake
torch.cuda; `tests/gpu` asks a real one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from autotune.reward import stability_parts
from autotune.spec import Measurement
from autotune_workers.process.machine import bind_near_gpu
from autotune_workers.training.measuring.gpu_state import GpuState, worst_of
from autotune_workers.training.measuring.measure import GpuAllocator, allocator_settings
from autotune_workers.training.model.decoder import fused_attention
from autotune_workers.training.precision import takes_float8
from tests.workers.fake_gpu import MIB, FakeCuda, FakeGpuDriver


@pytest.mark.parametrize("can_drop", [True, False])
@pytest.mark.parametrize(("tensors", "leaks"), [(0, False), (60, False), (200, True)])
def test_workspaces_of_cublas_are_no_leak(tensors: int, leaks: bool, can_drop: bool) -> None:
    cuda = FakeCuda(tensors_bytes=tensors * MIB, workspaces_bytes=64 * MIB)
    assert GpuAllocator(0, cuda, cuda.internals(can_drop=can_drop)).leaks() is leaks


def test_allocations_that_were_tried_again_are_those_of_the_trial() -> None:
    cuda = FakeCuda(alloc_retries=3, reserved_bytes=7)
    gpu = GpuAllocator(0, cuda, cuda.internals(can_drop=True))
    gpu.start()
    cuda.alloc_retries = 5
    assert (gpu.retries(), gpu.reserved_bytes()) == (2, 7)


def test_the_setting_of_the_allocator_is_known_by_both_of_its_names() -> None:
    assert (
        allocator_settings({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
        == "expandable_segments:True"
    )
    assert allocator_settings({}) == ""


def test_headroom_counts_what_the_allocator_reserved() -> None:
    known = {"step_times_s": (1.0,) * 8, "peak_memory_bytes": 50.0, "memory_capacity_bytes": 100.0}
    assert stability_parts(Measurement(**known))["headroom"] == 1.0
    reserved = Measurement(
        **known, utilization={"reserved_memory_bytes": 99.0}, allocator="expandable_segments:True"
    )
    assert stability_parts(reserved)["headroom"] < 0.2
    assert Measurement.from_dict(reserved.to_dict()) == reserved
    assert Measurement.from_dict({"step_times_s": [1.0]}).allocator == "", (
        "stored before the setting was known"
    )


class Clock:
    """Seconds that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("violation_s", "reasons", "throttled"),
    [
        (0.0, 0x0, 0.0),
        (0.0, 0x4, 0.0),
        (0.05, 0x0, 0.0),
        (2.0, 0x0, 1.0),
        (0.0, 0x20, 1.0),
        (0.0, 0x80, 1.0),
    ],
    ids=["cool", "at its power limit", "a moment of heat", "hot", "hot at the end", "power brake"],
)
def test_a_trial_on_a_gpu_that_heat_held_down_is_marked(
    violation_s: float, reasons: int, throttled: float
) -> None:
    nvml, clock = FakeGpuDriver(thermal_violation_s=100.0), Clock()
    gpu = GpuState(nvml, "GPU-0", clock)
    gpu.start()
    clock.now_s, nvml.sm_clock_mhz, nvml.temperature_c = 10.0, 1500.0, 85.0
    nvml.thermal_violation_s += violation_s
    nvml.reasons = reasons
    found = worst_of([gpu.as_integers()])
    assert (found["sm_clock_mhz_before"], found["sm_clock_mhz"]) == (1980.0, 1500.0)
    assert (found["temperature_c_before"], found["temperature_c"]) == (60.0, 85.0)
    assert found["throttled_share"] == pytest.approx(violation_s / 10.0)
    assert found["throttled"] == throttled
    assert Measurement(step_times_s=(1.0,), utilization=found).is_throttled == bool(throttled)


def test_the_reading_of_a_trial_is_that_of_its_worst_rank_and_unknown_where_one_does_not_tell() -> (
    None
):
    cool, hot = (
        FakeGpuDriver(),
        FakeGpuDriver(
            temperature_c=88.0, sm_clock_mhz=1200.0, unsupported=frozenset({"violation"})
        ),
    )
    ranks = [GpuState(nvml, "GPU-0") for nvml in (cool, hot)]
    found = worst_of([rank.as_integers() for rank in ranks])
    assert (found["temperature_c"], found["sm_clock_mhz"]) == (88.0, 1200.0)
    assert "throttled_share" not in found
    assert worst_of([GpuState(None, None).as_integers()]) == {}


@pytest.fixture
def own_affinity() -> Iterator[set[int]]:
    """The CPUs of this process, which are put back."""
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


def test_a_rank_is_bound_to_the_cpus_near_its_gpu(own_affinity: set[int]) -> None:
    if len(own_affinity) < 2:
        pytest.skip("there is one CPU only")
    near = min(own_affinity)
    words = [0] * (near // 64) + [1 << near % 64]
    assert bind_near_gpu("GPU-0", FakeGpuDriver(affinity=words)) == {near}
    assert os.sched_getaffinity(0) == {near}


@pytest.mark.parametrize("words", [[0], [(1 << 64) - 1] * 64], ids=["none", "all"])
def test_where_no_cpu_is_nearer_than_another_a_rank_stays_where_it_is(
    own_affinity: set[int], words: list[int]
) -> None:
    assert bind_near_gpu("0", FakeGpuDriver(affinity=words)) == frozenset()
    assert os.sched_getaffinity(0) == own_affinity


class Heads(TorchFunctionMode):
    """What attention is asked for: (heads of queries, of keys, whether they are grouped)."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int, bool]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is F.scaled_dot_product_attention:
            self.asked.append((args[0].shape[1], args[1].shape[1], kwargs["enable_gqa"]))
            return args[0]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "head_dim", "keys"),
    [
        ("cuda", torch.float32, (9, 0), 64, 8),
        ("cuda", torch.bfloat16, (9, 0), 64, 2),
        ("cuda", torch.float16, (7, 0), 64, 8),
        ("cuda", torch.bfloat16, (9, 0), 512, 8),
        ("cpu", torch.float32, (0, 0), 64, 2),
    ],
    ids=["fp32", "bf16", "fp16 on Volta", "long heads", "on a CPU"],
)
def test_grouped_queries_never_fall_into_attention_of_quadratic_memory(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: torch.dtype,
    capability: tuple[int, int],
    head_dim: int,
    keys: int,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    with FakeTensorMode(), Heads() as heads:
        q = torch.empty(1, 8, 16, head_dim, dtype=dtype, device=device)
        k = torch.empty(1, 2, 16, head_dim, dtype=dtype, device=device)
        fused_attention(q, k, k)
    assert heads.asked == [(8, keys, keys != 8)]


def test_repeated_keys_give_the_same_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 8, 16), torch.randn(2, 2, 8, 16), torch.randn(2, 2, 8, 16)
    grouped = fused_attention(q, k, v)
    monkeypatch.setattr("autotune_workers.training.model.decoder._supports_groups", lambda _: False)
    torch.testing.assert_close(fused_attention(q, k, v), grouped)


@pytest.mark.parametrize(
    ("name", "module", "takes"),
    [
        ("layers.0.attention.wq", nn.Linear(64, 64), True),
        ("layers.0.attention.wk", nn.Linear(64, 24), False),
        ("layers.0.mlp.up", nn.Linear(72, 128), False),
        ("layers.0.mlp.router", nn.Linear(64, 16), False),
        ("layers.0.mlp.experts.3.up", nn.Linear(64, 128), False),
        ("layers.0.norm", nn.LayerNorm(64), False),
        ("output", nn.Linear(64, 256), False),
    ],
)
def test_fp8_leaves_alone_what_its_kernels_refuse_and_what_decides_where_tokens_go(
    name: str, module: nn.Module, takes: bool
) -> None:
    assert takes_float8(module, name) is takes
