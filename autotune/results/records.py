"""A study's record as plain JSON values and back: what a program at the other end of a wire needs to work on a study as if it had the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from autotune.errors import ServiceError
from autotune.ports import StudyRecord
from autotune.spec import StudyStatus, Wanted
from autotune.spec.plain import study_from_dict, study_to_dict

_TIMES = ("created_at", "updated_at", "started_at", "ended_at", "wanted_at")


def record_document(record: StudyRecord) -> dict[str, Any]:
    """All of it."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    times = {name: values[name].isoformat() if values[name] else None for name in _TIMES}
    words = {"status": str(record.status), "wanted": str(record.wanted)}
    return {**values, **times, **words, "tags": list(record.tags), "study": study_to_dict(record.study)}


def record_of(document: Mapping[str, Any]) -> StudyRecord:
    """The record of `record_document`. Raises `ServiceError` for what another release wrote and this one cannot read."""
    known = {field.name for field in fields(StudyRecord)}
    values = {name: value for name, value in document.items() if name in known}
    try:
        times = {name: datetime.fromisoformat(text) if (text := values.get(name)) else None for name in _TIMES}
        study, status = study_from_dict(values["study"]), StudyStatus(values["status"])
        wanted = Wanted(values.get("wanted", Wanted.RUN))  # releases before it did not say
        tags = tuple(values.get("tags", ()))
        return StudyRecord(**{**values, **times, "study": study, "status": status, "wanted": wanted, "tags": tags})
    except (LookupError, TypeError, ValueError) as error:
        raise ServiceError(
            f"this release cannot read the study that the service sent: {error}",
            remedy="use the service's release of autotune",
        ) from None
