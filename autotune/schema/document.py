"""What all documents share: a mapping whose keys are all known, and the types of its values.

Numbers are strict: text is no number and true is no 1, except that YAML writes `1e-3` as text. Times, tokens, bytes and rates may have a unit
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
from autotune.spec.texts.usual_names import meant_by

_EXPONENT = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]{1,3}")


def _number(value: Any) -> Any:
    """YAML 1.1 reads `1e-3`, which has no dot, as text."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def either(text: str, inline: str) -> Discriminator:
    """A value that is text (a name or a path) or is written out inline."""
    return Discriminator(lambda value: inline if isinstance(value, Mapping | BaseModel) else text)


def written(quantity: Quantity, bounds: Any, *, whole: bool = False) -> BeforeValidator:
    """Text as people write the quantity (`1h`, `80GiB`), as the plain number; `bounds` and `whole` are those of the number, for the JSON schema."""

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
Seconds = Annotated[Number, _SECONDS, written(TIME, _SECONDS)]
GpuSeconds = Annotated[Number, _POSITIVE, written(TIME, _POSITIVE)]
Latency = Annotated[Number, _LATENCY, written(TIME, _LATENCY)]
Tokens = Annotated[Number, _TOKENS, written(TOKENS, _TOKENS)]
Bytes = Annotated[Number, _FIGURE, written(BYTES, _FIGURE)]
BytesPerSecond = Annotated[Number, _FIGURE, written(BYTES_PER_S, _FIGURE)]
FlopsPerSecond = Annotated[Number, _FIGURE, written(FLOPS_PER_S, _FIGURE)]
SequenceLength = Annotated[StrictInt, _SEQUENCE, written(SEQUENCE, _SEQUENCE, whole=True)]
DocumentLength = Annotated[StrictInt, _NOT_NEGATIVE, written(SEQUENCE, _NOT_NEGATIVE, whole=True)]
IN_QUERY = BeforeValidator(_number_of_query)
"""marks a number of a query, where all values are text: `Annotated[Tokens, IN_QUERY]`"""
Text = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
Name = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_ .:+-]{0,99}$")]


MOST_MISTAKES = 10
"""mistakes that an error tells, the first of a document: another ten thousand would cost as much to find and help nobody"""
OF_SPEC = ("model", "cluster", "workload", "space", "trainer", "runner", "searcher", "budget")
"""keys of the spec itself that are sought in one of its mappings"""
OF_WORKLOAD = (
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
"""keys of `workload` that are sought in other places"""
_PARTS = {"budget": Budget, "measure": MeasureSpec, "objective": Objective}
_OF_PARTS = {field.name: part for part, kind in _PARTS.items() for field in fields(kind)}
HOMES = dict.fromkeys(OF_WORKLOAD, "workload") | {
    name: part for name, part in _OF_PARTS.items() if name not in KNOBS
}
"""the mapping that a key belongs to, by keys that are sought in other places"""


class Document(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _known_keys_only(cls, values: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuses unknown keys, and reports them together with what is wrong with the known ones."""
        fields = cls.model_fields  # looked up once: it is worked out anew each time
        unknown = (
            [key for key in values if key not in fields] if isinstance(values, Mapping) else []
        )
        # a key that is a word of Python's own, such as `async`, is a field by its alias
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
            for key in unknown[:MOST_MISTAKES]  # the first: no error tells more
        ]
        try:
            check({name: values[name] for name in fields if name in values})
        except ValidationError as error:
            # sorted where all are known
            mistakes += [_carried(found) for found in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(cls.__name__, mistakes)

    @classmethod
    def _remedy(cls, key: Any) -> str:
        """What to write instead of a key that this mapping does not have. Sought only for mistakes that are told: it takes a millisecond."""
        possible = {key} | (meant_by(str(key)) - {"model"}) if isinstance(key, str) else set()
        if (
            meant := next((name for name in HOMES if name in possible), "")
        ) and meant not in cls.model_fields:
            its, home = "it" if meant == key else meant, HOMES[meant]
            return f"{its} is a key of {home}; write `{home}: {{{meant}: ...}}`"
        if key in OF_SPEC and key not in cls.model_fields:
            return f"this is a key of the spec itself; write `{key}: ...` at the left margin"
        names = [field.alias or name for name, field in cls.model_fields.items()]
        if found := nearest(key, names):
            return found
        if knob := next(
            (name for name in KNOBS if name in meant_by(str(key)) and name not in cls.model_fields),
            "",
        ):
            return f"did you mean the knob {knob}? Write its values under `space`, as `space: {{{knob}: [...]}}`"
        return f"keys: {', '.join(names)}"


class Later:
    """Marks a document that few specs have: `Annotated[SlurmDocument, Later(SlurmDocument)]`. Its validator is built when a spec has one, which saves half of the
    time that building the validator of a study takes."""

    def __init__(self, document: type[BaseModel]) -> None:
        self._document = document

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._document.model_validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The document's own, among the definitions."""
        self._document.model_rebuild()
        whole = dict(self._document.__pydantic_core_schema__)
        if "ref" not in whole:
            return handler(cast(CoreSchema, whole))
        by_name = core_schema.definition_reference_schema(str(whole["ref"]))
        return handler(core_schema.definitions_schema(by_name, [cast(CoreSchema, whole)]))


def _carried(found: ErrorDetails) -> InitErrorDetails:
    """A problem that pydantic reported, to be reported again."""
    context = {**found.get("ctx", {}), "message": found["msg"]}
    return InitErrorDetails(
        type=PydanticCustomError(found["type"], "{message}", context),
        loc=found["loc"],
        input=found["input"],
    )
