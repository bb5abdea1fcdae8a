"""What a study does next, as a pure machine: events in, commands out; no clock and no I/O.

commands.py   the events and commands              machine.py   Controller: phases, retries, pause, stop, cancel
attempts.py   ranks, deadlines                     judge.py     a report becomes a terminal trial
book.py       the trials, counted                  finals.py    who is measured again, and who won
budget.py     what is used up                   payoff.py    what further trials are worth
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
from autotune.study.controller.finals import Winner, contenders, decide, first_measurements
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
    "first_measurements",
    "training_s",
]
