"""The request to pause, stop or cancel a study. The strongest request so far is in force.

none < pause on request < interrupt < stop < cancel
"""

from __future__ import annotations

from autotune.spec import StudyStatus
from autotune.study.controller.commands import (
    CANCELLED_ON_REQUEST,
    PAUSED_ON_REQUEST,
    STOPPED_ON_REQUEST,
    CancelAsked,
    InterruptAsked,
    PauseAsked,
    ResumeAsked,
    StopAsked,
)

_STRENGTH = (None, StudyStatus.PAUSED, StudyStatus.COMPLETED, StudyStatus.CANCELLED)


class RestRequest:
    """The requested status of the study, and the reason."""

    def __init__(self) -> None:
        self.status: StudyStatus | None = None
        """requested status; None: the study continues"""
        self.reason = ""
        """message of the request"""

    def hear(
        self, event: PauseAsked | ResumeAsked | StopAsked | CancelAsked | InterruptAsked
    ) -> bool:
        """Process a request, and return whether it changes the status or reason. Only a pause on
        request can be withdrawn."""
        before = self.status, self.reason
        match event:
            case PauseAsked():
                self.ask(StudyStatus.PAUSED, PAUSED_ON_REQUEST)
            case ResumeAsked():
                if self.status is StudyStatus.PAUSED and self.reason == PAUSED_ON_REQUEST:
                    self.status = None
            case StopAsked():
                self.ask(StudyStatus.COMPLETED, STOPPED_ON_REQUEST)
            case CancelAsked():
                self.ask(StudyStatus.CANCELLED, CANCELLED_ON_REQUEST)
            case InterruptAsked():
                self.ask(StudyStatus.PAUSED, event.reason)
        return (self.status, self.reason) != before

    def ask(self, status: StudyStatus, reason: str) -> bool:
        """Set the requested status and reason if the request is stronger than the current one.
        Returns whether it is."""
        is_stronger = _strength(status, reason) > _strength(self.status, self.reason)
        if is_stronger:
            self.status, self.reason = status, reason
        return is_stronger

    @property
    def kills(self) -> bool:
        """Whether running trials are killed instead of awaited."""
        return self.status is StudyStatus.CANCELLED or (
            self.status is StudyStatus.PAUSED and self.reason != PAUSED_ON_REQUEST
        )


def _strength(status: StudyStatus | None, reason: str) -> tuple[int, bool]:
    return _STRENGTH.index(status), status is StudyStatus.PAUSED and reason != PAUSED_ON_REQUEST
