"""A profile composes the peaks of configs that were not run; what it does not compose it says."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import api, cli
from autotune.cost import calibration_for, estimate
from autotune.cost.profile import Profile, ProfileCheck
from autotune.cost.profile_runs import MOST_RUNS, checked_runs, fitted_runs, kind_of, read_degrees, with_depth
from autotune.cost.profile_segments import Event, Segment, aligned, marked_sizes, monomial_of
from autotune.errors import DryRunError
from autotune.profiling import answers_for, find_profile, profile_fingerprint, profile_study
from autotune.results.calibrations import stored_calibration
from autotune.spec import ConfigTable, ModelCode, ModelSpec, ParallelConfig, Workload, catalog
from autotune.store.in_memory import MemoryStore
from tests.dry_run_fake import FakeDryRunner

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "profile.json").read_text(encoding="utf-8"))
MODEL = ModelSpec(
    name="m",
    num_layers=4,
    hidden_size=512,
    num_attention_heads=8,
    num_kv_heads=4,
    vocab_size=4096,
    ffn_hidden_size=1408,
    gated_mlp=True,
)


@pytest.fixture(scope="module")
def profile() -> Profile:
    found = Profile.from_dict(DOCUMENT["profile"])
    assert found is not None
    return found


def workload(layers: int = 4, seq_len: int = 512, batch: int = 64) -> Workload:
    model = replace(MODEL, num_layers=layers)
    return Workload(model=model, cluster=catalog.cluster("h100-sxm-8x8"), seq_len=seq_len, global_batch_size=batch)


@pytest.mark.parametrize(
    "run",
    [*DOCUMENT["runs"], *DOCUMENT["peaks"]],
    ids=lambda run: f"{run['config']} L={run['layers']} s={run['seq_len']} rank={run['pp_rank']}",
)
def test_composed_peaks_are_those_of_dry_runs(profile: Profile, run: dict[str, Any]) -> None:
    config = ParallelConfig.parse(run["config"])
    here = workload(run["layers"], run["seq_len"], config.global_batch_size)
    composed = profile.rank_peak(here, config, run["pp_rank"]).total_bytes
    assert composed == pytest.approx(run["peak_bytes"], rel=1e-3)


def test_a_profile_outlives_json(profile: Profile) -> None:
    again = Profile.from_dict(json.loads(json.dumps(profile.to_dict())))
    assert again is not None
    config = ParallelConfig(tp=2, dp=4, micro_batch_size=4, accumulation_steps=2, zero_stage=3)
    assert again.peak(workload(9), config) == profile.peak(workload(9), config)
    assert Profile.from_dict({**profile.to_dict(), "version": 0}) is None


def test_what_is_not_composed_is_said(profile: Profile) -> None:
    assert profile.why_not(workload(), ParallelConfig()) == ""
    assert "precision=fp32" in profile.why_not(workload(), ParallelConfig(precision="fp32"))
    looped = ParallelConfig(pp=2, pp_schedule="interleaved_1f1b", virtual_stages=1)
    assert "interleaved_1f1b is not composed" in profile.why_not(workload(), looped)
    assert "zero_stage=2" in profile.why_not(workload(), ParallelConfig(pp=2, zero_stage=2))
    assert "single layer" in profile.why_not(workload(4), ParallelConfig(pp=4, pp_schedule="gpipe"))
    assert profile.why_not(workload(4), ParallelConfig(pp=4)) == ""
    assert "without a layer" in profile.why_not(workload(4), ParallelConfig(pp=4, pp_split="edges"))
    assert "recompute=mlp" in profile.why_not(workload(), ParallelConfig(recompute="mlp"))
    with pytest.raises(DryRunError, match="precision=fp32"):
        profile.peak(workload(), ParallelConfig(precision="fp32"))


def test_a_check_that_differs_refuses_its_kind_alone(profile: Profile) -> None:
    wrong = ProfileCheck(kind="sharded", config="", composed_bytes=1.01, run_bytes=1.0)
    checked = profile.with_checks((wrong,))
    assert "+1.00%" in checked.why_not(workload(), ParallelConfig(zero_stage=3))
    assert checked.why_not(workload(), ParallelConfig(zero_stage=1)) == ""


def test_a_kind_without_a_check_of_its_own_stands_and_falls_with_its_neighbour(profile: Profile) -> None:
    wrong = ProfileCheck(kind="sharded tp", config="", composed_bytes=1.01, run_bytes=1.0)
    right = ProfileCheck(kind="sharded", config="", composed_bytes=1.0, run_bytes=1.0)
    sharded = ParallelConfig(zero_stage=3, dp=2)
    assert "+1.00%" in profile.with_checks((wrong,)).why_not(workload(), sharded)
    assert profile.with_checks((wrong, right)).why_not(workload(), sharded) == ""
    read = replace(right, is_new=False)
    assert "+1.00%" in profile.with_checks((wrong, read)).why_not(workload(), sharded)
    assert profile.with_checks((wrong,)).why_not(workload(), replace(sharded, zero_stage=1)) == ""


def test_a_check_of_a_pipeline_that_differs_refuses_pipelines_alone(profile: Profile) -> None:
    wrong = ProfileCheck(kind="replicated", config="", composed_bytes=1.01, run_bytes=1.0, in_pipeline=True)
    checked = profile.with_checks((wrong,))
    assert "+1.00%" in checked.why_not(workload(), ParallelConfig(pp=2, accumulation_steps=4))
    assert checked.why_not(workload(), ParallelConfig()) == ""


def test_the_degrees_of_the_runs_are_those_that_the_heads_allow(profile: Profile) -> None:
    def degrees(kv_heads: int, space: tuple[int, ...] = (1, 2, 3, 6)) -> tuple[int, ...]:
        return read_degrees(replace(MODEL, num_attention_heads=12, num_kv_heads=kv_heads, hidden_size=768), space)

    assert [degrees(kv) for kv in (4, 12, 6, 3, 2)] == [(2, 4), (2, 4), (2, 3), (3,), (2,)]
    one = replace(profile, degrees={**profile.degrees, "replicated tp": (2,)})
    assert one.why_not(workload(), ParallelConfig(tp=2)) == ""
    assert "tp=2 alone" in one.why_not(workload(), ParallelConfig(tp=4))


def test_later_stages_of_a_model_that_code_builds_need_a_run_of_their_own(profile: Profile) -> None:
    own = replace(workload(), model=replace(MODEL, code=ModelCode(module="mine:build")))
    staged = ParallelConfig(pp=2, accumulation_steps=4, precision="bf16")
    assert profile.why_not(workload(), staged) == ""
    assert "no dry run of replicated later-stage weights" in profile.why_not(own, staged)
    assert "recompute=full" in profile.why_not(own, replace(staged, recompute="full"))
    assert profile.why_not(own, replace(staged, pp=1)) == ""
    runs = fitted_runs(own, ConfigTable.of([replace(staged, dp=2)]))
    assert [(run.kind, run.config.pp, run.pp_rank) for run in runs] == [("replicated", 1, 0)]  # too few layers to cut
    deep = replace(own, model=replace(own.model, num_layers=6))
    runs = fitted_runs(deep, ConfigTable.of([replace(staged, dp=2)]))
    assert [(run.kind, run.pp_rank) for run in runs] == [("replicated", 0), ("replicated later-stage", 1)]


def test_many_configs_are_composed_as_each_alone(profile: Profile) -> None:
    configs = [
        ParallelConfig(tp=tp, pp=pp, dp=4, micro_batch_size=b, accumulation_steps=m, zero_stage=z, pp_schedule=order)
        for tp in (1, 2)
        for pp, order in ((1, "1f1b"), (2, "1f1b"), (2, "gpipe"), (2, "interleaved_1f1b"))
        for b, m in ((1, 2), (3, 4), (2, 8))
        for z in (0, 1, 3)
    ]
    peaks, known = profile.peaks(workload(), ConfigTable.of(configs))
    composed = [config for config in configs if not profile.why_not(workload(), config)]
    assert known.sum() == len(composed) < len(configs)
    assert peaks.total_bytes.tolist() == [profile.peak(workload(), config).total_bytes for config in composed]


def test_the_first_check_is_of_the_last_rank_of_the_longest_pipeline() -> None:
    configs = [ParallelConfig(tp=tp, pp=pp, accumulation_steps=8) for tp in (1, 2) for pp in (1, 4)]
    runs = [(run.config.tp, run.config.pp, run.pp_rank) for run in checked_runs(workload(80), configs, depth=6)]
    assert runs == [(2, 4, 3), (1, 4, 3), (2, 1, 0), (1, 1, 0)]


def test_estimates_take_memory_from_the_profile_where_it_answers(profile: Profile) -> None:
    constants = replace(calibration_for(workload()), profile=profile)
    configs = [ParallelConfig(dp=8), ParallelConfig(dp=8, precision="fp32")]
    known, formulas = (estimate(workload(), configs, calibration=c) for c in (constants, calibration_for(workload())))
    allocated = profile.peak(workload(), configs[0]).total_bytes
    expected = allocated * (1.0 + constants.fragmentation) + constants.framework_bytes
    peaks = np.asarray(known.peak_memory_bytes)
    assert peaks[0] == pytest.approx(expected)
    assert peaks[1] == np.asarray(formulas.peak_memory_bytes)[1]
    reach = [np.asarray(x.peak_memory_high_bytes)[0] / np.asarray(x.peak_memory_bytes)[0] for x in (known, formulas)]
    assert reach[0] < reach[1]


def test_a_thousand_configs_take_seconds_and_not_minutes(profile: Profile) -> None:
    """`tests/benchmarks/profiles.py` measures it; a slow or loaded machine takes several times as long."""
    configs = [
        ParallelConfig(tp=tp, dp=dp, micro_batch_size=b, accumulation_steps=m, zero_stage=z, recompute=mode)
        for tp in (1, 2, 4)
        for dp in (1, 2, 4, 8)
        for b in (1, 2, 4, 8, 16)
        for m in (1, 2, 8)
        for z in (0, 1, 2, 3)
        for mode in ("none", "full")
    ][:1000]
    here = replace(calibration_for(workload(32)), profile=profile)
    table = ConfigTable.of(configs)
    estimate(workload(32), ConfigTable.of(configs[:1]), calibration=here)
    began_s = time.process_time()
    estimate(workload(32), table, calibration=here)
    assert time.process_time() - began_s < 10.0


def test_the_store_finds_the_profile_of_a_model_at_any_depth(profile: Profile) -> None:
    store = MemoryStore()
    assert find_profile(workload(), store) is None
    store.save_profile(profile_fingerprint(workload(4)), profile.to_dict())
    found = find_profile(workload(40), store)
    assert found is not None
    assert found.num_runs == profile.num_runs
    assert find_profile(replace(workload(), model=replace(MODEL, hidden_size=1024)), store) is None
    assert find_profile(replace(workload(), trainer="megatron"), store) is None


def test_fit_holds_a_dry_run_against_the_formulas_also_where_the_store_has_a_profile(profile: Profile) -> None:
    here, config = workload(), ParallelConfig(dp=64, micro_batch_size=1, precision="bf16")
    store = MemoryStore()
    (before,) = api.fit(here, config, store=store, runner=FakeDryRunner())
    store.save_profile(profile_fingerprint(here), profile.to_dict())
    (after,) = api.fit(here, config, store=store, runner=FakeDryRunner())
    assert after.estimate == before.estimate
    profiled = estimate(here, config, calibration=stored_calibration(here, store))
    assert profiled.peak_memory_bytes != before.estimate.peak_memory_bytes


def test_at_most_eight_runs_of_few_layers() -> None:
    table = ConfigTable.of([ParallelConfig(tp=tp, zero_stage=z, dp=2) for tp in (1, 2, 8) for z in (0, 1, 2, 3)])
    runs = fitted_runs(workload(80), table)
    assert len(runs) == 6 < MOST_RUNS
    assert {run.kind for run in runs} == {kind_of(z, tp) for z in (0, 3) for tp in (1, 2)}
    assert {run.workload.model.num_layers for run in runs} == {3}


def test_a_rank_holds_the_buffers_of_its_layers(profile: Profile) -> None:
    here, config = workload(4), ParallelConfig(precision="bf16")
    templates = profile.templates["replicated"]
    masks = {
        mode: {**kinds, "buffers": Segment.of([Event(4096.0, (0, 0, 0))])} for mode, kinds in templates.layers.items()
    }
    masked = replace(profile, templates={**profile.templates, "replicated": replace(templates, layers=masks)})
    for of_config, layers in ((config, 4), (replace(config, pp=2, accumulation_steps=2), 2)):
        added = masked.rank_peak(here, of_config, 0).total_bytes - profile.rank_peak(here, of_config, 0).total_bytes
        assert added == layers * 4096


def test_sizes_are_read_from_bytes() -> None:
    b, s = marked_sizes([512, 1408, 23, 4096], multiple=16)
    assert b == 29
    assert s % (31 * 16) == 0
    assert monomial_of(b * s * 512 * 2, b, s) == (1, 1, 0)
    assert monomial_of(s * s * 4, b, s) == (0, 2, 0)
    assert monomial_of(4096 * 512, b, s) == (0, 0, 0)


def test_sequences_of_a_profile_are_no_longer_than_those_that_a_models_code_is_known_to_take() -> None:
    assert marked_sizes([512], multiple=16) == (23, 29 * 16)
    assert marked_sizes([512], multiple=16, longest=1024) == (23, 29 * 16)
    assert marked_sizes([512], multiple=16, longest=256) == (23, 29 * 8)
    assert marked_sizes([512], multiple=16, longest=29) == (23, 29)
    # samples without a length: the model does not look at it
    assert marked_sizes([512], multiple=16, longest=1) == (23, 29 * 16)


def test_a_segment_keeps_every_rise_that_can_be_the_highest() -> None:
    wide, long = Event(10.0, (1, 0, 0)), Event(1.0, (0, 1, 0))
    events = [wide, Event(-10.0, (1, 0, 0)), Event(7.0, (0, 0, 0), weight=3), long, Event(-1.0, (0, 1, 0))]
    segment = Segment.of(events)
    for b, s, top in ((1.0, 100.0, 100.0), (30.0, 100.0, 300.0)):
        assert segment.at(b, s, 1.0).rows.max() == top
    assert segment.marks_at(1.0) == ((7.0, 3),)


def test_two_degrees_tell_what_tensor_parallelism_cuts() -> None:
    at_two = [Event(8.0, (1, 1, 0)), Event(6.0, (1, 1, 0))]
    at_four = [Event(4.0, (1, 1, 0)), Event(6.0, (1, 1, 0))]
    assert aligned(at_two, at_four) == [Event(16.0, (1, 1, 1)), Event(6.0, (1, 1, 0))]
    assert aligned(at_two, [*at_four, at_four[0]]) is None
    assert aligned([Event(9.0, (1, 1, 0))], [Event(1.0, (1, 1, 0))], (2, 6)) == [Event(36.0, (1, 1, 2))]


def test_a_space_asks_for_a_new_profile_when_the_stored_one_was_made_with_other_knobs(profile: Profile) -> None:
    here = workload()

    def asks(**knobs: object) -> bool:
        config = ParallelConfig(dp=2, micro_batch_size=2, accumulation_steps=16, precision="bf16", **knobs)  # type: ignore[arg-type]
        return not answers_for(profile, here, ConfigTable.of([config]))

    assert not asks()
    assert not asks(zero_stage=3, recompute="full")
    assert asks(recompute="mlp")
    assert asks(loss="chunked")


def test_a_profile_is_refused_for_a_trainer_whose_code_is_not_run_dry() -> None:
    study = api.load_study(
        {
            "name": "s",
            "model": "gpt2-small",
            "cluster": "h100-sxm-1x2",
            "workload": {"seq_len": 64, "global_batch_size": 4},
            "space": {"tp": [1, 2]},
            "trainer": "torchtitan",
        }
    )
    with pytest.raises(DryRunError, match="native"):
        profile_study(study)


@pytest.mark.slow
def test_fit_makes_a_profile_and_plans_take_the_memory_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTOTUNE_STORE", str(tmp_path / "results.db"))
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "name: s\ncluster: h100-sxm-1x4\nworkload: {seq_len: 64, global_batch_size: 8}\n"
        "model: {name: m, num_layers: 4, hidden_size: 256, num_attention_heads: 8, vocab_size: 1024, gated_mlp: true}\n"
        "space: {tp: [1, 2], pp: [1], dp: [2, 4], micro_batch_size: [1, 2], zero_stage: [0, 3], recompute: [none, full]}\n"
    )
    assert cli.run(["fit", str(spec), "--profile", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["profile"]
    assert made["composed"] == made["configs"] > 8
    new = [check for check in made["checks"] if check["is_new"]]
    assert new
    assert len(made["runs"]) + len(new) <= MOST_RUNS
    assert all(abs(check["error"]) < 1e-3 for check in made["checks"])
    assert cli.run(["plan", str(spec)]) == 0
    assert f"profile of {len(made['runs']) + len(new)} dry runs" in "".join(capsys.readouterr())


def test_a_class_of_transformers_is_run_with_few_layers_where_they_are_alike() -> None:
    document = {"model_type": "llama", "num_hidden_layers": 12, "hidden_size": 512}
    own = replace(
        MODEL, num_layers=12, source=json.dumps(document), code=ModelCode(has_pipeline_split=True, num_cuts=11)
    )
    small = with_depth(own, 4)
    assert small is not None
    assert small.code is not None
    assert (small.num_layers, small.code.num_cuts, json.loads(small.source)["num_hidden_layers"]) == (4, 3, 4)
    mixed = {**document, "layer_types": ["full_attention", "sliding_attention"] * 6}
    assert with_depth(replace(own, source=json.dumps(mixed)), 4) is None
    assert with_depth(replace(own, code=ModelCode(module="mine:build")), 4) is None


def test_a_profile_says_of_how_many_dry_runs_it_is_made(profile: Profile) -> None:
    assert profile.words == f"a profile of {profile.num_runs} dry runs"
    assert replace(profile, runs=profile.runs[:1], checks=()).words == "a profile of 1 dry run"
