"""The parts of a trial that need no gang: model, data, precision, profile, measure, layout of
context and pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.spec import ModelSpec
from autotune.trainers.base.layer_split import cut_layers
from autotune_workers.probe.injected.profile import partition
from autotune_workers.training.data import TokenStream, rows_of
from autotune_workers.training.measuring.measure import MeanPower
from autotune_workers.training.model.decoder import (
    DecoderStage,
    RMSNorm,
    global_names,
    rotary,
    rotate,
    split_layers,
)
from autotune_workers.training.model.initialization import initial_value
from autotune_workers.training.parallel.context_parallel import positions_of
from autotune_workers.training.precision import LossScaler
from tests.workers.trial_ranks import MODELS


def whole(spec: ModelSpec, positions: torch.Tensor | None = None) -> DecoderStage:
    """The model; `positions`: of the tokens that it is given, by default 16 in their order."""
    stage = DecoderStage(
        spec, range(spec.num_layers), is_first=True, is_last=True, dtype=torch.float32
    )
    for name, parameter in global_names(stage):
        parameter.data.copy_(initial_value(name, parameter.shape, spec, 0, torch.device("cpu")))
    where = torch.arange(16) if positions is None else positions
    stage.place(where, where)
    return stage


@pytest.mark.parametrize("name", ["gpt", "uneven", "llama"])
def test_model_holds_as_many_weights_as_its_spec_says(name: str) -> None:
    assert sum(p.numel() for p in whole(MODELS[name]).parameters()) == MODELS[name].num_parameters


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_no_token_sees_the_future(name: str) -> None:
    stage = whole(MODELS[name])
    tokens = torch.randint(0, 256, (1, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 10] += 1
    with torch.no_grad():
        before, after = stage(tokens), stage(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_stages_hold_the_numbers_of_the_whole() -> None:
    spec = MODELS["gpt"]
    all_names = dict(global_names(whole(spec)))
    stages = [
        DecoderStage(spec, layers, is_first=number == 0, is_last=number == 2, dtype=torch.float32)
        for number, layers in enumerate(split_layers(spec.num_layers, 3))
    ]
    names = [name for stage in stages for name, _ in global_names(stage)]
    assert set(names) == set(all_names)
    assert names.count("embed.weight") == 2, (
        "a tied weight lives on the first and on the last stage"
    )


def test_rotation_depends_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(8, generator=generator), torch.randn(8, generator=generator)
    cos, sin = rotary(torch.arange(20), 8)
    scores = [rotate(q, cos[i + 3], sin[i + 3]) @ rotate(k, cos[i], sin[i]) for i in (0, 5, 16)]
    assert float(scores[0]) == pytest.approx(float(scores[1]), rel=1e-4)
    assert float(scores[0]) == pytest.approx(float(scores[2]), rel=1e-4)


def test_norm_is_torchs_and_keeps_the_dtype() -> None:
    norm = RMSNorm(8)
    torch.nn.init.ones_(norm.weight)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(norm(x), F.rms_norm(x, (8,), eps=1e-5))
    assert norm(x.bfloat16()).dtype is torch.bfloat16


@given(st.integers(1, 100), st.integers(1, 100))
@settings(deadline=None, derandomize=True)
def test_layers_are_split_in_order_and_evenly(layers: int, stages: int) -> None:
    parts = split_layers(layers, stages)
    assert [i for part in parts for i in part] == list(range(layers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 100), st.integers(2, 102))
@settings(deadline=None, derandomize=True)
def test_embedding_and_loss_count_as_a_layer_each(layers: int, stages: int) -> None:
    stages = min(stages, layers + 2)
    parts = split_layers(layers, stages, by_edges=True)
    assert [i for part in parts for i in part] == list(range(layers))
    counted = [
        len(part) + (number == 0) + (number == stages - 1) for number, part in enumerate(parts)
    ]
    assert max(counted) - min(counted) <= 1
    assert counted[-1] == min(counted), (
        "the loss costs more than a layer: nothing that is left over goes there"
    )
    assert [float(len(part)) for part in parts] == cut_layers(
        replace(MODELS["llama"], num_layers=layers), stages, "edges"
    )


@given(st.integers(0, 9), st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
@settings(deadline=None, derandomize=True)
def test_ranks_share_out_the_sequences_of_a_step(
    step: int, dp: int, size: int, accumulation: int
) -> None:
    batch = dp * size * accumulation
    rows = [
        rows_of(step, dp=dp, dp_rank=rank, micro_batch_size=size, accumulation_steps=accumulation)
        for rank in range(dp)
    ]
    assert sorted(np.concatenate(rows).tolist()) == list(range(step * batch, (step + 1) * batch))


def test_stream_is_real_text_and_targets_are_one_further_on() -> None:
    stream = TokenStream(None, seq_len=64, vocab_size=256, seed=3)
    windows = stream.sequences(np.arange(200))
    assert windows.shape == (200, 65)
    assert windows.dtype is torch.int64
    text = bytes(windows.flatten().to(torch.uint8).tolist()).decode("ascii")
    assert text.count("Alice") > 5
    assert len({tuple(w) for w in windows.tolist()}) > 190, "windows hardly repeat"
    other = TokenStream(None, seq_len=64, vocab_size=256, seed=4).sequences(np.arange(200))
    assert not torch.equal(windows, other)


@given(st.sampled_from([1, 2, 3, 4]), st.integers(1, 8))
@settings(deadline=None, derandomize=True)
def test_context_ranks_hold_all_positions_and_equal_work(cp: int, size: int) -> None:
    seq_len = 2 * cp * size
    held = [positions_of(seq_len, cp, rank) for rank in range(cp)]
    assert sorted(torch.cat(held).tolist()) == list(range(seq_len))
    work = [int((positions + 1).sum()) for positions in held]
    assert max(work) == min(work), (
        "causal attention costs a position as many keys as come before it"
    )


def test_loss_scale_halves_on_overflow_and_doubles_after_a_clean_run() -> None:
    scaler = LossScaler("fp16", start=8.0, clean_steps=2)
    assert scaler.update(False)
    assert scaler.scale == 4.0
    assert not scaler.update(True)
    assert not scaler.update(True)
    assert scaler.scale == 8.0
    for _ in range(3):
        assert scaler.update(False)
    assert scaler.scale == 1.0
    assert not scaler.update(False), "at scale 1 there is nothing left to blame"


def test_other_precisions_are_not_scaled() -> None:
    scaler = LossScaler("bf16", start=8.0)
    assert scaler.scale == 1.0
    assert not scaler.update(False)


def test_breakdown_gives_each_instant_to_one_cause() -> None:
    seen = partition(
        (0.0, 10.0),
        {
            "compute": [(1, 3), (2, 4), (-5, 0.5)],
            "communication": [(3, 6), (11, 12)],
            "bubble": [(5, 7)],
            "optimizer": [(8, 9.5)],
        },
    )
    assert dict(seen.parts_s) == {
        "optimizer": 1.5,
        "compute": 3.5,
        "bubble": 2.0,
        "communication": 1.0,
        "input": 0.0,
        "host": 2.0,
    }
    assert seen.overlapped_s == 1.0


intervals = st.lists(
    st.tuples(st.floats(-2, 12), st.floats(0, 5)).map(lambda x: (x[0], x[0] + x[1])), max_size=8
)


@given(intervals, intervals, intervals, intervals)
@settings(deadline=None, derandomize=True)
def test_breakdown_always_adds_up(a: list, b: list, c: list, d: list) -> None:
    seen = partition((0.0, 10.0), {"compute": a, "communication": b, "bubble": c, "optimizer": d})
    assert sum(seen.parts_s.values()) == pytest.approx(10.0)
    assert min(seen.parts_s.values()) >= -1e-9


def test_power_is_what_the_energy_counter_rose_by() -> None:
    joules, now = [100.0, 1300.0], [10.0, 14.0]
    power = MeanPower(lambda: joules.pop(0), lambda: now.pop(0))
    power.start()
    assert power.watts() == 300.0


def test_power_is_unknown_without_a_counter() -> None:
    power = MeanPower.of(torch.device("cpu"))
    power.start()
    assert power.watts() is None
