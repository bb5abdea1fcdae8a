"""What a study does next, as a pure state machine: events in, commands out; no clock and no I/O.

commands.py        the events and commands, as values
state_machine.py   Controller: trials become terminal, retries, deadlines, pause, stop, cancel
phases.py          baseline, search, finals: which trial is asked for next
attempts.py        ranks in use, deadlines, lost attempts        rest.py          the strongest request to come to rest
trial_index.py     all trials, with running counts               trial_requests.py   a trial as a request to the runner
scoring.py         a report becomes a terminal trial             finals.py        who is measured again, and who won
budget.py          what is used up                               stop_rule.py     whether further trials pay
ending.py          status, message and result of the end        repeated_failure.py  whether the program can run at all
"""

from autotune.study.controller.commands import (
    PAUSED_ON_REQUEST,
    STOPPED_ON_REQUEST,
    AttemptAdopted,
    CancelAsked,
    CancelAttempt,
    CloseAttempt,
    Command,
    EndStudy,
    EndTrial,
    EnterPhase,
    Event,
    InterruptAsked,
    KeepLate,
    KeepSteps,
    KeepTrial,
    NoteQueued,
    NoteStarted,
    PauseAsked,
    ResumeAsked,
    StartAttempt,
    StopAsked,
    StudyPhase,
    Tick,
)
from autotune.study.controller.finals import Winner, contenders, decide, failed_in_finals, first_measurements
from autotune.study.controller.scoring import HOPELESS
from autotune.study.controller.state_machine import Controller
from autotune.study.controller.stop_rule import training_s

__all__ = [
    "HOPELESS",
    "PAUSED_ON_REQUEST",
    "STOPPED_ON_REQUEST",
    "AttemptAdopted",
    "CancelAsked",
    "CancelAttempt",
    "CloseAttempt",
    "Command",
    "Controller",
    "EndStudy",
    "EndTrial",
    "EnterPhase",
    "Event",
    "InterruptAsked",
    "KeepLate",
    "KeepSteps",
    "KeepTrial",
    "NoteQueued",
    "NoteStarted",
    "PauseAsked",
    "ResumeAsked",
    "StartAttempt",
    "StopAsked",
    "StudyPhase",
    "Tick",
    "Winner",
    "contenders",
    "decide",
    "failed_in_finals",
    "first_measurements",
    "training_s",
]
