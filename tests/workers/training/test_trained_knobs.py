"""Every value of every knob changes what a rank of the native loop builds or does, or is refused
with the knob's name.

One rank is built and stepped in a made-up gang: collectives of the backend `fake` return at once,
whatever they are given. What it did is compared operation by operation. A pipeline is built but not
stepped, because a stage waits for what its neighbours say; a compiled model is not stepped either,
because that takes long, nor one with experts, which is never compiled whole; nor is a
context-parallel one, because the attention bias that it makes cannot be traced. Of these what they
built says what they would do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.spec import FIELDS, KNOBS, ParallelConfig
from autotune.testing.knobs import complaints_of, variations
from autotune.trainers.native.trainer import TRAINER as NATIVE
from autotune_workers.training.parallel.mesh import RankContext
from autotune_workers.training.step import Training
from tests.workers.trial_ranks import CPU, MODELS, request

ALL_PRECISIONS = replace(
    CPU, gpu=replace(CPU.gpu, peak_flops_per_s=dict.fromkeys(KNOBS["precision"].values, 1e11))
)
PLAIN = "dp=2,micro_batch_size=2,accumulation_steps=4,precision=bf16"
DEEP = replace(MODELS["llama"], name="deep", num_layers=8)
WIDE = replace(MODELS["llama"], name="wide", hidden_size=512, ffn_hidden_size=2048)
"""gradients of some MiB, for knobs that count MiB"""
BASES = (
    ("llama", PLAIN),
    ("llama", "tp=2,micro_batch_size=2,accumulation_steps=4,precision=fp32"),
    ("llama", "pp=2,micro_batch_size=2,accumulation_steps=4,precision=fp32"),
    (
        "deep",
        "pp=2,accumulation_steps=4,precision=fp32,pp_schedule=interleaved_1f1b,virtual_stages=2",
    ),
    ("moe", PLAIN),
    ("moe", PLAIN + ",ep=2"),
    ("llama", PLAIN + ",compile=true"),
    ("llama", "dp=4,micro_batch_size=2,accumulation_steps=4,precision=fp32,zero_stage=3"),
    ("llama", "tp=2,micro_batch_size=2,accumulation_steps=4,precision=fp32,sequence_parallel=true"),
    ("llama", "cp=2,micro_batch_size=2,accumulation_steps=4,precision=fp32"),
    ("uneven", "pp=4,micro_batch_size=2,accumulation_steps=4,precision=fp32"),
    ("wide", PLAIN),
)


class RecordingConfig:
    """A config that notes which of its knobs the loop reads; limits and laws, which read all of
    them, do not count."""

    def __init__(self, config: ParallelConfig, read: set[str]) -> None:
        self._config, self._read = config, read

    def __getattr__(self, name: str) -> Any:
        if name in KNOBS:
            if _reader().startswith("autotune_workers."):
                self._read.add(name)
        elif isinstance(derived := getattr(ParallelConfig, name, None), property):
            assert derived.fget is not None
            return derived.fget(self)  # so that the knobs that it is made of are noted
        return getattr(self._config, name)


def _reader() -> str:
    """The module that asked for a knob, by way of a derived value or not."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"] in (__name__, ParallelConfig.__module__):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


class Operations(TorchDispatchMode):
    """Notes every operation with the shapes and types of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        self.done.append((str(func), *((tuple(x.shape), x.dtype) for x in tensors)))
        return func(*args, **(kwargs or {}))


def asked(model: str, config: ParallelConfig) -> TrialRequest:
    """A trial of this config; its learning rate is that of the smallest batch, whatever the batch
    is."""
    plain = request("llama", "tp=1")
    workload = replace(
        plain.workload,
        model={**MODELS, "deep": DEEP, "wide": WIDE}[model],
        cluster=ALL_PRECISIONS,
        global_batch_size=config.global_batch_size,
    )
    return replace(plain, workload=workload, config=config)


def rank_zero(trial: TrialRequest, read: set[str]) -> tuple[Any, ...]:
    """What the first rank builds and does; raises `ConfigError` where the loop refuses the config.
    `read`: the knobs that were read are added."""
    config: Any = RecordingConfig(trial.config, read)
    ranks = trial.config.world_size
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        with Operations() as building:
            training = Training(
                replace(trial, config=config),
                RankContext(rank=0, world_size=ranks, device=torch.device("cpu")),
            )
        modules = [m for stage in training._model.stages.values() for m in stage.modules()]
        compiled = any(hasattr(m.forward, "_torchdynamo_orig_callable") for m in modules)
        batch = training.batch(0)
        stepping = Operations()
        if not (training._pipeline or compiled or trial.config.cp > 1):
            with stepping:
                training.step(*batch)
        schedule = type(training._pipeline._schedule).__name__ if training._pipeline else ""
        text = [repr(stage) for stage in training._model.stages.values()]
        budget = training.activation_budget
        return (
            building.done,
            text,
            compiled,
            budget,
            [x.shape for x in batch],
            schedule,
            stepping.done,
        )
    finally:
        dist.destroy_process_group()


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_knob_is_read_or_declared_neutral_or_impossible() -> None:
    assert not complaints_of(NATIVE.knob_use)


@pytest.mark.thorough
# by torch.compile
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.usefixtures("one_thread")
def test_every_value_of_every_knob_changes_what_a_rank_does_or_is_refused_by_name() -> None:
    read: set[str] = set()
    differs: dict[tuple[str, Any], bool] = {}
    for model, text in BASES:
        base = ParallelConfig.parse(text)
        trial = asked(model, base)
        before = rank_zero(trial, read)
        for knob, value, config in variations(trial.workload, base):
            key = (knob.name, value if knob.values else None)
            if differs.get(key):
                continue
            try:
                differs[key] = rank_zero(asked(model, config), read) != before
            except ConfigError as refusal:
                differs[key] = refusal.field == knob.name
    assert {name for name, _ in differs} == set(FIELDS)
    wrong = {
        key for key, differ in differs.items() if differ == (key[0] in NATIVE.knob_use.neutral)
    }
    assert not wrong, (
        "a value of a knob that the loop reads changes nothing, or one of a neutral knob does"
    )
    only_to_refuse = NATIVE.knob_use.cannot.keys()
    assert read - only_to_refuse == NATIVE.knob_use.reads, (
        "what the loop reads is not what its trainer declares"
    )


def test_a_knob_that_the_loop_does_not_know_is_refused_before_anything_is_built() -> None:
    trial = asked("llama", ParallelConfig(extra={"num_workers": 2}))
    with pytest.raises(
        ConfigError, match="num_workers=2: this trainer's launches cannot set a study's own knob"
    ):
        rank_zero(trial, set())
