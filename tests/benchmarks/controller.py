"""CPU time of the controller per trial in studies of growing length: ask, decide, judge, tell.
(`store` measures the storage.)

    python -m tests.benchmarks.controller

Each row rebuilds a study with that many measured trials (`replay`) and continues it for 100 trials
on a runner that measures at once. The searcher is `random`, so that the time is the controller's
own.
"""

from __future__ import annotations

import statistics
import time

from autotune.ports import AttemptEnded, StartAttempt
from autotune.search import make_searcher
from autotune.space import SearchSpace
from autotune.spec import (
    Budget,
    Measurement,
    ParallelConfig,
    Reward,
    SpaceSpec,
    Study,
    Trial,
    TrialStatus,
    Workload,
    catalog,
)
from autotune.study.controller import Controller, Tick

MORE = 100
STEPS = 20


def controller(past: int) -> tuple[Controller, float]:
    """A controller rebuilt from so many measured trials, and the CPU seconds that this took."""
    cluster = catalog.cluster("h100-sxm-1x8")
    workload = Workload(
        model=catalog.model("llama-8b"), cluster=cluster, seq_len=4096, global_batch_size=1024
    )
    configs = [ParallelConfig(micro_batch_size=i + 1) for i in range(past + 2 * MORE)]
    space = SearchSpace.of(workload, configs)
    budget = Budget(max_trials=past + 2 * MORE, max_wall_s=1e9, max_failed_trials=1 << 30)
    study = Study(
        name="overhead", workload=workload, space=SpaceSpec(), budget=budget, searcher="random"
    )
    trials = [
        Trial(
            config=config,
            number=number,
            status=TrialStatus.COMPLETED,
            measurement=measured(config),
            reward=Reward(total=0.2, throughput=0.0, stability=1.0),
        )
        for number, config in enumerate(configs[:past])
    ]
    began = time.process_time()
    searcher = make_searcher("random", space)
    made = Controller(
        study_id="s", study=study, searcher=searcher, capacity=8, baseline=None, past=trials
    )
    return made, time.process_time() - began


def measured(config: ParallelConfig) -> Measurement:
    series = tuple(0.1 + 0.001 * (i % 3) for i in range(STEPS))
    return Measurement(
        step_times_s=series,
        losses=series,
        grad_norms=series,
        tokens_per_step=config.micro_batch_size,
    )


def per_trial_s(machine: Controller) -> float:
    """Median CPU seconds from one trial's start to the next one's."""
    commands, times = machine.handle(Tick(now_s=0.0)), []
    for _ in range(MORE):
        request = next(c.request for c in commands if isinstance(c, StartAttempt))
        began = time.process_time()
        commands = machine.handle(AttemptEnded(id=request.id, measurement=measured(request.config)))
        times.append(time.process_time() - began)
    return statistics.median(times)


def main() -> None:
    """Prints the table."""
    print("| trials in the study | one more trial | replay |\n|---|---|---|")
    for past in (10, 1_000, 10_000):
        machine, replay_s = controller(past)
        print(
            f"| {past:,} | {per_trial_s(machine) * 1e3:.2f} ms | {replay_s * 1e3:.0f} ms |",
            flush=True,
        )


if __name__ == "__main__":
    main()
