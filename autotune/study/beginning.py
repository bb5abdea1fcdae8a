"""The inputs of a controller besides its study and the trials so far. They are stored in the study's
history, so that the controller's decisions can be reproduced.

capacity     number of ranks of the runner
constants    measured constants of the cost model, which may be re-measured later
accounts     elapsed time, rank-seconds and stop reason at the last checkpoint
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.ports import EventKind, KeepNote, StudyRecord
from autotune.search import Searcher
from autotune.spec import Trial
from autotune.study.assembly import Assembly
from autotune.study.controller import Controller


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The inputs of one controller that no other event of the history holds."""

    capacity: int
    """number of ranks of the runner"""
    elapsed_s: float = 0.0
    """running time of the earlier controllers, s"""
    gpu_s: float | None = None
    """rank-seconds of the earlier controllers; None: add up the measured trials"""
    stop_reason: str = ""
    """why the search has ended; empty if it has not"""
    fp32_losses: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """losses measured by earlier studies, by tokens per step"""
    constants: Mapping[str, Any] | None = None
    """measured constants of the cost model; None: those of the release"""
    goes_on: bool = False
    """whether the study's job is restarted after its end"""

    @classmethod
    def of(
        cls,
        record: StudyRecord,
        assembly: Assembly,
        *,
        capacity: int,
        fp32_losses: Mapping[int, tuple[float, ...]],
        goes_on: bool = False,
    ) -> Beginning:
        """The inputs of a controller that begins now."""
        constants = assembly.calibration
        return cls(
            capacity=capacity,
            elapsed_s=record.elapsed_s,
            gpu_s=record.result.get("gpu_s"),
            stop_reason=str(record.result.get("stop_reason", "")),
            fp32_losses=fp32_losses,
            constants=constants.to_dict() if constants else None,
            goes_on=goes_on,
        )

    def to_note(self) -> KeepNote:
        """The inputs as an event of the history."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        losses = {str(tokens): list(losses) for tokens, losses in self.fp32_losses.items()}
        return KeepNote(kind=EventKind.CONTROLLER_BEGAN, data={**values, "fp32_losses": losses})

    def controller(
        self,
        record: StudyRecord,
        assembly: Assembly,
        searcher: Searcher,
        *,
        past: Sequence[Trial],
        lost: Mapping[int, int],
    ) -> Controller:
        """Make the controller with these inputs. `past`, `lost`: see `Controller`."""
        from autotune.cost.learn.correction import Correction

        return Controller(
            study_id=record.id,
            study=record.study,
            searcher=searcher,
            capacity=self.capacity,
            baseline=assembly.baseline,
            predict=assembly.predict,
            correct=Correction(assembly.space, assembly.calibration).applied,
            refuse=assembly.refuse,
            past=past,
            lost=lost,
            elapsed_s=self.elapsed_s,
            gpu_s=self.gpu_s,
            stop_reason=self.stop_reason,
            references=assembly.references,
            fp32_losses=self.fp32_losses,
            goes_on=self.goes_on,
        )
