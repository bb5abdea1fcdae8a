"""What a controller begins with beside its study and the trials so far. It is kept in the study's history, so that what it decided can be decided again.

capacity     ranks of the runner
constants    of the cost model, where this cluster was measured; they may be measured again later
accounts     elapsed time, rank-seconds and stop reason as of the last checkpoint
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.ports import KeepNote, StudyReader, StudyRecord
from autotune.spec import Trial
from autotune.spec.plain import fingerprint
from autotune.study.assembly import Assembly, teachers_of
from autotune.study.controller import Controller
from autotune.study.controller.admission import Correct, Predict
from autotune.study.environment import environment

if TYPE_CHECKING:
    from autotune.search import Searcher

BEGAN = "controller.began"
"""kind of the line in the history"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The inputs of one controller that no other line of the history holds."""

    capacity: int
    """ranks of the runner"""
    elapsed_s: float = 0.0
    """running time of the controllers before it, s"""
    gpu_s: float | None = None
    """rank-seconds of those; None: go by what was measured"""
    stop_reason: str = ""
    """why the search has ended, where it has"""
    fp32_losses: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """losses that earlier studies measured, by tokens per step"""
    constants: Mapping[str, Any] | None = None
    """measured constants of the cost model; None: the release's own"""
    profile: str = ""
    """fingerprint of the model's profile, where the store has one"""
    learnt_from: tuple[str, ...] = ()
    """ids of the earlier studies that the searcher was told of"""
    environment: Mapping[str, str] = field(default_factory=dict)
    """of the process (`autotune.study.environment`)"""

    @classmethod
    def of(
        cls,
        record: StudyRecord,
        assembly: Assembly,
        store: StudyReader,
        *,
        capacity: int,
        fp32_losses: Mapping[int, tuple[float, ...]],
    ) -> Beginning:
        """What a controller begins with now."""
        constants = assembly.calibration
        return cls(
            capacity=capacity,
            elapsed_s=record.elapsed_s,
            gpu_s=record.result.get("gpu_s"),
            stop_reason=str(record.result.get("stop_reason", "")),
            fp32_losses=fp32_losses,
            constants=constants.to_dict() if constants else None,
            profile=profile_of(assembly),
            learnt_from=tuple(teacher.id for teacher in teachers_of(record.study, store, before=record.created_at)),
            environment=environment(),
        )

    def to_note(self) -> KeepNote:
        """The line of the history."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        losses = {str(tokens): list(losses) for tokens, losses in self.fp32_losses.items()}
        return KeepNote(kind=BEGAN, data={**values, "fp32_losses": losses, "learnt_from": list(self.learnt_from)})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Beginning:
        """The beginning of the line's data."""
        losses = {int(tokens): tuple(losses) for tokens, losses in values["fp32_losses"].items()}
        return cls(**{**values, "fp32_losses": losses, "learnt_from": tuple(values["learnt_from"])})

    def controller(
        self,
        record: StudyRecord,
        assembly: Assembly,
        searcher: Searcher,
        *,
        past: Sequence[Trial],
        lost: Mapping[int, int],
        predict: Predict | None = None,
    ) -> Controller:
        """The controller that begins so. `past`, `lost`: see `Controller`. `predict`: the estimates of trials, where they are known already; they are
        not corrected."""
        from autotune.cost.correction import Correction

        corrected: Correct = Correction(assembly.space, assembly.calibration).applied
        return Controller(
            study_id=record.id,
            study=record.study,
            searcher=searcher,
            capacity=self.capacity,
            baseline=assembly.baseline,
            predict=predict or assembly.predict,
            correct=corrected if predict is None else lambda _, estimate, __: estimate,
            refuse=assembly.refuse,
            past=past,
            lost=lost,
            elapsed_s=self.elapsed_s,
            gpu_s=self.gpu_s,
            stop_reason=self.stop_reason,
            references=assembly.references,
            fp32_losses=self.fp32_losses,
        )


def profile_of(assembly: Assembly) -> str:
    """Fingerprint of the profile among the study's constants; empty without one."""
    profile = assembly.calibration.profile if assembly.calibration else None
    return fingerprint(profile.to_dict()) if profile else ""
