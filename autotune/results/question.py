"""The query for the best known config: model, cluster, filters, and objective."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from autotune.errors import SpecError
from autotune.spec import Objective
from autotune.spec.checks import one_of, positive_int
from autotune.spec.study import METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query for the best known config."""

    model: str = ""
    """name in the catalog or in the history; empty for the best of each model and cluster"""
    cluster: str = ""
    """name in the catalog or in the history; empty for any"""
    trainer: str = ""
    """empty: any trainer for measured results, native for the cost model"""
    runner: str = ""
    """empty: any runner except simulated"""
    num_gpus: int | None = None
    """number of GPUs in the cluster, for measured results; None for any number"""
    measured_after: datetime | None = None
    """only results measured after this time; UTC if it has no time zone. None for any time"""
    seq_len: int | None = None
    """sequence length in tokens, for the nearest workload and for the cost model; None: the nearest
    workload's, else assumed"""
    global_batch_size: int | None = None
    """batch size in sequences, for the cost model; None: the nearest workload's, else assumed"""
    metric: str | None = None
    """throughput, goodput or cost; None: ranked by speed only, unless `stability_weight` is set"""
    stability_weight: float | None = None
    """0 to 1; None: the default objective's, if `metric` is set"""

    def __post_init__(self) -> None:
        if self.metric:
            one_of("metric", self.metric, METRICS)
        if self.objective is not None and not (self.model and self.cluster):
            raise SpecError(
                "a ranking across studies by an objective needs one model and one cluster, but "
                f"model={self.model!r} and cluster={self.cluster!r}",
                remedy="specify both, or a study",
                field="metric" if self.metric else "stability_weight",
            )
        for name in ("num_gpus", "seq_len", "global_batch_size"):
            if (value := getattr(self, name)) is not None:
                positive_int(name, value, at_most=1 << 27)

        if self.measured_after is not None and self.measured_after.tzinfo is None:
            object.__setattr__(self, "measured_after", self.measured_after.replace(tzinfo=UTC))

    @property
    def measured_filters(self) -> dict[str, Any]:
        """The filters of `HistoryReader.best`, except model and cluster."""
        return {
            "trainer": self.trainer,
            "runner": self.runner,
            "num_gpus": self.num_gpus,
            "measured_after": self.measured_after,
        }

    @property
    def objective(self) -> Objective | None:
        """The objective to rank by; None to rank by speed."""
        if not self.metric and self.stability_weight is None:
            return None
        objective = Objective(metric=self.metric) if self.metric else Objective()
        if self.stability_weight is None:
            return objective
        return replace(objective, stability_weight=self.stability_weight)
