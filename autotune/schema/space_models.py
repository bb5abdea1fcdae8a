"""The search space of a spec: the values of each knob, as one value, a list, or a rule. The
built-in space for a model and a cluster.

The keys of `SpaceDocument` come from the declarations of the knobs (`autotune.spec.config.KNOBS`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, StrictBool, StrictInt, Tag, create_model, model_validator
from pydantic_core import PydanticCustomError

from autotune.schema.document import Count, Document, Name, Number, Text
from autotune.schema.files import is_model_file, read_model
from autotune.schema.source_text import located
from autotune.space.enumeration import MAX_VALUES
from autotune.spec import KNOBS, ClusterSpec, ModelSpec, catalog


class ValueRule(Document, defer_build=True):
    """A rule that lists the values of a knob; both ends are included."""

    powers_of_two: list[Count] | None = Field(
        default=None, min_length=2, max_length=2, description="[from, to]"
    )
    range: list[StrictInt] | None = Field(
        default=None, min_length=2, max_length=3, description="[from, to] or [from, to, step]"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> ValueRule:
        """Check that there is one valid rule."""
        if (self.powers_of_two is None) == (self.range is None):
            raise PydanticCustomError("one_rule", "set either powers_of_two or range")
        low, high, *step = self.powers_of_two or self.range or []
        if low > high or any(s < 1 for s in step):
            raise PydanticCustomError(
                "empty_range",
                "the first number of a range must not exceed the second, and a step must be at least 1",
            )
        count = (high - low) // (step[0] if step else 1) + 1
        if self.range is not None and count > MAX_VALUES:
            words = f"a range must have at most {MAX_VALUES:,} values, but has {count:,}"
            raise PydanticCustomError("long_range", "{words}", {"words": words})
        return self

    def listed(self) -> tuple[int, ...]:
        """Return the values, in ascending order."""
        if self.range is not None:
            low, high, *step = self.range
            return tuple(range(low, high + 1, *step))
        low, high = self.powers_of_two or (1, 0)
        return tuple(
            1 << i for i in range(low.bit_length() - 1, high.bit_length()) if low <= 1 << i <= high
        )


def _values_kind(value: Any) -> str:
    """Return the tag of a knob's values: a rule, a list, or one value."""
    if isinstance(value, Mapping | ValueRule):
        return "<rule>"
    return "<list>" if isinstance(value, list | tuple) else "<one>"


def _scalar_kind(value: Any) -> str | None:
    """Return the tag of a value; None if its type is not allowed."""
    return {bool: "<flag>", int: "<number>", str: "<word>"}.get(type(value))


Scalar = Annotated[
    Annotated[StrictBool, Tag("<flag>")]
    | Annotated[StrictInt, Tag("<number>")]
    | Annotated[Text, Tag("<word>")],
    Discriminator(
        _scalar_kind,
        custom_error_type="scalar",
        custom_error_message="must be a word, a whole number, true or false",
    ),
]
KnobValues = Annotated[
    Annotated[ValueRule, Tag("<rule>")]
    | Annotated[list[Scalar], Field(min_length=1, max_length=MAX_VALUES), Tag("<list>")]
    | Annotated[Scalar, Tag("<one>")],
    Discriminator(_values_kind),
]
OwnScalar = Annotated[
    Annotated[StrictBool, Tag("<flag>")]
    | Annotated[StrictInt, Tag("<number>")]
    | Annotated[Number, Tag("<fraction>")]
    | Annotated[Text, Tag("<word>")],
    Discriminator(
        lambda value: "<fraction>" if type(value) is float else _scalar_kind(value),
        custom_error_type="scalar",
        custom_error_message="must be a number, a word, true or false",
    ),
]
OwnValues = Annotated[
    Annotated[ValueRule, Tag("<rule>")]
    | Annotated[list[OwnScalar], Field(min_length=1, max_length=MAX_VALUES), Tag("<list>")]
    | Annotated[OwnScalar, Tag("<one>")],
    Discriminator(_values_kind),
]
Sizes = Annotated[
    Annotated[ValueRule, Tag("<rule>")]
    | Annotated[list[Count], Field(min_length=1, max_length=MAX_VALUES), Tag("<list>")]
    | Annotated[Count, Tag("<one>")],
    Discriminator(_values_kind),
]


class _SpaceHead(Document, defer_build=True):
    name: Name | None = None
    description: str = ""
    world_sizes: Sizes | None = Field(
        default=None, description="allowed numbers of ranks; default: all GPUs"
    )


_DOC = "The values that each knob may take. Omitted knobs keep their default; dp and accumulation_steps follow from world size and batch."
if TYPE_CHECKING:

    class SpaceDocument(_SpaceHead):
        """A key for each declared knob, created below."""
else:
    SpaceDocument = create_model(
        "SpaceDocument",
        __base__=_SpaceHead,
        __doc__=_DOC,
        **{
            name: (KnobValues | None, Field(default=None, description=knob.doc))
            for name, knob in KNOBS.items()
        },
    )


def usual_space(
    document: Mapping[str, Any],
    *,
    base: Path | None = None,
    here: Mapping[str, Callable[[], ClusterSpec]] | None = None,
) -> str:
    """Return the name of the built-in space for a spec's `model` (a name or a file) and `cluster`
    (a catalog name, or a key of `here`, such as `local`). Raises `SpecError` or `CatalogError` for
    an unknown one."""
    model, cluster = str(document["model"]), str(document["cluster"])
    loaded = located(
        "model", lambda: read_model(model, base) if is_model_file(model) else catalog.model(model)
    )
    find_cluster = (here or {}).get(cluster, lambda: catalog.cluster(cluster))
    return space_for(loaded, located("cluster", find_cluster))


def space_for(model: ModelSpec, cluster: ClusterSpec) -> str:
    """Return the name of the built-in space for the model and the cluster."""
    if cluster.num_gpus == 1:
        return "single-gpu"
    if model.num_experts:
        return "moe-multi-node"
    return "dense-single-node" if cluster.num_nodes == 1 else "dense-multi-node"
