"""Conversion between rows and values.

A trial's row has columns for values that queries use. Its `document` has the complete config,
estimate, measurement, reward, failure and reason, and for a proxy the config of the target. The
column `config` is the label. `config_key` is a 64-bit hash of `ParallelConfig.key`, so that equal
configs have the same number in all studies, even after new knobs are added.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Row

from autotune.ports import HistoryEvent, StudyRecord
from autotune.spec import (
    Measurement,
    ParallelConfig,
    Study,
    StudyStatus,
    Trial,
    TrialPurpose,
    TrialStatus,
    Wanted,
)
from autotune.spec.plain import canonical, finite, to_plain
from autotune.store.connection.database import from_us, to_us
from autotune.store.packing import pack_document, unpack_document


def clean(text: str) -> str:
    """Return the text with replacements for zero bytes and lone surrogates, which databases cannot
    store."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def config_key(config: ParallelConfig) -> int:
    """Return a signed 64-bit number that is the same for equal configs."""
    return int.from_bytes(
        hashlib.blake2b(config.key.encode(), digest_size=16).digest()[:8], "big", signed=True
    )


def json_text(values: Any) -> str:
    """Return plain values as strict JSON, with null for NaN and infinities."""
    return canonical(finite(values))


def read_study(row: Row[Any], trial_counts: Mapping[str, int], tags: Iterable[str]) -> StudyRecord:
    """Return the record of a row of `studies` joined with `specs`."""
    return StudyRecord(
        id=row.id,
        study=Study.from_dict(json.loads(row.values_text)),
        spec=json.loads(row.spec),
        status=StudyStatus(row.status),
        created_at=from_us(row.created_us),
        updated_at=from_us(row.updated_us),
        started_at=from_us(row.started_us) if row.started_us is not None else None,
        ended_at=from_us(row.ended_us) if row.ended_us is not None else None,
        elapsed_s=row.elapsed_s,
        message=row.message,
        owner=row.owner,
        baseline=row.baseline,
        best=row.best,
        speedup=row.speedup,
        result=json.loads(row.result),
        trial_counts=dict(trial_counts),
        wanted=Wanted(row.wanted),
        decisions=row.num_decisions,
        wanted_at=from_us(row.wanted_us) if row.wanted_us is not None else None,
        tags=tuple(sorted(tags)),
    )


def read_event(study_id: str, row: Row[Any]) -> HistoryEvent:
    """Return the event of a row of `events`."""
    return HistoryEvent(
        study=study_id,
        sequence=row.sequence,
        at=from_us(row.at_us),
        kind=row.kind,
        data=json.loads(row.data),
    )


def read_trial(study_id: str, row: Row[Any]) -> Trial:
    """Return the trial of a row of `trials`."""
    return replace(
        Trial.from_dict(unpack_document(row.document)),
        number=row.number,
        study=study_id,
        seed=row.seed,
        status=TrialStatus(row.status),
        purpose=TrialPurpose(row.purpose),
        attempts=row.attempts,
        created_at=from_us(row.created_us),
        started_at=from_us(row.started_us) if row.started_us is not None else None,
        ended_at=from_us(row.ended_us) if row.ended_us is not None else None,
    )


def new_trial_row(trial: Trial, *, study: int, workload: int, now: int) -> dict[str, Any]:
    """Return the row of a new trial."""
    return {
        "study": study,
        "number": trial.number,
        "workload": workload,
        "config_key": config_key(trial.config),
        "config": str(trial.config),
        "seed": trial.seed,
        "status": str(TrialStatus.PENDING),
        "purpose": str(trial.purpose),
        "attempts": 0,
        "created_us": to_us(trial.created_at) if trial.created_at else now,
        "document": pack_document(document_of(trial)),
    }


def ended_columns(stored: Trial, trial: Trial, *, num_gpus: int, now: int) -> dict[str, Any]:
    """Return the columns that change when the trial `stored` ends as `trial`. `num_gpus`: of the
    cluster. Proxies have no throughput, because they are not ranked."""
    ended = replace(
        trial,
        estimate=trial.estimate or stored.estimate,
        reason=trial.reason or stored.reason,
        stands_for=stored.stands_for,
    )
    measured = trial.measured if stored.stands_for is None else None
    return {
        "status": str(trial.status),
        "failure": str(trial.failure.kind) if trial.failure else None,
        "throughput": (finite(measured.tokens_per_s / num_gpus) or None) if measured else None,
        "reward": finite(trial.reward.total) if trial.reward else None,
        "ended_us": to_us(trial.ended_at) if trial.ended_at else now,
        "document": pack_document(document_of(ended)),
    }


def document_of(trial: Trial) -> dict[str, Any]:
    """Return a trial's document as plain values, without derived values."""
    names = ("config", "estimate", "measurement", "reward", "failure", "reason")
    document: dict[str, Any] = {name: to_plain(getattr(trial, name)) for name in names}
    if trial.measurement is not None:
        fields = Measurement.__dataclass_fields__
        document["measurement"] = {
            name: v for name, v in document["measurement"].items() if name in fields
        }
    if trial.stands_for is not None:
        document["stands_for"] = trial.stands_for.to_dict()
    return document
