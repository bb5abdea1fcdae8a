"""Decides what a study does next, as a pure state machine: events in, commands out; no clock, no I/O.

commands.py        the events and commands, as values
state_machine.py   Controller: status of trials, retries, deadlines, pause, stop, cancel
phases.py          baseline, search, finals: which trial is next
proxy_phases.py    the same for a study with a target, whose trials are proxies
attempts.py        ranks in use, deadlines, lost attempts        rest.py             the strongest request to pause or end
trial_index.py     all trials, with running totals               trial_requests.py   a trial as a request to the runner
scoring.py         the end of an attempt as a terminal trial     admission.py        makes requested trials, or rejects them
budget.py          the used part of the budget                   stop_rule.py        whether further trials pay
accounts.py        running time and rank-seconds over all controllers
ending.py          status, message and result at the end         repeated_failure.py whether the program can run at all
infeasible.py      configs that cannot run here, counted by reason
finals/            finalists.py  which configs are re-measured   rounds.py           which runs of the finals count
                   winner.py     winner and speedup              too_noisy.py        when the noise allows no result
                   remeasure.py  repetitions after a change      machine_changes.py  texts about changes of the machine
"""

from autotune.study.controller.attempts import CUT_OFF
from autotune.study.controller.commands import (
    CANCELLED_ON_REQUEST,
    JOB_ENDS,
    PAUSED_ON_REQUEST,
    STOPPED_ON_REQUEST,
    TIME_IS_OVER,
    AttemptAdopted,
    CancelAsked,
    CancelAttempt,
    Command,
    EndStudy,
    EnterPhase,
    Event,
    InterruptAsked,
    KeepLate,
    NoteMachineChange,
    NoteQueued,
    NoteRest,
    NoteStarted,
    PauseAsked,
    ResumeAsked,
    StopAsked,
    StudyPhase,
    Tick,
    cause,
)
from autotune.study.controller.finals.finalists import failed_in_finals
from autotune.study.controller.finals.machine_changes import change_in_words, plan_in_words
from autotune.study.controller.finals.too_noisy import TooNoisy, noisy_of
from autotune.study.controller.finals.winner import Winner, decide
from autotune.study.controller.scoring import HOPELESS
from autotune.study.controller.state_machine import Controller
from autotune.study.controller.stop_rule import training_s

__all__ = [
    "CANCELLED_ON_REQUEST",
    "CUT_OFF",
    "HOPELESS",
    "JOB_ENDS",
    "PAUSED_ON_REQUEST",
    "STOPPED_ON_REQUEST",
    "TIME_IS_OVER",
    "AttemptAdopted",
    "CancelAsked",
    "CancelAttempt",
    "Command",
    "Controller",
    "EndStudy",
    "EnterPhase",
    "Event",
    "InterruptAsked",
    "KeepLate",
    "NoteMachineChange",
    "NoteQueued",
    "NoteRest",
    "NoteStarted",
    "PauseAsked",
    "ResumeAsked",
    "StopAsked",
    "StudyPhase",
    "Tick",
    "TooNoisy",
    "Winner",
    "cause",
    "change_in_words",
    "decide",
    "failed_in_finals",
    "noisy_of",
    "plan_in_words",
    "training_s",
]
