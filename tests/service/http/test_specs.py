"""Hostile specs by the thousand: whatever comes, the answer is a study or an error of the service,
soon and without harm."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import AutotuneError, SpecError
from autotune.service.http.error_responses import RefusalError
from autotune.service.http.specs import JSON, YAML, allowed_study, read_body
from autotune.service.options import ServiceOptions
from autotune.spec import Study
from tests.matrix import examples
from tests.service.running import spec

NASTY = [
    "../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    "http://169.254.169.254/",
    "$(id)",
    "`id`",
    "; rm -rf /",
    "a|b&c",
    "%s%n",
    "{0.__class__}",
    "{{7*7}}",
    "<script>",
    "' OR 1=1 --",
    "\0",
    "\r\nSet-Cookie: a=b",
    "\u202etxt",
    "𝕏" * 50,
    "ﷺ" * 200,
    "a" * 10_000,
    "\ud800",
    "NaN",
    "1e999",
    "9" * 400,
    "__proto__",
    "os.system",
]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.sampled_from([0, -1, 1, 2**31, 2**63, 10**18, 10**400])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(NASTY),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(NASTY), inner)
    ),
    max_leaves=12,
)
KEYS = [
    ("name",),
    ("model",),
    ("model", "hidden_size"),
    ("cluster",),
    ("cluster", "gpu"),
    ("cluster", "num_nodes"),
    ("workload", "seq_len"),
    ("workload", "global_batch_size"),
    ("space",),
    ("space", "tp"),
    ("space", "micro_batch_size", "powers_of_two"),
    ("space", "world_sizes", "range"),
    ("objective", "metric"),
    ("budget", "max_trials"),
    ("budget", "max_wall_s"),
    ("measure", "precision"),
    ("searcher",),
    ("trainer",),
    ("trainer", "kind"),
    ("trainer", "steps"),
    ("runner", "kind"),
    ("runner", "seed"),
    ("runner", "faults"),
    ("seed",),
    ("data",),
    ("baseline",),
    ("enqueue",),
]


def changed(key: tuple[str, ...], value: Any) -> dict[str, Any]:
    document = json.loads(json.dumps(spec()))
    inner = document
    for name in key[:-1]:
        if not isinstance(inner.get(name), dict):
            inner[name] = {"kind": "native"} if name == "trainer" else {}
        inner = inner[name]
    inner[key[-1]] = value
    return document


def read(document: Any) -> Study | None:
    """The study, or None when the document was refused in good order; anything else is raised."""
    try:
        return allowed_study(read_body(json.dumps(document).encode(), JSON), ServiceOptions())
    except (AutotuneError, RefusalError):
        return None


@settings(max_examples=examples(150))
@given(key=st.sampled_from(KEYS), value=values)
def test_any_value_anywhere(key: tuple[str, ...], value: Any) -> None:
    study = read(changed(key, value))
    if study is not None:
        assert study.runner in ServiceOptions().runners
        assert study.trainer in ServiceOptions().trainers
        assert study.data is None


@settings(max_examples=examples(150))
@given(
    st.binary(max_size=300)
    | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass"))
)
def test_any_bytes(body: bytes) -> None:
    for media in (JSON, YAML):
        with contextlib.suppress(AutotuneError, RefusalError):
            assert isinstance(read_body(body, media), dict)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        "{" * 3000,
        "a: " * 3000,
        "- " * 3000,
        "&a [*a]",
        "a: &a\n  <<: *a\n",
        "? ? ? ?",
        "%YAML 9.9\n---\na: 1",
        "a: 0o777777777777777777777777",
        "a: " + "9" * 5000,
        "a: 2001-99-99",
        "2001-01-01: x",
        "a: 1:" + ":".join(["59"] * 500),
        "--- \n---\n",
        "﻿{}",
    ],
)
def test_texts_that_break_parsers(text: str) -> None:
    for media in (JSON, YAML):
        with pytest.raises((AutotuneError, RefusalError)):
            allowed_study(read_body(text.encode(), media), ServiceOptions())


@pytest.mark.parametrize("media", [JSON, YAML])
def test_a_repeated_key_is_reported(media: str) -> None:
    with pytest.raises(SpecError, match="the key 'max_trials' is given twice"):
        read_body(b'{"budget": {"max_trials": 1, "seed": 2, "max_trials": 3}}', media)


@pytest.mark.parametrize("folder", [None, ".", "/tmp"])
def test_no_code_of_a_model_is_run_for_a_request(folder: str | None) -> None:
    model = {"module": "os:getcwd", **({"folder": folder} if folder else {})}
    with pytest.raises(
        SpecError, match="only allowed if the spec is a file on your own machine"
    ) as refused:
        allowed_study(changed(("model",), model), ServiceOptions())
    assert refused.value.field == "model.module"
    assert "fields inline" in refused.value.remedy


def test_the_service_has_no_route_for_dry_runs() -> None:
    """A dry run runs a user's code; no scope of a token allows that."""
    from autotune.service.http.app import create_app
    from autotune.store.in_memory import MemoryStore

    assert not [
        path
        for path in create_app(MemoryStore(), ServiceOptions()).openapi()["paths"]
        if "fit" in path
    ]


def test_a_submitted_spec_may_contain_a_transformers_config() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256}
    source = json.dumps({"model_type": "llama", "intermediate_size": 96, **sizes})
    model = allowed_study(
        changed(("model",), {"hf": "mine", "source": source}), ServiceOptions()
    ).workload.model
    assert model.name == "mine"
    assert model.code.module == ""
