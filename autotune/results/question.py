"""The question for the best known config: of which model and cluster, and by which objective."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from autotune.errors import SpecError
from autotune.spec import Objective
from autotune.spec.checks import one_of, positive_int
from autotune.spec.study import METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Whose best config is wanted."""

    model: str = ""
    """name in the catalog or in the history; empty for the best of each model and cluster"""
    cluster: str = ""
    """name"""
    trainer: str = ""
    """empty: any for what was measured, native for the cost model"""
    runner: str = ""
    """empty: all but simulated"""
    num_gpus: int | None = None
    """GPUs of the cluster, for measured results; None for any number"""
    measured_after: datetime | None = None
    """only results measured since, with a time zone; None for any time"""
    seq_len: int | None = None
    """sequence length in tokens, for the nearest workload and for the cost model; with None, as in
    the history, else assumed"""
    global_batch_size: int | None = None
    """batch size in sequences, for the cost model; with None, as in the history, else assumed"""
    metric: str | None = None
    """throughput, goodput or cost; None for speed alone, unless `stability_weight` is given"""
    stability_weight: float | None = None
    """0 to 1; with None the default objective's, if a metric is named"""

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
        """What the question says of measurements beside model and cluster, as filters of
        `HistoryReader.best`."""
        return {
            "trainer": self.trainer,
            "runner": self.runner,
            "num_gpus": self.num_gpus,
            "measured_after": self.measured_after,
        }

    @property
    def objective(self) -> Objective | None:
        """What to rank by; None for speed."""
        if not self.metric and self.stability_weight is None:
            return None
        asked = Objective(metric=self.metric) if self.metric else Objective()
        return (
            asked
            if self.stability_weight is None
            else replace(asked, stability_weight=self.stability_weight)
        )
