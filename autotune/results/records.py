"""A study's record as plain JSON values and back: what a program at the other end of a wire needs
to work on a study as if it had the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from autotune.errors import ServiceError
from autotune.ports import StudyRecord


def record_of(document: Mapping[str, Any]) -> StudyRecord:
    """The record of `StudyRecord.to_dict`. Raises `ServiceError` for what another release wrote and
    this one cannot read."""
    known = {field.name for field in fields(StudyRecord)}
    try:
        return StudyRecord.from_dict(
            {name: value for name, value in document.items() if name in known}
        )
    except (LookupError, TypeError, ValueError) as error:
        raise ServiceError(
            f"this release cannot read the study that the service sent: {error}",
            remedy="use the same autotune release as the service",
        ) from None
