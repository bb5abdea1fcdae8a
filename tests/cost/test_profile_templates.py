"""Profiles of a model whose layers share tensors, from recorded dry runs: a mask that is made once for all layers, and autocast's copies of weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.cost.profile import Profile, profile_of
from autotune.cost.profile_runs import ProfileRun
from autotune.cost.profile_templates import sketch_of, templates_of
from autotune.errors import DryRunError
from autotune.spec import DryRun, ModelSpec, ParallelConfig, Workload, catalog
from autotune.spec.plain import dry_run_from_dict

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "own_model.json").read_text(encoding="utf-8"))
MODEL = ModelSpec(name="own", num_layers=6, hidden_size=64, num_attention_heads=1, vocab_size=128, ffn_hidden_size=128)


def workload(layers: int, seq_len: int, config: ParallelConfig) -> Workload:
    cluster = catalog.cluster("h100-sxm-1x8")
    model = replace(MODEL, num_layers=layers)
    return Workload(model=model, cluster=cluster, seq_len=seq_len, global_batch_size=config.global_batch_size)


def recorded_runs() -> list[tuple[ProfileRun, DryRun]]:
    pairs = []
    for recorded in DOCUMENT["runs"]:
        config, run = ParallelConfig.parse(recorded["config"]), dry_run_from_dict(recorded["run"])
        assert run.trace is not None
        asked = ProfileRun(
            workload=workload(len(run.trace.recompute), recorded["seq_len"], config),
            config=config,
            recompute=run.trace.recompute,
        )
        pairs.append((asked, run))
    return pairs


@pytest.fixture(scope="module")
def profile() -> Profile:
    return profile_of(recorded_runs(), "")


def test_the_runs_from_which_it_is_read_are_composed(profile: Profile) -> None:
    """Their layers are recomputed in turns, so only some of them need the mask in their backward pass."""
    assert [check.kind for check in profile.checks] == ["replicated", "sharded"]
    assert [check.error for check in profile.checks] == pytest.approx([0.0, 0.0], abs=1e-3)


@pytest.mark.parametrize("recorded", DOCUMENT["peaks"], ids=lambda recorded: recorded["config"])
def test_a_deeper_model_at_other_sizes_is_composed(profile: Profile, recorded: dict[str, Any]) -> None:
    config = ParallelConfig.parse(recorded["config"])
    asked = workload(recorded["layers"], recorded["seq_len"], config)
    assert profile.why_not(asked, config) == ""
    composed = profile.rank_peak(asked, config, 0).total_bytes
    assert composed == pytest.approx(recorded["peak_bytes"], rel=1e-3)


def test_copies_of_weights_are_freed_for_every_recomputed_layer(profile: Profile) -> None:
    """Autocast holds the 16-bit copies of a recomputed layer's weights until the forward pass ends; FSDP hands out 16 bits, which nothing copies."""
    sizes = ((2.0,), 128.0, 1.0)
    matrices = 64 * 192 + 64 * 64 + 2 * 64 * 128
    biases = 192 + 64 + 128 + 64
    assert profile.templates["replicated"].at("shed", "full", sizes).net == 2 * (matrices + biases)
    assert profile.templates["sharded"].at("shed", "full", sizes).net == 0.0


def test_a_mask_lives_until_the_backward_pass_only_where_a_layer_needs_it(profile: Profile) -> None:
    b, s = 2.0, 128.0
    mask, shared = 4 * b * s * s, profile.templates["replicated"]
    found = {
        mode: [shared.at(name, mode, ((b,), s, 1.0)).net for name in ("tables", "unsaved")] for mode in ("full", "none")
    }
    assert found == {"full": [mask, 0.0], "none": [0.0, mask]}


def test_the_gradient_of_a_tied_embedding_comes_behind_the_layers_where_weights_are_sharded() -> None:
    """It waits there for its other part, so it counts through the backward pass of all layers, and once."""
    run = dry_run_from_dict(DOCUMENT["runs"][1]["run"])
    assert run.trace is not None
    rows, waiting = 160, 10**6
    weights = tuple(replace(w, shape=(rows, 64)) if w.name.startswith("embed") else w for w in run.trace.weights)
    changes = {"head_backward": rows * 64 * 2, "end": -rows * 64 * 2}
    segments = tuple(
        replace(x, storages=(*x.storages, waiting + x.micro_batch), changes_bytes=(*x.changes_bytes, changes[x.kind]))
        if x.kind in changes
        else x
        for x in run.trace.segments
    )
    config = ParallelConfig.parse(DOCUMENT["runs"][1]["config"])
    sizes = {"b": config.micro_batch_size, "s": DOCUMENT["runs"][1]["seq_len"], "tp": 1}
    trace = replace(run.trace, weights=weights, segments=segments)
    found = templates_of(sketch_of(trace, **sizes, sharded=True, element_bytes=2))
    assert [size for size, _ in found.edges["head_backward"].marks_at(1.0)].count(4.0 * rows * 64) == 1
    assert found.edges["end"].marks_at(1.0) == ()


def _with_odd(layer: int) -> list[tuple[ProfileRun, DryRun]]:
    """The runs of a model of whose layers one begins with another weight."""
    found = []
    for asked, run in recorded_runs():
        assert run.trace is not None
        weights = list(run.trace.weights)
        place = next(place for place, weight in enumerate(weights) if weight.layer == layer)
        weights[place] = replace(weights[place], shape=(1 << 20,))
        found.append((asked, replace(run, trace=replace(run.trace, weights=tuple(weights)))))
    return found


def test_the_weights_of_all_layers_are_those_of_one_between_the_first_and_the_last() -> None:
    """As are the moments of their gradients: ModernBERT's first layer has one norm less."""
    for edge in (0, 5):
        errors = [check.error for check in profile_of(_with_odd(edge), "").checks]
        assert errors == pytest.approx([0.0, 0.0], abs=1e-3)


def test_layers_that_differ_make_no_profile() -> None:
    with pytest.raises(
        DryRunError, match=r"the same shapes for a profile, but those of layer 2 are not those of layer 1"
    ):
        profile_of(_with_odd(2), "")
