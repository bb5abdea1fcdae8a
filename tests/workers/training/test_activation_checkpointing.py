"""Compiling happens or is refused; it is never left out without a word."""

from __future__ import annotations

import shutil

import pytest
import torch

from autotune.errors import ConfigError
from autotune_workers.training.activation_checkpointing import check_compiler
from autotune_workers.training.torch_internals import compile_or_fail

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_a_compiler_that_is_switched_off_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/g++")
    monkeypatch.setenv(name, "0")
    check_compiler(CPU)
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=name) as caught:
        check_compiler(CPU)
    assert caught.value.field == "compile"


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigError, match=r"C\+\+ compiler"):
        check_compiler(CPU)


def test_torch_may_not_hide_that_it_cannot_compile() -> None:
    with torch._dynamo.config.patch(suppress_errors=True), compile_or_fail():
        assert not torch._dynamo.config.suppress_errors
        assert torch._dynamo.config.fail_on_recompile_limit_hit
