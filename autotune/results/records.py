"""Study records from the service's JSON, for clients that have no access to the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from autotune.errors import ServiceError
from autotune.ports import StudyRecord


def record_of(document: Mapping[str, Any]) -> StudyRecord:
    """Return the record from `StudyRecord.to_dict`. Unknown fields are ignored. Raises
    `ServiceError` if this release cannot read the record that another one wrote."""
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
