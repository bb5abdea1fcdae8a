"""Dry runs against real gloo ranks of the same training, watched by the same mode: memory, traffic
and work of every rank.

What is compared is what tensors take. Memory inside kernels and transports is seen by neither side:
gloo's copy of what it reduces and scatters is left out. A step that fp16 skips because its
gradients overflow depends on the data: the real ranks begin with a loss scale at which none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.spec import DryRun, MemorySample, Moment
from tests.workers.dryrun.truth_ranks import Job, Pair, run_both, settled

WORST_BYTES = 16
"""difference of a rank's peak, and of each of its parts"""
PIPELINE = "pp=2,accumulation_steps=4"
LOOPED = f"{PIPELINE},virtual_stages=2"

SAMPLE = (
    Job(
        model="llama",
        config="tp=2,zero_stage=3,sequence_parallel=true,recompute=full,micro_batch_size=2",
    ),
    Job(model="llama", config=f"{LOOPED},pp_schedule=interleaved_1f1b"),
)
"""what every run of the tests looks at"""

ALL = (
    # one rank
    *(
        Job(model=m, config=c)
        for m in ("gpt", "llama", "moe")
        for c in ("precision=fp32", "micro_batch_size=2")
    ),
    *(Job(model="llama", config=f"recompute={r}") for r in ("norm", "mlp", "selective", "full")),
    *(
        Job(model="llama", config="accumulation_steps=3", workload={"optimizer": o})
        for o in ("sgd", "muon", "adafactor")
    ),
    Job(model="llama", config="precision=fp16", options={"loss_scale": 1.0}),
    Job(model="llama", config="loss=chunked,micro_batch_size=2"),
    Job(model="llama", config="micro_batch_size=2", workload={"document_len": 10}),
    Job(model="llama", config="accumulation_steps=3", workload={"peft": {"rank": 4}}),
    # data parallelism
    *(
        Job(model="llama", config=f"dp=2,zero_stage={z},micro_batch_size=2,accumulation_steps={a}")
        for z in range(4)
        for a in (1, 2)
    ),
    *(Job(model="llama", config=f"dp=4,dp_replicas=2,zero_stage={z}") for z in (1, 2, 3)),
    Job(model="llama", config="dp=2,zero_stage=3,recompute=selective,loss=chunked"),
    Job(
        model="llama",
        config="dp=2,zero_stage=2",
        workload={"peft": {"rank": 4, "targets": "attention"}},
    ),
    # tensor and sequence parallelism
    *(
        Job(model=m, config=f"tp=2,dp={d},zero_stage={z},sequence_parallel={s}")
        for m in ("gpt", "llama")
        for d, z in ((1, 0), (2, 1), (2, 3))
        for s in ("false", "true")
    ),
    Job(model="llama", config="tp=2,loss=chunked,sequence_parallel=true,recompute=full"),
    Job(model="llama", config="tp=2,dp=2,zero_stage=3", workload={"peft": {"rank": 4}}),
    # context parallelism
    *(
        Job(model="llama", config=f"cp=2,dp={d},cp_style={s}")
        for s in ("ring", "gather", "heads")
        for d in (1, 2)
    ),
    Job(model="llama", config="cp=2,zero_stage=3,cp_style=ring,recompute=full"),
    Job(model="llama", config="cp=2,tp=2,cp_style=ring,sequence_parallel=true"),
    Job(model="llama", config="cp=2,cp_style=gather", workload={"document_len": 10}),
    # experts
    *(
        Job(model="moe", config=f"dp=2,ep=2,zero_stage={z},dispatcher={d}")
        for z in (0, 1, 3)
        for d in ("alltoall", "allgather")
    ),
    Job(model="moe", config="dp=2,ep=2,tp=2,zero_stage=1,recompute=full"),
    Job(model="moe", config="dp=2,cp=2,ep=4,zero_stage=2,cp_style=gather"),
    # pipelines
    *(
        Job(model=m, config=f"{PIPELINE},pp_schedule={s}")
        for m in ("gpt", "llama")
        for s in ("gpipe", "1f1b")
    ),
    *(Job(model="llama", config=f"{PIPELINE},dp=2,zero_stage={z}") for z in range(4)),
    Job(model="uneven", config="pp=3,accumulation_steps=3,pp_split=edges"),
    Job(model="llama", config="pp=4,accumulation_steps=4,recompute=full"),
    Job(model="llama", config=f"{PIPELINE},tp=2,sequence_parallel=true,loss=chunked"),
    *(
        Job(model="llama", config=f"{LOOPED},pp_schedule={s},dp=2,zero_stage={z}")
        for s in ("interleaved_1f1b", "interleaved_zero_bubble")
        for z in (0, 2)
    ),
    Job(model="llama", config=f"{LOOPED},pp_schedule=interleaved_1f1b,zero_stage=3,dp=2"),
)
"""everything that the native trainer can do, in turn"""

OWN = (
    *(
        Job(model=m, config=f"dp=2,zero_stage={z}")
        for m in ("encoder_decoder", "u_net")
        for z in (0, 1, 3)
    ),
    *(
        Job(model=m, config="dp=2,accumulation_steps=2,recompute=full")
        for m in ("encoder_decoder", "u_net")
    ),
    *(
        Job(model="capacity_experts", config=f"dp=2,micro_batch_size=2,zero_stage={z}")
        for z in (0, 2, 3)
    ),
    *(Job(model="capacity_experts", config=f"{PIPELINE},precision={p}") for p in ("fp32", "bf16")),
    Job(model="recommender", config="dp=2,zero_stage=3"),
    Job(model="hf", config="dp=2,zero_stage=3,recompute=full"),
    *(Job(model=m, config="tp=2,dp=2,zero_stage=3") for m in ("hf", "plain_tied")),
    *(
        Job(model=m, config=f"{PIPELINE},dp=2,zero_stage={z}")
        for m, zs in (("hf_tied", (1, 2, 3)), ("plain", (2, 3)), ("capacity_experts", (3,)))
        for z in zs
    ),
    Job(model="plain", config=f"{LOOPED},pp_schedule=interleaved_1f1b,dp=2,zero_stage=3"),
)
"""models that code builds"""


def differences(pair: Pair) -> list[str]:
    """What is not the same, in words."""
    real, dry = pair.real, pair.dry
    found = []
    if pair.error:
        found.append(f"peak {pair.error:+.4%}")
    for name, size in real.peak.parts_bytes.items():
        if dry.peak.parts_bytes[name] != size:
            found.append(f"{name} at the peak {dry.peak.parts_bytes[name] - size:+d} bytes")
    if real.peak.moment != dry.peak.moment:
        found.append(f"peak at {real.peak.moment}, dry at {dry.peak.moment}")
    found += [
        name
        for name in ("collectives", "flops", "products", "rank_parameters")
        if getattr(real, name) != getattr(dry, name)
    ]
    return found


def check(pairs: Sequence[Pair]) -> None:
    """The worst rank is within the bound; traffic, work and parameters are the same on all."""
    for pair in pairs:
        print(f"{pair.job} rank {pair.rank}: {'; '.join(differences(pair)) or 'the same'}")
    for pair in pairs:
        real, dry = pair.real, pair.dry
        where = f"{pair.job} on rank {pair.rank}"
        assert abs(dry.peak.total_bytes - real.peak.total_bytes) <= WORST_BYTES, where
        assert dry.collectives == real.collectives, where
        assert (dry.flops, dry.products) == (real.flops, real.products), where
        assert dry.rank_parameters == real.rank_parameters, where
        for name, size in real.peak.parts_bytes.items():
            assert abs(dry.peak.parts_bytes[name] - size) <= WORST_BYTES, f"{where}: {name}"
        assert (dry.peak.moment.phase, dry.peak.moment.module) == (
            real.peak.moment.phase,
            real.peak.moment.module,
        ), where


def run_of(total_bytes: int, temporaries: int = 0) -> DryRun:
    """A run of which only the peak is told."""
    parts = {"activations": total_bytes - temporaries, "temporaries": temporaries}
    peak = MemorySample(
        moment=Moment(step=1, phase="backward", micro_batch=0, module=""), parts_bytes=parts
    )
    return DryRun(
        rank=0, pp_rank=0, world_size=1, num_parameters=0, rank_parameters=0, peak=peak, phase_peaks=(), timeline=(),
        modules=(), flops=0, products=(), collectives=(),
    )  # fmt: skip


def test_leanest_account_counts_once_two_runs_give_it() -> None:
    held, lean, otherwise = run_of(120), run_of(100), run_of(100, temporaries=4)
    assert settled([held, held, lean]) is None
    assert settled([lean, otherwise]) is None
    assert settled([held, lean, otherwise, lean]) is lean


@pytest.mark.thorough
def test_sample_of_parallel_trainings_is_the_same_dry_and_real(tmp_path: Path) -> None:
    check(run_both(SAMPLE, tmp_path))


@pytest.mark.slow
@pytest.mark.alone
def test_every_parallel_training_is_the_same_dry_and_real(tmp_path: Path) -> None:
    check(run_both(ALL, tmp_path, deadline_s=2300))


@pytest.mark.slow
@pytest.mark.alone
def test_trainings_of_models_that_code_builds_are_the_same_dry_and_real(tmp_path: Path) -> None:
    check(run_both(OWN, tmp_path, deadline_s=1100))
