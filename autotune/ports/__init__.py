"""What the core needs from outside, as protocols with the values that they exchange: a runner of trials and a store of results.

    trial_runner.py     TrialRunner: executes attempts, reports events
    study_record.py     what a store hands out of a study: record, history, lease
    study_store.py      the store's roles (reading, writing, locking, what is measured once) and `Store`, their union
    service_store.py    what the service asks for beyond that: tokens, audit, counts

Nothing here does anything. Runners and stores implement these protocols without inheriting from them.
"""

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
    HistoryEvent,
    KnownWorkload,
    Lease,
    Revision,
    StudyFields,
    StudyRecord,
)
from autotune.ports.study_store import (
    CalibrationStore,
    HistoryReader,
    LeasedStore,
    LeaseKeeper,
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
    LogRead,
    PreflightRunner,
    RunnerEvent,
    StepsReported,
    TrialRequest,
    TrialRunner,
)

__all__ = [
    "SCOPES",
    "AdoptingRunner",
    "AttemptEnded",
    "AttemptId",
    "AttemptQueued",
    "AttemptStarted",
    "AuditEvent",
    "AuditLog",
    "CalibrationStore",
    "HistoryEvent",
    "HistoryReader",
    "KnownWorkload",
    "Lease",
    "LeaseKeeper",
    "LeasedStore",
    "LogRead",
    "PreflightRunner",
    "ReferenceLossStore",
    "Revision",
    "RunnerEvent",
    "ServiceStore",
    "Statistics",
    "StepsReported",
    "Store",
    "StoreMonitor",
    "StudyFields",
    "StudyReader",
    "StudyRecord",
    "StudyStore",
    "StudyWriter",
    "Token",
    "TokenStore",
    "TrialRequest",
    "TrialRunner",
    "TrialWriter",
]
