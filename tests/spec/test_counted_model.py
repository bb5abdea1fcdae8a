"""A model of which only the weight count: what stands for it, what is said of that, and who refuses
it."""

from __future__ import annotations

from typing import Any

import pytest

from autotune import api
from autotune.errors import SpecError
from autotune.space import SearchSpace
from autotune.spec import ModelSpec, Study
from tests.small_studies import spec

COMMAND = {
    "kind": "command",
    "argv": ["t.py", "{dp}", "{micro_batch_size}", "{accumulation_steps}", "{precision}"],
}


@pytest.mark.parametrize(
    "parameters", [1, 9, 4_321, 11_689_512, 25_557_032, 632_045_800, 70_000_000_000]
)
def test_the_assumed_decoder_has_about_the_same_number_of_weights(parameters: int) -> None:
    model = ModelSpec.of_parameters(parameters, name="m")
    assert model.num_parameters == parameters
    assert model.is_counted
    if parameters > 1000:
        assert abs(model.shape_parameters - parameters) <= 0.02 * parameters
    (told,) = model.assumptions
    assert f"known only by its {parameters:,} weights" in told


def test_a_counted_model_is_parsed_and_stored() -> None:
    study = api.load_study(
        spec(model={"parameters": 25_557_032, "name": "resnet50"}, trainer=COMMAND)
    )
    assert (study.workload.model.name, study.workload.model.num_parameters) == (
        "resnet50",
        25_557_032,
    )
    assert Study.from_dict(study.to_dict()) == study
    unnamed = api.load_study(spec(model={"parameters": 25_557_032}, name="images", trainer=COMMAND))
    assert unnamed.workload.model.name.startswith("images-")
    assert len(SearchSpace.of_study(unnamed)) > 1


@pytest.mark.parametrize(
    "model", [{"parameters": 0}, {"parameters": 1.5e6}, {"parameters": 9, "num_layers": 2}]
)
def test_other_forms_are_not_counted_models(model: Any) -> None:
    with pytest.raises(SpecError):
        api.load_study(spec(model=model, trainer=COMMAND))


@pytest.mark.parametrize("trainer", ["native", "torchtitan", "deepspeed", "accelerate", "megatron"])
def test_trainers_that_build_the_model_reject_a_counted_model(trainer: str) -> None:
    study = api.load_study(spec(model={"parameters": 25_557_032}, trainer=trainer))
    with pytest.raises(Exception, match="only the weight count"):
        SearchSpace.of_study(study)


def test_a_model_with_a_shape_is_not_counted() -> None:
    assert not ModelSpec(
        name="m", num_layers=1, hidden_size=8, num_attention_heads=1, vocab_size=9
    ).is_counted
