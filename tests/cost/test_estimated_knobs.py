"""Every value of every knob changes the estimate, or the knob is declared neutral; a study's own
knobs change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.cost import estimate
from autotune.cost.model_knobs import COST_MODEL
from autotune.errors import ConfigError
from autotune.spec import FIELDS, ConfigTable, Estimate, KnobUse, ParallelConfig, Workload
from autotune.testing.knobs import EXPERT_KNOBS, base_configs, complaints_of, variations
from tests.cost.examples import EXPERTS, workload


def figures(found: Estimate) -> np.ndarray:
    """What people and searchers see of an estimate, shape (3, N)."""
    return np.array([found.step_time_s, found.peak_memory_bytes, found.tokens_per_s])


def refusal(where: Workload, config: ParallelConfig) -> str:
    """The knob because of which there is no estimate; empty when there is one."""
    try:
        estimate(where, config)
    except ConfigError as error:
        return error.field
    return ""


def differences(where: Workload) -> dict[tuple[str, object], bool]:
    """By knob and value, whether changing it alone changes some estimate. Values that the model
    cannot do must be refused: they count as a change."""
    pairs = [(base, *found) for base in base_configs(where) for found in variations(where, base)]
    impossible = [pair for pair in pairs if COST_MODEL.impossible(pair[1], pair[2])]
    pairs = [pair for pair in pairs if not COST_MODEL.impossible(pair[1], pair[2])]
    assert all(refusal(where, config) == knob.name for _, knob, _, config in impossible)
    before = figures(estimate(where, ConfigTable.of(base for base, *_ in pairs)))
    after = figures(estimate(where, ConfigTable.of(config for *_, config in pairs)))
    differs: dict[tuple[str, object], bool] = {
        (knob.name, value if knob.values else None): True for _, knob, value, _ in impossible
    }
    for (_, knob, value, _), other in zip(pairs, (before != after).any(axis=0), strict=True):
        key = (knob.name, value if knob.values else None)
        differs[key] = differs.get(key, False) or bool(other)
    return differs


def test_every_knob_is_read_or_declared_neutral_or_impossible() -> None:
    assert not complaints_of(COST_MODEL)


def test_every_value_of_every_knob_changes_an_estimate_or_the_knob_is_neutral() -> None:
    gpu = replace(
        workload().cluster.gpu,
        peak_flops_per_s={"fp32": 5e13, "tf32": 2e14, "bf16": 4e14, "fp8": 8e14},
    )
    dense = replace(workload(), cluster=replace(workload().cluster, gpu=gpu))
    seen = differences(dense) | {
        k: v for k, v in differences(replace(dense, model=EXPERTS)).items() if k[0] in EXPERT_KNOBS
    }
    assert {name for name, _ in seen} == set(FIELDS)
    assert not seen.pop(("loss", "full")), "it is what this trainer does by itself"
    wrong = {key for key, differs in seen.items() if differs == (key[0] in COST_MODEL.neutral)}
    assert not wrong, (
        "the cost model ignores a value of a knob that it reads, or one that it calls neutral changes it"
    )


def test_own_knobs_change_no_estimate() -> None:
    plain = ParallelConfig(dp=8, micro_batch_size=2, accumulation_steps=16)
    one, two = (replace(plain, extra={"num_workers": value}) for value in (0, 4))
    assert estimate(workload(), one) == estimate(workload(), two) == estimate(workload(), plain)


def test_a_forgotten_knob_is_refused_by_name_unless_it_is_at_its_default() -> None:
    forgetful = KnobUse(part="cost model", reads=COST_MODEL.reads - {"compile"})
    table = ConfigTable.of([ParallelConfig(), ParallelConfig(dp=2)])
    forgetful.check_table(table)
    with pytest.raises(
        ConfigError, match="the cost model does not support compile, but compile=true"
    ) as caught:
        forgetful.check_table(ConfigTable.of([ParallelConfig(), ParallelConfig(compile=True)]))
    assert caught.value.field == "compile"
    with pytest.raises(ConfigError, match="does not support the study's own knob mine"):
        forgetful.check(ParallelConfig(extra={"mine": 1}))
