"""What a spec says beside what the probe saw: rows, differences, knobs without effect, configs that
are compared."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from autotune import api
from autotune.ports import ProgramSeen
from autotune.spec import Failure, FailureKind, ParallelConfig, Study
from autotune.study.assembly import assemble
from autotune.study.check.contrast import contrast_of
from autotune.study.check.program_check import LogLine, ProgramCheck
from autotune.study.check.said_and_seen import rows_of, without_effect
from autotune.study.check.verdict import uncounted, verdict_of
from tests.shortcuts import present
from tests.small_studies import spec

CONFIG = ParallelConfig(dp=2, micro_batch_size=4, accumulation_steps=8, precision="bf16")
COMMAND = {
    "kind": "command",
    "argv": ["python", "t.py", "{micro_batch_size}", "{accumulation_steps}", "{precision}"],
}


def study(**changes: Any) -> Study:
    return api.load_study(spec(trainer=COMMAND, **changes))


def facts(of: Study, **changes: Any) -> dict[str, Any]:
    return {
        "world": 2,
        "optimizers": ["torch.optim.adamw.AdamW"],
        "autocast": "bfloat16",
        "types": {"float32": 100},
        "sharded_type": "",
        "zero_stage": 0,
        "wrappers": ["DDP"],
        "recomputed": 0.0,
        "compiled": False,
        "parameters": of.workload.model.num_parameters,
        "model": "m.GPT",
        **changes,
    }


def seen(
    of: Study, *, config: ParallelConfig = CONFIG, sequences: int | None = None, **changes: Any
) -> ProgramSeen:
    count = config.micro_batch_size * config.accumulation_steps if sequences is None else sequences
    told = {
        name: changes.pop(name)
        for name in ("disagreement", "files", "witness", "troubles")
        if name in changes
    }
    return ProgramSeen(
        id=("check", 0, 0),
        facts=facts(of, **changes),
        micro_batches=config.accumulation_steps,
        sequences=count,
        tokens=count * of.workload.seq_len,
        measured=True,
        **told,
    )


def check(
    of: Study,
    *,
    config: ParallelConfig = CONFIG,
    time_from: str = "probe",
    each_s: float = 0.1,
    **more: Any,
) -> ProgramCheck:
    return ProgramCheck(
        study=of,
        config=config,
        lines=(),
        step_times_s=(each_s,) * 5,
        losses=(1.0,) * 5,
        time_from=time_from,
        peak_memory_bytes=None,
        failure=None,
        interrupted=False,
        proposal={},
        needs_no_patterns=False,
        **more,
    )


def test_a_program_that_does_what_the_spec_says_has_no_difference() -> None:
    of = study()
    rows = rows_of(of, CONFIG, seen(of))
    assert [row.difference for row in rows if row.difference] == []
    assert {row.name for row in rows} >= {
        "ranks",
        "sequences per step",
        "seq_len",
        "precision",
        "optimizer",
        "zero_stage",
        "recompute",
        "compile",
        "parameters",
    }
    assert verdict_of(check(of, seen=seen(of))).ready


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"world": 1}, "ranks", "observed 1"),
        ({"autocast": ""}, "precision", "observed fp32 (weights)"),
        ({"autocast": "", "types": {"float16": 9}}, "precision", "observed fp16"),
        ({"autocast": "", "sharded_type": "float32"}, "precision", "observed fp32"),
        ({"optimizers": ["torch.optim.sgd.SGD"]}, "optimizer", "observed SGD"),
        ({"zero_stage": 3, "wrappers": ["FSDP2"]}, "zero_stage", "observed 3 (FSDP2)"),
        ({"recomputed": 0.4}, "recompute", "40%"),
        ({"compiled": True}, "compile", "observed true"),
        ({"parameters": 7_000_000_000}, "parameters", "7,000,000,000"),
    ],
)
def test_each_difference_is_an_error_that_says_what_to_change(
    changes: dict[str, Any], name: str, words: str
) -> None:
    of = study()
    found = check(of, seen=seen(of, **changes))
    (told,) = [d for d in found.differences if d.startswith(f"{name}:")]
    assert words in told
    verdict = verdict_of(found)
    assert not verdict.ready
    assert told in verdict.remedy


@pytest.mark.parametrize(
    "changes",
    [{"parameters": None}, {"zero_stage": None}, {"autocast": "", "types": {}, "sharded_type": ""}],
)
def test_what_is_not_seen_is_no_difference(changes: dict[str, Any]) -> None:
    of = study()
    assert check(of, seen=seen(of, **changes)).differences == ()


def test_a_program_that_is_given_no_tokens_is_told_by_its_number_of_weights() -> None:
    """A model for images: no decoder of any shape has its weights."""
    of = study()
    without = replace(seen(of, parameters=25_557_032, model="torchvision.ResNet"), tokens=None)
    (told,) = check(of, seen=without).differences
    assert "set `model: {parameters: 25557032}`" in told
    (row,) = [row for row in rows_of(of, CONFIG, without) if row.name == "parameters"]
    assert row.fix == ("model.parameters", 25_557_032)
    true = study(model={"parameters": 25_557_032})
    assert verdict_of(check(true, seen=replace(without, facts=facts(true)))).ready


def test_a_decoder_of_another_size_is_not_replaced_by_a_number() -> None:
    of = study()
    (row,) = [
        row for row in rows_of(of, CONFIG, seen(of, parameters=7)) if row.name == "parameters"
    ]
    assert (row.agrees, row.fix) == (False, None)
    assert "correct `model`" in row.remedy


@pytest.mark.parametrize(
    ("said", "optimizers", "agrees", "written"),
    [
        ("adamw", ["torch.optim.AdamW"], True, "adamw"),
        ("adamw", ["bitsandbytes.optim.AdamW8bit"], False, "adamw_8bit"),
        ("adamw", ["torch.optim.sgd.SGD"], False, "sgd"),
        ("muon", ["muon.Muon", "torch.optim.AdamW"], True, "muon"),
        ("adamw", ["muon.Muon", "torch.optim.AdamW"], False, "muon"),
        # no word of the spec means it, so it stops nobody
        (
            "adamw",
            ["lion_pytorch.Lion"],
            None,
            None,
        ),
        ("sgd", [], None, None),
    ],
)
def test_optimizers_are_told_by_their_classes(
    said: str, optimizers: list[str], agrees: bool | None, written: str | None
) -> None:
    of = study(workload={"seq_len": 1024, "global_batch_size": 64, "optimizer": said})
    row = next(
        r for r in rows_of(of, CONFIG, seen(of, optimizers=optimizers)) if r.name == "optimizer"
    )
    assert (row.agrees, row.fix[1] if row.fix else None) == (agrees, written)


def test_a_length_that_differs_is_seen_and_one_that_is_a_token_short_is_not() -> None:
    of = study()
    length = of.workload.seq_len
    for tokens, differs in (
        (32 * length // 2, True),
        (32 * length * 2, True),  # a multiple, as of a length of generated samples
        (32 * (length - 1), False),
        (32 * length, False),
    ):
        rows = rows_of(of, CONFIG, replace(seen(of), tokens=tokens))
        assert next(row for row in rows if row.name == "seq_len").agrees is not differs


def test_sequences_in_one_row_have_the_specs_tokens() -> None:
    of = study()
    rows = rows_of(of, CONFIG, replace(seen(of), sequences=8))
    assert next(row for row in rows if row.name == "seq_len").agrees


def test_a_knob_whose_values_look_the_same_has_no_effect() -> None:
    """`--amp-dtype` without `--amp`."""
    of, other = study(), replace(CONFIG, precision="fp16")
    first, second = (
        rows_of(of, config, seen(of, config=config, autocast="")) for config in (CONFIG, other)
    )
    told = without_effect(first, second)["precision"]
    assert told.startswith("precision has no effect; the probe observed")
    found = check(
        of,
        seen=seen(of, autocast=""),
        second=check(of, config=other, seen=seen(of, config=other, autocast="")),
    )
    assert told in verdict_of(found).remedy


def test_a_difference_that_only_the_second_config_shows_names_it() -> None:
    of, other = study(), replace(CONFIG, recompute="full")
    found = check(of, seen=seen(of), second=check(of, config=other, seen=seen(of, config=other)))
    assert any("recompute has no effect" in told for told in found.differences)


def test_sequences_that_differ_in_length_agree_with_no_single_length() -> None:
    of = study()
    half = replace(seen(of), tokens=(seen(of).tokens or 0) * 3 // 5)
    assert not verdict_of(check(of, seen=half)).ready
    remark = "sequences differ in length from step to step"
    varying = verdict_of(check(of, seen=replace(half, lengths_vary=True, remarks=(remark,))))
    assert varying.ready
    assert remark in varying.remedy


def test_a_window_of_attention_that_is_shorter_than_a_sequence_is_said() -> None:
    of = study()
    source = json.dumps({"model_type": "mistral", "sliding_window": of.workload.seq_len // 2})
    model = replace(of.workload.model, source=source)
    windowed = replace(of, workload=replace(of.workload, model=model))
    said = verdict_of(check(windowed, seen=seen(windowed)))
    assert said.ready
    assert f"limits some or all layers to {of.workload.seq_len // 2:,} tokens" in said.remedy
    assert "limits some or all layers" not in verdict_of(check(of, seen=seen(of))).remedy


ADAPTERS = {"peft": {"method": "lora", "rank": 8}}


@pytest.mark.parametrize(
    ("workload", "share", "more", "agrees", "remark"),
    [
        ({}, 0.02, 0.02, False, ""),
        (
            {},
            0.02,
            0.0,
            None,
            "weights are trained, but all are planned as trained",
        ),  # a last layer
        ({}, 0.6, 0.0, None, "weights are trained, but all are planned as trained"),
        (ADAPTERS, 0.02, 0.02, True, ""),
        (ADAPTERS, 0.3, 0.0, True, ""),  # of a small model
        (ADAPTERS, 1.0, 0.0, False, ""),
    ],
)
def test_adapters_are_few_trained_weights_in_addition_to_the_model(
    workload: dict[str, Any], share: float, more: float, agrees: bool | None, remark: str
) -> None:
    of = study(workload={"seq_len": 1024, "global_batch_size": 64, **workload})
    count = of.workload.model.num_parameters
    found = seen(of, parameters=int((1 + more) * count), trainable=int(share * count))
    (row,) = [r for r in rows_of(of, CONFIG, found) if r.name == "trained weights"]
    assert row.agrees is agrees
    assert remark in verdict_of(check(of, seen=found)).remedy
    assert ("workload" in row.difference) is (agrees is False)


def test_adapters_are_no_weights_of_the_model_and_all_weights_need_no_row() -> None:
    of = study(workload={"seq_len": 1024, "global_batch_size": 64, **ADAPTERS})
    count = of.workload.model.num_parameters
    found = seen(of, parameters=int(1.2 * count), trainable=int(0.2 * count))
    assert check(of, seen=found).differences == ()
    plain = study()
    rows = rows_of(plain, CONFIG, seen(plain, trainable=count))
    assert "trained weights" not in {row.name for row in rows}


@pytest.mark.parametrize(
    ("said", "types", "stepped", "agrees"),
    [
        (False, "bfloat16", "bfloat16", False),
        (True, "float32", "float32", False),
        (True, "bfloat16", "float32", None),  # norms in fp32, or copies of all weights
        (True, "bfloat16", "bfloat16", True),
        (False, "bfloat16", "float32", True),
    ],
)
def test_weights_that_are_kept_in_bf16_alone_are_seen(
    said: bool, types: str, stepped: str, agrees: bool | None
) -> None:
    of = study(workload={"seq_len": 1024, "global_batch_size": 64, "pure_bf16": said})
    found = seen(of, types={types: 100}, stepped_types={stepped: 100})
    rows = [r for r in rows_of(of, CONFIG, found) if r.name == "pure_bf16"]
    assert [row.agrees for row in rows] == ([] if agrees else [agrees])
    assert [row.fix for row in rows] == (
        [] if agrees else [("workload.pure_bf16", str(not said).lower())]
    )


@pytest.mark.parametrize(
    ("facts_seen", "words"),
    [
        ({"frozen": 5_000}, "calls other models with 5,000 weights"),
        ({"copied": 5_000}, "keeps copies of 5,000 weights"),
        ({"offloads": True}, "FSDP keeps weights in host memory"),
        ({"wrappers": ["DataParallel"]}, "divides each batch over all visible GPUs"),
        ({"optimizers": ["lion_pytorch.Lion"]}, "the optimizer Lion is counted as adamw"),
    ],
)
def test_what_no_key_of_a_spec_describes_is_a_remark(
    facts_seen: dict[str, Any], words: str
) -> None:
    of = study()
    verdict = verdict_of(check(of, seen=seen(of, **facts_seen)))
    assert verdict.ready
    assert words in verdict.remedy
    assert words not in verdict_of(check(of, seen=seen(of))).remedy


def test_ranks_that_hold_parts_of_the_model_are_no_replicas() -> None:
    """A pipeline of its own: each rank has its own weights, and not those of the whole model."""
    of = study()
    split = seen(of, is_split=True, parameters=of.workload.model.num_parameters // 2)
    (told,) = check(of, seen=split).differences
    assert told.startswith("ranks: the spec has 2, but the probe observed 2 with different weights")
    staged = replace(CONFIG, pp=2, dp=1)
    names = {r.name for r in rows_of(of, staged, split) if r.agrees is False}
    assert names == set()


def test_torchs_sharded_optimizer_is_the_first_stage() -> None:
    of = study()
    names = ["torch.distributed.optim.ZeroRedundancyOptimizer", "torch.optim.adamw.AdamW"]
    (told,) = check(of, seen=seen(of, optimizers=names)).differences
    assert told.startswith("zero_stage: the spec has 0, but the probe observed 1")


def test_batch_options_that_change_nothing_have_no_effect() -> None:
    """A file that the program does not read, which has the baseline's values by chance."""
    of, other = study(), replace(CONFIG, micro_batch_size=2, accumulation_steps=16)
    second = replace(seen(of), disagreement="8 micro-batches")
    found = check(of, seen=seen(of), second=check(of, config=other, seen=second))
    (told,) = found.differences
    assert told.startswith("batch options have no effect; the probe observed 64 (8 micro-batches")


@pytest.mark.parametrize(("steps", "is_said"), [(7, False), (9, False), (4000, True)])
def test_a_program_that_does_not_heed_its_number_of_steps_is_said(
    steps: int, is_said: bool
) -> None:
    of = study()
    second = check(of, seen=replace(seen(of), steps=steps))
    verdict = verdict_of(check(of, seen=seen(of), second=second))
    assert verdict.ready
    assert ("may mean something else" in verdict.remedy) is is_said


def test_files_that_were_there_stop_it_until_the_spec_says_that_they_may_be_replaced() -> None:
    of = study()
    files = {
        "/w/ckpt.pt": {"how": "written", "existed": True, "kept": True},
        "/w/new": {"how": "written", "existed": False, "kept": False},
    }
    verdict = verdict_of(check(of, seen=seen(of, files=files)))
    assert not verdict.ready
    assert "trial's folder: /w/ckpt.pt. These files were restored" in verdict.remedy
    assert "outputs: keep" in verdict.remedy
    assert "new files from the run of 5 steps were kept: /w/new" in verdict.remedy
    keeping = study(outputs="keep")
    assert verdict_of(check(keeping, seen=seen(keeping, files=files))).ready
    fresh = verdict_of(check(of, seen=seen(of, files={"/w/new": files["/w/new"]})))
    assert fresh.ready
    assert "/w/new. These files are kept" in fresh.remedy
    assert (
        "`tune` stops if a trial would overwrite such a file; set the program's output folder to {trial_dir} and "
        "set your own folder under `training`" in fresh.remedy
    )


def test_a_log_that_counts_micro_batches_is_told_by_two_configs_where_no_probe_sees_them() -> None:
    """Four micro-batches a step, each logged as a step: the sequences/s of the log grow four
    times."""
    of = study()
    one = replace(CONFIG, micro_batch_size=8, accumulation_steps=4)
    other = replace(CONFIG, micro_batch_size=2, accumulation_steps=16)
    wrong = check(
        of,
        config=one,
        time_from="arrival",
        each_s=0.08,
        second=check(of, config=other, time_from="arrival", each_s=0.02),
    )
    assert "counts: micro-batches" in uncounted(wrong)
    assert not verdict_of(wrong).ready
    said = api.load_study(spec(trainer={**COMMAND, "counts": "steps"}))
    assert uncounted(replace(wrong, study=said)) == ""


def two(
    of: Study,
    *,
    micro: tuple[int, int],
    steps: tuple[int, int],
    each_s: tuple[float, float],
    **more: Any,
) -> ProgramCheck:
    """Checks of two configs of a program that the probe does not see."""
    configs = [
        replace(CONFIG, micro_batch_size=m, accumulation_steps=a)
        for m, a in zip(micro, steps, strict=True)
    ]
    first, second = (
        check(of, config=config, time_from="arrival", each_s=time_s, **more)
        for config, time_s in zip(configs, each_s, strict=True)
    )
    return replace(first, second=second)


def test_where_nothing_proves_what_a_line_counts_nothing_begins() -> None:
    """Lines that are as long with small micro-batches as with large ones may be steps, or
    micro-batches whose time is all overhead."""
    of = study()
    alike = two(of, micro=(8, 2), steps=(4, 16), each_s=(0.32, 0.34))
    noisy = replace(
        two(of, micro=(8, 2), steps=(4, 16), each_s=(0.08, 0.02)),
        step_times_s=(0.08, 0.08, 0.01, 0.3, 0.08),
    )
    for found in (alike, noisy, replace(alike, second=None)):
        assert "it is unclear whether a line" in uncounted(found)
        assert not verdict_of(found).ready


@pytest.mark.parametrize(
    ("times", "proven"), [((0.1, 0.39), True), ((0.1, 0.1), False), ((0.1, 0.11), False)]
)
def test_two_configs_that_differ_in_accumulation_alone_prove_it_by_their_times(
    times: tuple[float, float], proven: bool
) -> None:
    of = study(workload={"seq_len": 1024, "global_batch_size": [64, 256]})
    found = two(of, micro=(4, 4), steps=(4, 16), each_s=times)
    assert (uncounted(found) == "") is proven


@pytest.mark.parametrize(("rate", "proven"), [(655_360, True), (81_920, False)])
def test_a_rate_in_the_log_that_covers_the_whole_batch_proves_it(rate: int, proven: bool) -> None:
    of = study()  # 64 sequences of 1,024 tokens in 0.1 s, or one of eight micro-batches
    line = LogLine(node=0, text=f"step 3, {rate} tokens/s", metrics={"step": 3})
    found = replace(check(of, time_from="log"), lines=(line, line))
    assert (uncounted(found) == "") is proven


def test_a_log_of_a_known_form_proves_it_and_so_do_rates_of_tokens_and_an_accumulation_that_stays() -> (
    None
):
    of = study()
    plain = replace(
        check(of, time_from="arrival"), lines=(LogLine(node=0, text="3", metrics={"step": 3}),)
    )
    assert uncounted(plain)
    known = replace(plain, lines=(LogLine(node=0, text="3", metrics={"step": 3}, counts="steps"),))
    by_tokens = replace(
        plain, time_from="rate", lines=(LogLine(node=0, text="3", metrics={"tokens_per_s": 3.0}),)
    )
    by_steps = replace(
        plain, time_from="rate", lines=(LogLine(node=0, text="3", metrics={"steps_per_s": 3.0}),)
    )
    assert [bool(uncounted(found)) for found in (known, by_tokens, by_steps)] == [
        False,
        False,
        True,
    ]
    alone = study(
        space={"micro_batch_size": [4], "accumulation_steps": [8], "dp": [2], "precision": ["bf16"]}
    )
    assert uncounted(replace(plain, study=alone)) == ""


@pytest.mark.parametrize(
    ("kind", "files", "ready"),
    [
        (FailureKind.METRICS_MISSING, ["/w/last.pt"], False),
        (FailureKind.METRICS_MISSING, [], True),
        (FailureKind.OUT_OF_MEMORY, ["/w/last.pt"], True),
    ],
)
def test_a_second_run_that_continues_where_the_first_ended_is_not_ready(
    kind: FailureKind, files: list[str], ready: bool
) -> None:
    of, other = study(), replace(CONFIG, micro_batch_size=2)
    new = {path: {"how": "written", "existed": False, "kept": False} for path in files}
    second = replace(check(of, config=other), failure=Failure(kind=kind, message="2 steps"))
    verdict = verdict_of(check(of, seen=seen(of, files=new), second=second))
    assert verdict.ready == ready
    if not ready:
        assert "continued from files of the first run: /w/last.pt" in verdict.remedy


def test_the_second_config_differs_in_what_can_be_seen_and_is_not_compiled_first() -> None:
    of = api.load_study(
        spec(
            trainer={
                "kind": "command",
                "argv": [
                    "python",
                    "t.py",
                    *(
                        f"{{{name}}}"
                        for name in (
                            "micro_batch_size",
                            "accumulation_steps",
                            "precision",
                            "recompute",
                            "compile",
                            "dp",
                        )
                    ),
                ],
            },
            space={
                "micro_batch_size": [1, 2, 4],
                "precision": ["fp32", "bf16"],
                "recompute": ["none", "full"],
                "compile": [False, True],
            },
        )
    )
    assembly = assemble(of)
    first = assembly.baseline
    other = present(contrast_of(assembly, first, 8))
    assert other.precision != first.precision
    assert other.recompute != first.recompute
    assert other.micro_batch_size != first.micro_batch_size
    assert not other.compile
