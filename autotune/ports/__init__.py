"""Protocols of the core's external dependencies, a trial runner and a results store, and the values
that they exchange.

    trial_runner.py     TrialRunner: executes attempts, reports events
    study_record.py     values that a store returns about a study: record, history, lease
    decision.py         Decision: a controller's decision, stored in one transaction
    study_store.py      the store's roles (reading, writing, locking, knowledge) and `Store`, their union
    dry_runner.py       DryRunner: runs a model without a GPU
    annotations.py      notes and tags of studies
    service_store.py    what the service needs in addition: tokens, audit log, counts
    program_facts.py    settings of a program as observed by the probe

There are no implementations here. Runners and stores implement these protocols without inheriting
from them.
"""

from autotune.ports.annotations import AnnotationStore, StudyNote
from autotune.ports.decision import (
    CloseAttempt,
    Decision,
    EndTrial,
    Fact,
    KeepNote,
    KeepSteps,
    KeepTrial,
    StartAttempt,
)
from autotune.ports.dry_runner import DryRunLimits, DryRunner
from autotune.ports.service_store import (
    SCOPES,
    AuditEvent,
    AuditLog,
    ServiceStore,
    Statistics,
    StoreMonitor,
    Token,
    TokenStore,
)
from autotune.ports.study_record import (
    AskedRuns,
    AskedStudies,
    EventKind,
    HistoryEvent,
    HistoryFilter,
    KnownWorkload,
    Lease,
    ObservedFilter,
    Revision,
    StudyFields,
    StudyFilter,
    StudyRecord,
    status_kind,
)
from autotune.ports.study_store import (
    CalibrationStore,
    HistoryReader,
    KnowledgeStore,
    LeasedStore,
    LeaseKeeper,
    ObservedStore,
    ProfileStore,
    ReferenceLossStore,
    Store,
    StudyReader,
    StudyStore,
    StudyWriter,
    TrialWriter,
)
from autotune.ports.trial_runner import (
    AdoptingRunner,
    AttemptEnded,
    AttemptId,
    AttemptQueued,
    AttemptStarted,
    ChoosingRunner,
    FirstStep,
    LogRead,
    NodePlace,
    PreflightRunner,
    ProgramSeen,
    RunnerEvent,
    StepsReported,
    TrialRequest,
    TrialRunner,
)

__all__ = [
    "SCOPES",
    "AdoptingRunner",
    "AnnotationStore",
    "AskedRuns",
    "AskedStudies",
    "AttemptEnded",
    "AttemptId",
    "AttemptQueued",
    "AttemptStarted",
    "AuditEvent",
    "AuditLog",
    "CalibrationStore",
    "ChoosingRunner",
    "CloseAttempt",
    "Decision",
    "DryRunLimits",
    "DryRunner",
    "EndTrial",
    "EventKind",
    "Fact",
    "FirstStep",
    "HistoryEvent",
    "HistoryFilter",
    "HistoryReader",
    "KeepNote",
    "KeepSteps",
    "KeepTrial",
    "KnowledgeStore",
    "KnownWorkload",
    "Lease",
    "LeaseKeeper",
    "LeasedStore",
    "LogRead",
    "NodePlace",
    "ObservedFilter",
    "ObservedStore",
    "PreflightRunner",
    "ProfileStore",
    "ProgramSeen",
    "ReferenceLossStore",
    "Revision",
    "RunnerEvent",
    "ServiceStore",
    "StartAttempt",
    "Statistics",
    "StepsReported",
    "Store",
    "StoreMonitor",
    "StudyFields",
    "StudyFilter",
    "StudyNote",
    "StudyReader",
    "StudyRecord",
    "StudyStore",
    "StudyWriter",
    "Token",
    "TokenStore",
    "TrialRequest",
    "TrialRunner",
    "TrialWriter",
    "status_kind",
]
