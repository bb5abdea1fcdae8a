"""Which values of a spec are secrets, and what is left when they are hidden."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.spec.texts.secrets import is_secret_name, masked, secret_places, secrets_of, without


@pytest.mark.parametrize(
    "name",
    ["WANDB_API_KEY", "HF_TOKEN", "api-key", "apiKey", "AWS_SECRET_ACCESS_KEY", "db.password", "PGPASSWORD", "MY_PASSWD", "client_secret",
     "hub_token", "Authorization", "x-api-key", "OPENAI_KEY", "NEPTUNE_API_TOKEN", "github_pat", "access_tokens",
     "NETRC_PASS", "DB_PASS", "smtp-pass", "PGPASS", "COOKIE", "AUTH", "PROXY_AUTH", "BEARER", "API_JWT", "PWORD", "SAS_SIGNATURE", "AZURE_STORAGE_CONNECTION_STRING"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["tokenizer", "tokenizer_path", "max_tokens", "pad_token", "num_tokens", "tokens", "tokens_per_step", "text_key", "monkey", "keyboard", "lr",
     "num_kv_heads", "label_keys", "keep", "batch", "max_new_tokens", "author", "compass", "", "forward_pass", "num_pass", "pass", "bypass", "by_pass", "signature", "string", "cookie_jar_size"],
)  # fmt: skip
def test_names_that_are_not_of_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        (
            {"env": {"WANDB_API_KEY": "abc123456", "X": "1"}},
            {"env": {"WANDB_API_KEY": "***", "X": "1"}},
        ),
        (["train.py", "--api-key=abc123", "--lr=1"], ["train.py", "--api-key=***", "--lr=1"]),
        (
            ["train.py", "--api-key", "abc123", "--lr", "1"],
            ["train.py", "--api-key", "***", "--lr", "1"],
        ),
        (["train.py", "--api-key", "--lr", "1"], ["train.py", "--api-key", "--lr", "1"]),
        (("+wandb.api_key='a b'", "x=1"), ("+wandb.api_key='***'", "x=1")),
        ("postgresql://user:pass@host/db", "postgresql://user:***@host/db"),
        ("git+https://ghp_abcdef@host/x.git", "git+https://***@host/x.git"),
        ("https://host/x?a=1&token=abcdef&b=2", "https://host/x?a=1&token=***&b=2"),
        ("--header=Authorization: Bearer abcdef123", "--header=Authorization: Bearer ***"),
        ("sh -c 'HF_TOKEN=hf_abc python train.py'", "sh -c 'HF_TOKEN=*** python train.py'"),
        (
            {"files": {"c.yaml": "lr: 1\napi_key: abc\nb: 2\n"}},
            {"files": {"c.yaml": "lr: 1\napi_key: ***\nb: 2\n"}},
        ),
        (
            {"files": {"c.json": '{"api_key": "abc", "b": 2}'}},
            {"files": {"c.json": '{"api_key": "***", "b": 2}'}},
        ),
        ({"password": 1234}, {"password": "***"}),
        ({"secrets": {"a": "x1", "b": ["y1"]}}, {"secrets": {"a": "***", "b": ["***"]}}),
        ({"max_tokens": 4096, "tokenizer": "gpt2"}, {"max_tokens": 4096, "tokenizer": "gpt2"}),
        ({"HF_TOKEN": "from-environment"}, {"HF_TOKEN": "from-environment"}),
        (
            "--api-key=$WANDB_API_KEY --k={tp} --token=${T}",
            "--api-key=$WANDB_API_KEY --k={tp} --token=${T}",
        ),
        ({"api_key": "***"}, {"api_key": "***"}),
        ({"use_auth_token": True, "token": None}, {"use_auth_token": True, "token": None}),
        ("mail me@host.com at 12:30, loss=2.5", "mail me@host.com at 12:30, loss=2.5"),
    ],
)
def test_only_secrets_are_masked(value: Any, hidden: Any) -> None:
    assert masked(value) == hidden
    assert masked(hidden) == hidden


def test_long_secrets_are_found_in_other_texts() -> None:
    options = {
        "env": {"WANDB_API_KEY": "abc123456", "PIN_SECRET": "12"},
        "argv": ["x", "--token=tok-987654"],
    }
    secrets = secrets_of(options)
    assert secrets == {"abc123456", "tok-987654"}
    assert secret_places(options) == ("WANDB_API_KEY", "PIN_SECRET", "token")
    found = without(
        secrets, {"log": ["login with abc123456", "12 steps"], "at": ("x tok-987654 y",)}
    )
    assert found == {"log": ["login with ***", "12 steps"], "at": ("x *** y",)}
