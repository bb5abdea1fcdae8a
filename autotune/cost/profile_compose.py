"""Peaks of many configs from a profile: configs that share a layout of the weights share a script, and those that share a stage share its passes.

    N configs    G layouts among them (tp, pp, dp, ZeRO stage, recomputation, ...)    U micro-batch sizes

Each layout costs one script per rank of the pipeline that is looked at (the first, the second and the last); a config beyond costs a few array elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from autotune.cost.profile_passes import Stage
from autotune.cost.profile_replay import Peaks, StagePasses, Steps, replay
from autotune.cost.profile_replicated import Buckets, ReplicatedInStep
from autotune.cost.profile_runs import has_later_stages, kind_of
from autotune.cost.profile_script import arrivals_of, script_of
from autotune.cost.profile_sharded import ShardedInStep
from autotune.cost.profile_weights import Arrivals, RankShapes, WeightsInStep
from autotune.spec import KNOBS, ConfigTable, ModelSpec, ParallelConfig, Workload
from autotune.trainers.layer_split import cut_layers

if TYPE_CHECKING:
    from autotune.cost.profile import Profile

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 2}
MOMENT_BYTES = {"adamw": 8, "sgd": 0}
"""of the optimizers whose step makes nothing that its weights and states do not hold"""
PER_STEP = ("micro_batch_size", "accumulation_steps")
"""knobs that change no layout"""


def layouts(table: ConfigTable) -> Iterator[tuple[ParallelConfig, NDArray[np.intp]]]:
    """The rows of each layout, with one config of it."""
    if not len(table):
        return
    columns = [np.asarray(table.column(name), dtype=np.int64) for name in KNOBS if name not in PER_STEP]
    varied = [column for column in columns if column.min() != column.max()]
    code = np.zeros(len(table), dtype=np.int64)
    for column in (*varied, np.asarray(table.accumulation_steps > 1, dtype=np.int64)):
        values, place = np.unique(column, return_inverse=True)
        code = np.unique(code * len(values) + place, return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(code[order])) + 1):
        yield table[int(rows[0])], rows


def stage_layers(model: ModelSpec, layout: ParallelConfig) -> list[int]:
    """Layers on each rank of the pipeline."""
    split = "edges" if layout.pp_split == "edges" else "even"
    return [int(count) for count in cut_layers(model, layout.pp, split)]


@final
class Composer:
    """Composes the peaks of configs of one workload."""

    def __init__(
        self, profile: Profile, workload: Workload, micro_batch_sizes: Any, recompute: tuple[str, ...] = ()
    ) -> None:
        """`micro_batch_sizes`: all that will be asked for. `recompute`: modes of the layers of a model without a pipeline, where they are not the config's."""
        self._profile, self._workload, self._modes = profile, workload, recompute
        self._sizes = np.unique(np.asarray(micro_batch_sizes))
        self._passes: dict[tuple[Any, ...], StagePasses] = {}
        self._rank_weights: dict[tuple[Any, ...], tuple[RankShapes, Mapping[bool, Arrivals]]] = {}
        self._buckets: dict[tuple[Any, ...], Buckets] = {}

    def peaks(self, layout: ParallelConfig, micro_batch_sizes: Any, accumulation_steps: Any) -> Peaks:
        """Those of the fullest rank, for configs of that layout."""
        ranks = sorted({0, min(1, layout.pp - 1), layout.pp - 1})
        found = [self.rank_peaks(layout, rank, micro_batch_sizes, accumulation_steps) for rank in ranks]
        if len(found) == 1:
            return found[0]
        fullest = np.argmax([peaks.total_bytes for peaks in found], axis=0)
        names = Peaks.__dataclass_fields__
        return Peaks(**{n: np.choose(fullest, [getattr(peaks, n) for peaks in found]) for n in names})

    def rank_peaks(
        self, layout: ParallelConfig, pp_rank: int, micro_batch_sizes: Any, accumulation_steps: Any
    ) -> Peaks:
        """Those of one stage's ranks."""
        b, m, p = np.asarray(micro_batch_sizes), np.asarray(accumulation_steps), layout.pp
        modes = self._modes or (layout.recompute,) * stage_layers(self._workload.model, layout)[pp_rank]
        stage = Stage(modes, pp_rank == 0, pp_rank == p - 1, pp_rank == 0 or self._has_later_stages(layout))
        gpipe = layout.pp_schedule == "gpipe"
        steps = Steps(
            size=np.searchsorted(self._sizes, b),
            micro_batches=m,
            in_flight=np.ones_like(m) if p == 1 else m if gpipe else np.minimum(m, p - pp_rank),
            input_bytes=16.0 * b * (self._workload.seq_len // layout.cp) * m,
        )
        single = bool((m == 1).all())
        script = script_of(stage, self._weights(layout, stage, single=single), single=single)
        return replay(self._passes_of(layout, stage), script, steps)

    def _has_later_stages(self, layout: ParallelConfig) -> bool:
        return layout.pp > 1 and has_later_stages(self._workload.model, layout.precision)

    def _kind(self, layout: ParallelConfig, stage: Stage) -> str:
        later = not stage.is_first and self._has_later_stages(layout)
        return kind_of(layout.zero_stage, layout.tp, later=later)

    def _passes_of(self, layout: ParallelConfig, stage: Stage) -> StagePasses:
        kind = self._kind(layout, stage)
        gpipe = layout.pp_schedule == "gpipe" and layout.pp > 1
        key = (kind, layout.tp, stage, gpipe)
        known = self._passes.get(key)
        if known is None:
            sizes = (tuple(float(b) for b in self._sizes), float(self._workload.seq_len), float(layout.tp))
            message = None
            if self._has_later_stages(layout):
                later = self._profile.templates[kind_of(layout.zero_stage, layout.tp, later=True)]
                message = later.at("message", "", sizes).net
            templates = self._profile.templates[kind]
            known = self._passes[key] = StagePasses(
                templates,
                stage,
                sizes,
                holds_all=gpipe,
                gives_loss=self._workload.model.code is not None,
                message=message,
            )
        return known

    def _weights(self, layout: ParallelConfig, stage: Stage, *, single: bool) -> WeightsInStep:
        key = (self._kind(layout, stage), layout.tp, stage)
        if key not in self._rank_weights:
            templates, tp = self._profile.templates[key[0]], float(layout.tp)
            edges = sum(not w.layer and w.is_first for w in self._profile.weights)
            skipped = edges if not stage.is_first and stage.has_start else 0
            made = {f: arrivals_of(templates, stage, tp, first=f, skipped=skipped) for f in (True, False)}
            shapes = RankShapes.of(
                self._profile.weights,
                layout.tp,
                len(stage.layers),
                is_first=stage.is_first,
                is_last=stage.is_last,
            )
            self._rank_weights[key] = shapes, made
        shapes, arrivals = self._rank_weights[key]
        moments, ranks = MOMENT_BYTES[self._profile.optimizer], layout.dp * layout.cp
        shards = ranks // layout.dp_replicas
        if layout.zero_stage < 2:
            if key not in self._buckets:
                self._buckets[key] = Buckets(shapes, arrivals)
            return ReplicatedInStep(
                self._buckets[key],
                zero_stage=layout.zero_stage,
                shards=shards,
                ranks=ranks,
                moment_bytes=moments,
            )
        return ShardedInStep(
            shapes,
            arrivals,
            zero_stage=layout.zero_stage,
            cut_in=layout.tp,
            shards=shards,
            single=single,
            in_pipeline=layout.pp > 1,
            element_bytes=ELEMENT_BYTES[layout.precision],
            moment_bytes=moments,
        )
