"""Tools that need no hardware and no study: catalog, valid configs, predictions, plans and reviews.

A spec is the document of `autotune tune`, as an object. `store`: its measured constants and profiles improve the predictions.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from autotune import api, assets
from autotune.mcp.tool_answers import (
    CheckedConfig,
    ClusterRow,
    LegalSpace,
    Prediction,
    RankedConfig,
    RankedPlan,
    ReviewedLaunch,
    config_text,
    parts,
)
from autotune.plan.plan import fits
from autotune.ports import Store
from autotune.registry import RUNNERS, registered
from autotune.reviews import lines_of, review_texts
from autotune.search import searcher_names
from autotune.space import SearchSpace, complete, why_not_in
from autotune.spec import KNOBS, catalog
from autotune.trainers import trainer_names

Spec = Annotated[
    dict[str, Any],
    Field(
        description='Study spec as an object, e.g. {"model": "gpt2-medium", "cluster": "h100-sxm-1x8", "workload": {"seq_len": 1024, '
        '"global_batch_size": 512}, "space": "dense-single-node", "trainer": "native"}. Paths and code are rejected.'
    ),
]
Top = Annotated[int, Field(ge=1, le=100, description="Number of configs to return.")]


class SpecTools:
    """The tools for predictions, with the measurements of one store."""

    def __init__(self, store: Store | None) -> None:
        self._store = store

    def catalog(self) -> dict[str, list[str]]:
        """List the names that a spec may use: models, gpus, clusters, spaces, trainers, runners, searchers, knobs. A cluster of any size is GPU-NODESxGPUS, e.g. h100-sxm-16x8."""
        return {
            "models": list(catalog.model_names()),
            "gpus": list(catalog.gpu_names()),
            "clusters": list(catalog.cluster_names()),
            "spaces": list(assets.space_files()),
            "trainers": list(trainer_names()),
            "runners": list(registered(RUNNERS)),
            "searchers": list(searcher_names()),
            "knobs": list(KNOBS),
        }

    def legal_configs(self, spec: Spec) -> LegalSpace:
        """Count the valid configs of the spec's space. The answer lists the values of each knob in valid configs, and how many combinations each rule excludes."""
        space = SearchSpace.of_study(api.load_study(spec))
        varying = {name: list(values) for name, values in space.knobs.items() if len(values) > 1}
        fixed = {name: values[0] for name, values in space.knobs.items() if len(values) == 1}
        non_default = {
            name: value
            for name, value in fixed.items()
            if name not in KNOBS or value != KNOBS[name].default
        }
        return LegalSpace(
            legal=len(space), knobs=varying, fixed=non_default, excluded=dict(space.excluded)
        )

    def check_config(
        self,
        spec: Spec,
        config: Annotated[
            str,
            Field(
                description="Knobs, e.g. tp=2,pp=1,micro_batch_size=4. Data-parallel degree, accumulation and precision follow from the spec if omitted."
            ),
        ],
    ) -> CheckedConfig:
        """Predict one config: whether it is valid (or why not), whether it fits into memory, and the parts of its step time and memory."""
        study = api.load_study(spec)
        completed = complete(study.workload, config, study.space.own_knobs)
        capacity = study.workload.cluster.gpu.memory_bytes
        reason = why_not_in(study, completed)
        if reason is not None:
            return CheckedConfig(
                config=config_text(completed),
                legal=False,
                reason=reason,
                fits=None,
                predicted=None,
                memory_bytes=capacity,
            )
        estimate, source = api.estimate_of(study, completed, store=self._store, profile=False)
        return CheckedConfig(
            config=config_text(completed),
            legal=True,
            reason="",
            fits=bool(fits(estimate)),
            predicted=Prediction.of(estimate),
            memory_bytes=capacity,
            time_parts_s=parts(estimate.time_parts_s.to_dict()),
            memory_parts_bytes=parts(estimate.memory_parts_bytes.to_dict()),
            source=source,
            assumed=list(study.workload.assumptions),
        )

    def plan(self, spec: Spec, top: Top = 5) -> RankedPlan:
        """Rank the configs of the spec's space that fit, best first, according to the cost model. Nothing is run."""
        study = api.load_study(spec)
        ranked = api.plan_of(study, top=top, store=self._store, profile=False)
        miss = ranked.nearest_miss
        return RankedPlan(
            configs=[
                RankedConfig(
                    rank=row.rank,
                    config=config_text(row.config),
                    predicted=Prediction.of(row.estimate),
                )
                for row in ranked.rows
            ],
            feasible=ranked.feasible,
            infeasible=dict(ranked.infeasible),
            nearest_miss=f"{miss.config} would need {miss.need}" if miss else "",
            remedies=list(miss.remedies) if miss else [],
            cannot_run_here=api.cannot_run_here(study),
            source=ranked.source,
            assumed=list(study.workload.assumptions),
        )

    def review(
        self,
        files: Annotated[
            dict[str, str],
            Field(
                description="Texts by name: first the launch (shell script, Python script, configuration, manifest or spec), then the files it refers to."
            ),
        ],
        cluster: Annotated[
            str | None, Field(description="GPU-NODESxGPUS, or a GPU type: h100-sxm.")
        ] = None,
        model: Annotated[
            str | None,
            Field(description="Catalog name or hub id, if the launch does not name the model."),
        ] = None,
        seq_len: Annotated[int | None, Field(ge=1, description="Tokens per sequence.")] = None,
        batch: Annotated[
            int | None, Field(ge=1, description="Sequences per optimizer step.")
        ] = None,
        measured_s: Annotated[
            float | None, Field(gt=0, description="Measured seconds per step.")
        ] = None,
        precision: Annotated[
            str | None,
            Field(description="Precision (bf16, fp16 or fp32), if the launch does not set it."),
        ] = None,
        config: Annotated[
            str | None,
            Field(
                description="Current config as KNOB=VALUE,..., if the launch does not contain it."
            ),
        ] = None,
        log: Annotated[
            str | None,
            Field(description="Text of the launch's log, from which step times are read."),
        ] = None,
        train_tokens: Annotated[
            float | None,
            Field(
                gt=0,
                le=1e18,
                description="Length of the whole training run in tokens, to compute days and cost.",
            ),
        ] = None,
    ) -> ReviewedLaunch:
        """Review a launch as it is, without a spec or a run: whether it fits, how fast it should be, and which lines to edit."""
        result = review_texts(
            files, store=self._store, cluster=cluster, model=model, seq_len=seq_len, batch=batch, measured_s=measured_s,
            precision=precision, config=config, log=log,
        )  # fmt: skip
        return ReviewedLaunch(
            text="\n".join(lines_of(result, tokens=train_tokens)),
            fits=result.fits,
            missing=[f"{each.what}; {each.remedy}" for each in result.missing],
            edits=[edit.to_dict() for edit in result.edits],
            trials=[edit.to_dict() for edit in result.trials],
            warnings=[each.text for each in result.warnings],
        )

    def compare_clusters(
        self,
        spec: Spec,
        clusters: Annotated[
            list[str],
            Field(
                description="Clusters (h100-sxm-8x8), or GPU types (h200-sxm), each with as many GPUs as the spec's cluster."
            ),
        ],
        train_tokens: Annotated[
            float | None,
            Field(
                gt=0,
                le=1e18,
                description="Length of the whole training run in tokens, to compute days and cost.",
            ),
        ] = None,
    ) -> list[ClusterRow]:
        """Compare several clusters: the spec's best config on each, with speed, days and cost."""
        study = api.load_study(spec)
        rows = api.compare_clusters_of(study, clusters, tokens=train_tokens, store=self._store)
        return [
            ClusterRow(
                cluster=row.cluster.name,
                num_gpus=row.cluster.num_gpus,
                config=config_text(row.config) if row.config else "",
                predicted=Prediction.of(row.estimate) if row.estimate else None,
                days=row.bill.days if row.bill else None,
                cost_usd=row.bill.cost_usd if row.bill else None,
                reason=row.reason,
                lacking=list(row.lacking),
            )
            for row in rows
        ]
