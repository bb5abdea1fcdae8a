"""Which dry runs a profile is made of, at most eight for a space.

    replicated   weights whole on every rank (ZeRO 0 and 1)             one run on 1 tensor-parallel rank, two on 2 and 4 where the space has tp (other
                                                                        degrees, or one, where the model's heads ask for it)
    sharded      weights cut over the data-parallel ranks (ZeRO 2, 3)   the same
    later-stage  the last of two pipeline stages, where it may not      the same
                 be composed of the layers of a whole model

Each run has few layers, one of them for every recompute mode of the space, and two micro-batches, of which the second adds to the gradients of the first.
Its sizes are no sizes of the space: they are chosen so that they can be read from the bytes of each storage. What is left of the eight runs checks
the profile at sizes and depths of the space.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from autotune.cost.profile_gradient_sizes import SHARDS
from autotune.cost.profile_segments import marked_sizes
from autotune.spec import KNOBS, ConfigTable, ModelSpec, ParallelConfig, Workload
from autotune.spec.hugging_face_defaults import SIZE_KEYS
from autotune.spec.plain import canonical
from autotune.trainers.layer_split import cut_layers

MOST_RUNS = 8
"""of one profile, with its checks"""
LATER_STAGE = " later-stage"
"""ends the kind of training of a pipeline's later stages"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRun:
    """One dry run of a profile."""

    workload: Workload
    """with few layers, and the sizes of the run"""
    config: ParallelConfig
    """what is run"""
    recompute: tuple[str, ...]
    """mode of each of the rank's layers; empty where it is the config's"""
    pp_rank: int = 0
    """that is looked at"""

    @property
    def kind(self) -> str:
        """Of the training, see `kind_of`. Checks are of the kind of their first stage."""
        later = self.pp_rank > 0 and bool(self.recompute)
        return kind_of(self.config.zero_stage, self.config.tp, later=later)


def kind_of(zero_stage: int, tp: int, *, later: bool = False) -> str:
    """replicated, sharded, replicated tp or sharded tp, each also later-stage: trainings of one kind have the same segments."""
    return ("sharded" if zero_stage >= 2 else "replicated") + " tp" * (tp > 1) + LATER_STAGE * later


def has_later_stages(model: ModelSpec, precision: str) -> bool:
    """Whether the later stages of a pipeline are run dry too: those of a model that code builds get a stream in 16 bits, which autocast makes in fp32."""
    return model.code is not None and precision not in ("fp32", "tf32")


def fitted_runs(workload: Workload, table: ConfigTable) -> tuple[ProfileRun, ...]:
    """The runs from which the segments are read, for the kinds of training that the table holds."""
    if not len(table):
        return ()
    modes = tuple(KNOBS["recompute"].decode(code) for code in np.unique(table.recompute))
    found: list[ProfileRun] = []
    for sharded in (False, True):
        rows = (table.zero_stage >= 2) == sharded
        for cut in (False, True):
            some = np.flatnonzero(rows & ((table.tp > 1) == cut))
            if not len(some):
                continue
            example = table[int(some[0])]
            degrees = read_degrees(workload.model, table.tp) if cut else (1,)
            found += (_run(workload, example, modes, tp=tp, sharded=sharded) for tp in degrees)
    for run in tuple(found):
        if _has_pipeline(table, run) and has_later_stages(workload.model, run.config.precision):
            found += _of_later_stage(workload, run)
    return tuple(found)


def read_degrees(model: ModelSpec, degrees: Iterable[int]) -> tuple[int, ...]:
    """The tensor-parallel degrees of the runs: 2 and 4, or the least two of the space that divide the model's heads; one where there is no other."""
    heads = math.gcd(model.num_attention_heads, model.num_kv_heads)
    asked = sorted({int(tp) for tp in degrees if tp > 1})
    allowed = [tp for tp in (2, 4) if heads % tp == 0]
    if len(allowed) < 2:
        allowed = [tp for tp in asked if heads % tp == 0][:2]
    return tuple(allowed or asked[:2])


def _has_pipeline(table: ConfigTable, run: ProfileRun) -> bool:
    """Whether the space has configs of that kind with pipelines."""
    alike = ((table.zero_stage >= 2) == (run.config.zero_stage >= 2)) & ((table.tp > 1) == (run.config.tp > 1))
    return bool((alike & (table.pp > 1)).any())


def _of_later_stage(workload: Workload, run: ProfileRun) -> Iterator[ProfileRun]:
    """The same training on the last of two stages, without recomputation, where the model has layers enough."""
    layers: tuple[str, ...] = ("none",) * 3
    model = with_depth(workload.model, 2 * len(layers))
    if model is None:
        model = workload.model
        layers = ("none",) * int(cut_layers(model, 2)[1])
    if len(layers) > 2:
        config = replace(run.config, pp=2)
        small = replace(run.workload, model=model, global_batch_size=config.global_batch_size)
        yield ProfileRun(workload=small, config=config, recompute=layers, pp_rank=1)


def _run(workload: Workload, example: ParallelConfig, modes: tuple[str, ...], *, tp: int, sharded: bool) -> ProfileRun:
    # the code of a model may hold masks or tables of as many positions as the workload has
    longest = workload.seq_len if workload.model.code is not None else 0
    b, s = marked_sizes(sizes_of(workload.model), multiple=16, longest=longest)
    config = replace(
        example,
        tp=tp,
        pp=1,
        dp=SHARDS if sharded else 1,
        dp_replicas=1,
        micro_batch_size=b,
        accumulation_steps=2,
        zero_stage=3 if sharded else 0,
        recompute="none",
        sequence_parallel=example.sequence_parallel and tp > 1,
        pp_schedule="1f1b",
        virtual_stages=1,
        pp_split="layers",
        extra=type(example.extra)(),
    )
    # the first and the last layer have neighbours of another kind, so modes are read from those between
    layers = (modes[0], *modes, modes[0])
    model = with_depth(workload.model, len(layers))
    if model is None:
        model = workload.model
        layers = tuple(modes[i % len(modes)] for i in range(model.num_layers))
    small = replace(workload, model=model, seq_len=s, global_batch_size=config.global_batch_size)
    return ProfileRun(workload=small, config=config, recompute=layers)


def with_depth(model: ModelSpec, layers: int) -> ModelSpec | None:
    """The model with so many equal layers; None where its code, or a config that says something of each layer, decides how many there are."""
    code = model.code
    if code is None:
        return replace(model, num_layers=layers)
    document = json.loads(model.source) if model.source and not code.module and not code.num_parameters else {}
    key = next((key for key in SIZE_KEYS["num_layers"] if document.get(key) == model.num_layers), "")
    if not key or any(isinstance(value, list) and len(value) == model.num_layers for value in document.values()):
        return None
    cuts = layers - 1 if code.has_pipeline_split else 0
    source = canonical({**document, key: layers})
    return replace(model, num_layers=layers, source=source, code=replace(code, num_cuts=cuts))


def sizes_of(model: ModelSpec) -> Iterable[int]:
    """The sizes of a model's tensors, which a profile's own sizes must not divide."""
    heads = (model.num_attention_heads, model.num_kv_heads, model.head_dim, model.v_head_dim, model.qk_rope_head_dim)
    widths = (model.hidden_size, model.ffn_hidden_size, model.dense_ffn_hidden_size, model.shared_ffn_hidden_size)
    others = (model.vocab_size, model.max_positions, model.kv_lora_rank, model.q_lora_rank, model.num_experts)
    return (*heads, *widths, *others, *_joined(model))


def _joined(model: ModelSpec) -> Iterator[int]:
    """Widths of projections that are one tensor."""
    for n, k, _ in model.attention_matrices:
        yield from (n, k)
    yield 2 * model.ffn_hidden_size + model.hidden_size
    yield model.num_attention_heads + 2 * model.num_kv_heads


def checked_runs(workload: Workload, configs: Iterable[ParallelConfig], *, depth: int) -> list[ProfileRun]:
    """The runs that check a profile, the most telling first; `configs`: of the space, one of each layout that is composed.

    Tensor parallelism and pipelines add most to what is assumed. So each kind of training is checked on the last rank of the longest pipeline, then without one.
    """
    kinds: dict[str, list[ParallelConfig]] = {}
    for config in configs:
        kinds.setdefault(kind_of(config.zero_stage, config.tp), []).append(config)
    found: list[tuple[int, bool, ProfileRun]] = []
    for kind, known in kinds.items():
        longest = max(known, key=lambda config: (config.pp, config.accumulation_steps > 1, config.dp_replicas))
        plain = max(known, key=lambda config: (-config.pp, config.accumulation_steps > 1, config.dp_replicas))
        for place, config in enumerate(dict.fromkeys((longest, plain))):
            found.append((place, not kind.endswith("tp"), _check(workload, config, depth)))
    found.sort(key=lambda item: item[:2])
    return [run for _, _, run in found]


def _check(workload: Workload, config: ParallelConfig, depth: int) -> ProfileRun:
    model = workload.model
    if model.code is None:
        model = replace(model, num_layers=min(model.num_layers, max(depth, 2 * config.pp * config.virtual_stages)))
    small = replace(workload, model=model, global_batch_size=config.global_batch_size)
    return ProfileRun(workload=small, config=config, recompute=(), pp_rank=config.pp - 1)
