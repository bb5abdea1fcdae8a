"""What a body may cost: every address that takes one is sent the worst bodies under the limit, over
real HTTP, and none may cost more than reading it a few times.

Costs are processor time of the service, compared with that of reading as many bytes: a slow machine
slows both. Whatever fails once, because something else ran or memory was tidied up, is asked again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus

import pytest

from autotune.service.http.app import create_app
from autotune.service.http.specs import MAX_YAML_BYTES
from autotune.service.options import ServiceOptions
from autotune.store import MemoryStore
from tests.service.http.test_attacks_on_every_route import at, routes_of
from tests.service.running import API, Service, spec

MOST_BYTES = ServiceOptions().max_body_bytes
SPECS = {f"{API}/studies", f"{API}/plan", "/submit", "/submit/preview"}
"""addresses that read a spec"""
OTHERS = ("unknown keys", "the last key twice", "depth", "digits", "text", "tags")
"""bodies for the other addresses"""
MOST = 3.0
"""times the processor time of reading a large body as JSON ten times: what takes 0.1 s there may
cost 0.3 s"""


def keys(of: dict[str, Any], place: str = "") -> Callable[[int], str]:
    """So many unknown keys, in a part of a spec or in the spec itself."""

    def text(count: int) -> str:
        unknown = {f"k{i}": 1 for i in range(count)}
        return json.dumps(
            {**of, **({place: {**of.get(place, {}), **unknown}} if place else unknown)}
        )

    return text


def listed(place: str, entry: Any) -> Callable[[int], str]:
    """A spec whose `place` holds so many entries."""
    return lambda count: json.dumps(spec(**{place: [entry] * count}))


JSON_BODIES: dict[str, Callable[[int], str]] = {
    "unknown keys": keys({}),
    "a spec and unknown keys": keys(spec()),
    "keys of the workload": keys(spec(), "workload"),
    "keys of the space": keys(spec(), "space"),
    "keys of a runner": keys(spec(runner={"kind": "simulated"}), "runner"),
    "keys of a trainer": keys(spec(trainer={"kind": "megatron"}), "trainer"),
    "keys of a model": keys(spec(model={}), "model"),
    "knobs": keys(spec(knobs={}), "knobs"),
    "the last key twice": lambda count: (
        "{" + ",".join(f'"k{i}":1' for i in [*range(count), count - 1]) + "}"
    ),
    "configs with an unknown key": listed("enqueue", {"tp": 1, "x": 1}),
    "sizes that are none": lambda count: json.dumps(spec(space={"tp": ["a"] * count})),
    "sizes": lambda count: json.dumps(spec(space={"tp": list(range(1, count + 1))})),
    "a long word": lambda count: json.dumps(spec(trainer="x" * count, searcher="y" * count)),
    "a long name": lambda count: json.dumps(spec(model="h100-sxm-" * count)),
    "depth": lambda count: '{"a":' * count + "1" + "}" * count,
    "digits": lambda count: '{"a":' + "9" * count + "}",
    "text": lambda count: json.dumps({"text": "x" * count}),
    "tags": lambda count: json.dumps({"add": [f"t{i}" for i in range(count)]}),
}


def largest(text: Callable[[int], str], most: int) -> bytes:
    """The largest body of the kind that is not refused for its size."""
    count = most // 2
    while len(body := text(count).encode()) > most:
        count = min(count - 1, int(count * most / len(body) * 0.99))
    return body


def as_form(body: bytes) -> bytes:
    """A form of the pages whose fields all hold that text."""
    text = quote_plus(body)[: MOST_BYTES - 200]
    return f"spec={text}".encode()


def cost_s(work: Callable[[], Any]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


@pytest.fixture(scope="module")
def bodies() -> dict[str, bytes]:
    return {name: largest(text, MOST_BYTES) for name, text in JSON_BODIES.items()}


def taking_a_body() -> list[tuple[str, str]]:
    """All addresses that take one."""
    store = MemoryStore()
    found = sorted(
        {route for route in routes_of(create_app(store, ServiceOptions())) if route[0] != "GET"}
    )
    store.close()
    return found


def cheapest(
    service: Service, method: str, path: str, body: bytes, media: str
) -> tuple[float, int]:
    """Processor time and status of the cheapest of a few requests."""
    spent_s, status = math.inf, 0
    for _ in range(4):
        before_s = time.process_time()
        answer = service.http.request(method, path, content=body, headers={"Content-Type": media})
        spent_s, status = min(spent_s, time.process_time() - before_s), answer.status_code
    return spent_s, status


def most_s(bodies: dict[str, bytes]) -> float:
    return MOST * max(
        cost_s(lambda: [json.loads(bodies["unknown keys"]) for _ in range(10)]) for _ in range(3)
    )


@pytest.mark.thorough
def test_twenty_thousand_unknown_keys_are_rejected_as_fast_as_they_are_read(
    service: Service, bodies: dict[str, bytes]
) -> None:
    study = service.http.post(f"{API}/studies", json=spec()).json()["study"]["id"]
    body, most = bodies["unknown keys"], most_s(bodies)
    assert len(json.loads(body)) > 18_000
    for method, path in [route for route in taking_a_body() if route[1].startswith(API)]:
        spent_s, status = cheapest(service, method, at(path, study), body, "application/json")
        assert status < 500, (method, path)
        assert status == 422 or path not in SPECS, (method, path, status)
        assert spent_s < most, (method, path, f"{spent_s:.2f} s, and {most:.2f} s are allowed")


@pytest.mark.slow
def test_no_body_costs_much_more_than_reading_it(
    service: Service, bodies: dict[str, bytes]
) -> None:
    study, most = (
        service.http.post(f"{API}/studies", json=spec()).json()["study"]["id"],
        most_s(bodies),
    )
    form_token = service.service.gate._form_token("loopback")
    routes = taking_a_body()
    assert {path for _, path in routes} > SPECS
    for method, path in routes:
        for name in bodies if path in SPECS and path.startswith(API) else OTHERS:
            if path.startswith(API):
                body, media = bodies[name], "application/json"
            else:
                body = as_form(bodies[name]) + f"&form_token={form_token}".encode()
                media = "application/x-www-form-urlencoded"
            spent_s, status = cheapest(service, method, at(path, study), body, media)
            assert status < 500, (method, path, name)
            assert spent_s < most, (
                method,
                path,
                name,
                f"{spent_s:.2f} s, and {most:.2f} s are allowed",
            )


def test_an_unknown_key_in_a_note_is_reported_with_the_valid_keys(service: Service) -> None:
    study = service.http.post(f"{API}/studies", json=spec()).json()["study"]["id"]
    error = service.http.patch(f"{API}/studies/{study}/tags", json={"ad": ["a"]}).json()["error"]
    assert (error["field"], error["remedy"]) == ("ad", "did you mean add?")


@pytest.mark.parametrize("line", ["k{}: 1\n", "k{}: [1, {{a: 1}}]\n", "? [{}]\n: 1\n"])
def test_a_large_yaml_spec_is_rejected_before_it_is_parsed(service: Service, line: str) -> None:
    text = "".join(line.format(i) for i in range(20_000))[: MOST_BYTES - 1]
    assert len(text) > MAX_YAML_BYTES
    yaml = {"Content-Type": "application/yaml"}
    for path in (f"{API}/studies", f"{API}/plan"):
        error = service.http.post(path, content=text, headers=yaml).json()["error"]
        assert "in YAML may have at most 64 KiB" in error["message"]
        assert "JSON" in error["remedy"]


def test_an_error_lists_the_first_ten_of_ten_thousand_mistakes(service: Service) -> None:
    names = [f"k{i}" for i in range(10_000)]
    body = dict.fromkeys(names[:5000], 1) | spec(seed="x") | dict.fromkeys(names[5000:], 1)
    error = service.http.post(f"{API}/studies", json=body).json()["error"]
    assert error["field"] == "k0"
    assert [one["field"] for one in error["problems"]] == names[:10]
