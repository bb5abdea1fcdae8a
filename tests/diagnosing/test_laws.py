"""The laws of a diagnosis on evidence that was made up: each class is claimed for its cause, first,
of the right rank or node, whatever the noise and the load; and none of a healthy run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

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
def test_no_class_is_claimed_of_a_healthy_run(
    ranks: int, seed: int, noise: float, sharded: bool
) -> None:
    found = diagnose(run(ranks=ranks, seed=seed, noise=noise, sharded=sharded))
    assert [f.cause for f in found.findings] == []
    assert found.verdict.startswith("Nothing found")


@given(ranks=RANKS, seed=SEED, noise=NOISE, wait=st.floats(0.15, 3.0), load=st.floats(0.0, 0.4))
@settings(max_examples=examples(40), deadline=None)
def test_all_ranks_wait_for_data(
    ranks: int, seed: int, noise: float, wait: float, load: float
) -> None:
    found = first(
        diagnose(
            run(ranks=ranks, seed=seed, noise=noise, load=load, more={(-1, "data"): wait * STEP_S})
        ),
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
def test_one_rank_computes_longer(
    ranks: int, seed: int, of: int, slower: float, load: float, by_cpu: bool
) -> None:
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
    told = replace(
        evidence, ranks=tuple(sorted((*others, quota), key=lambda rank: rank.rank)), nodes=()
    )
    found = first(diagnose(told))
    assert (found.cause, found.rank) == ("slow_rank", of)
    assert any("a cgroup quota stopped the slow process" in line for line in found.evidence)


@given(seed=SEED, node=st.integers(0, 2))
@settings(max_examples=20, deadline=None)
def test_all_ranks_of_one_node_compute_longer(seed: int, node: int) -> None:
    found = first(
        diagnose(run(ranks=6, nodes=3, seed=seed, slower={2 * node: 1.6, 2 * node + 1: 1.6}))
    )
    assert (found.cause, found.node, found.rank) == ("slow_node", f"node{node}", None)


@given(ranks=RANKS, seed=SEED, much=st.floats(0.6, 4.0))
@settings(max_examples=examples(30), deadline=None)
def test_collectives_take_the_step(ranks: int, seed: int, much: float) -> None:
    inside = first(diagnose(run(ranks=ranks, seed=seed, communication=much)))
    assert inside.cause == "communication_inside_node"
    assert inside.share == pytest.approx(much / (1.01 + much), abs=0.06)
    between = first(diagnose(run(ranks=ranks, nodes=2, seed=seed, communication=much)))
    assert between.cause == "communication_between_nodes"


@given(ranks=RANKS, seed=SEED)
@settings(max_examples=examples(30), deadline=None)
def test_lengths_with_a_long_tail(ranks: int, seed: int) -> None:
    tokens = 64 * np.exp(0.7 * np.random.default_rng(seed).standard_normal((ranks, 80)))
    found = first(diagnose(run(ranks=ranks, steps=80, seed=seed, tokens=tokens)))
    assert (found.cause, found.rank) == ("unequal_lengths", None)


@given(ranks=RANKS, seed=SEED, every=st.integers(4, 20), saves=st.booleans(), one=st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_pauses(ranks: int, seed: int, every: int, saves: bool, one: bool) -> None:
    pause = np.where(np.arange(80) % every == every - 1, STEP_S * every * 0.5, 0.0)
    phase = "checkpoint" if saves else "evaluation"
    found = first(
        diagnose(run(ranks=ranks, steps=80, seed=seed, more={(0 if one else -1, phase): pause}))
    )
    assert found.cause == "pauses"
    assert ("checkpoint" in found.what) is saves


@given(ranks=st.integers(1, 4), load=st.floats(0.15, 0.6), seed=SEED)
@settings(max_examples=examples(30), deadline=None)
def test_processes_of_others_on_the_machine(ranks: int, load: float, seed: int) -> None:
    found = first(diagnose(run(ranks=ranks, load=load, seed=seed)))
    assert (found.cause, found.node) == ("foreign_process", "node0")
    assert any("hog" in text for text in found.evidence)


@given(seed=SEED, ranks=st.integers(1, 5))
@settings(max_examples=10, deadline=None)
def test_evidence_survives_its_keeping(seed: int, ranks: int) -> None:
    evidence = run(ranks=ranks, seed=seed, more={(0, "data"): 0.1})
    kept = Evidence.from_dict(json.loads(json.dumps(evidence.shortened().to_dict())))
    assert [f.cause for f in diagnose(kept).findings] == [
        f.cause for f in diagnose(evidence).findings
    ]
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


def test_collectives_inside_a_node_say_what_the_links_of_its_gpus_move() -> None:
    evidence = run(ranks=2, communication=2.0)
    by_pcie = {"pcie_bytes_per_s": 12e9, "nvlink_bytes_per_s": 0.0}
    ranks = (
        replace(evidence.ranks[0], gpu=by_pcie),
        replace(evidence.ranks[1], gpu={"pcie_bytes_per_s": 1e9}),
    )
    found = first(diagnose(replace(evidence, ranks=ranks)))
    assert found.cause == "communication_inside_node"
    assert "NVLink is not used" in found.evidence[-1]
    assert "rank 0" in found.evidence[-1]
    assert not any("PCIe" in text for text in first(diagnose(evidence)).evidence)


def test_a_prediction_that_is_too_long_has_no_cause_in_the_run() -> None:
    quick = replace(run(ranks=1), predicted_s=(0.4, 0.3, 0.5))
    (finding,) = diagnose(quick).findings
    assert finding.cause == "prediction"
    assert "less than the predicted" in finding.what
    assert not any("explain" in text for text in finding.evidence)


def of_ranks(evidence: Evidence, *own: dict[str, Any], **changes: Any) -> Evidence:
    """With these values of every rank, and its own of each."""
    told = own or ({},) * len(evidence.ranks)
    ranks = tuple(
        replace(rank, **changes, **more) for rank, more in zip(evidence.ranks, told, strict=True)
    )
    return replace(evidence, ranks=ranks)


def of_nodes(evidence: Evidence, **changes: Any) -> Evidence:
    """With these values of every node."""
    return replace(evidence, nodes=tuple(replace(node, **changes) for node in evidence.nodes))


def waiting(*, loader: bool, **more: Any) -> Evidence:
    """A program that waits between its phases, where its rank is found, with a loader whose time is
    known or without one."""
    place = Place(phase="rest", line="train.py:7", text="time.sleep(0.06)", share=0.4, **more)
    seen = of_ranks(run(ranks=1, more={(0, "rest"): 0.06}), looks=400, places=(place,))
    return replace(seen, facts={**seen.facts, "workers": 0 if loader else None})


PLAIN = run(ranks=2)
RESTS = run(ranks=2, more={(-1, "rest"): 0.5 * STEP_S}, kind="log")
LOADS = run(ranks=2, more={(-1, "data"): 0.02})
TWO = run(ranks=2, nodes=2, communication=1.0)
FOUR = run(ranks=4, nodes=4, communication=1.0)
MORE_TOKENS = np.full((3, 60), 64.0)
MORE_TOKENS[1] = 160.0
UNEVEN = of_ranks(
    run(
        ranks=4,
        steps=80,
        tokens=64 * np.exp(0.7 * np.random.default_rng(3).standard_normal((4, 80))),
    ),
    tokens=(64.0,) * 80,
)
"""nothing says that its tokens are unequal"""
AGAIN = np.where(np.arange(60) % 5 == 0, 0.2, 0.0)
SHARED_CORE, ON_CPUS = (run(ranks=2, busier={0: 1.18}, load=load) for load in (0.2, 0.0))
GPU = {"device": "cuda"}
IDLE = Evidence(
    step_times_s=(1.0,) * 10,
    parts_s={"compute": 0.6, "communication": 0.05, "bubble": 0.3, "optimizer": 0.05, "host": 0.0},
    predicted_s=(1.0, 0.8, 1.2),
    predicted_parts_s={"compute": 0.8, "pp_comm": 0.02, "bubble": 0.08, "optimizer": 0.1},
)
CALM, LOADED = (run(ranks=3, load=load) for load in (0.05, 0.4))
WARNS = ("input", "The 'train_dataloader' does not have many workers which may be a bottleneck.")
RETRIES = ("memory", "3 CUDA memory allocation retries.")
STRAGGLER = ("slow_rank", "Some GPUs have worse relative performance. Affected ranks: [1]")
HOT = {"sm_clock_mhz": 1200.0, "max_clock_mhz": 1980.0, "temperature_c": 91.0, "held by heat": 0.9}
COOL = {"sm_clock_mhz": 1935.0, "max_clock_mhz": 1980.0, "held by power cap": 0.5}


class Due(NamedTuple):
    """A row of the table: evidence, and what its diagnosis is; what is not given is not checked."""

    evidence: Evidence
    causes: tuple[str, ...] | None = None
    """of all findings"""
    verdict: str = ""
    """a part of it"""
    first: Mapping[str, Any] = MappingProxyType({})
    """what the first finding says"""


def first_is(evidence: Evidence, cause: str, **more: Any) -> Due:
    return Due(evidence, first={"cause": cause, **more})


DUE = {
    "a link of two nodes that stands out": first_is(
        with_links(TWO, lambda a, b: 1e7 if a == "node1" else 1e8),
        "communication_between_nodes",
        node="node1",
    ),
    "links of two nodes that are alike": first_is(
        with_links(TWO, lambda a, b: 1e7), "communication_between_nodes", node=""
    ),
    "links of one of four nodes": first_is(
        with_links(FOUR, lambda a, b: 1e7 if "node2" in (a, b) else 1e8), "slow_node", node="node2"
    ),
    "a rank with more tokens is no slow machine": first_is(
        run(ranks=3, tokens=MORE_TOKENS), "unequal_lengths", rank=1
    ),
    "experts that get unequal numbers": Due(
        replace(UNEVEN, facts={**UNEVEN.facts, "config": {"num_local_experts": 8}}),
        ("unequal_lengths",),
    ),
    "without experts, nothing says that lengths are unequal": Due(UNEVEN, ()),
    "recompilation after warm-up": first_is(
        of_ranks(run(ranks=2, more={(-1, "forward"): AGAIN}), compile_s=tuple(AGAIN)),
        "recompilation",
    ),
    **{
        f"time between phases goes to what was seen there: {kind or 'nothing'}": first_is(
            run(ranks=2, more={(-1, "rest"): 0.5 * STEP_S}, kind=kind), cause
        )
        for kind, cause in (
            ("log", "host"),
            ("data", "input"),
            ("checkpoint", "pauses"),
            ("", "input"),
        )
    },
    "the program's own computing between phases is the host's": first_is(
        run(ranks=2, rest=0.6), "host", line="train.py:7"
    ),
    "little work between phases of no known kind is a trainer's usual care": Due(
        run(ranks=2, rest=0.1), ()
    ),
    "blocked, nobody knows by what: 2 looks of 20": first_is(of_ranks(RESTS, looks=20), "input"),
    "blocked by what was seen in 20 looks of 200": first_is(of_ranks(RESTS, looks=200), "host"),
    "an optimizer that takes most of the step": first_is(run(ranks=2, optimizer=1.5), "optimizer"),
    "ranks that are more than the cores blame nobody else": Due(
        of_ranks(
            of_nodes(run(ranks=4, load=0.5), cores=2, busy=2.0, ours=1.98, others={}), cores=2
        ),
        (),
    ),
    "a rank that is a little slow": Due(
        replace(ON_CPUS, facts={**ON_CPUS.facts, **GPU}), ("slow_rank",)
    ),
    "a rank whose core is shared is not called slow for a little": Due(
        replace(SHARED_CORE, facts={**SHARED_CORE.facts, **GPU}), ("foreign_process",)
    ),
    "on CPUs, a little is not slow": Due(ON_CPUS, ()),
    "nodes that share a machine are not strangers to each other": Due(
        of_nodes(
            run(ranks=2, nodes=2, load=0.4), machine="one", cores=2, busy=1.2, ours=0.6, others={}
        ),
        (),
    ),
    **{
        f"memory that is short: {', '.join(readings)}": Due(
            of_ranks(PLAIN, {}, readings), ("memory",), first={"rank": 1}
        )
        for readings in (
            {"alloc_retries": 40.0},
            {"major_faults": 4000.0},
            {"minor_faults": 2e6, "system_s": 3.0},
        )
    },
    "clocks that are held down": Due(
        of_ranks(PLAIN, {"gpu": COOL}, {"gpu": HOT}), ("clocks",), first={"rank": 1}
    ),
    "a pipeline that stands idle beyond its due": first_is(IDLE, "bubble"),
    "a pipeline that stands idle as is its due": Due(
        replace(IDLE, predicted_parts_s={**IDLE.predicted_parts_s, "bubble": 0.3}), ()
    ),
    "a knob without effect": first_is(
        replace(
            PLAIN,
            disagreements=(
                "compile: the spec says true, the probe saw false; pass {compile} to the program",
            ),
        ),
        "knob_without_effect",
        knob="compile",
    ),
    "a knob without effect, and the line that asks for it": first_is(
        replace(
            PLAIN,
            disagreements=(
                "compile: true in the launch, but the probe observed false; the option has no effect",
            ),
            asked_at={"compile": "job.sh:4"},
        ),
        "knob_without_effect",
        knob="compile",
        line="job.sh:4",
        what="compile was requested, but has no effect",
        change="the option has no effect",
    ),
    "a wrong prediction": first_is(
        replace(PLAIN, predicted_s=(0.02, 0.01, 0.04)),
        "prediction",
        share=pytest.approx(0.8, abs=0.05),
    ),
    "a wrong prediction of which loading explains a part": Due(
        replace(LOADS, predicted_s=(0.02, 0.01, 0.04)), ("prediction", "input")
    ),
    "a prediction that is too long, and loading": Due(
        replace(LOADS, predicted_s=(9.0, 8.0, 10.0)), ("prediction", "input")
    ),
    "a prediction is not blamed for what others took": Due(
        replace(run(ranks=2, load=0.5), predicted_s=(0.11, 0.09, 0.13)), ("foreign_process",)
    ),
    "a prediction that holds": Due(
        replace(PLAIN, predicted_s=(0.11, 0.09, 0.13)),
        verdict="Nothing found: the run is as fast as predicted",
    ),
    "a prediction that holds for one rank": Due(
        replace(run(ranks=1), predicted_s=(0.11, 0.08, 0.15)), verdict="as fast as predicted"
    ),
    "an interval that is too wide confirms nothing": Due(
        replace(run(ranks=1), predicted_s=(0.11, 0.03, 0.45)), verdict="too wide to say more"
    ),
    "pauses by a log alone": Due(
        Evidence(step_times_s=tuple(0.9 if at % 10 == 9 else 0.1 for at in range(60))), ("pauses",)
    ),
    "waits by a log alone": first_is(
        Evidence(step_times_s=(0.5,) * 20, data_times_s=(0.3,) * 20),
        "input",
        share=pytest.approx(0.6),
    ),
    "equal steps by a log alone": Due(Evidence(step_times_s=(0.5,) * 20), (), "Nothing found"),
    "no steps at all": Due(Evidence(), (), "there is no diagnosis"),
    "places name the line": first_is(
        of_ranks(
            run(ranks=2, more={(-1, "data"): 0.2}),
            places=(Place(phase="data", line="data.py:12", text="time.sleep(0.2)", share=0.6),),
        ),
        "input",
        line="data.py:12",
    ),
    "what a log warns of costs nothing here": Due(replace(PLAIN, hints=(WARNS,)), ()),
    "a log alone has nothing better than its warning": Due(Evidence(hints=(WARNS,)), ("input",)),
    "lines of the log of what nothing else measures": Due(
        replace(PLAIN, hints=(WARNS, RETRIES, STRAGGLER)),
        ("memory", "slow_rank"),
        first={"rank": None, "share": None},
    ),
    "a foreign process is said to hold the rank that waits, by its number": Due(
        of_ranks(
            replace(LOADED, ranks=(CALM.ranks[0], LOADED.ranks[1], CALM.ranks[2]), world=8),
            *({"rank": number} for number in (4, 5, 6)),
        ),
        ("foreign_process",),
        first={"rank": 5},
    ),
    "a program that waits elsewhere than in its loader does not wait for data": first_is(
        waiting(loader=True), "host"
    ),
    "without a loader it may load where it waits": first_is(waiting(loader=False), "input"),
    "but not between a backward pass and the optimizer": first_is(
        waiting(loader=False, kind="own"), "host"
    ),
    "and where it was seen to load, it loads": first_is(waiting(loader=True, kind="data"), "input"),
    **{
        f"no work of the program's own: {kind}": Due(waiting(loader=True, kind=kind), causes)
        for kind, causes in (("device", ()), ("optimizer", ("optimizer",)))
    },
    "a rank that has more passes without gradients in every step is slow": first_is(
        run(more={(1, "evaluation"): 0.05}), "slow_rank", rank=1
    ),
    "passes without gradients in every second step are pauses": first_is(
        run(more={(-1, "evaluation"): np.where(np.arange(60) % 2, 0.0, 0.1)}), "pauses"
    ),
}


@pytest.mark.parametrize("name", DUE)
def test_what_is_found(name: str) -> None:
    due = DUE[name]
    found = diagnose(due.evidence)
    assert due.causes in (None, tuple(finding.cause for finding in found.findings))
    assert due.verdict in found.verdict
    assert {key: getattr(found.findings[0], key) for key in due.first} == due.first


def test_the_second_line_of_a_log_names_its_rank_and_a_measured_cause_quotes_the_log() -> None:
    told = diagnose(replace(PLAIN, hints=(WARNS, RETRIES, STRAGGLER))).findings
    assert [(f.rank, f.share) for f in told] == [(None, None), (1, None)]
    (found,) = diagnose(
        replace(run(ranks=2, more={(-1, "data"): 0.5 * STEP_S}), hints=(WARNS,))
    ).findings
    assert (found.cause, found.evidence[-1]) == ("input", f"the log says: {WARNS[1]}")
