"""Whether the goodput objective picks a batch that trains faster: `python -m research.goodput
[TARGET [SEEDS]]`.

1. The learning rate is chosen from `RATES`: the one with which the baseline (the smallest batch) reaches the loss TARGET in the fewest steps.
2. The study of search_spaces/studies/goodput-laptop.yaml is run twice with it, for tokens per second and for goodput.
3. Both winners train from the same weights, in turn, until the mean loss (nats per byte) over the last `WINDOW` sequences is below TARGET.

The trainer multiplies the rate by sqrt(batch / smallest batch), in studies and trainings alike.
Time is the sum of the step times, without start-up. Seed 0 is used for the rate and the studies;
the winners train with others. About five minutes on two idle cores.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from autotune import api
from autotune.api import Result
from autotune.assets import search_spaces
from autotune.ports import AttemptEnded, StepsReported, TrialRequest
from autotune.reward import learning_rate_factor
from autotune.space import SearchSpace, default_config
from autotune.spec import Measurement, ParallelConfig, Study
from autotune_workers.runners.local import LocalRunner

RATES = (1e-3, 3e-3, 1e-2)
WINDOW = 128
"""sequences over which the loss is averaged"""
LONGEST = 1000
"""steps after which a training is given up"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A training that came to the target."""

    steps: int
    seconds: float


def train(
    study: Study,
    config: ParallelConfig,
    rate: float,
    *,
    target: float,
    seed: int,
    most: int = LONGEST,
) -> Reached | None:
    """Trains until the target; None when it is not reached in `most` steps."""
    workload, batch = study.workload, config.global_batch_size
    request = TrialRequest(
        study="goodput",
        number=batch,
        attempt=seed + 1,
        workload=workload,
        config=config,
        measure=replace(
            study.measure,
            warmup_steps=0,
            min_steps=most,
            max_steps=most,
            precision=1e-9,
            trial_timeout_s=3600.0,
        ),
        seed=seed,
        trainer_options={"learning_rate": rate},
    )
    runner = LocalRunner()
    times, losses = list[float](), list[float]()
    window, reached = max(1, WINDOW // batch), None
    try:
        runner.start(request)
        while reached is None:
            for event in runner.poll(5.0):
                if isinstance(event, AttemptEnded):
                    return reached
                if isinstance(event, StepsReported):
                    times += event.step_times_s
                    losses += event.losses
            reached = _first_under(losses, window, target)
        return Reached(steps=reached, seconds=sum(times[:reached]))
    finally:
        runner.close()


def _first_under(losses: Sequence[float], window: int, target: float) -> int | None:
    """Steps after which the mean over the window is under the target."""
    for end in range(window, len(losses) + 1):
        if sum(losses[end - window : end]) / window < target:
            return end
    return None


def tuned_rate(study: Study, config: ParallelConfig, *, target: float) -> float:
    """The rate that needs the fewest steps."""
    best, steps = RATES[0], LONGEST
    for rate in RATES:
        found = train(study, config, rate, target=target, seed=0, most=steps)
        print(
            f"default config at learning rate {rate:g}: {found.steps if found else f'over {steps}'} steps",
            flush=True,
        )
        if found:
            best, steps = rate, found.steps
    return best


def winner(study: Study, metric: str, rate: float, folder: Path) -> Result:
    """The study under this objective, at this learning rate."""
    objective = replace(study.objective, metric=metric)
    asked = replace(
        study, name=metric, objective=objective, trainer_options={"learning_rate": rate}
    )
    result = api.tune(asked, store=folder / f"{metric}.db")
    best, base = result.best, result.baseline
    assert best is not None
    assert best.measurement is not None
    assert best.reward is not None
    assert base is not None
    assert base.measurement is not None
    gained = best.reward.parts.get("efficiency")
    print(
        f"| {metric} | {len(result.trials)} | {best.config} | {best.config.global_batch_size} | {best.measurement.tokens_per_s:.0f} "
        f"| {base.measurement.tokens_per_s:.0f} | {_noise(base.measurement)} | {'-' if gained is None else f'{gained:.2f}'} |",
        flush=True,
    )
    return result


def main(target: float = 2.6, seeds: int = 3) -> None:
    """Prints what both objectives picked, and how long their picks take to the target."""
    study = api.load_study(search_spaces() / "studies" / "goodput-laptop.yaml")
    default = default_config(SearchSpace.build(study.workload, study.space))
    rate = tuned_rate(study, default, target=target)
    print(
        "\n| study for | trials | winner | batch | its tokens/s | default's tokens/s | noise scale (90%) | efficiency |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    picks = {}
    with tempfile.TemporaryDirectory() as folder:
        for metric in ("throughput", "goodput"):
            best = winner(study, metric, rate, Path(folder)).best
            assert best is not None
            picks[metric] = best.config
    print(
        f"\n| winner by | seed | learning rate | steps to a loss of {target:g} | s |\n|---|---|---|---|---|",
        flush=True,
    )
    reached: dict[str, list[Reached | None]] = {metric: [] for metric in picks}
    for seed in range(1, seeds + 1):
        for metric, config in list(picks.items())[:: 1 if seed % 2 else -1]:
            found = train(study, config, rate, target=target, seed=seed)
            reached[metric].append(found)
            factor = learning_rate_factor(
                config.global_batch_size, default.global_batch_size, study.workload.optimizer
            )
            print(f"| {metric} | {seed} | {rate * factor:.2g} | {_said(found)} |", flush=True)
    for metric, runs in reached.items():
        print(f"| **{metric}** | median of {len(runs)} | | {_said(_median(runs))} |")
    seconds = [
        (a.seconds, b.seconds)
        for a, b in zip(reached["goodput"], reached["throughput"], strict=True)
        if a and b
    ]
    if seconds:
        ratios = [a / b for a, b in seconds]
        print(
            f"\ngoodput's pick needs {median(ratios):.2f} times the seconds of throughput's (median of {len(ratios)} seeds, "
            f"{min(ratios):.2f} to {max(ratios):.2f})"
        )


def _said(found: Reached | None) -> str:
    return f"{found.steps} | {found.seconds:.1f}" if found else f"over {LONGEST} | -"


def _median(runs: Sequence[Reached | None]) -> Reached | None:
    """Of steps and of seconds; None where a run did not come to the target."""
    known = [run for run in runs if run is not None]
    if not known or len(known) < len(runs):
        return None
    return Reached(
        steps=round(median(r.steps for r in known)), seconds=median(r.seconds for r in known)
    )


def _noise(m: Measurement) -> str:
    if m.gradient_noise_scale is None or m.gradient_noise_interval is None:
        return "-"
    low, high = m.gradient_noise_interval
    return f"{m.gradient_noise_scale:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((float, int), sys.argv[1:], strict=False)))
