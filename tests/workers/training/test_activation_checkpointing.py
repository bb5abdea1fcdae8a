"""Compiling happens or is refused; it is never left out without a word."""

from __future__ import annotations

import shutil

import pytest
import torch

from autotune.errors import ConfigError
from autotune_workers.training.model.decoder import DecoderStage
from autotune_workers.training.parallel.activation_checkpointing import (
    apply_compile,
    apply_recompute,
    check_compiler,
)
from autotune_workers.training.torch_internals import compile_or_fail
from tests.workers.trial_ranks import MODELS

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_a_compiler_that_is_switched_off_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
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


def test_each_mode_recomputes_its_modules_alone() -> None:
    recomputed = {}
    for mode in ("none", "norm", "mlp", "selective", "full"):
        stage = DecoderStage(
            MODELS["llama"], range(1), is_first=True, is_last=True, dtype=torch.float32
        )
        apply_recompute(stage, mode)
        recomputed[mode] = {
            name for name, module in stage.named_modules() if "forward" in vars(module)
        }
    assert recomputed == {
        "none": set(),
        "norm": {"layers.0.attention_norm", "layers.0.mlp_norm", "layers.0.mlp.activation"},
        "mlp": {"layers.0.mlp"},
        "selective": {"layers.0.attention"},
        "full": {"layers.0"},
    }


@pytest.mark.slow
# by torch.compile
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_smaller_budget_keeps_fewer_activations_of_a_compiled_layer() -> None:
    kept = [_saved_elements(budget) for budget in (1.0, 0.2, 0.0)]
    assert kept[0] > 2 * kept[1] > 2 * kept[2] > 0


def _saved_elements(budget: float) -> int:
    """Elements that a compiled layer saves for its backward pass, weights apart."""
    torch._dynamo.reset()
    spec = MODELS["llama"]
    stage = DecoderStage(spec, range(1), is_first=True, is_last=True, dtype=torch.float32)
    stage.place(torch.arange(16), torch.arange(16))
    for parameter in stage.parameters():
        torch.nn.init.constant_(parameter, 0.01)
    apply_compile(stage.layers.values())
    weights = {p.data_ptr() for p in stage.parameters()}
    saved: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(0 if tensor.data_ptr() in weights else tensor.numel())
        return tensor

    with (
        compile_or_fail(budget),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        x = torch.randn((2, 16, spec.hidden_size), requires_grad=True)
        stage.layers["0"](x, stage.cos, stage.sin)
    return sum(saved)
