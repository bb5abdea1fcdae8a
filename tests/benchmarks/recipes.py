"""NVIDIA's published recipes and our plan: is each recipe in the space, and how does the plan rank
it?

    python -m tests.benchmarks.recipes           one line for each recipe, then what was found over all
    python -m tests.benchmarks.recipes --brief   the summary alone

A recipe is one row of the published tables of NeMo and Megatron-Bridge (`published/nemo.py`,
`published/bridge.py`). They print degrees, virtual stages, batch, precision and kind of data
parallelism; for models with experts the recipes' own files tell dispatcher, overlap and CUDA graphs
too (`published/bridge_recipes.py`). What is not told (recomputation, the split of a pipeline) the
plan is free to choose. The space is that of a user who knows nothing: all usual values of each knob
on the same GPUs.

    contained   a config with all told knobs is legal and Megatron-Bridge can launch it; else the law that refuses it
    rank        of the recipe among all settings of the printed knobs, by predicted tokens/s * (1 - P(OOM)), each with its best values of the other knobs
    gap         by how much the best setting is predicted to be faster
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from autotune.cost import estimate
from autotune.cost.model_knobs import COST_MODEL
from autotune.space import SearchSpace, why_not
from autotune.spec import (
    KNOBS,
    ConfigTable,
    ParallelConfig,
    SpaceSpec,
    TimeParts,
    Workload,
    config_label,
)
from autotune.trainers import trainer
from tests.benchmarks.published.bridge import bridge
from tests.benchmarks.published.nemo import nemo

PRINTED = (
    "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "virtual_stages", "zero_stage", "precision",
)  # fmt: skip
"""knobs that the tables tell"""
NEAR = 5
"""a recipe should have this rank or a better one"""
LAUNCHER = "megatron_bridge"
"""the trainer whose limits count"""
LOOP = "nvidia_recipes"
"""the loop that is estimated: the recipes reduce gradients in bf16, which a launch by `LAUNCHER`
does not"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One published row."""

    workload: Workload
    config: ParallelConfig
    """knobs that are not printed are at their defaults"""
    tokens_per_s_per_gpu: float
    """measured"""

    @property
    def printed(self) -> tuple[Any, ...]:
        """What the table tells of the config."""
        return tuple(self.config.value(name) for name in PRINTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the plan says of one recipe."""

    recipe: Recipe
    refusal: str = ""
    """the law or limit that refuses it; empty when it is contained"""
    rank: int = 0
    """from 1; 0 when it is not contained"""
    settings: int = 0
    """settings of the printed knobs that some legal config has"""
    gap: float = 0.0
    """predicted speed of the best setting over that of the recipe, less 1"""
    best: ParallelConfig | None = None
    """the config that the plan puts first"""
    why: str = ""
    """by what the best setting is predicted to be better"""


def recipes() -> list[Recipe]:
    """All rows of the two tables, each setting once; where a setting was measured several times,
    its fastest."""
    found: dict[tuple[Any, ...], Recipe] = {}
    for block in (*nemo(), *bridge()):
        for config, speed in zip(block.table, block.tokens_per_s_per_gpu, strict=True):
            gpus = block.workload.cluster.gpus_per_node
            nodes = max(1, config.world_size // gpus)
            cluster = block.workload.cluster.resized(
                num_nodes=nodes, gpus_per_node=min(gpus, config.world_size)
            )
            workload = replace(
                block.workload,
                cluster=cluster,
                global_batch_size=config.global_batch_size,
                trainer=LOOP,
            )
            recipe = Recipe(workload=workload, config=config, tokens_per_s_per_gpu=float(speed))
            key = (
                workload.model.name,
                workload.seq_len,
                cluster.gpu.name,
                workload.peft,
                *recipe.printed,
            )
            if key not in found or found[key].tokens_per_s_per_gpu < recipe.tokens_per_s_per_gpu:
                found[key] = recipe
    return list(found.values())


def space_of(workload: Workload, precision: str) -> SpaceSpec:
    """What a user who knows nothing would let the plan choose from."""
    experts = workload.model.num_experts > 0
    powers = tuple(1 << i for i in range(11))
    free: dict[str, tuple[Any, ...]] = {
        "tp": powers[:4],
        "pp": powers[:5],
        "cp": powers[:4],
        "ep": powers[2:7] if experts else (1,),
        "micro_batch_size": powers[:3] if workload.model.is_latent else powers[:4],
        "virtual_stages": (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24),
        "pp_schedule": ("1f1b", "interleaved_1f1b"),
        "pp_split": ("layers", "edges"),
        "zero_stage": (0, 1, 3),
        "sequence_parallel": (False, True),
        "precision": (precision,),
        # selective: the up-projections of latents, which is no recomputation elsewhere where
        # attention keeps no scores
        "recompute": ("none", "selective", "mlp", "full")
        if workload.model.is_latent
        else ("none", "mlp", "full"),
        # over PCIe it takes part of what the network needs; NVIDIA's recipes offload where NVLink
        # joins GPU and host
        "offload": ("none", "activations") if _is_coherent(workload) and not experts else ("none",),
        "cuda_graph": ("layers",) if experts else ("none", "layers"),
        "dispatcher": ("alltoall", "flex") if experts else ("alltoall",),
        "ep_overlap": (False, True) if experts else (False,),
    }
    known = {
        name: tuple(v for v in values if not _unknown(name, v)) for name, values in free.items()
    }
    return SpaceSpec(name="all usual values", knobs=known)


def standings(asked: list[Recipe]) -> Iterator[Standing]:
    """What the plan says of each recipe, in the order of the recipes."""
    plans: dict[tuple[Any, ...], _Ranking | None] = {}
    for recipe in asked:
        w = recipe.workload
        key = (
            w.model.name,
            w.seq_len,
            w.cluster.gpu.name,
            w.cluster.num_gpus,
            w.global_batch_size,
            recipe.config.precision,
            w.peft,
        )
        if refusal := refusal_of(recipe):
            yield Standing(recipe=recipe, refusal=refusal)
            continue
        if key not in plans:
            plans[key] = _Ranking.of(w, recipe.config.precision)
        ranking = plans[key]
        assert ranking is not None
        yield ranking.standing(recipe)


def refusal_of(recipe: Recipe) -> str:
    """Why no config agrees with the recipe, in words; empty when one does."""
    reasons = []
    for split in ("layers", "edges") if recipe.config.pp > 1 else ("layers",):
        for parallel in (True, False) if recipe.config.tp > 1 else (False,):
            config = replace(recipe.config, pp_split=split, sequence_parallel=parallel)
            broken = why_not(recipe.workload, config) or _limit(recipe.workload, config)
            if not broken:
                return ""
            reasons.append(broken)
    return reasons[0]


@dataclass(frozen=True, slots=True)
class _Ranking:
    workload: Workload
    table: ConfigTable
    value: np.ndarray
    """predicted tokens/s times the chance that it fits, of every config"""
    setting: np.ndarray
    """number of its setting of the printed knobs"""
    best: np.ndarray
    """of every setting the best config, best setting first"""

    @classmethod
    def of(cls, workload: Workload, precision: str) -> _Ranking:
        table = SearchSpace.build(workload, space_of(workload, precision)).table
        predicted = estimate(workload, table)
        value = np.asarray(predicted.tokens_per_s) * (1.0 - np.asarray(predicted.oom_probability))
        columns = np.stack([table.column(name).astype(np.int64) for name in PRINTED], axis=1)
        setting = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
        order = np.argsort(-value, kind="stable")
        first = np.sort(np.unique(setting[order], return_index=True)[1])
        return cls(workload, table, value, setting, order[first])

    def standing(self, recipe: Recipe) -> Standing:
        agrees = np.ones(len(self.table), dtype=bool)
        for name, value in zip(PRINTED, recipe.printed, strict=True):
            agrees &= self.table.column(name) == KNOBS[name].encode(value)
        rows = np.flatnonzero(agrees)
        if not len(rows):
            return Standing(
                recipe=recipe,
                refusal="it is legal, but the space of the benchmark does not list its values",
            )
        own = next(
            (
                int(i)
                for i in rows[np.argsort(-self.value[rows])]
                if not _limit(self.workload, self.table[int(i)])
            ),
            None,
        )
        if own is None:
            return Standing(recipe=recipe, refusal=_limit(self.workload, self.table[int(rows[0])]))
        ahead = [
            int(i)
            for i in self.best
            if self.value[i] > self.value[own] and self.setting[i] != self.setting[own]
        ]
        # of what is ahead, only what can be launched counts; a long list is not asked to its end
        ahead = [i for i in ahead[:200] if not _limit(self.workload, self.table[i])] + ahead[200:]
        best = ahead[0] if ahead else own
        return Standing(
            recipe=recipe,
            rank=len(ahead) + 1,
            settings=len(self.best),
            gap=float(self.value[best] / self.value[own] - 1.0)
            if self.value[own] > 0
            else float("inf"),
            best=self.table[best],
            why="" if best == own else self._why(best, own),
        )

    def _why(self, best: int, own: int) -> str:
        """The risk or the part of the time in which two configs differ most."""
        one, other = (estimate(self.workload, self.table[i]) for i in (best, own))
        odds = (1.0 - float(one.oom_probability)) / max(1.0 - float(other.oom_probability), 1e-9)
        if odds > float(other.step_time_s) / float(one.step_time_s):
            return f"P(OOM) {float(one.oom_probability):.0%} instead of {float(other.oom_probability):.0%}"
        parts = {
            f.name: float(getattr(other.time_parts_s, f.name) - getattr(one.time_parts_s, f.name))
            for f in fields(TimeParts)
        }
        part = max(parts, key=lambda name: parts[name])
        return f"{part} {parts[part] / float(other.step_time_s):.0%} of the step less"


def _limit(workload: Workload, config: ParallelConfig) -> str:
    """What Megatron-Bridge cannot launch of a config; limits of the model itself, which a
    config.json lifts, do not count."""
    limits = trainer(LAUNCHER).limits(workload, config)
    of_model = {limit.message for limit in limits if limit.knob.startswith("model.")}
    return "; ".join(str(limit) for limit in limits if limit.message not in of_model)


def _is_coherent(workload: Workload) -> bool:
    """Whether NVLink-C2C joins GPU and host."""
    return workload.cluster.gpu.host_bytes_per_s > 200e9


def _unknown(name: str, value: Any) -> bool:
    return bool(COST_MODEL.impossible(KNOBS[name], value))


def summary(found: list[Standing]) -> Mapping[str, Any]:
    """Shares over all recipes."""
    contained = [s for s in found if not s.refusal]
    gaps = sorted(s.gap for s in contained)
    return {
        "recipes": len(found),
        "contained": len(contained),
        "contained_share": len(contained) / len(found),
        "within_top": sum(s.rank <= NEAR for s in contained),
        "median_rank": float(np.median([s.rank for s in contained])),
        "median_gap": float(np.median(gaps)),
        "p90_gap": float(np.quantile(gaps, 0.9)),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brief", action="store_true")
    options = parser.parse_args()
    found = list(standings(recipes()))
    if not options.brief:
        print(
            "| recipe | published | contained | rank of settings | gap | the plan prefers | because of |\n|---|---|---|---|---|---|---|"
        )
        for s in found:
            w = s.recipe.workload
            name = f"{w.model.name}, {w.cluster.num_gpus} x {w.cluster.gpu.name}, batch {w.global_batch_size} x {w.seq_len}"
            said = f"{s.rank} of {s.settings} | {s.gap:.0%}" if not s.refusal else "- | -"
            best = f"`{config_label(s.best)}`" if s.best and s.rank > 1 else ""
            print(
                f"| {name} | `{config_label(s.recipe.config)}` | {s.refusal or 'yes'} | {said} | {best} | {s.why} |"
            )
    print()
    for name, value in summary(found).items():
        print(f"{name}: {value:.3g}")


if __name__ == "__main__":
    main()
