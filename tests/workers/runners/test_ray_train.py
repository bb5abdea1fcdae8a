"""Ray Train's own loop under autotune, for real: two workers on CPUs. A Ray Train run takes about
ten seconds to start, so the long ones are slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.ports import TrialRequest, TrialRunner
from autotune.spec import FailureKind
from autotune.store import MemoryStore
from autotune.testing.runners import RunnerContract
from autotune_workers.runners.ray_train import RayTrainRunner
from tests.ray_roles import authenticated
from tests.workers.requests import PATIENT, failure_of, one
from tests.workers.requests import request as asking

pytest.importorskip("ray.train")

pytestmark = [
    pytest.mark.alone,
    # Ray leaves sockets and log files to the garbage collector, and warns of its own future
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def authentication() -> Iterator[None]:
    """Nothing is written to the user's home."""
    with authenticated():
        yield


def train(config: dict[str, Any]) -> None:
    """No torch: steps whose time is known, with what goes wrong at some values of the knob."""
    import time

    import ray.train

    for step in range(1000):
        size = config["micro_batch_size"]
        if size == 4 and step == 3:
            raise MemoryError("no room for four sequences")
        time.sleep(0.08 / size)
        loss = float("nan") if size == 8 and step == 3 else 5.0 - 0.01 * step
        ray.train.report({"loss": loss})


def trainer(loop: Callable[..., None] = train) -> Any:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        loop,
        train_loop_config={"micro_batch_size": 1, "other": "kept"},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    )


@pytest.mark.slow
def test_a_torch_trainer_is_tuned() -> None:
    import autotune.ray

    mine = trainer()
    store = MemoryStore()
    result = autotune.ray.tune_torch_trainer(
        mine,
        space={"micro_batch_size": [1, 2, 4], "precision": ["fp32"]},
        model={"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 256},
        seq_len=16,
        global_batch_size=8,
        budget={"max_trials": 3, "min_gain": 0},
        measure={
            "warmup_steps": 1,
            "min_steps": 4,
            "max_steps": 8,
            "precision": 0.5,
            "final_rounds": 0,
        },
        store=store,
    )
    by_size = {trial.config.micro_batch_size: trial for trial in result.trials}
    assert set(by_size) == {1, 2, 4}
    failure = by_size[4].failure
    assert failure is not None
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "no room for four sequences" in failure.message
    assert result.baseline is not None
    assert result.baseline.config.micro_batch_size == 1, "what the trainer's own config says"
    assert result.best is not None
    assert result.best.config.micro_batch_size == 2
    measurement = by_size[1].measurement
    assert measurement is not None
    assert 0.08 <= measurement.step_time_s < 60.0
    assert measurement.tokens_per_step == 8 * 16
    assert measurement.losses[0] < 5.0
    assert (measurement.peak_memory_bytes or 0) > 1e6
    best = autotune.ray.with_config(mine, result.best.config)
    assert best.train_loop_config["micro_batch_size"] == 2
    assert best.train_loop_config["other"] == "kept"
    assert best.scaling_config.num_workers == 2
    assert mine.train_loop_config == {"micro_batch_size": 1, "other": "kept"}


def test_the_page_shows_the_five_lines_of_the_template_that_are_autotunes() -> None:
    root = Path(__file__).resolve().parents[3]
    page, program = (
        (root / "docs/how-to/ray-train.md").read_text(),
        Path(__file__).with_name("ray_train_fsdp2.py"),
    )
    diff = page.partition("```diff\n")[2].partition("```")[0].splitlines()
    added = [line[1:].strip() for line in diff if line.startswith("+")]
    assert len(added) == 5
    lines = {line.strip() for line in program.read_text().splitlines()}
    assert set(added) <= lines


@pytest.mark.slow
class TestRayTrainRunner(RunnerContract):
    @pytest.fixture
    def runner(self) -> Iterator[TrialRunner]:
        runner = RayTrainRunner(trainer=trainer())
        yield runner
        runner.close()

    @pytest.fixture
    def request_for(self) -> Callable[[int], TrialRequest]:
        return lambda number: asking(number, trainer="ray_train", config={"micro_batch_size": 2})

    def test_names_its_trainers_and_capacity(self, runner: TrialRunner, request_for: Any) -> None:
        assert (runner.capacity, tuple(runner.trainers)) == (2, ("ray_train",))

    def test_a_loop_that_diverges_or_never_leaves_ends(self, runner: TrialRunner) -> None:
        failure = failure_of(
            one(runner, asking(0, trainer="ray_train", config={"micro_batch_size": 8}))
        )
        assert failure.kind is FailureKind.DIVERGED


@pytest.mark.slow
def test_a_loop_that_hangs_is_ended_with_its_workers() -> None:
    def hang(config: dict[str, Any]) -> None:
        import time

        time.sleep(600)

    runner = RayTrainRunner(trainer=trainer(hang))
    try:
        asked = asking(0, trainer="ray_train", measure=replace(PATIENT, start_timeout_s=60.0))
        assert failure_of(one(runner, asked)).kind is FailureKind.HANG
    finally:
        runner.close()


@pytest.mark.slow
def test_the_template_for_fsdp2_is_tuned_and_its_winner_trains() -> None:
    import ray

    import autotune.ray
    from tests.workers.runners import ray_train_fsdp2 as template

    mine = template.make_trainer()
    result = autotune.ray.tune_torch_trainer(
        mine,
        space=template.SPACE,
        model=template.MODEL,
        **template.SIZES,
        budget={"max_trials": 8, "min_gain": 0},
        store=MemoryStore(),
    )
    assert len(result.measured) >= 8
    assert result.best is not None
    assert result.baseline is not None
    assert (result.baseline.config.micro_batch_size, result.baseline.config.zero_stage) == (1, 3)
    assert (result.speedup or 0) > 1.5
    print(f"best {result.best.config}, speedup {result.speedup:.2f} over {result.baseline.config}")
    ray.init(address="local", num_cpus=3, include_dashboard=False)
    try:
        short = template.make_trainer(steps=4)
        assert (
            autotune.ray.with_config(short, result.best.config).fit().error is None
        )  # it keeps metrics of checkpoints only
    finally:
        ray.shutdown()
