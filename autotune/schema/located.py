"""Errors of values, told with the field of the spec that they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autotune.errors import AutotuneError, CatalogError, ConfigError, SpecError

T = TypeVar("T")


def located(field: str, make: Callable[[], T]) -> T:
    """What `make` returns; its errors name the field of the spec."""
    try:
        return make()
    except CatalogError as error:
        if not field.endswith(f".{error.field}"):
            raise
        raise CatalogError(error.message, remedy=error.remedy, field=field) from None
    except (SpecError, ConfigError) as error:
        nested = error.field and not field.endswith(error.field) and not error.field.startswith(field)
        where = f"{field}.{error.field}" if nested else error.field if error.field.startswith(field) else field
        raise SpecError(error.message, remedy=error.remedy, field=where) from None
    except (TypeError, ValueError) as error:
        if isinstance(error, AutotuneError):
            raise
        raise SpecError(str(error), field=field) from None
