"""The contract of searchers as a test suite. Inherit from `SearcherContract` in a test module and
set `searcher`.

The trials are simulated: 2 nodes of 8 GPUs, a few dozen candidates, step times and memory from a
formula that is independent of the cost model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import pytest

from autotune.errors import ConfigError, SpecError
from autotune.search import Searcher, make_searcher
from autotune.space import SearchSpace
from autotune.spec import (
    ClusterSpec,
    Failure,
    FailureKind,
    GpuSpec,
    Measurement,
    ModelSpec,
    ParallelConfig,
    Trial,
    TrialStatus,
    Workload,
)

GIB = 2.0**30
GPU = GpuSpec(
    name="a100-80gb",
    memory_bytes=80 * GIB,
    peak_flops_per_s={"bf16": 312e12, "fp32": 19.5e12},
    memory_bytes_per_s=2e12,
)
MODEL = ModelSpec(
    name="contract-8b",
    num_layers=32,
    hidden_size=4096,
    ffn_hidden_size=16384,
    num_attention_heads=32,
    vocab_size=50304,
)
WORKLOAD = Workload(
    model=MODEL,
    cluster=ClusterSpec(name="contract-2x8", gpu=GPU, num_nodes=2, gpus_per_node=8),
    seq_len=2048,
    global_batch_size=64,
)


def candidates(workload: Workload = WORKLOAD) -> list[ParallelConfig]:
    """All combinations of tp, pp, dp, micro-batch and ZeRO stage 0 or 1 that use the whole cluster
    and the workload's batch size."""
    gpus, batch = workload.cluster.num_gpus, workload.global_batch_sizes[0]
    powers = [1, 2, 4, 8]
    return [
        ParallelConfig(
            tp=tp,
            pp=pp,
            dp=gpus // (tp * pp),
            micro_batch_size=size,
            accumulation_steps=batch * tp * pp // (gpus * size),
            zero_stage=zero,
        )
        for tp, pp, size, zero in product(powers, powers, powers, (0, 1))
        if gpus % (tp * pp) == 0 and batch * tp * pp % (gpus * size) == 0
    ]


def truth(workload: Workload, config: ParallelConfig) -> tuple[float, float]:
    """Simulated step time (seconds) and peak memory (bytes) of a config."""
    c, m = config, workload.model
    tokens = c.global_batch_size * workload.seq_len
    parameters = 12.0 * m.num_layers * m.hidden_size**2
    compute = 6 * parameters * tokens / (140e12 * c.world_size) * (1 + 0.3 / c.micro_batch_size)
    bubble = compute * (c.pp - 1) / c.accumulation_steps
    comm = 0.02 * math.log2(c.tp) * c.accumulation_steps / c.pp + 0.3 * (c.dp > 1) / (c.tp * c.pp)
    bytes_per_weight = 8 + (12 / c.dp if c.zero_stage else 12)
    in_flight = min(c.pp, c.accumulation_steps) / c.pp
    activations = (
        34 * workload.seq_len * m.hidden_size * m.num_layers * c.micro_batch_size * in_flight / c.tp
    )
    states = parameters / (c.tp * c.pp) * bytes_per_weight
    return compute + bubble + comm, states + activations + 4 * GIB


def measured(config: ParallelConfig, workload: Workload = WORKLOAD, *, number: int = 0) -> Trial:
    """The simulated trial of a config: measured, or out of memory."""
    step_time_s, peak_bytes = truth(workload, config)
    if peak_bytes > workload.cluster.gpu.memory_bytes:
        return failed(config, FailureKind.OUT_OF_MEMORY, number=number)
    noise = (0.998, 1.0, 1.003, 0.999, 1.001)
    return Trial(
        config=config,
        number=number,
        status=TrialStatus.COMPLETED,
        measurement=Measurement(
            step_times_s=tuple(step_time_s * n for n in noise),
            peak_memory_bytes=peak_bytes,
            tokens_per_step=config.global_batch_size * workload.seq_len,
            num_ranks=config.world_size,
            memory_capacity_bytes=workload.cluster.gpu.memory_bytes,
        ),
    )


def failed(config: ParallelConfig, kind: FailureKind, *, number: int = 0) -> Trial:
    """The failed trial of a config."""
    return Trial(
        config=config,
        number=number,
        status=TrialStatus.FAILED,
        failure=Failure(kind=kind, message=f"{kind} by request"),
    )


class SearcherContract:
    """Tests that every searcher must pass."""

    searcher: ClassVar[str]
    """registered name"""
    options: ClassVar[dict[str, Any]] = {}
    """its options"""
    budget: ClassVar[int] = 40
    """maximum number of trials in a test"""

    def make(
        self, configs: Sequence[ParallelConfig] | None = None, *, seed: int = 0, **keywords: Any
    ) -> Searcher:
        """Create a new searcher."""
        space = SearchSpace.of(WORKLOAD, candidates() if configs is None else configs)
        return make_searcher(self.searcher, space, seed=seed, **self.options, **keywords)

    def play(
        self, searcher: Searcher, answer: Any = measured, *, trials: int | None = None
    ) -> list[Trial]:
        """Run simulated trials one by one until the searcher proposes nothing, or `trials` are done.
        `answer`: returns the trial of a config."""
        played: list[Trial] = []
        while len(played) < (self.budget if trials is None else trials) and (
            asked := searcher.ask(1)
        ):
            played.append(answer(asked[0], number=len(played)))
            searcher.tell([played[-1]])
        return played

    def test_asks_only_candidates_and_none_twice(self) -> None:
        configs = candidates()
        played = [t.config for t in self.play(self.make())]
        assert played
        assert len(set(played)) == len(played)
        assert set(played) <= set(configs)

    def test_gives_a_reason(self) -> None:
        searcher = self.make()
        (config,) = searcher.ask(1)
        assert searcher.reason(config)
        assert all(not searcher.reason(c) for c in candidates() if c != config)

    def test_same_seed_and_trials_same_next_config(self) -> None:
        """Replay: a restarted study continues with the same config."""
        first = self.make(seed=3)
        played = self.play(first, trials=6)
        again = self.make(seed=3)
        again.tell(played)
        assert first.ask(2) == again.ask(2)
        assert first.expected_gain() == again.expected_gain()

    def test_replay_includes_running_trials(self) -> None:
        first = self.make(seed=1)
        played = self.play(first, trials=2)
        pending = first.ask(2)
        again = self.make(seed=1)
        again.tell([*played, *(Trial(config=c, status=TrialStatus.RUNNING) for c in pending)])
        assert first.ask(1) == again.ask(1)

    def test_pending_configs_are_not_asked_again(self) -> None:
        searcher = self.make()
        batch = searcher.ask(4)
        more = searcher.ask(2)
        assert len({*batch, *more}) == len(batch) + len(more)
        searcher.tell([measured(c) for c in reversed(batch)])
        assert not {*searcher.ask(1)} & {*batch, *more}

    def test_cancelled_may_be_asked_again(self) -> None:
        searcher = self.make(candidates()[:1])
        (config,) = searcher.ask(1)
        searcher.tell([Trial(config=config, status=TrialStatus.CANCELLED)])
        assert searcher.ask(1) == [config]

    def test_failed_configs_are_not_asked_again(self) -> None:
        def answer(config: ParallelConfig, *, number: int) -> Trial:
            kinds = list(FailureKind)
            return (
                failed(config, kinds[number % len(kinds)])
                if number % 2
                else measured(config, number=number)
            )

        played = self.play(self.make(), answer)
        assert len({t.config for t in played}) == len(played)

    def test_all_fail(self) -> None:
        """Ends, or continues with untried candidates, when every trial runs out of memory."""
        configs = candidates()
        played = self.play(
            self.make(),
            lambda c, number: failed(c, FailureKind.OUT_OF_MEMORY),
            trials=len(configs) + 1,
        )
        assert 1 <= len(played) <= len(configs)

    def test_no_memory_reported(self) -> None:
        """Trainers that do not report their peak memory can be searched too."""

        def answer(config: ParallelConfig, *, number: int) -> Trial:
            time, _ = truth(WORKLOAD, config)
            values = Measurement(
                step_times_s=(time,), tokens_per_step=config.global_batch_size * WORKLOAD.seq_len
            )
            return Trial(
                config=config, number=number, status=TrialStatus.STOPPED, measurement=values
            )

        assert len(self.play(self.make(), answer, trials=5)) == 5

    def test_one_candidate(self) -> None:
        (config,) = candidates()[:1]
        searcher = self.make([config])
        assert searcher.ask(3) == [config]
        searcher.tell([measured(config)])
        assert searcher.ask(1) == []

    def test_exhausted_space_ends(self) -> None:
        configs = candidates()[:9]
        searcher = self.make(configs)
        played = self.play(searcher, trials=20)
        ruled_out = {c for c in configs if c not in {t.config for t in played}}
        assert searcher.ask(1) == []
        assert all(truth(WORKLOAD, c)[1] > WORKLOAD.cluster.gpu.memory_bytes for c in ruled_out)

    def test_enqueued_configs_come_first(self) -> None:
        enqueued = [candidates()[5], candidates()[2]]
        assert self.make(enqueue=enqueued).ask(2) == enqueued

    def test_enqueued_configs_outside_the_space_are_refused(self) -> None:
        outside = ParallelConfig(tp=16, accumulation_steps=64)
        with pytest.raises(ConfigError, match="enqueue"):
            self.make(enqueue=[outside])

    def test_unknown_options_are_refused(self) -> None:
        space = SearchSpace.of(WORKLOAD, candidates())
        with pytest.raises(SpecError, match="nonsense"):
            make_searcher(self.searcher, space, nonsense=1)

    def test_a_baseline_outside_the_space_is_accepted(self) -> None:
        searcher = self.make()
        searcher.tell(
            [
                measured(
                    ParallelConfig(
                        dp=16, micro_batch_size=4, accumulation_steps=1, recompute="full"
                    )
                )
            ]
        )
        assert len(self.play(searcher, trials=3)) == 3

    def test_corrected_trials_count_as_if_they_had_been_told_so(self) -> None:
        """The third trial is corrected, because the machine was slower then."""
        corrected, fresh = self.make(), self.make()
        played = self.play(corrected, trials=5)
        third = played[2]
        if third.measurement is not None:
            times = tuple(t / 2 for t in third.measurement.step_times_s)
            third = replace(third, measurement=replace(third.measurement, step_times_s=times))
        corrected.correct([third])
        fresh.tell([*played[:2], third, *played[3:]])
        assert corrected.trials == fresh.trials
        assert corrected.ask(1) == fresh.ask(1)

    def test_trials_that_are_forgotten_are_not_asked_for_again(self) -> None:
        searcher = self.make()
        played = self.play(searcher, trials=4)
        searcher.correct([], without=[played[1].number])
        assert played[1].number not in {t.number for _, t in searcher.trials}
        assert played[1].config not in searcher.ask(1)

    def test_repeats_are_accepted(self) -> None:
        """Finalists are re-measured and passed again."""
        searcher = self.make()
        played = self.play(searcher, trials=3)
        searcher.tell([trial for trial in played if trial.is_measured])
        assert not {*searcher.ask(1)} & {t.config for t in played}

    def test_a_trial_that_is_told_twice_counts_once(self) -> None:
        """Passing all trials again each time leads to the same next config."""
        once, again = self.make(), self.make()
        played = self.play(once, trials=4)
        for known in range(1, len(played) + 1):
            again.tell(played[:known])
        assert again.trials == once.trials
        assert again.ask(1) == once.ask(1)
