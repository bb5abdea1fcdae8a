"""The laws of a diagnosis on evidence that was made up: each class is claimed for its cause, first, of the right rank or node, whatever the noise and the load; and none of a healthy run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.diagnosis import CLASSES, Diagnosis, Evidence, Place, diagnose, lines_of
from tests.diagnosing.made_up import STEP_S, run, with_links
from tests.matrix import examples

RANKS = st.integers(2, 8)
SEED = st.integers(0, 10_000)
NOISE = st.floats(0.0, 0.08)


def first(found: Diagnosis, *, but: str = "") -> Any:
    causes = [finding for finding in found.findings if finding.cause != but]
    assert causes, "nothing was found"
    return causes[0]


@given(ranks=st.integers(1, 8), seed=SEED, noise=NOISE, sharded=st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_no_class_is_claimed_of_a_healthy_run(ranks: int, seed: int, noise: float, sharded: bool) -> None:
    found = diagnose(run(ranks=ranks, seed=seed, noise=noise, sharded=sharded))
    assert [f.cause for f in found.findings] == []
    assert found.verdict.startswith("Nothing found")


@given(ranks=RANKS, seed=SEED, noise=NOISE, wait=st.floats(0.15, 3.0), load=st.floats(0.0, 0.4))
@settings(max_examples=examples(40), deadline=None)
def test_all_ranks_wait_for_data(ranks: int, seed: int, noise: float, wait: float, load: float) -> None:
    found = first(
        diagnose(run(ranks=ranks, seed=seed, noise=noise, load=load, more={(-1, "data"): wait * STEP_S})),
        but="foreign_process",
    )
    assert (found.cause, found.rank) == ("input", None)
    if not load:
        due = wait / (1.09 + wait)
        assert found.share == pytest.approx(due, abs=0.06)
        assert found.low <= due + 0.05


@given(ranks=RANKS, seed=SEED, of=st.integers(0, 7), wait=st.floats(0.3, 2.0))
@settings(max_examples=examples(40), deadline=None)
def test_one_rank_waits_for_data(ranks: int, seed: int, of: int, wait: float) -> None:
    of %= ranks
    found = first(diagnose(run(ranks=ranks, seed=seed, more={(of, "data"): wait * STEP_S})))
    assert (found.cause, found.rank) == ("input", of)


@given(
    ranks=RANKS,
    seed=SEED,
    of=st.integers(0, 7),
    slower=st.floats(1.3, 4.0),
    load=st.floats(0.0, 0.3),
    by_cpu=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_one_rank_computes_longer(ranks: int, seed: int, of: int, slower: float, load: float, by_cpu: bool) -> None:
    of %= ranks
    how = {"busier" if by_cpu else "slower": {of: slower}}
    found = first(diagnose(run(ranks=ranks, seed=seed, load=load, **how)), but="foreign_process")  # type: ignore[arg-type]
    assert (found.cause, found.rank) == ("slow_rank", of)


@given(ranks=RANKS, seed=SEED, of=st.integers(0, 7), held=st.floats(0.4, 0.85))
@settings(max_examples=examples(30), deadline=None)
def test_a_quota_holds_one_rank_whose_time_the_kernel_counts_on_the_run_queue(
    ranks: int, seed: int, of: int, held: float
) -> None:
    of %= ranks
    evidence = run(ranks=ranks, seed=seed, slower={of: 1 / (1 - held)})
    queued = replace(
        evidence.ranks[of],
        phases={
            name: tuple((w, c, w - c) for w, c, _ in spent)
            if name != "backward"
            else tuple((w, c, max(0.0, 0.06 / (1 - held) - c)) for w, c, _ in spent)
            for name, spent in evidence.ranks[of].phases.items()
        },
    )
    waited = sum(q for spent in queued.phases.values() for _, _, q in spent)
    quota = replace(queued, throttled_s=waited)
    others = tuple(rank for rank in evidence.ranks if rank.rank != of)
    told = replace(evidence, ranks=tuple(sorted((*others, quota), key=lambda rank: rank.rank)), nodes=())
    found = first(diagnose(told))
    assert (found.cause, found.rank) == ("slow_rank", of)
    assert any("a cgroup quota stopped it" in line for line in found.evidence)


@given(seed=SEED, node=st.integers(0, 2))
@settings(max_examples=20, deadline=None)
def test_all_ranks_of_one_node_compute_longer(seed: int, node: int) -> None:
    found = first(diagnose(run(ranks=6, nodes=3, seed=seed, slower={2 * node: 1.6, 2 * node + 1: 1.6})))
    assert (found.cause, found.node, found.rank) == ("slow_node", f"node{node}", None)


@given(ranks=RANKS, seed=SEED, much=st.floats(0.6, 4.0))
@settings(max_examples=examples(30), deadline=None)
def test_collectives_take_the_step(ranks: int, seed: int, much: float) -> None:
    inside = first(diagnose(run(ranks=ranks, seed=seed, communication=much)))
    assert inside.cause == "communication_inside_node"
    assert inside.share == pytest.approx(much / (1.01 + much), abs=0.06)
    between = first(diagnose(run(ranks=ranks, nodes=2, seed=seed, communication=much)))
    assert between.cause == "communication_between_nodes"


def test_a_link_that_stands_out_is_named() -> None:
    two = run(ranks=2, nodes=2, communication=1.0)
    of_two = first(diagnose(with_links(two, lambda a, b: 1e7 if a == "node1" else 1e8)))
    assert (of_two.cause, of_two.node) == ("communication_between_nodes", "node1")
    alike = first(diagnose(with_links(two, lambda a, b: 1e7)))
    assert (alike.cause, alike.node) == ("communication_between_nodes", "")
    four = run(ranks=4, nodes=4, communication=1.0)
    of_four = first(diagnose(with_links(four, lambda a, b: 1e7 if "node2" in (a, b) else 1e8)))
    assert (of_four.cause, of_four.node) == ("slow_node", "node2")


@given(ranks=RANKS, seed=SEED)
@settings(max_examples=examples(30), deadline=None)
def test_lengths_with_a_long_tail(ranks: int, seed: int) -> None:
    tokens = 64 * np.exp(0.7 * np.random.default_rng(seed).standard_normal((ranks, 80)))
    found = first(diagnose(run(ranks=ranks, steps=80, seed=seed, tokens=tokens)))
    assert (found.cause, found.rank) == ("unequal_lengths", None)


def test_a_rank_with_more_tokens_is_no_slow_machine() -> None:
    tokens = np.full((3, 60), 64.0)
    tokens[1] = 160.0
    found = first(diagnose(run(ranks=3, tokens=tokens)))
    assert (found.cause, found.rank) == ("unequal_lengths", 1)


def test_experts_that_get_unequal_numbers() -> None:
    tokens = 64 * np.exp(0.7 * np.random.default_rng(3).standard_normal((4, 80)))
    uneven = run(ranks=4, steps=80, tokens=tokens)
    uneven = replace(uneven, ranks=tuple(replace(rank, tokens=(64.0,) * 80) for rank in uneven.ranks))
    dense = diagnose(uneven)
    assert "unequal_lengths" not in [f.cause for f in dense.findings], "nothing says that its tokens are unequal"
    experts = replace(uneven, facts={**uneven.facts, "config": {"num_local_experts": 8}})
    assert "unequal_lengths" in [f.cause for f in diagnose(experts).findings]


@given(ranks=RANKS, seed=SEED, every=st.integers(4, 20), saves=st.booleans(), one=st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_pauses(ranks: int, seed: int, every: int, saves: bool, one: bool) -> None:
    pause = np.where(np.arange(80) % every == every - 1, STEP_S * every * 0.5, 0.0)
    phase = "checkpoint" if saves else "evaluation"
    found = first(diagnose(run(ranks=ranks, steps=80, seed=seed, more={(0 if one else -1, phase): pause})))
    assert found.cause == "pauses"
    assert ("checkpoint" in found.what) is saves


def test_recompilation_after_warm_up() -> None:
    again = np.where(np.arange(60) % 5 == 0, 0.2, 0.0)
    evidence = run(ranks=2, more={(-1, "forward"): again})
    evidence = replace(evidence, ranks=tuple(replace(rank, compile_s=tuple(again)) for rank in evidence.ranks))
    assert first(diagnose(evidence)).cause == "recompilation"


@pytest.mark.parametrize(
    ("kind", "cause"), [("log", "host"), ("data", "input"), ("checkpoint", "pauses"), ("", "input")]
)
def test_time_between_phases_goes_to_what_was_seen_there(kind: str, cause: str) -> None:
    assert first(diagnose(run(ranks=2, more={(-1, "rest"): 0.5 * STEP_S}, kind=kind))).cause == cause


def test_the_programs_own_computing_between_phases_is_the_hosts() -> None:
    found = first(diagnose(run(ranks=2, rest=0.6)))
    assert (found.cause, found.line) == ("host", "train.py:7")


def test_little_work_between_phases_of_no_known_kind_is_a_trainers_usual_care() -> None:
    assert not diagnose(run(ranks=2, rest=0.1)).findings


def test_a_phase_that_was_looked_at_twice_tells_nothing_of_its_kind() -> None:
    evidence = run(ranks=2, more={(-1, "rest"): 0.5 * STEP_S}, kind="log")
    few = replace(evidence, ranks=tuple(replace(rank, looks=20) for rank in evidence.ranks))
    assert first(diagnose(few)).cause == "input", "blocked, nobody knows by what: 2 looks of 20"
    many = replace(evidence, ranks=tuple(replace(rank, looks=200) for rank in evidence.ranks))
    assert first(diagnose(many)).cause == "host"


def test_an_optimizer_that_takes_most_of_the_step() -> None:
    assert first(diagnose(run(ranks=2, optimizer=1.5))).cause == "optimizer"


@given(ranks=st.integers(1, 4), load=st.floats(0.15, 0.6), seed=SEED)
@settings(max_examples=examples(30), deadline=None)
def test_processes_of_others_on_the_machine(ranks: int, load: float, seed: int) -> None:
    found = first(diagnose(run(ranks=ranks, load=load, seed=seed)))
    assert (found.cause, found.node) == ("foreign_process", "node0")
    assert any("hog" in text for text in found.evidence)


def test_ranks_that_are_more_than_the_cores_blame_nobody_else() -> None:
    crowded = run(ranks=4, load=0.5)
    node = replace(crowded.nodes[0], cores=2, busy=2.0, ours=1.98, others={})
    crowded = replace(crowded, nodes=(node,), ranks=tuple(replace(rank, cores=2) for rank in crowded.ranks))
    assert diagnose(crowded).findings == ()


def test_a_rank_whose_core_is_shared_is_not_called_slow_for_a_little() -> None:
    on_gpus, on_cpus, beside = (run(ranks=2, busier={0: 1.18}, load=load) for load in (0.0, 0.0, 0.2))
    on_gpus, beside = (replace(each, facts={**each.facts, "device": "cuda"}) for each in (on_gpus, beside))
    assert [f.cause for f in diagnose(on_gpus).findings] == ["slow_rank"]
    assert [f.cause for f in diagnose(beside).findings] == ["foreign_process"]
    assert not diagnose(on_cpus).findings


def test_nodes_that_share_a_machine_are_not_strangers_to_each_other() -> None:
    shared = run(ranks=2, nodes=2, load=0.4)
    nodes = tuple(replace(node, machine="one", cores=2, busy=1.2, ours=0.6, others={}) for node in shared.nodes)
    assert "foreign_process" not in [f.cause for f in diagnose(replace(shared, nodes=nodes)).findings]


@pytest.mark.parametrize(
    "readings", [{"alloc_retries": 40.0}, {"major_faults": 4000.0}, {"minor_faults": 2e6, "system_s": 3.0}]
)
def test_memory_that_is_short(readings: dict[str, float]) -> None:
    evidence = run(ranks=2)
    evidence = replace(evidence, ranks=(evidence.ranks[0], replace(evidence.ranks[1], **readings)))
    found = [f for f in diagnose(evidence).findings if f.cause == "memory"]
    assert [f.rank for f in found] == [1]


def test_clocks_that_are_held_down() -> None:
    evidence = run(ranks=2)
    hot = {"sm_clock_mhz": 1200.0, "max_clock_mhz": 1980.0, "temperature_c": 91.0, "held by heat": 0.9}
    cool = {"sm_clock_mhz": 1935.0, "max_clock_mhz": 1980.0, "held by power cap": 0.5}
    found = diagnose(
        replace(evidence, ranks=(replace(evidence.ranks[0], gpu=cool), replace(evidence.ranks[1], gpu=hot)))
    )
    assert [(f.cause, f.rank) for f in found.findings] == [("clocks", 1)]


def test_a_pipeline_that_stands_idle_beyond_its_due() -> None:
    parts = {"compute": 0.6, "communication": 0.05, "bubble": 0.3, "optimizer": 0.05, "host": 0.0}
    due = {"compute": 0.8, "pp_comm": 0.02, "bubble": 0.08, "optimizer": 0.1}
    evidence = Evidence(step_times_s=(1.0,) * 10, parts_s=parts, predicted_s=(1.0, 0.8, 1.2), predicted_parts_s=due)
    assert first(diagnose(evidence)).cause == "bubble"
    assert diagnose(replace(evidence, predicted_parts_s={**due, "bubble": 0.3})).findings == ()


def test_a_knob_without_effect_and_a_wrong_prediction() -> None:
    plain = run(ranks=2)
    text = "compile: the spec says true, the probe saw false; pass {compile} to the program"
    assert first(diagnose(replace(plain, disagreements=(text,)))).knob == "compile"
    wrong = replace(plain, predicted_s=(0.02, 0.01, 0.04))
    found = first(diagnose(wrong))
    assert (found.cause, round(found.share, 1)) == ("prediction", 0.8)
    loading = replace(run(ranks=2, more={(-1, "data"): 0.02}), predicted_s=(0.02, 0.01, 0.04))
    assert [f.cause for f in diagnose(loading).findings] == ["prediction", "input"], "loading explains a part of it"
    faster = replace(run(ranks=2, more={(-1, "data"): 0.02}), predicted_s=(9.0, 8.0, 10.0))
    assert [f.cause for f in diagnose(faster).findings] == ["prediction", "input"]
    assert diagnose(replace(plain, predicted_s=(0.11, 0.09, 0.13))).verdict.startswith(
        "Nothing found: it runs as predicted"
    )


def test_a_prediction_is_not_blamed_for_what_others_took() -> None:
    found = diagnose(replace(run(ranks=2, load=0.5), predicted_s=(0.11, 0.09, 0.13)))
    assert [f.cause for f in found.findings] == ["foreign_process"]


def test_step_times_of_a_log_alone() -> None:
    times = tuple(0.9 if at % 10 == 9 else 0.1 for at in range(60))
    assert [f.cause for f in diagnose(Evidence(step_times_s=times)).findings] == ["pauses"]
    waits = Evidence(step_times_s=(0.5,) * 20, data_times_s=(0.3,) * 20)
    assert first(diagnose(waits)).share == pytest.approx(0.6)
    assert diagnose(Evidence(step_times_s=(0.5,) * 20)).verdict.startswith("Nothing found")
    assert "there is no diagnosis" in diagnose(Evidence()).verdict


@given(seed=SEED, ranks=st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_evidence_survives_its_keeping(seed: int, ranks: int) -> None:
    evidence = run(ranks=ranks, seed=seed, more={(0, "data"): 0.1})
    kept = Evidence.from_dict(json.loads(json.dumps(evidence.shortened().to_dict())))
    assert [f.cause for f in diagnose(kept).findings] == [f.cause for f in diagnose(evidence).findings]
    assert json.dumps(diagnose(kept).to_dict())


def test_every_finding_says_what_was_seen_how_to_make_sure_and_what_to_change() -> None:
    for evidence in (
        run(ranks=2, more={(1, "data"): 0.1}),
        run(ranks=3, slower={1: 2.0}),
        run(ranks=2, communication=2.0),
        run(ranks=2, load=0.5),
    ):
        for finding in diagnose(evidence).findings:
            assert finding.cause in CLASSES
            assert finding.evidence
            assert all((*finding.evidence, finding.confirm, finding.change))
            assert 0 <= finding.low <= finding.share <= finding.high <= 1
        assert list(lines_of(diagnose(evidence)))


def test_places_name_the_line() -> None:
    evidence = run(ranks=2, more={(-1, "data"): 0.2})
    place = Place(phase="data", line="data.py:12", text="time.sleep(0.2)", share=0.6)
    evidence = replace(evidence, ranks=tuple(replace(rank, places=(place,)) for rank in evidence.ranks))
    assert first(diagnose(evidence)).line == "data.py:12"


def test_lines_of_the_log_stand_beside_what_was_measured() -> None:
    warns = ("input", "The 'train_dataloader' does not have many workers which may be a bottleneck.")
    retries = ("memory", "3 CUDA memory allocation retries.")
    straggler = ("slow_rank", "Some GPUs have worse relative performance. Affected ranks: [1]")
    healthy = run(ranks=2)
    assert diagnose(replace(healthy, hints=(warns,))).findings == (), "what it warns of costs nothing here"
    told = diagnose(replace(healthy, hints=(warns, retries, straggler))).findings
    assert [(f.cause, f.rank, f.share) for f in told] == [("memory", None, None), ("slow_rank", 1, None)]
    slow = run(ranks=2, more={(-1, "data"): 0.5 * STEP_S})
    (found,) = diagnose(replace(slow, hints=(warns,))).findings
    assert (found.cause, found.evidence[-1]) == ("input", f"the log says: {warns[1]}")
    assert [f.cause for f in diagnose(Evidence(hints=(warns,))).findings] == ["input"], "a log alone has nothing better"


def test_a_foreign_process_is_said_to_hold_the_rank_that_waits_by_its_number() -> None:
    evidence = run(ranks=3, load=0.4)
    calm = run(ranks=3, load=0.05)
    ranks = tuple(
        replace(rank, rank=number + 4) for number, rank in enumerate((calm.ranks[0], evidence.ranks[1], calm.ranks[2]))
    )
    found = [f for f in diagnose(replace(evidence, ranks=ranks, world=8)).findings if f.cause == "foreign_process"]
    assert [f.rank for f in found] == [5]


def test_a_knob_without_effect_names_the_line_that_asks_for_it() -> None:
    text = "compile: true in the launch, but the probe observed false; the option has no effect as written"
    found = first(diagnose(replace(run(ranks=2), disagreements=(text,), asked_at={"compile": "job.sh:4"})))
    assert (found.knob, found.line, found.what) == ("compile", "job.sh:4", "compile was requested, but has no effect")
    assert found.change == "the option has no effect as written"


def test_collectives_inside_a_node_say_what_the_links_of_its_gpus_move() -> None:
    evidence = run(ranks=2, communication=2.0)
    by_pcie = {"pcie_bytes_per_s": 12e9, "nvlink_bytes_per_s": 0.0}
    ranks = (replace(evidence.ranks[0], gpu=by_pcie), replace(evidence.ranks[1], gpu={"pcie_bytes_per_s": 1e9}))
    found = first(diagnose(replace(evidence, ranks=ranks)))
    assert found.cause == "communication_inside_node"
    assert "its NVLink is not used" in found.evidence[-1]
    assert "rank 0" in found.evidence[-1]
    assert not any("PCIe" in text for text in first(diagnose(evidence)).evidence)


def places(**more: Any) -> dict[str, Any]:
    """A rank that is found where a program waits between its phases."""
    return {
        "looks": 400,
        "places": (Place(phase="rest", line="train.py:7", text="time.sleep(0.06)", share=0.4, **more),),
    }


def waiting(loader: bool, **more: Any) -> Evidence:
    seen = run(ranks=1, more={(0, "rest"): 0.06})
    seen = replace(seen, ranks=tuple(replace(rank, **places(**more)) for rank in seen.ranks))
    return replace(seen, facts={**seen.facts, "workers": 0 if loader else None})


def test_a_program_that_waits_elsewhere_than_in_its_loader_does_not_wait_for_data() -> None:
    """Its loader's time is known; without a loader it may load where it waits, but not between a backward pass and the optimizer."""
    assert first(diagnose(waiting(loader=True))).cause == "host"
    assert first(diagnose(waiting(loader=False))).cause == "input"
    assert first(diagnose(waiting(loader=False, kind="own"))).cause == "host"
    assert first(diagnose(waiting(loader=True, kind="data"))).cause == "input"


def test_what_a_device_is_waited_for_and_clipping_are_no_work_of_the_programs_own() -> None:
    for kind in ("device", "optimizer"):
        found = diagnose(waiting(loader=True, kind=kind))
        assert "host" not in [finding.cause for finding in found.findings]


def test_passes_without_gradients_in_every_step_are_work_and_no_pause() -> None:
    """A reference model, a teacher: the rank that has more of it is slow."""
    seen = run(more={(1, "evaluation"): 0.05})
    found = first(diagnose(seen))
    assert (found.cause, found.rank) == ("slow_rank", 1)
    assert first(diagnose(run(more={(-1, "evaluation"): np.where(np.arange(60) % 2, 0.0, 0.1)}))).cause == "pauses"


def test_a_prediction_that_is_too_long_has_no_cause_in_the_run() -> None:
    quick = replace(run(ranks=1), predicted_s=(0.4, 0.3, 0.5))
    (finding,) = diagnose(quick).findings
    assert finding.cause == "prediction"
    assert "less than predicted" in finding.what
    assert not any("explain" in text for text in finding.evidence)


def test_an_interval_that_is_too_wide_confirms_nothing() -> None:
    assert "runs as predicted" in diagnose(replace(run(ranks=1), predicted_s=(0.11, 0.08, 0.15))).verdict
    assert "too wide to say more" in diagnose(replace(run(ranks=1), predicted_s=(0.11, 0.03, 0.45))).verdict
