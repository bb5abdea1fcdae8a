"""Every error has one shape, whoever raises it."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import StoreUnavailableError
from tests.service.running import API, Service, spec

JSON = {"Content-Type": "application/json"}
LAUNCH = {
    "files": {
        "run.sh": "torchrun --nproc_per_node 8 t.py --model_name_or_path meta-llama/Llama-3.1-8B "
        "--per_device_train_batch_size 1 --block_size 4096 --bf16 True\n"
    },
    "cluster": "h100-sxm",
}


@pytest.mark.parametrize(
    ("method", "path", "request_", "status", "kind", "field"),
    [
        ("GET", "/nothing", {}, 404, "not_found", ""),
        ("GET", f"{API}/nothing", {}, 404, "not_found", ""),
        ("DELETE", f"{API}/studies", {}, 405, "method_not_allowed", ""),
        ("GET", f"{API}/studies?limit=x", {}, 422, "spec", "limit"),
        ("GET", f"{API}/studies?limit=0", {}, 422, "spec", "limit"),
        ("GET", f"{API}/studies?status=odd", {}, 422, "spec", "status"),
        ("GET", f"{API}/studies?modle=gpt2-medium", {}, 422, "spec", "modle"),
        ("GET", f"{API}/health?deep=1", {}, 422, "spec", "deep"),
        ("GET", f"{API}/studies/absent", {}, 404, "not_found", ""),
        (
            "GET",
            f"{API}/studies/absent/events",
            {"headers": {"Accept": "text/event-stream"}},
            404,
            "not_found",
            "",
        ),
        ("POST", f"{API}/studies/absent/explode", {}, 422, "spec", "action"),
        (
            "POST",
            f"{API}/studies",
            {"content": b"{}", "headers": {"Content-Type": "text/plain"}},
            415,
            "media_type",
            "",
        ),
        ("POST", f"{API}/studies", {"content": b"{", "headers": JSON}, 422, "spec", ""),
        ("POST", f"{API}/studies", {"content": b"[1]", "headers": JSON}, 422, "spec", ""),
        ("POST", f"{API}/studies", {"content": b'{"a":1,"a":2}', "headers": JSON}, 422, "spec", ""),
        ("POST", f"{API}/studies", {"content": b'{"seed":NaN}', "headers": JSON}, 422, "spec", ""),
        ("POST", f"{API}/studies", {"content": b"\xff\xfe", "headers": JSON}, 422, "spec", ""),
        ("POST", f"{API}/studies", {"content": b"", "headers": JSON}, 422, "spec", ""),
        ("POST", f"{API}/studies", {"json": spec(seed="x")}, 422, "spec", "seed"),
        ("POST", f"{API}/plan?top=0", {"json": spec()}, 422, "spec", "top"),
        ("POST", f"{API}/plan?top=1&top=2", {"json": spec()}, 422, "spec", "top"),
        ("POST", f"{API}/plan?clusters=zz", {"json": spec()}, 422, "catalog", "clusters"),
    ],
)
def test_errors(
    service: Service,
    method: str,
    path: str,
    request_: dict[str, Any],
    status: int,
    kind: str,
    field: str,
) -> None:
    answer = service.http.request(method, path, **request_)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) - {"problems"} == {"kind", "message", "field", "remedy"}
    assert (error["kind"], error["field"]) == (kind, field)
    assert error["message"]


@pytest.mark.parametrize(
    ("method", "path", "request_", "message"),
    [
        (
            "GET",
            "/studies?limit=x",
            {},
            "must be a whole number, but is 'x'",
        ),
        (
            "GET",
            "/studies/-x",
            {},
            "must match pattern '^[A-Za-z0-9_][A-Za-z0-9_ .:+-]{0,99}$', but is '-x'",
        ),
        (
            "POST",
            "/review",
            {"content": b"{,}", "headers": JSON},
            "the request is not valid JSON: Expecting property",
        ),
        *(
            (
                method,
                path,
                {"content": b'{"%s": 1, "%s": 2}' % (key, key), "headers": JSON},
                f"the request is not valid JSON: the key '{key.decode()}' is given twice",
            )
            for method, path, key in (
                ("POST", "/review", b"files"),
                ("POST", "/studies/any/notes", b"text"),
                ("PATCH", "/studies/any/tags", b"add"),
            )
        ),
        ("POST", "/review", {"json": [1]}, "must be a JSON object"),
        # older releases of FastAPI take a body without a type for JSON
        (
            "POST",
            "/review",
            {"content": b"{}"},
            ("must be a JSON object", "this is required, but is missing"),
        ),
        ("POST", "/review", {"json": {}}, "this is required, but is missing"),
        (
            "POST",
            "/plan",
            {"json": [1]},
            "a spec must be a mapping of keys to values, but this is [1]",
        ),
        (
            "POST",
            "/plan",
            {"content": b'{"seed":' + b"9" * 5000 + b"}", "headers": JSON},
            "the request is not valid JSON: a whole number has too many digits",
        ),
        (
            "POST",
            "/plan",
            {"content": b"seed: " + b"9" * 5000, "headers": {"Content-Type": "application/yaml"}},
            "the study spec is not YAML: a whole number has too many digits",
        ),
        ("GET", "/studies?name=a&name=b", {}, "name is given more than once"),
        (
            "POST",
            "/plan?clusters=,,",
            {"json": spec()},
            "there must be 1 to 100 clusters to compare, but there are 0",
        ),
        *(
            (
                "POST",
                "/review",
                {"json": {**LAUNCH, "config": f"{knob}=0"}},
                f"{knob} must be a whole number from 1",
            )
            for knob in ("tp", "dp", "micro_batch_size")
        ),
        (
            "POST",
            "/review",
            {"json": {**LAUNCH, "measured_s": 1e-300, "batch": 8}},
            "a step time of 1e-294 us would mean 2e+299 times the GPUs' peak",
        ),
        ("POST", "/review", {"json": {"files": {".": "x"}}}, "'.' is not a file name"),
        (
            "POST",
            "/review",
            {"json": {"files": {"a": "x", "a/b": "y"}}},
            "'a/b' cannot be written next to the other files: File exists",
        ),
    ],
)
def test_invalid_parameters_and_bodies_are_reported_with_the_value(
    service: Service,
    method: str,
    path: str,
    request_: dict[str, Any],
    message: str | tuple[str, ...],
) -> None:
    answer = service.http.request(method, f"{API}{path}", **request_)
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith(message)


def test_a_mistake_in_a_spec_has_its_line_and_column(service: Service) -> None:
    text = "name: mine\nmodel: gpt2-medium\nbudget:\n  max_trails: 4\n"
    for path in ("studies", "plan"):
        answer = service.http.post(
            f"{API}/{path}", content=text, headers={"Content-Type": "application/yaml"}
        )
        error = answer.json()["error"]
        first, *missing = error["problems"]
        assert (first["line"], first["column"], first["field"]) == (4, 3, "budget.max_trails")
        assert first["remedy"] == "did you mean max_trials?"
        assert {problem["line"] for problem in missing} == {None}
        assert (error["message"], error["field"]) == (first["message"], first["field"])


def test_an_ambiguous_unit_in_a_query_is_reported_with_alternatives(
    service: Service,
) -> None:
    assert service.http.get(f"{API}/best?seq_len=8Ki").status_code == 200
    error = service.http.get(f"{API}/best?seq_len=8k").json()["error"]
    assert (error["field"], error["remedy"]) == (
        "seq_len",
        "write 8Ki for 8 x 1024, or the whole number",
    )


def test_an_unavailable_store_is_503_and_an_internal_error_500(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("the store cannot be reached", remedy="try again")

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(service.store, "studies", away)
    answer = service.http.get(f"{API}/studies")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (503, "store_unavailable")
    assert answer.headers["retry-after"]
    monkeypatch.setattr(service.store, "ping", away)
    service.service.last_health = (None, 0.0)
    assert service.http.get(f"{API}/health/ready").status_code == 503
    # a restart would not bring the store back
    assert service.http.get(f"{API}/health/live").status_code == 200
    monkeypatch.setattr(service.store, "studies", broken)
    answer = service.http.get(f"{API}/studies")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (500, "internal")
    assert "secret" not in answer.text
    assert "secret detail" in caplog.text
