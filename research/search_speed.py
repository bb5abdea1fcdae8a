"""CPU time of the default searcher: ask and tell after 200 trials of 20,000 candidates, and the
first ask among a million.

OMP_NUM_THREADS=1 python -m research.search_speed
"""

from __future__ import annotations

from time import process_time

import numpy as np

from autotune.cost import estimate
from autotune.search import make_searcher
from autotune.space import SearchSpace
from autotune.spec import Measurement, ParallelConfig, Trial, TrialStatus, Workload, catalog
from tests.benchmarks.space import CASES

CANDIDATES, TOLD = 20_000, 200


def main() -> None:
    """Prints both figures."""
    model, cluster, seq_len, batch, knobs = CASES["wide"]
    workload = Workload(
        model=catalog.model(model),
        cluster=catalog.cluster(cluster),
        seq_len=seq_len,
        global_batch_size=batch,
    )
    space = SearchSpace.build(workload, knobs)
    began = process_time()
    make_searcher("bayesian", space).ask(1)
    print(f"searcher made and first ask, {len(space):,} configs: {process_time() - began:.2f} s")
    rng = np.random.default_rng(0)
    some = SearchSpace.of(
        workload, space.table.take(np.sort(rng.permutation(len(space))[:CANDIDATES]))
    )
    searcher = make_searcher("bayesian", some)
    chosen = rng.permutation(len(some))[: TOLD + 3]
    trials = [_trial(workload, some[int(i)], rng) for i in chosen]
    searcher.tell(trials[:TOLD])
    searcher.ask(1)
    for trial in trials[TOLD:]:
        began = process_time()
        searcher.tell([trial])
        searcher.ask(1)
        print(
            f"tell and ask, {CANDIDATES:,} candidates, {TOLD} told: {process_time() - began:.2f} s"
        )


def _trial(workload: Workload, config: ParallelConfig, rng: np.random.Generator) -> Trial:
    predicted = estimate(workload, config)
    measurement = Measurement(
        step_times_s=(float(predicted.step_time_s) * float(np.exp(0.1 * rng.standard_normal())),),
        peak_memory_bytes=float(predicted.peak_memory_bytes) * 1.1,
        tokens_per_step=config.global_batch_size * workload.seq_len,
        num_ranks=config.world_size,
    )
    return Trial(config=config, status=TrialStatus.COMPLETED, measurement=measurement)


if __name__ == "__main__":
    main()
