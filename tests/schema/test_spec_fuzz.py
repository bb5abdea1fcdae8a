"""Every field of a spec with values of every wrong kind: never a traceback, always a message that
names the field; in this process and over REST."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx
import pytest

from autotune import load_study
from autotune.api import plan_of
from autotune.errors import AutotuneError
from autotune.schema import json_schema
from tests.service.conftest import service as service
from tests.service.running import API, Service
from tests.small_studies import spec

SHAPE = {
    "name": "mine", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256, "ffn_hidden_size": 256,
}  # fmt: skip
WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, -0.5, 1e400, math.nan, "", "x", "nan", "\0", "9" * 400, "{", "a: b", [], ["x"], [None], [[1]], {}, {"x": 1},
    {"kind": 5}, {"kind": "x", "a": [{}]}, {"": None},
)  # fmt: skip
SOURCES = (
    "x", "[1]", '{"a":', "[" * 20_000, "null", '"x"', '{"hidden_size":"x"}', '{"model_type":["a"]}', '{"model_type":"qwen3","layer_types":5}',
    '{"model_type":"llama","rope_scaling":5,"rope_theta":"x"}', '{"hidden_size":' + "9" * 5000 + "}",
)  # fmt: skip
_SCHEMA = json_schema()


def paths(schema: dict[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every field that the schema names; of a field that may be several things, of all
    of them."""
    if "$ref" in schema:
        schema = _SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from paths(choice, before)
    for name, inner in schema.get("properties", {}).items():
        yield (*before, name)
        if len(before) < 4:
            yield from paths(inner, (*before, name))


PATHS = sorted(set(paths(_SCHEMA)))


def with_value(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A spec that is right but for this field."""
    document = deepcopy(spec(model=SHAPE))
    place: Any = document
    for part in path[:-1]:
        if not isinstance(place.get(part), dict):
            place[part] = {}
        place = place[part]
    place[path[-1]] = value
    return document


def test_the_schema_names_many_fields() -> None:
    assert len(PATHS) > 150
    assert {
        ("model", "source"),
        ("measure", "step_timeout_s"),
        ("space", "tp"),
        ("trainer",),
    } <= set(PATHS)


def refusal(document: dict[str, Any], *, plans: bool = False) -> AutotuneError | None:
    """How the spec is refused; None when it is taken. Whatever else is raised is a mistake of
    ours."""
    try:
        study = load_study(document)
        if plans:
            plan_of(study, top=1, profile=False)
    except AutotuneError as error:
        return error
    return None


@pytest.mark.parametrize("top", sorted({path[0] for path in PATHS}))
def test_a_wrong_value_is_rejected_with_its_field_or_accepted(top: str) -> None:
    asked = [(path, value) for path in PATHS if path[0] == top for value in WRONG]
    refused = [
        (path, value, error) for path, value in asked if (error := refusal(with_value(path, value)))
    ]
    assert len(refused) > len(asked) // 5
    assert [(path, value, error.message) for path, value, error in refused if not error.field] == []


@pytest.mark.parametrize(
    "trainer", ["native", "megatron", "torchtitan", "deepspeed", "hf_trainer", "nanotron"]
)
@pytest.mark.parametrize("source", SOURCES)
def test_an_invalid_config_json_is_rejected(trainer: str, source: str) -> None:
    error = refusal(spec(model={**SHAPE, "source": source}, trainer=trainer), plans=True)
    try:
        is_object = isinstance(json.loads(source), dict)
    except (ValueError, RecursionError):
        is_object = False
    assert is_object or (error is not None and error.field == "model.source")


@pytest.mark.thorough
def test_rest_answers_422_with_the_field(service: Service) -> None:
    answers = {}
    with httpx.Client(base_url=service.url, timeout=60.0) as client:
        bodies = [(("model", "source"), source) for source in SOURCES]
        bodies += [
            (path, WRONG[number % len(WRONG)])
            for number, path in enumerate(PATHS)
            if number % 3 == 0
        ]
        for path, value in bodies:
            text = json.dumps(with_value(path, value))
            answer = client.post(
                f"{API}/plan?top=1", content=text, headers={"Content-Type": "application/json"}
            )
            answers[answer.status_code] = answers.get(answer.status_code, 0) + 1
            assert answer.status_code in (200, 400, 403, 404, 422), (path, value, answer.text)
            # these two are no JSON at all
            if answer.status_code == 422 and value == value and value != math.inf:
                assert answer.json()["error"]["field"], (path, value)
        refused = client.post(f"{API}/studies", json=spec(model={**SHAPE, "source": "x"}))
    assert answers[422] > 20
    assert refused.status_code == 422
    assert refused.json()["error"]["field"] == "model.source"
