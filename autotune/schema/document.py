"""The base class of all documents, which rejects unknown keys, and the types of their values.

Numbers are strict: text and booleans are rejected, except for text such as `1e-3`, which YAML 1.1
does not read as a number. Times, tokens, bytes and rates may have a unit
(`autotune.spec.texts.quantity`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Annotated, Any, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import (
    CoreSchema,
    ErrorDetails,
    InitErrorDetails,
    PydanticCustomError,
    core_schema,
)

from autotune.errors import SpecError
from autotune.spec import KNOBS, Budget, MeasureSpec, Objective
from autotune.spec.checks import nearest
from autotune.spec.texts.quantity import (
    BYTES,
    BYTES_PER_S,
    FLOPS_PER_S,
    SEQUENCE,
    TIME,
    TOKENS,
    Quantity,
)
from autotune.spec.texts.usual_names import meanings_of

_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,3}")


def _number(value: Any) -> Any:
    """Return text such as `1e-3` as a number, because YAML 1.1 needs a dot to read it as one."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def either(text: str, inline: str) -> Discriminator:
    """Return a discriminator with the tag `inline` for mappings, and `text` for names and paths."""
    return Discriminator(lambda value: inline if isinstance(value, Mapping | BaseModel) else text)


def with_unit(quantity: Quantity, bounds: Any, *, whole: bool = False) -> BeforeValidator:
    """Return a validator that turns text with a unit (`1h`, `80GiB`) into a number in the base
    unit. `bounds`, `whole`: of the number, for the JSON schema."""

    def plain(value: Any) -> Any:
        if (
            not isinstance(value, str)
            or not any(sign.isalpha() for sign in value)
            or _EXPONENT.fullmatch(value)
        ):
            return value
        try:
            number = quantity.parse(value)
        except SpecError as error:
            raise PydanticCustomError(
                "quantity", "{words}", {"words": error.message, "remedy": error.remedy}
            ) from None
        return int(number) if whole and number.is_integer() else number

    number: Any = Annotated[int if whole else float, bounds]
    text = Annotated[
        str,
        Field(
            pattern=r"^ *[0-9]", max_length=40, examples=[quantity.example.split()[0].rstrip(",")]
        ),
    ]
    return BeforeValidator(plain, json_schema_input_type=number | text)


def _number_of_query(value: Any) -> Any:
    """Return the text of a query parameter as a number; unchanged if it is not one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return value
    return int(number) if number.is_integer() else number


Count = Annotated[StrictInt, Field(ge=1, le=1 << 30)]
Number = Annotated[StrictFloat, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
_POSITIVE = Field(gt=0)
_SECONDS = Field(gt=0, le=366 * 86400)
_LATENCY = Field(ge=0, le=10)
_TOKENS = Field(gt=0, le=1e18)
_SEQUENCE = Field(ge=1, le=1 << 27)
_NOT_NEGATIVE = Field(ge=0)
_FIGURE = Field(ge=1, le=1e30)
Seconds = Annotated[Number, _SECONDS, with_unit(TIME, _SECONDS)]
GpuSeconds = Annotated[Number, _POSITIVE, with_unit(TIME, _POSITIVE)]
Latency = Annotated[Number, _LATENCY, with_unit(TIME, _LATENCY)]
Tokens = Annotated[Number, _TOKENS, with_unit(TOKENS, _TOKENS)]
Bytes = Annotated[Number, _FIGURE, with_unit(BYTES, _FIGURE)]
BytesPerSecond = Annotated[Number, _FIGURE, with_unit(BYTES_PER_S, _FIGURE)]
FlopsPerSecond = Annotated[Number, _FIGURE, with_unit(FLOPS_PER_S, _FIGURE)]
SequenceLength = Annotated[StrictInt, _SEQUENCE, with_unit(SEQUENCE, _SEQUENCE, whole=True)]
DocumentLength = Annotated[StrictInt, _NOT_NEGATIVE, with_unit(SEQUENCE, _NOT_NEGATIVE, whole=True)]
IN_QUERY = BeforeValidator(_number_of_query)
"""validates a number in a URL query, where all values are text: `Annotated[Tokens, IN_QUERY]`"""
Text = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
Name = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_ .:+-]{0,99}$")]


MAX_MISTAKES = 10
"""maximum number of mistakes in one error; a document may have thousands, and finding them takes
time"""
SPEC_KEYS = ("model", "cluster", "workload", "space", "trainer", "runner", "searcher", "budget")
"""top-level keys that users may misplace in one of the mappings"""
WORKLOAD_KEYS = (
    "lengths",
    "seq_len",
    "global_batch_size",
    "optimizer",
    "document_len",
    "peft",
    "pure_bf16",
    "shards_in_fp32",
    "unfused_attention",
    "attention_kernel",
    "loop",
)
"""keys of `workload` that users may misplace"""
_SECTIONS = {"budget": Budget, "measure": MeasureSpec, "objective": Objective}
_SECTION_KEYS = {field.name: name for name, kind in _SECTIONS.items() for field in fields(kind)}
SECTION_OF = dict.fromkeys(WORKLOAD_KEYS, "workload") | {
    key: name for key, name in _SECTION_KEYS.items() if key not in KNOBS
}
"""the section of each key that users may misplace"""


class Document(BaseModel):
    """A mapping that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _known_keys_only(cls, values: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys together with the mistakes in known ones."""
        fields = cls.model_fields  # looked up once, because the property is computed at each access
        unknown = (
            [key for key in values if key not in fields] if isinstance(values, Mapping) else []
        )
        # a key that is a Python keyword, such as `async`, is the alias of a field
        if unknown:
            fields = {field.alias or name: field for name, field in fields.items()}
            unknown = [key for key in values if key not in fields]
        if not unknown:
            return check(values)
        mistakes = [
            InitErrorDetails(
                type=PydanticCustomError(
                    "unknown_key",
                    "there is no key '{key}'",
                    {"key": str(key)[:80], "remedy": partial(cls._remedy, key)},
                ),
                input=values,
            )
            for key in unknown[:MAX_MISTAKES]
        ]
        try:
            check({name: values[name] for name in fields if name in values})
        except ValidationError as error:
            # `autotune.schema.parsing` sorts them
            mistakes += [_repeated(found) for found in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(cls.__name__, mistakes)

    @classmethod
    def _remedy(cls, key: Any) -> str:
        """Return the remedy for an unknown key of this mapping. It takes a millisecond, so it is
        called only for mistakes that are reported."""
        possible = {key} | (meanings_of(str(key)) - {"model"}) if isinstance(key, str) else set()
        if (
            known_key := next((name for name in SECTION_OF if name in possible), "")
        ) and known_key not in cls.model_fields:
            subject, section = "it" if known_key == key else known_key, SECTION_OF[known_key]
            return f"{subject} is a key of {section}; write `{section}: {{{known_key}: ...}}`"
        if key in SPEC_KEYS and key not in cls.model_fields:
            return f"this is a key of the spec itself; write `{key}: ...` at the left margin"
        names = [field.alias or name for name, field in cls.model_fields.items()]
        if suggestion := nearest(key, names):
            return suggestion
        if knob := next(
            (
                name
                for name in KNOBS
                if name in meanings_of(str(key)) and name not in cls.model_fields
            ),
            "",
        ):
            return f"did you mean the knob {knob}? Write its values under `space`, as `space: {{{knob}: [...]}}`"
        return f"keys: {', '.join(names)}"


class Deferred:
    """Marks a document that few specs have: `Annotated[SlurmDocument, Deferred(SlurmDocument)]`.
    Its validator is built when a spec has one, which halves the time to build the validator of a
    study."""

    def __init__(self, document: type[BaseModel]) -> None:
        self._document = document

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._document.model_validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return a reference to the document's schema, which is added to the definitions."""
        self._document.model_rebuild()
        document_schema = dict(self._document.__pydantic_core_schema__)
        if "ref" not in document_schema:
            return handler(cast(CoreSchema, document_schema))
        reference = core_schema.definition_reference_schema(str(document_schema["ref"]))
        return handler(
            core_schema.definitions_schema(reference, [cast(CoreSchema, document_schema)])
        )


def _repeated(details: ErrorDetails) -> InitErrorDetails:
    """Return an error of pydantic in the form that a new `ValidationError` accepts."""
    context = {**details.get("ctx", {}), "message": details["msg"]}
    return InitErrorDetails(
        type=PydanticCustomError(details["type"], "{message}", context),
        loc=details["loc"],
        input=details["input"],
    )
