"""What all documents share: a mapping whose keys are all known, and the types of its values.

Numbers are strict: text is no number and true is no 1, except that YAML writes `1e-3` as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticCustomError

from autotune.spec.checks import nearest

_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,3}")


def _number(value: Any) -> Any:
    """YAML 1.1 reads `1e-3`, which has no dot, as text."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def either(text: str, inline: str) -> Discriminator:
    """A value that is text (a name or a path) or is written out inline."""
    return Discriminator(lambda value: inline if isinstance(value, Mapping | BaseModel) else text)


Count = Annotated[StrictInt, Field(ge=1, le=1 << 30)]
Number = Annotated[StrictFloat, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
Figure = Annotated[Number, Field(ge=1, le=1e30)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Seconds = Annotated[Number, Field(gt=0, le=366 * 86400)]
Text = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
Name = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_ .:+-]{0,99}$")]


class Document(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            for key in values:
                if key not in cls.model_fields:
                    known = ", ".join(cls.model_fields)
                    remedy = nearest(key, cls.model_fields) or f"keys: {known}"
                    raise PydanticCustomError(
                        "unknown_key", "no key is called '{key}'", {"key": str(key)[:80], "remedy": remedy}
                    )
        return values
