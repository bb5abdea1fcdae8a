"""What inspection tells of a model that code builds, and what it says of code that cannot be
built."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.errors import ConfigError, DryRunError
from autotune.spec import ModelCode, ModelSpec
from autotune_workers.own_model.built_model import attention_modules, built_model, longest_list
from autotune_workers.own_model.inspection import inspect
from autotune_workers.training.model.own_stage import cut_places
from tests.workers.own_models import TinyLanguageModel, language_model

FOLDER = str(Path(__file__).parents[2])


def unknown(
    function: str, module: str = "tests.workers.own_models", folder: str = FOLDER, **args: Any
) -> ModelSpec:
    """A model before its code was run."""
    code = ModelCode(module=f"{module}:{function}", args=json.dumps(args), folder=folder)
    return ModelSpec(
        name="own", num_layers=1, hidden_size=1, num_attention_heads=1, vocab_size=1, code=code
    )


def code_of(model: ModelSpec) -> ModelCode:
    assert model.code is not None
    return model.code


def test_shapes_are_told_counted_or_guessed() -> None:
    found = inspect(unknown("language_model", width=32, depth=3))
    with torch.device("meta"):
        built = language_model(width=32, depth=3)
    code = code_of(found)
    assert (found.num_layers, found.hidden_size, found.vocab_size) == (3, 32, 256)
    assert (found.num_attention_heads, found.ffn_hidden_size) == (4, 128)
    assert (
        found.num_parameters
        == code.num_parameters
        == sum(p.numel() for p in built["model"].parameters())
    )
    assert (code.has_tensor_plan, code.has_pipeline_split, code.num_cuts, code.has_attention) == (
        True,
        True,
        2,
        True,
    )
    assert code.guessed == ()
    assert code.reads_tokens


def test_what_nothing_tells_is_that_of_a_decoder_with_as_many_weights() -> None:
    found = inspect(unknown("recommender", width=64))
    sizes = {"num_layers", "hidden_size", "num_attention_heads", "vocab_size", "ffn_hidden_size"}
    code = code_of(found)
    assert set(code.guessed) == sizes
    assert not code.reads_tokens
    assert not code.has_tensor_plan
    assert replace(found, code=None).num_parameters == pytest.approx(found.num_parameters, rel=0.2)


class SharedTable(nn.Module):
    """Without repeated blocks; its output projection is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = (
            nn.Embedding(100, 16),
            nn.Linear(16, 200),
            nn.Linear(16, 100, bias=False),
        )
        self.head.weight = self.embed.weight


@pytest.mark.parametrize(
    ("function", "module"),
    [
        ("recommender", "own_models"),
        ("convolutional", "own_models"),
        ("split_by_function", "own_models"),
        ("encoder_decoder", "own_architectures"),
        ("capacity_experts", "own_architectures"),
        ("u_net", "own_architectures"),
    ],
)
def test_a_guessed_decoder_has_the_weights_within_and_outside_of_the_repeated_blocks(
    function: str, module: str
) -> None:
    found = inspect(unknown(function, f"tests.workers.{module}"))
    assert "ffn_hidden_size" in code_of(found).guessed
    assert replace(found, code=None).num_parameters == pytest.approx(
        found.num_parameters, rel=0.005
    )


def test_a_shared_table_counts_once() -> None:
    found = inspect(unknown("SharedTable", __name__))
    assert (found.vocab_size, found.hidden_size, found.tied_embeddings) == (100, 16, True)
    assert found.num_parameters == 100 * 16 + 17 * 200
    assert replace(found, code=None).num_parameters == pytest.approx(5000, rel=0.005)
    assert not inspect(unknown("split_by_function")).tied_embeddings


def test_a_guessed_width_is_a_multiple_of_the_heads_that_are_told() -> None:
    for heads in (7, 12):
        found = inspect(unknown("heads_alone", heads=heads))
        assert found.num_attention_heads == heads
        assert found.hidden_size % heads == 0


def test_the_fingerprint_follows_arguments_and_code(tmp_path: Path) -> None:
    first, second = (code_of(inspect(unknown("language_model", depth=depth))) for depth in (2, 3))
    assert first.fingerprint != second.fingerprint
    assert inspect(unknown("language_model", depth=2)).code == first


@pytest.mark.parametrize(
    ("function", "module", "message"),
    [
        (
            "raises",
            "tests.workers.own_models",
            r"ValueError: no model is 1 wide \(.*own_models.py:\d+\)",
        ),
        (
            "no_module",
            "tests.workers.own_models",
            "must return an nn.Module, or a mapping with an nn.Module under `model`, but returned a int",
        ),
        ("nothing", "tests.workers.own_models", "own_models.py has no 'nothing'"),
        ("build", "not_there_at_all", "No module named 'not_there_at_all'.*move the module into"),
    ],
)
def test_code_that_cannot_be_built_is_told_with_its_line_and_a_remedy(
    function: str, module: str, message: str
) -> None:
    with pytest.raises(DryRunError, match=message):
        inspect(unknown(function, module))


def test_a_file_that_cannot_be_imported_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "own_model_with_a_mistake.py").write_text("import torch\n\nwidth = 1 / 0\n")
    with pytest.raises(DryRunError, match=r"ZeroDivisionError.*own_model_with_a_mistake.py:3"):
        inspect(unknown("build", "own_model_with_a_mistake", str(tmp_path)))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"modell": None}, "returned the key 'modell'.*did you mean model"),
        ({"input": 3}, "returned a int under `input`"),
        ({"pp_split": ["blocks.9"]}, "names 'blocks.9' under `pp_split`"),
        ({"layers": ["block.0"]}, "names 'block.0' under `layers`.*did you mean blocks"),
        ({"shapes": {"heads": 3}}, "returned heads=3 under `shapes`"),
    ],
)
def test_what_a_builder_returns_is_checked(returned: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(ConfigError, match=message):
        built_model({"model": TinyLanguageModel(8, 2, 2, tied=False), **returned}, "mine:build")


def test_repeated_blocks_and_their_attention_are_found() -> None:
    with torch.device("meta"):
        model = TinyLanguageModel(8, 3, 2, tied=False)
    blocks = longest_list(model)
    assert blocks == ("blocks.0", "blocks.1", "blocks.2")
    assert attention_modules(model, blocks) == ("blocks.0.attn", "blocks.1.attn", "blocks.2.attn")


def test_a_pipeline_cuts_at_the_places_that_part_the_model_most_evenly() -> None:
    places = [str(i) for i in range(1, 8)]
    assert cut_places(places, 2) == ["4"]
    assert cut_places(places, 3) == ["3", "6"]
    assert cut_places(places[:4], 4) == ["2", "3", "4"]
