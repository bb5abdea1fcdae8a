"""The answer to "will it fit?": ranks, verdicts, what the allocator adds, the choice of configs,
and the Python function."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import autotune
from autotune.cost import calibration_for
from autotune.errors import ConfigError, DryRunError, SpecError
from autotune.plan.fit import AT_THE_LIMIT, DOES_NOT_FIT, DRY_RUN_TRAINER, FITS, pipeline_ranks
from autotune.plan.fit.answer import Reserved
from autotune.plan.fit.findings import (
    flops_per_token,
    fullest_modules,
    largest_products,
    moment_words,
    product_flops,
    traffic,
)
from autotune.report.fit_text import other_verdict_line, verdict_line
from autotune.report.memory_over_step import columns, phases
from autotune.space import why_not
from autotune.spec import MemorySample, Moment, ParallelConfig, Workload, catalog
from autotune.trainers import trainer_names
from tests.cli.conftest import SPEC
from tests.dry_run_fake import FakeDryRunner

STUDY = autotune.load_study(SPEC)
CONFIG = ParallelConfig(dp=8, micro_batch_size=4, accumulation_steps=2, precision="bf16")


@pytest.mark.parametrize(
    ("pp", "ranks"), [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (16, (0, 8, 15))]
)
def test_first_middle_and_last_rank_of_a_pipeline_are_run(pp, ranks):
    assert pipeline_ranks(pp) == ranks


def test_the_allocator_adds_a_factor_with_an_interval_and_never_less_than_is_allocated():
    workload = replace(STUDY.workload, cluster=catalog.cluster("b200-sxm-1x8"), trainer="megatron")
    constants = calibration_for(workload)
    small, large = (Reserved.of(size, workload, constants) for size in (1e9, 100e9))
    assert large.low_bytes < large.peak_bytes < large.high_bytes
    assert large.peak_bytes == pytest.approx(
        100e9 * (1 + constants.fragmentation) + constants.framework_bytes
    )
    assert small.low_bytes >= 1e9
    assert large.source.startswith("fitted to")
    unknown = Reserved.of(100e9, STUDY.workload, calibration_for(STUDY.workload))
    assert unknown.source.startswith("assumed")
    assert unknown.high_bytes / unknown.peak_bytes > large.high_bytes / large.peak_bytes


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.5, FITS), (0.95, AT_THE_LIMIT), (1.5, DOES_NOT_FIT)]
)
def test_the_verdict_follows_from_what_can_be_used(share, verdict):
    (found,) = autotune.fit(STUDY, CONFIG, runner=FakeDryRunner())
    limit = found.reserved.peak_bytes / share / calibration_for(STUDY.workload).usable_fraction
    gpu = replace(STUDY.workload.cluster.gpu, memory_bytes=limit)
    workload = replace(STUDY.workload, cluster=replace(STUDY.workload.cluster, gpu=gpu))
    (again,) = autotune.fit(workload, CONFIG, runner=FakeDryRunner())
    assert again.verdict == verdict
    assert again.is_expected == (share < 1)


@pytest.mark.thorough
@pytest.mark.parametrize("trainer", trainer_names())
@pytest.mark.parametrize(("model", "cluster"), [("llama-8b", "h100-sxm-1x8"), ("gpt2-xl", "a100-40gb-1x8"), ("mixtral-8x7b", "h200-sxm-2x8")])  # fmt: skip
def test_fit_and_estimate_never_give_two_verdicts(trainer, model, cluster):
    """Over models, trainers and configs on both sides of a GPU's limit: one verdict, or both with
    the one that counts."""
    gpus = catalog.cluster(cluster)
    workload = Workload(
        model=catalog.model(model),
        cluster=gpus,
        seq_len=2048,
        global_batch_size=256,
        trainer=trainer,
    )
    knobs = itertools.product((1, 4, 8), (0, 1, 3), ("none", "selective", "full"))
    asked = [
        ParallelConfig(dp=gpus.num_gpus, micro_batch_size=size, accumulation_steps=256 // gpus.num_gpus // size, precision="bf16", zero_stage=stage, recompute=recompute)
        for size, stage, recompute in knobs
    ]  # fmt: skip
    configs = [config for config in asked if why_not(workload, config) is None]
    assert configs
    for fit in autotune.fit(workload, configs, runner=FakeDryRunner()):
        risk = float(autotune.estimate(workload, fit.config).oom_probability)
        if trainer == DRY_RUN_TRAINER:
            assert (fit.verdict == fit.cost_model_verdict) == (other_verdict_line(fit) == "")
        else:
            assert fit.oom_probability == pytest.approx(risk)
            assert "no, it does not fit" not in verdict_line(fit)
            assert f"cost model of {trainer}" in verdict_line(fit)


def test_a_dry_run_that_contradicts_the_formulas_says_which_one_counts():
    cluster = catalog.cluster("a100-40gb-1x8")
    workload = Workload(
        model=catalog.model("llama-8b"), cluster=cluster, seq_len=2048, global_batch_size=8
    )
    config = ParallelConfig(dp=8, precision="bf16", zero_stage=3, recompute="full")
    (fit,) = autotune.fit(workload, config, runner=FakeDryRunner())  # its weights are not sharded
    assert fit.verdict == DOES_NOT_FIT
    assert fit.cost_model_verdict != DOES_NOT_FIT
    assert "the dry run is authoritative, because it runs the trainer's code" in other_verdict_line(
        fit
    )


def test_fit_answers_for_each_config_in_order_and_tells_of_every_run():
    heard = []
    configs = [CONFIG, replace(CONFIG, pp=2, dp=4, accumulation_steps=4)]
    found = autotune.fit(STUDY, configs, runner=FakeDryRunner(), on_rank=heard.append)
    assert [fit.config for fit in found] == configs
    assert [(one.pp_rank, one.run is None) for one in heard] == [
        *((0, True), (0, False), (0, True), (0, False)),
        *((1, True), (1, False)),
    ]
    assert found[1].fullest is found[1].runs[0]


def test_an_illegal_config_is_refused_before_anything_is_run():
    fake = FakeDryRunner()
    with pytest.raises(ConfigError, match="tp"):
        autotune.fit(STUDY, replace(CONFIG, tp=5), runner=fake)
    with pytest.raises(SpecError, match="no search space"):
        autotune.fit(STUDY.workload, runner=fake)
    assert fake.asked == []


def test_the_cost_model_answers_where_the_model_cannot_be_run_dry():
    (found,) = autotune.fit(
        STUDY, CONFIG, runner=FakeDryRunner(error=DryRunError("no fake kernel", remedy="write one"))
    )
    assert (found.basis, found.problem, found.remedy, found.runs) == (
        "cost model",
        "no fake kernel",
        "write one",
        (),
    )
    assert found.oom_probability == found.estimate.oom_probability
    assert found.allocated_bytes is None


def test_findings_add_up():
    config = replace(CONFIG, pp=4, dp=2, accumulation_steps=8)
    (found,) = autotune.fit(STUDY, config, runner=FakeDryRunner())
    run = found.runs[0]
    assert flops_per_token(found) == pytest.approx(
        6 * STUDY.workload.model.num_parameters, rel=1e-6
    )
    (row,) = traffic(run)
    assert (row.calls, row.num_bytes) == (2, 2 * run.collectives[0].num_bytes)
    (product,) = largest_products(replace(run, products=run.products * 2))
    assert product_flops(product) == 2 * product_flops(run.products[0])


def test_modules_of_repeated_layers_are_one_row():
    (found,) = autotune.fit(STUDY, CONFIG, runner=FakeDryRunner())
    run = found.runs[0]
    (row,) = fullest_modules(run)
    assert (row.name, row.count) == ("layers.*", len(run.modules))
    assert row.at_peak_bytes == sum(module.at_peak_bytes for module in run.modules)
    (alone,) = fullest_modules(replace(run, modules=run.modules[-1:]))
    assert (alone.name, alone.count) == ("layers.3", 1)


def test_thinning_keeps_every_peak_and_phases_are_named():
    def sample(number: int) -> MemorySample:
        phase = "forward" if number < 70 else "backward"
        moment = Moment(step=1, phase=phase, micro_batch=number // 50, module="a")
        return MemorySample(moment=moment, parts_bytes={"activations": (number * 37) % 101})

    samples = [sample(n) for n in range(100)]
    shown = columns(samples, 7)
    assert len(shown) == 7
    assert max(s.total_bytes for s in shown) == max(s.total_bytes for s in samples)
    assert columns(samples, 1000) == samples
    assert [label for label, _, _ in phases(samples)] == ["forward 1", "forward 2", "backward 2"]
    assert moment_words(samples[99], 4) == "in the backward pass of micro-batch 2 of 4, in a"
