"""The OpenAPI document: complete, and kept by the service under generated requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase

from autotune import api
from autotune.service.routes.response_models import EXAMPLE_SPEC
from tests.service.running import API, DEADLINE_S, Service, bearer, spec

CASES, LONG_CASES = 8, 450
"""generated requests for each operation"""


@pytest.fixture(scope="module")
def openapi(service: Service) -> dict[str, Any]:
    return service.http.get("/openapi.json").json()


def test_every_route_documents_its_responses(openapi: dict[str, Any]) -> None:
    assert len(openapi["paths"]) == 24
    for path, methods in openapi["paths"].items():
        assert path.startswith(API)
        for operation in methods.values():
            assert operation["description"]
            for status, answer in operation["responses"].items():
                if status.startswith(("2", "3")) or "/health" in path:
                    continue
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorDocument"}
            assert {"401", "429", "500", "503"} <= set(operation["responses"]) or "/health" in path


def test_the_spec_is_described_and_its_example_works(openapi: dict[str, Any]) -> None:
    body = openapi["paths"][f"{API}/studies"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("/StudyDocument")
    assert "workload" in openapi["components"]["schemas"]["StudyDocument"]["required"]
    assert body["example"] == EXAMPLE_SPEC
    assert api.load_study(EXAMPLE_SPEC).name == EXAMPLE_SPEC["name"]


def conforms(service: Service, cases: int) -> dict[int, int]:
    """Requests by the document's rules and against them: no 500, and every answer as described.
    Counts by status."""
    import schemathesis
    from hypothesis import given, settings
    from hypothesis import strategies as st
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    study = service.submitted(spec(name="known"))
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    wanted = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    session = requests.Session()  # one connection: half of a case's time went into making another
    session.headers.update(bearer(service.token("admin", "generator")))
    seen: Counter[int] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        strategies = [operation.as_strategy(mode) for mode in GenerationMode]
        # made-up ids end in 404; half of the requests ask for a study that is there
        if "{study_id}" in operation.path:
            strategies += [
                operation.as_strategy(mode, path_parameters={"study_id": study})
                for mode in GenerationMode
            ]

        @given(st.one_of(strategies))
        @settings(
            max_examples=cases, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )
        def ask(case: Any) -> None:
            answer = case.call(session=session, timeout=DEADLINE_S)
            seen[answer.status_code] += 1
            case.validate_response(answer, checks=wanted)

        ask()
    session.close()
    return dict(sorted(seen.items()))


@pytest.mark.thorough
def test_generated_requests_are_answered_as_described(service: Service) -> None:
    assert {200, 422} <= set(conforms(service, CASES))


@pytest.mark.slow
def test_many_generated_requests_are_answered_as_described(service: Service) -> None:
    seen = conforms(service, LONG_CASES)
    print(f"{sum(seen.values())} requests: {seen}")
    assert sum(seen.values()) >= 5000
    assert {200, 201, 404, 409, 422} <= set(seen)
