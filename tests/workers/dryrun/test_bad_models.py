"""A model that cannot be dry-run: the operator or the line is named, with what to do; a process
that ends, hangs or fills memory is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autotune.errors import ConfigError, DryRunError
from autotune.ports import DryRunLimits
from autotune.spec import DryRun, ModelCode, ModelSpec, ParallelConfig, Workload
from autotune_workers.dryrun.local import LocalDryRunner
from autotune_workers.dryrun.played_rank import dry_run
from autotune_workers.dryrun.process import error_of, stand_in
from autotune_workers.dryrun.rank_watch import RankWatch
from autotune_workers.own_model.built_model import build_class
from autotune_workers.own_model.users_line import dumped_line
from tests.workers.trial_ranks import CPU, request

CONFIG = ParallelConfig(dp=2)
HERE = r"bad_models\.py:\d+"


def workload(function: str) -> Workload:
    code = ModelCode(
        module=f"tests.workers.dryrun.bad_models:{function}", folder=str(Path(__file__).parents[3])
    )
    model = ModelSpec(
        name=function, num_layers=1, hidden_size=8, num_attention_heads=1, vocab_size=32, code=code
    )
    return Workload(model=model, cluster=CPU, seq_len=8, global_batch_size=2)


def run_here(function: str) -> DryRun:
    """In this process, which is faster; errors as the process of a dry run tells them."""
    watches: list[RankWatch] = []
    try:
        return dry_run(stand_in(workload(function), CONFIG)[0], rank=0, watched=watches.append)
    except Exception as error:
        raise error_of(error, 2.0**30, watches[0].position.in_words()) from error


def run_apart(function: str, **limits: float) -> DryRun:
    return LocalDryRunner().run(
        workload(function), CONFIG, pp_rank=0, limits=DryRunLimits(**limits)
    )


def test_model_of_ones_own_is_run_dry() -> None:
    run = run_here("plain")
    assert [module.kind for module in run.modules][:2] == ["Tokens", "Embedding"]
    assert run.rank_parameters == 32 * 8 + 8 * 32 + 32
    assert not run.guesses


@pytest.mark.parametrize(
    ("function", "message", "remedy"),
    [
        ("frozen", "trainable weights, but no weight on this rank requires a gradient", "unfrozen"),
        (
            "is_fed_words",
            "`input` must return .* tensors .* but returned a str without tensors",
            "tensors whose first dimension",
        ),
        (
            "branches_on_values",
            rf"as a number with `if`, .*_local_scalar_dense.*\), which depends on values.*{HERE}",
            "only on shapes and arguments",
        ),
        ("picks_by_values", rf"depends on values.*{HERE}", "only on shapes and arguments"),
        (
            "lacks_a_kernel",
            rf"the operator autotune_tests::twice has no fake kernel.*{HERE}",
            r'register_fake\("autotune_tests::twice"\)',
        ),
        (
            "lacks_a_kernel_of_a_library",
            rf"the operator autotune_tests_library::thrice has no fake kernel.*{HERE}",
            r'register_fake\("autotune_tests_library::thrice"\)',
        ),
        ("needs_a_gpu", rf"cuda.*{HERE}", "instead of cuda"),
        ("needs_a_gpu_when_it_runs", rf"needs a GPU.*{HERE}\)$", "instead of cuda"),
        (
            "reads_its_weights",
            rf"with `\.numpy\(\)`, which a dry run does not have.*{HERE}",
            "compute the result with torch",
        ),
        ("reads_a_bad_file", rf"raised JSONDecodeError.*{HERE}\) when", "fix the builder"),
        ("multiplies_what_does_not_fit", rf"{HERE}\)$", "fix that line"),
    ],
)
def test_reason_is_named_with_its_line_and_a_remedy(
    function: str, message: str, remedy: str
) -> None:
    with pytest.raises(DryRunError) as caught:
        run_here(function)
    assert re.search(message, caught.value.message), caught.value.message
    assert caught.value.message.count("bad_models.py") <= 1, "the line is told once"
    assert re.search(remedy, caught.value.remedy), caught.value.remedy


def test_error_without_a_line_of_the_users_points_to_input_and_loss() -> None:
    told = error_of(
        ValueError("Expected input batch_size (2) to match target batch_size (512)."), 1.0
    )
    assert told.message.endswith("target batch_size (512).")
    assert "your own `input` and `loss`" in told.remedy


def test_law_that_a_config_breaks_is_told() -> None:
    with pytest.raises(ConfigError, match="tp must divide num_attention_heads"):
        dry_run(request("llama", "tp=8"), rank=0)


def test_number_that_a_model_asks_for_is_assumed_and_told() -> None:
    (guess,) = run_here("logs_a_number").guesses
    assert re.search(
        rf"reads as a number is assumed to be 1 \(in the outermost module at .*{HERE}\)$", guess
    ), guess


def test_values_of_tokens_that_select_are_assumed_and_told() -> None:
    (guess,) = run_here("picks_by_tokens").guesses
    assert re.search(rf"every token is 0, but the model makes selections by .*{HERE}\)$", guess), (
        guess
    )


def test_memory_that_a_module_is_refused_is_told_with_the_module_and_the_line_before_it() -> None:
    with pytest.raises(DryRunError) as caught:
        run_here("fills_memory_in_a_module_of_a_library")
    place = rf"limit of 1 GiB; the last part reached was step 1, forward, micro-batch 1, in head\.0, at .*{HERE}$"
    assert re.search(place, caught.value.message), caught.value.message


def test_line_of_a_process_that_died_is_that_of_the_users_code() -> None:
    dump = (
        "Fatal Python error: Segmentation fault\n\nThread 0x01 (most recent call first):\n"
        '  File "/home/me/other.py", line 3 in wait\n\nCurrent thread 0x02 (most recent call first):\n'
        '  File "/x/site-packages/torch/nn/modules/linear.py", line 140 in forward\n'
        '  File "/home/me/my model.py", line 12 in forward\n  File "/home/me/my model.py", line 30 in build\n'
    )
    assert dumped_line(dump) == "/home/me/my model.py:12"
    assert dumped_line("terminate called after throwing an instance of 'std::bad_alloc'") == ""


@pytest.mark.thorough
def test_process_that_dies_is_told_with_its_signal_and_its_line() -> None:
    with pytest.raises(
        DryRunError,
        match=rf"SIGABRT.*last part reached was building the model, at .*{HERE}; one of the model's operators",
    ) as caught:
        run_apart("aborts")
    assert "Fatal Python error" not in caught.value.message


@pytest.mark.slow
def test_model_that_never_ends_is_stopped_where_it_stands() -> None:
    with pytest.raises(
        DryRunError,
        match=rf"stopped after 30 s; the last part reached was step 1, forward, micro-batch 1, at .*{HERE}",
    ):
        run_apart("never_ends", wall_s=30)


def test_process_that_passes_its_limit_of_memory_is_stopped_at_once() -> None:
    with pytest.raises(DryRunError, match=r"more memory than the limit of 0\.0625 GiB"):
        run_apart("plain", memory_bytes=2**26)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "reached"),
    [
        ("fills_memory", "building the model"),
        ("fills_memory_step_by_step", "building the model"),
        ("maps_shared_memory", "building the model"),
        ("fills_memory_when_it_runs", "step 1, forward, micro-batch 1"),
    ],
)
def test_model_that_fills_memory_is_stopped_at_the_limit(function: str, reached: str) -> None:
    place = rf"needed more memory than the limit of 1 GiB; the last part reached was {reached}, at .*{HERE}$"
    with pytest.raises(DryRunError) as caught:
        run_apart(function, memory_bytes=2**30)
    assert re.search(place, caught.value.message), caught.value.message


@pytest.mark.slow
def test_a_builder_that_ends_the_process_is_told() -> None:
    with pytest.raises(DryRunError, match="ended with status 3 without a result") as caught:
        run_apart("ends_the_process")
    assert "os._exit" in caught.value.remedy


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"model_type": "llama", "architectures": ["LlamaForWhat"]},
            "LlamaForWhat, which transformers does not have",
        ),
        ({"model_type": "lama"}, r"Unrecognized model identifier: lama\); correct"),
    ],
)
def test_a_config_that_transformers_does_not_know_is_told_in_a_sentence(
    document: dict[str, object], message: str
) -> None:
    model = ModelSpec(
        name="other",
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        vocab_size=32,
        source=json.dumps(document),
    )
    with pytest.raises(ConfigError, match=message):
        build_class(model)
