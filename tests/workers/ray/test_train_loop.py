"""What the reports of a Ray Train loop become, without Ray: steps of all ranks, the same last step
for all, and what a failed run says."""

from __future__ import annotations

import pytest

from autotune.errors import RunnerError
from autotune.registry import make_runner
from autotune.spec import FailureKind
from autotune_workers.ray.train_loop import Recorder, figures
from autotune_workers.runners.ray_train import RayTrainRunner, evidence_of


def test_a_step_is_complete_once_all_ranks_have_reported_it() -> None:
    recorder = Recorder(2)
    assert not recorder.report(0, 0, {})  # the first report begins the first step
    assert not recorder.report(1, 0, {})
    recorder.report(
        0, 1, {"step_time_s": 0.1, "loss": 2.0, "peak_memory_bytes": 5.0, "grad_norm": 1.0}
    )
    assert recorder.news()["steps"] == []
    recorder.report(
        1, 1, {"step_time_s": 0.3, "loss": 4.0, "peak_memory_bytes": 4.0, "grad_norm": 9.0}
    )
    (step,) = recorder.news()["steps"]
    assert step == {"step_time_s": 0.3, "loss": 3.0, "peak_memory_bytes": 5.0, "grad_norm": 1.0}
    assert recorder.news()["steps"] == []


def test_all_ranks_leave_at_the_same_step() -> None:
    """A rank that has gone on to the next step must not wait there for one that was told to
    leave."""
    recorder = Recorder(2)
    assert not recorder.report(0, 4, {"step_time_s": 1.0})
    recorder.stop()
    assert not recorder.report(1, 4, {"step_time_s": 1.0})
    assert recorder.report(0, 5, {"step_time_s": 1.0})
    assert recorder.report(1, 5, {"step_time_s": 1.0})
    recorder.stop()
    assert recorder.report(0, 5, {})
    assert len(recorder.news()["steps"]) == 1


def test_it_has_begun_once_all_ranks_have() -> None:
    recorder = Recorder(2)
    recorder.join("a")
    assert not recorder.news()["began"]
    recorder.join("b")
    assert recorder.news()["began"]
    assert recorder.workers() == ["a", "b"]


def test_known_metrics_are_read_by_name_and_others_left() -> None:
    assert figures({"train_loss": 2, "epoch": 3, "grad_norm": "x", "tokens_per_s": 10.5}) == {
        "loss": 2.0,
        "tokens_per_s": 10.5,
    }


class WorkerGroupError(Exception):
    """As Ray Train raises it: the exception of each rank that failed."""

    def __init__(self, **failures: Exception) -> None:
        self.worker_failures = {
            int(name.removeprefix("rank")): error for name, error in failures.items()
        }


class ActorDiedError(Exception):
    """As Ray names it."""


@pytest.mark.parametrize(
    ("error", "kind", "rank"),
    [
        (
            WorkerGroupError(rank0=RuntimeError("Connection reset by peer"), rank1=MemoryError()),
            "OUT_OF_MEMORY",
            1,
        ),
        (
            WorkerGroupError(rank0=RuntimeError("CUDA out of memory. Tried to allocate")),
            "OUT_OF_MEMORY",
            0,
        ),
        (WorkerGroupError(rank1=ValueError("no such dtype")), "ERROR", 1),
        (WorkerGroupError(rank1=ActorDiedError("the node is gone")), "WORKER_LOST", 1),
        (ValueError("datasets must be ..."), "ERROR", None),
    ],
)
def test_a_failed_run_is_judged_by_the_strongest_evidence(
    error: Exception, kind: str, rank: int | None
) -> None:
    found = evidence_of(error)
    assert (found.kind, found.rank) == (FailureKind(kind), rank)


def test_a_spec_cannot_name_the_runner() -> None:
    with pytest.raises(RunnerError, match=r"which a spec cannot contain.*tune_torch_trainer"):
        make_runner("ray_train")
    with pytest.raises(RunnerError, match=r"TorchTrainer, but was given 3"):
        RayTrainRunner(trainer=3)
