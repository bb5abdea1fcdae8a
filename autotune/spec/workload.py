"""The workload: what is trained and on what. It is the fixed part of a study."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.errors import SpecError
from autotune.spec.checks import one_of, positive_int
from autotune.spec.cluster import ClusterSpec
from autotune.spec.model import ModelSpec

OPTIMIZERS = ("adamw", "sgd")
"""adamw keeps two fp32 moments per weight, sgd none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Model, cluster, sequence length, batch, optimizer and trainer."""

    model: ModelSpec
    """the model that is trained"""
    cluster: ClusterSpec
    """the cluster that trains it"""
    seq_len: int
    """tokens per sequence, >= 1"""
    global_batch_size: int | tuple[int, ...]
    """sequences per optimizer step: one value, or the allowed values in rising order"""
    optimizer: str = "adamw"
    """adamw or sgd"""
    trainer: str = "native"
    """name of the trainer; the cost model's constants depend on it and on the GPU type"""

    def __post_init__(self) -> None:
        for name, kind in (("model", ModelSpec), ("cluster", ClusterSpec)):
            if not isinstance(getattr(self, name), kind):
                raise SpecError(
                    f"{name} must be a {kind.__name__}, but is {getattr(self, name)!r}",
                    remedy=f"autotune.spec.catalog.{name}(NAME) finds one by name",
                    field=name,
                )
        positive_int("seq_len", self.seq_len, at_most=1 << 27)
        if isinstance(self.global_batch_size, list):
            object.__setattr__(self, "global_batch_size", tuple(self.global_batch_size))
        sizes = self.global_batch_size if isinstance(self.global_batch_size, tuple) else (self.global_batch_size,)
        if not sizes:
            raise SpecError("global_batch_size must name at least one size", field="global_batch_size")
        for size in sizes:
            positive_int("global_batch_size", size, at_most=1 << 30)
        if isinstance(self.global_batch_size, tuple):
            object.__setattr__(self, "global_batch_size", tuple(sorted(set(sizes))))
        one_of("optimizer", self.optimizer, OPTIMIZERS)

    @property
    def global_batch_sizes(self) -> tuple[int, ...]:
        """All allowed global batch sizes, in rising order."""
        return self.global_batch_size if isinstance(self.global_batch_size, tuple) else (self.global_batch_size,)
