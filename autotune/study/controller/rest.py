"""What the study was asked to do instead of going on: to pause, to stop or to be cancelled. The
strongest request so far holds.

nothing < pause on request < interrupt < stop < cancel
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
    """The status that the study shall come to rest in, and why."""

    def __init__(self) -> None:
        self.status: StudyStatus | None = None
        """None: it goes on"""
        self.reason = ""
        """in words"""

    def hear(
        self, event: PauseAsked | ResumeAsked | StopAsked | CancelAsked | InterruptAsked
    ) -> bool:
        """Takes in what somebody asked for; whether that changes anything. Only a pause on request
        can be taken back."""
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
        """A request to come to rest; one that is not stronger than the present changes nothing.
        Whether it changed anything."""
        is_stronger = _strength(status, reason) > _strength(self.status, self.reason)
        if is_stronger:
            self.status, self.reason = status, reason
        return is_stronger

    @property
    def kills(self) -> bool:
        """Whether running trials are ended rather than waited for."""
        return self.status is StudyStatus.CANCELLED or (
            self.status is StudyStatus.PAUSED and self.reason != PAUSED_ON_REQUEST
        )


def _strength(status: StudyStatus | None, reason: str) -> tuple[int, bool]:
    return _STRENGTH.index(status), status is StudyStatus.PAUSED and reason != PAUSED_ON_REQUEST
