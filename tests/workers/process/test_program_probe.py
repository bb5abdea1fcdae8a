"""Attempts whose program is seen by the probe: whose steps count, what the log adds, and what does
not agree. No process is started here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from autotune.ports import StepsReported
from autotune.spec import FailureKind
from autotune.study.program_remarks import remarks
from autotune.trainers.logs.formats import stock_reader
from autotune_workers.process.program.evidence import NodeEnd
from autotune_workers.process.program.probe import ProgramProbe
from autotune_workers.process.program.state import OWN_END_S, ProgramTrial
from tests.workers.requests import PATIENT, failure_of, request

TORCH = {"kind": "torch", "pid": 7, "version": "2", "rank": 0}


def trial(mb: int = 2, acc: int = 4, dp: int = 1, nodes: int = 1, **more: Any) -> ProgramTrial:
    asked = request(
        0,
        dp=dp,
        trainer="command",
        config={"micro_batch_size": mb, "accumulation_steps": acc},
        measure=PATIENT,
    )
    return ProgramTrial(replace(asked, **more), [stock_reader() for _ in range(nodes)], 0.0)


def step(
    at_s: float,
    *,
    time_s: float = 0.4,
    micro: int = 4,
    sequences: Sequence[int] = (8,),
    **more: Any,
) -> dict[str, Any]:
    told = {"at": at_s, "s": time_s, "micro": micro, "sequences": list(sequences), "tokens": None}
    return {**told, "backwards": micro, "wait_s": 0.1, "skipped": False, **more}


def report(*steps: dict[str, Any], pid: int = 7, rank: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": "step", "pid": pid, "rank": rank, "steps": list(steps), **more}


def see_steps(of: ProgramTrial, count: int, **seen: Any) -> None:
    """One each second."""
    for number in range(count):
        of.see([report(step(1.0 + number, **seen))], 1.0 + number)


def bar(count: int) -> str:
    return f"  1%|# | {count}/400 [00:01<00:01, 10.0it/s, loss={5 - count / 100:.2f}]"


def ended(of: ProgramTrial, code: int = 0) -> Any:
    of.settle(0.0)
    return of.end([NodeEnd(node=0, code=code)])


def test_the_probes_steps_are_the_measurement_and_the_log_is_the_second_witness() -> None:
    """A bar that counts micro-batches, four of them to a step."""
    of = trial()
    of.see([TORCH], 0.0)
    found: list[StepsReported] = []
    for number in range(1, 13):
        found += of.hear([(10.0 + 0.1 * number, bar(number))], 10.0 + 0.1 * number)
        if number % 4 == 0:
            found += of.see([report(step(10.0 + 0.1 * number - 0.001))], 10.0 + 0.1 * number)
    assert [s.step_times_s for s in found] == [(0.4,)] * 3
    seen, measured = of.seen(), ended(of).measurement
    assert measured.time_from == "probe"
    assert "10 steps" in seen.witness
    assert "3 optimizer steps" in seen.witness
    assert (seen.micro_batches, seen.sequences) == (4, 8)
    assert seen.wait_share == pytest.approx(0.25)


def test_losses_of_the_log_belong_to_the_step_that_ended_before_their_line() -> None:
    of = trial()
    of.see([TORCH], 0.0)
    for number in range(3):
        at_s = 1.0 + number
        if number != 1:  # this line comes later than the probe's report
            of.hear([(at_s + 0.01, f'{{"step": {number}, "loss": {5 - number}.0}}')], at_s)
        of.see([report(step(at_s))], at_s)
        if number == 1:
            of.hear([(at_s + 0.01, f'{{"step": {number}, "loss": {5 - number}.0}}')], at_s)
    for number in range(3, 6):
        of.see([report(step(1.0 + number))], 1.0 + number)
    assert ended(of).measurement.losses[:2] == (4.0, 3.0)  # after warm-up


def test_a_log_counts_where_the_probe_sees_no_step_though_torch_was_imported() -> None:
    of = trial()
    of.see([TORCH], 0.0)
    found = [
        r
        for n in range(1, 9)
        for r in of.hear([(1.0 + 0.5 * n, f'{{"step": {n}, "step_time_s": 0.5}}')], 1.0 + 0.5 * n)
    ]
    assert [r.first_step for r in found] == list(range(len(found)))
    assert len(found) >= 5
    assert ended(of).measurement.time_from == "log"


def test_a_log_counts_at_the_end_where_it_was_too_short_to_wait_for_the_probe() -> None:
    of = trial()
    of.see([TORCH], 0.0)
    assert not [
        r
        for n in range(1, 9)
        for r in of.hear([(1.0 + 0.01 * n, f'{{"step": {n}, "step_time_s": 0.01}}')], 1.0)
    ]
    assert len(of.settle(2.0)) >= 5
    assert of.end([NodeEnd(node=0, code=0)]).measurement.time_from == "log"


@pytest.mark.parametrize(("moving", "kind"), [(False, FailureKind.HANG), (True, None)])
def test_a_process_that_stays_at_one_place_shows_no_life(
    moving: bool, kind: FailureKind | None
) -> None:
    """The watch reports from a thread of its own, while a rank waits for another for good. One that
    evaluates is seen at several places."""
    of = trial()
    see_steps(of, 3)
    for second in range(4, 4 + round(PATIENT.step_timeout_s) + 4):
        elsewhere = [["forward", "own", "train.py", 9, second]] if moving else []
        lines = [["backward", "wait", "train.py", 7, 10 * second], *elsewhere]
        of.see(
            [{"kind": "watch", "pid": pid, "rank": pid - 7, "lines": lines} for pid in (7, 8)],
            float(second),
        )
        of.tick(float(second))
    assert of.ending == (kind is not None)
    if kind is not None:
        assert failure_of(ended(of)).kind is kind


@pytest.mark.parametrize(
    "garbage",
    [{"lines": 5}, {"lines": None}, {"lines": [[]]}, {"lines": [["a", {}]]}, {"pid": [7]}],
)
def test_a_watch_that_is_not_understood_is_no_sign_of_life_and_ends_nothing(
    garbage: dict[str, Any],
) -> None:
    probe = ProgramProbe(trial().request)
    said = {"kind": "watch", "pid": 7, "lines": [["train.py", 3, 1]], **garbage}
    assert [probe.shows_life([said], 0) for _ in range(3)] == [False, False, False]
    assert probe.shows_life([{"kind": "watch", "pid": 7, "lines": [["train.py", 3, 1]]}], 0)


def test_without_a_probe_the_log_counts_at_once() -> None:
    assert trial().hear([(1.0, '{"step": 1, "step_time_s": 0.5}')], 1.0)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"micro": 4, "sequences": [4]}, "4 micro-batches of 1 sequences"),
        ({"micro": 1, "sequences": [2]}, "1 micro-batch of 2 sequences"),
        (
            {"micro": 2, "sequences": [8]},
            "observed 2 micro-batches of 4; the program may set its own",
        ),
    ],
)
def test_a_step_that_is_not_the_configs_is_no_measurement(seen: dict[str, Any], words: str) -> None:
    """The second is accumulation that does not reach the program, the third a batch that it finds
    by itself."""
    of = trial()
    see_steps(of, 4, **seen)
    assert of.ending
    failure = failure_of(ended(of))
    assert failure.kind is FailureKind.INVALID
    assert words in failure.message
    assert "trainer.argv" in failure.message


@pytest.mark.parametrize(
    ("counts", "is_refused"), [((61, 57, 66, 59), False), ((61, 61, 66, 61), True)]
)
def test_micro_batches_that_are_filled_by_tokens_have_any_number_of_sequences(
    counts: tuple[int, ...], is_refused: bool
) -> None:
    of = trial()
    of.see([report(*(step(1.0 + n, sequences=[count]) for n, count in enumerate(counts)))], 5.0)
    assert of.ending == is_refused
    assert of.seen().fills_by_tokens != is_refused
    assert (
        any(
            "filled up to a token limit" in said for said in remarks(of.seen(), keeps_outputs=False)
        )
        != is_refused
    )


@pytest.mark.parametrize(
    ("tokens", "sequences", "average"),
    [
        ((8 * 12, 8 * 16, 8 * 14, 8 * 10), (8, 8, 8, 8), 13),
        ((8 * 16, 8 * 16, 8 * 16, 4 * 16), (8, 8, 8, 4), None),  # the last of an epoch
        ((8 * 16, 8 * 16, 8 * 16, 8 * 16), (3, 5, 4, 6), None),  # packed
    ],
)
def test_sequences_of_other_lengths_are_counted_on_average(
    tokens: tuple[int, ...], sequences: tuple[int, ...], average: int | None
) -> None:
    of = trial()
    told = enumerate(zip(tokens, sequences, strict=True))
    of.see(
        [report(*(step(1.0 + n, sequences=[count], tokens=total) for n, (total, count) in told))],
        5.0,
    )
    assert not of.seen().disagreement
    assert of.seen().lengths_vary == (average is not None)
    said = [each for each in remarks(of.seen(), keeps_outputs=False) if "differ in length" in each]
    if average is None:
        assert not said
    else:
        assert of.seen().tokens == 8 * average
        assert ", 13 on average)" in said[0]


def test_packed_steps_that_have_the_configs_tokens_are_its_batch_however_many_sequences_they_have() -> (
    None
):
    of = trial()
    counts = enumerate((3, 5, 4, 6))
    of.see([report(*(step(1.0 + n, sequences=[count], tokens=8 * 16) for n, count in counts))], 5.0)
    assert not of.seen().fills_by_tokens
    assert not of.seen().disagreement


@pytest.mark.parametrize(
    "seen",
    [
        {"micro": 4, "sequences": [8]},
        {"micro": 1, "sequences": [8], "backwards": 4},
        # two forward passes for each backward pass
        {
            "micro": 8,
            "sequences": [16, 8],
            "backwards": 4,
        },
        {"micro": 4, "sequences": [4], "tokens": 8 * 16 - 8},  # packed, and a token short
        {"micro": 4, "sequences": []},
    ],
)
def test_steps_that_agree_in_one_of_the_ways_in_which_programs_count(seen: dict[str, Any]) -> None:
    of = trial()
    seq_len = of.request.workload.seq_len
    if "tokens" in seen:
        seen = {**seen, "tokens": 8 * seq_len - 8 if seq_len > 64 else 8 * seq_len}
    see_steps(of, 4, **seen)
    assert not of.ending
    assert of.seen().disagreement == ""


def test_a_program_that_starts_fewer_ranks_than_the_config_has_trains_less() -> None:
    of = trial(dp=2)
    of.see([{"kind": "facts", "pid": 7, "rank": 0, "world": 1}], 0.0)
    see_steps(of, 4)
    failure = failure_of(ended(of))
    assert "global_batch_size=16" in failure.message


def test_the_lowest_rank_is_measured_and_the_fullest_ones_memory_counts() -> None:
    of = trial(dp=2)
    of.see(
        [
            report(step(1.0, time_s=9.0), pid=3, rank=1, peak=500, reserved=700),
            report(step(1.0), peak=100, reserved=200),
        ],
        1.0,
    )
    for number in range(1, 4):
        of.see([report(step(1.0 + number), peak=100, reserved=200)], 1.0)
    measured = ended(of).measurement
    assert max(step.time_s for step in of._steps) == 0.4
    assert measured.peak_memory_bytes == 500
    assert measured.utilization["reserved_memory_bytes"] == 700


def test_steps_that_a_scaler_left_out_are_skipped_steps() -> None:
    of = trial()
    for number in range(4):
        of.see([report(step(1.0 + number, skipped=number == 3))], 1.0 + number)
    assert ended(of).measurement.skipped_steps == 1


def test_a_loss_that_is_not_finite_is_divergence_though_the_probe_counts() -> None:
    of = trial()
    of.see([report(step(1.0))], 1.0)
    of.hear([(1.1, '{"step": 1, "loss": NaN}')], 1.1)
    assert of.ending
    assert ended(of).failure.kind is FailureKind.DIVERGED


def test_a_program_that_may_end_by_itself_is_given_time_once_it_is_measured() -> None:
    of = trial(
        ends_itself=True,
        measure=replace(PATIENT, warmup_steps=1, min_steps=2, max_steps=2, first_look=0),
    )
    see_steps(of, 5)
    assert not of.ending
    assert len(of._steps) == 3
    of.tick(4.0 + OWN_END_S - 2)
    assert not of.ending
    of.tick(4.0 + OWN_END_S)
    assert of.ending
    assert ended(of).failure is None


def test_a_file_that_another_rank_moved_aside_existed_whoever_reports_first() -> None:
    for order in ([0, 1], [1, 0]):
        probe = ProgramProbe(request())
        words = [[["/a", "written", False, False]], [["/a", "written", True, True]]]
        for pid in order:
            probe.hear([{"kind": "files", "pid": pid, "files": words[pid]}], 0)
        assert probe.files == {"/a": {"how": "written", "existed": True, "kept": True}}


def test_a_program_about_to_change_a_file_that_cannot_be_kept_is_ended_and_says_why() -> None:
    trial = ProgramTrial(request(), [stock_reader()], 0.0)
    trial.see([{"kind": "unkept", "pid": 1, "files": ["/data/big.bin"], "why": "too long"}], 1.0)
    assert trial.ending
    failure = failure_of(trial.end([NodeEnd(node=0, code=-15)]))
    assert failure.kind is FailureKind.INVALID
    assert "/data/big.bin (too long)" in failure.message
    assert "outputs: keep" in failure.message


@pytest.mark.parametrize(
    ("others", "differ"),
    [([8, 8, 8], False), ([4, 4, 4], True), ([4, 8, 4], False), ([4], False)],
)
def test_ranks_that_train_on_other_numbers_of_sequences_are_told(
    others: list[int], differ: bool
) -> None:
    of = trial()
    of.see([TORCH], 0.0)
    for number in range(3):
        of.see([report(step(1.0 + number))], 1.0 + number)
    for number, count in enumerate(others):
        of.see([report(step(1.0 + number, sequences=(count,)), pid=8, rank=1)], 4.0)
    said = of.seen().unevenness
    assert ("8 on the measured rank, 4 on another" in said) == differ == bool(said)
    assert said in list(remarks(of.seen(), keeps_outputs=True)) or not differ


@pytest.mark.parametrize(
    ("weights", "degrees", "is_split", "is_said"),
    [
        ("ab", {}, True, True),
        ("aa", {}, False, False),
        ("ab", {"pp": 2, "dp": 1}, True, False),  # as the spec says
        ("ab", {"cp": 2, "dp": 1}, True, True),
    ],
)
def test_ranks_whose_weights_differ_after_a_step_are_told(
    weights: str, degrees: dict[str, int], is_split: bool, is_said: bool
) -> None:
    of = trial()
    of = ProgramTrial(
        replace(of.request, config=replace(of.request.config, **degrees)), [stock_reader()], 0.0
    )
    facts = {"kind": "facts", "pid": 7, "rank": 0, "world": 2}
    of.see([facts, report(step(1.0))], 1.0)
    of.see([{"kind": "replica", "pid": 7 + n, "weights": w} for n, w in enumerate(weights)], 1.5)
    assert of.seen().facts["is_split"] is is_split
    assert ("the ranks have different weights" in of.seen().unevenness) is is_said


def test_files_that_could_not_be_put_back_are_told() -> None:
    trial = ProgramTrial(request(), [stock_reader()], 0.0)
    trial.see([{"kind": "lost", "files": ["/a is now /.a.before-autotune: read-only"]}], 1.0)
    assert trial.seen().lost == ("/a is now /.a.before-autotune: read-only",)


def test_files_and_troubles_are_passed_on() -> None:
    of = trial()
    of.see(
        [
            {"kind": "files", "pid": 7, "files": [["/a", "written", True, True]]},
            {"kind": "trouble", "pid": 7, "error": "E"},
        ],
        0.0,
    )
    seen = of.seen()
    assert seen.files == {"/a": {"how": "written", "existed": True, "kept": True}}
    assert seen.troubles == ("E",)


def test_options_are_those_of_the_program_that_trains_as_its_first_process_told_them() -> None:
    """A launcher reads its own command, and a process of a data loader may read the program's
    again."""

    def options(pid: int, program: str, *names: str) -> dict[str, Any]:
        told = [{"dest": name} for name in names]
        return {"kind": "options", "pid": pid, "program": program, "options": told}

    of = trial()
    of.see([options(1, "/torch/run.py", "nproc"), TORCH, options(7, "/train.py", "batch")], 0.0)
    of.see([options(7, "/train.py", "steps"), options(9, "/train.py", "batch")], 0.0)
    assert of.seen().options == ()
    facts = {"kind": "facts", "pid": 7, "rank": 0, "program": "/train.py"}
    of.see([report(step(1.0)), facts], 1.0)
    assert of.seen().options == ({"dest": "batch"}, {"dest": "steps"})


def ran_out(pid: int = 7) -> dict[str, Any]:
    said = {"where": "a forward pass", "error": "CUDA out of memory. Tried to allocate 2.00 GiB."}
    return {"kind": "out_of_memory", "pid": pid, **said}


@pytest.mark.parametrize("as_it_is", [False, True], ids=["trial", "present launch"])
@pytest.mark.parametrize("is_seen", [True, False], ids=["seen by the probe", "said by the log"])
def test_a_program_that_catches_it_when_memory_runs_out_and_continues_has_failed(
    is_seen: bool, as_it_is: bool
) -> None:
    """Its next steps are of other batches, or of the ones that were left: they measure another
    config."""
    of = trial(as_it_is=as_it_is)
    of.see([TORCH], 0.0)
    see_steps(of, 1)
    if is_seen:
        of.see([ran_out()], 1.5)
    else:
        of.hear([(1.5, "WARNING: ran out of memory, skipping batch")], 1.5)
    of.see([report(step(2.0))], 2.0)
    assert not of.ending  # a step of another rank may come last before it dies
    of.see([report(step(3.0))], 3.0)
    assert of.ending
    failure = failure_of(ended(of, code=-15))
    assert (failure.kind, failure.step) == (FailureKind.OUT_OF_MEMORY, 1)
    assert "ran out of memory and continued" in failure.message


def test_a_second_time_shows_that_the_first_was_caught() -> None:
    """As where batches are halved until they fit, before any step. Ranks that all run out once may
    be about to die of it."""
    of = trial()
    of.see([ran_out(pid=7), ran_out(pid=8)], 0.0)
    assert not of.ending
    see_steps(of, 1, micro=1, sequences=(1,))
    of.see([ran_out(pid=8)], 1.0)
    assert of.ending
    assert not of.seen().disagreement  # that it has another batch is a consequence
    assert failure_of(ended(of, code=-15)).kind is FailureKind.OUT_OF_MEMORY


def test_a_program_that_ends_successfully_without_a_step_because_memory_ran_out_says_so() -> None:
    of = trial()
    of.see([TORCH, ran_out()], 0.0)
    assert failure_of(ended(of)).kind is FailureKind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "line",
    [
        "num_alloc_retries: 0, out of memory: 0",
        "set expandable_segments to avoid out of memory errors",
        "out of memory = none",
        "sample: the general had ran out of memory of that day",
    ],
)
def test_words_of_memory_that_did_not_run_out_are_no_failure(line: str) -> None:
    of = trial()
    of.see([TORCH], 0.0)
    of.hear([(0.5, line)], 0.5)
    see_steps(of, 8)
    assert ended(of).failure is None


def test_kernels_that_a_compiler_tried_without_enough_memory_are_no_failure() -> None:
    of = trial()
    of.see([TORCH], 0.0)
    of.hear([(0.5, "AUTOTUNE mm(4096x4096)"), (0.6, "CUDA out of memory. Tried to allocate")], 0.6)
    see_steps(of, 8)
    assert ended(of).failure is None


def see_work(of: ProgramTrial, *steps: tuple[float, dict[str, float]]) -> None:
    """Steps with their times, and the seconds of other phases in them."""
    for number, (time_s, seconds) in enumerate(steps):
        phases = {name: [s, s, 0.0] for name, s in seconds.items()}
        of.see([report(step(1.0 + number, time_s=time_s, phases=phases))], 1.0 + number)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([(0.4, {}), (0.6, {"evaluation": 0.1})] * 4, ("evaluation", "takes 20%", "4 of 8 steps")),
        (
            [(0.4, {})] * 5 + [(0.8, {"checkpoint": 0.3})],
            ("saving checkpoints takes 14%", "1 of 6"),
        ),
        ([(0.4, {"checkpoint": 0.1})] * 8, ("saving checkpoints takes 25%", "8 of 8")),
        (
            [(0.4, {"evaluation": 0.1})] * 8,
            ("a reference, a teacher, or generated samples) take 25% of the time of every step",),
        ),
        ([(0.6, {"evaluation": 0.007}), (0.4, {"evaluation": 0.001})] * 4, ()),  # a small one
        # one that is slow by chance is no evaluation that takes so long
        (
            [(0.4, {}), (0.5, {}), (0.3, {"checkpoint": 0.004}), (0.5, {"checkpoint": 0.006})] * 2,
            (),
        ),
        ([(0.4, {}), (0.402, {"evaluation": 0.002})] * 4, ()),
        ([(0.4, {})] * 8, ()),
    ],
)
def test_work_between_steps_that_trains_nothing_is_named_with_its_share(
    steps: list[tuple[float, dict[str, float]]], words: tuple[str, ...]
) -> None:
    """By how much longer these steps are: data of an evaluation is loaded, too."""
    of = trial(mb=2, acc=4)
    see_work(of, (0.4, {}), *steps)
    said = of.seen().remarks
    assert ended(of).measurement.remarks == said
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([4, 6, 8, 8, 12, 16], ("grew from 4 to 16 tokens over 6 steps", "seq_len=16")),
        ([10, 16, 8, 14, 12, 15], ("(8 to 16 tokens, 12 on average)", "seq_len=16")),
        ([8] * 6, ("sequences have 8 tokens, but the spec has seq_len=16",)),
        ([15] * 6, ()),  # inputs are a token shorter
        ([32] * 6, ("sequences have 32 tokens, but the spec has seq_len=16",)),
    ],
)
def test_lengths_that_are_not_the_specs_are_told_with_the_measurement(
    lengths: list[int], words: tuple[str, ...]
) -> None:
    of = trial()
    for number, length in enumerate(lengths):
        of.see([report(step(1.0 + number, tokens=8 * length))], 1.0 + number)
    said = of.seen().remarks
    assert ended(of).measurement.remarks == said
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (
            [8, 8, 8, 8, 8, 16, 16, 32],
            ("sequences per step on each rank grew from 8 to 32", "the spec has 8", "0.62 times"),
        ),
        (
            [8, 8, 16, 8, 8, 16, 8, 8],
            ("sequences per step on each rank is 16 in 2 of 8 steps", "0.80 times"),
        ),
        (
            [8, 8, 8, 1, 8, 8, 8, 1],
            ("sequences per step on each rank is 1 in 2 of 8 steps", "1.28 times", "drop_last"),
        ),
        ([8] * 8, ()),
    ],
)
def test_steps_of_other_batches_are_told_with_the_measurement(
    counts: list[int], words: tuple[str, ...]
) -> None:
    """Accumulation that grows, a step that is left out, the last batch of an epoch."""
    of = trial()
    for number, count in enumerate(counts):
        of.see([report(step(1.0 + number, sequences=[count]))], 1.0 + number)
    said = of.seen().remarks
    assert ended(of).measurement.remarks == said
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)


def test_a_program_that_takes_too_few_steps_says_how_many_count() -> None:
    of = trial()
    of.see([TORCH], 0.0)
    for number in range(8):
        at_s = 1.0 + number
        of.hear([(at_s + 0.01, f'{{"step": {number}, "loss": 2.0}}')], at_s)
        if number % 2:
            of.see([report(step(at_s))], at_s)
    message = failure_of(ended(of)).message
    assert "the probe observed 4 steps with a time (3 after warm-up), and 4 are needed" in message
    assert "the log counts 6 steps, but the probe observed 3 optimizer steps" in message


@pytest.mark.parametrize(("compiled", "is_said"), [(False, True), (True, False)])
def test_a_knob_that_the_program_does_not_heed_is_told_with_the_measurement(
    compiled: bool, is_said: bool
) -> None:
    """`--compile` that is declared and never read: `check` compares no compiled config."""
    of = trial()
    config = replace(of.request.config, compile=True)
    of = ProgramTrial(replace(of.request, config=config), [stock_reader()], 0.0)
    facts = {"kind": "facts", "pid": 7, "rank": 0, "world": 1, "compiled": compiled}
    of.see([facts], 0.0)
    see_work(of, *[(0.4, {})] * 6)
    told = ended(of).measurement.remarks
    said = "compile: true in the spec, but the probe observed false; the option has no effect"
    assert [remark.startswith(said) for remark in told] == [True] * is_said


def test_sequences_that_are_packed_into_fewer_rows_are_no_other_length() -> None:
    of = trial()
    for number in range(6):
        of.see([report(step(1.0 + number, sequences=[4], tokens=8 * 16))], 1.0 + number)
    assert not of.seen().remarks


def test_a_part_of_each_sequence_on_a_rank_is_no_other_length() -> None:
    of = trial()
    config = replace(of.request.config, cp=2)
    of = ProgramTrial(replace(of.request, config=config), [stock_reader()], 0.0)
    for number in range(6):
        of.see([report(step(1.0 + number, tokens=8 * 8))], 1.0 + number)
    assert not of.seen().remarks


def test_files_that_the_program_writes_are_none_of_its_own() -> None:
    of = trial()
    files = {"model.py": "1a", "/data/config.yaml": "2b", "log.txt": "3c", "/data/out.json": "4d"}
    written = [[path, "written", True, True] for path in ("/program/log.txt", "/data/out.json")]
    facts = {"kind": "facts", "pid": 7, "rank": 0, "program": "/program/train.py", "files": files}
    of.see([facts, {"kind": "files", "pid": 7, "files": written}], 0.0)
    see_work(of, *[(0.4, {})] * 6)
    measured = ended(of).measurement
    assert measured.files == {"model.py": "1a", "/data/config.yaml": "2b"}
    assert "files" not in measured.evidence["facts"]
