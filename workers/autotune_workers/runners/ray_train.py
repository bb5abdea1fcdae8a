"""The `ray_train` runner: trials of a `ray.train.torch.TorchTrainer` passed by Python code
(`autotune.ray.tune_torch_trainer`).

Each trial is a run of that trainer with the config in `train_loop_config`, one after another. Its
workers report to a recorder (`autotune_workers.ray.train_loop`). The state machine of programs
(`process.program`) reads the steps and decides when the trial is measured, late or diverging. Then
the loop ends at its next report; if it does not, it is ended with its workers.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import traceback
from collections import deque
from dataclasses import replace
from typing import Any

from autotune.detect import usable_cores
from autotune.errors import MissingExtraError, RunnerError
from autotune.ports import AttemptEnded, AttemptId, AttemptStarted, RunnerEvent, TrialRequest
from autotune.spec import Failure, FailureKind, ParallelConfig, Study
from autotune.temporary_folders import TemporaryFolder
from autotune.trainers.logs.steplines import parse_step_line
from autotune_workers.gang.failure_kind import Evidence, of_death, of_exception, weigh
from autotune_workers.gang.gang_runner import too_many
from autotune_workers.process.program.evidence import NodeEnd
from autotune_workers.process.program.state import ProgramTrial
from autotune_workers.ray.cluster.connection import RayCluster
from autotune_workers.ray.train_loop import Recorder, measured

LOOK_S = 0.2
"""interval of reading the recorder, seconds"""
ANSWER_S = 30.0
"""longest wait for an answer of the recorder, seconds"""
LEAVE_S = 20.0
"""seconds that a loop has to end at its next report, before its workers are killed"""
TAIL_LINES = 40
"""number of last lines of a traceback that are kept as evidence"""
_LOST = (
    "ActorDiedError",
    "RayActorError",
    "ActorUnavailableError",
    "NodeDiedError",
    "WorkerCrashedError",
)


class RayTrainRunner:
    """Runs trials of a Ray Train TorchTrainer, from Python."""

    trainers = ("ray_train",)

    def __init__(self, *, trainer: Any = None) -> None:
        """`trainer`: the TorchTrainer. Raises what `check_trainer` raises."""
        if trainer is None:
            raise _trainer_missing_error()
        self.check_trainer(trainer)
        self._trainer = trainer
        self._capacity = int(trainer.scaling_config.num_workers)
        self._cluster = RayCluster(
            address=None, num_cpus=self._cpus(), num_gpus=None, dashboard=False
        )
        self._waiting: deque[TrialRequest] = deque()
        self._running: _Run | None = None
        self._events: list[RunnerEvent] = []
        self._is_closed = False

    @classmethod
    def preflight(cls, study: Study) -> None:
        """Raises `RunnerError`, because a spec cannot contain a TorchTrainer."""
        raise _trainer_missing_error()

    @staticmethod
    def with_config(
        trainer: Any, config: ParallelConfig, *, loop: Any = None, run_config: Any = None
    ) -> Any:
        """A copy of `trainer` with the knobs of `config` in its `train_loop_config` and one worker
        per rank, and with another loop or run config if given."""
        return type(trainer)(
            loop or trainer.train_loop_per_worker,
            train_loop_config={**(trainer.train_loop_config or {}), **config.values()},
            torch_config=trainer.backend_config,
            scaling_config=replace(trainer.scaling_config, num_workers=config.world_size),
            run_config=run_config or trainer.run_config,
            datasets=trainer.datasets,
            dataset_config=trainer.data_config,
            validation_config=trainer.validation_config,
        )

    @staticmethod
    def check_trainer(trainer: Any) -> None:
        """Raises `MissingExtraError` without Ray Train, and `RunnerError` unless `trainer` is a
        TorchTrainer of Ray Train 2 with a fixed number of workers."""
        try:
            from ray.train.torch import TorchTrainer
        except ImportError as error:
            raise MissingExtraError(
                f"tuning a TorchTrainer needs Ray Train and PyTorch, which cannot be imported: {error}",
                remedy="run pip install 'ray[train]' torch",
            ) from error
        if not isinstance(trainer, TorchTrainer):
            raise RunnerError(
                f"the ray_train runner runs a ray.train.torch.TorchTrainer, but was given {trainer!r:.200}"
            )
        if not hasattr(trainer, "train_run_context"):
            raise RunnerError(
                "the ray_train runner needs Ray Train 2, but the trainer is from Ray Train 1",
                remedy="use Ray 2.51 or newer, and unset RAY_TRAIN_V2_ENABLED or set it to 1",
            )
        workers = trainer.scaling_config.num_workers
        if not isinstance(workers, int) or workers < 1:
            raise RunnerError(
                f"the number of workers must be fixed and above zero while tuning, but num_workers={workers!r}",
                remedy="give ScalingConfig(num_workers=N)",
            )

    def _cpus(self) -> int:
        """CPUs of a cluster started here: enough for all workers, even if the machine has fewer."""
        cpus_per_worker = (self._trainer.scaling_config.resources_per_worker or {}).get("CPU", 1)
        return max(usable_cores(), int(cpus_per_worker * self._capacity) + 1)

    @property
    def capacity(self) -> int:
        """The trainer's number of workers."""
        return self._capacity

    def start(self, request: TrialRequest) -> None:
        """Starts the attempt, or queues it while another runs. Raises `RunnerError` if the runner
        was closed."""
        if self._is_closed:
            raise RunnerError("the runner is closed")
        if why := too_many(request.config.world_size, self._capacity):
            self._events.append(
                AttemptEnded(id=request.id, failure=Failure(kind=FailureKind.INVALID, message=why))
            )
            return
        self._waiting.append(request)
        self._begin()

    def poll(self, timeout_s: float) -> list[RunnerEvent]:
        """The events since the last call. Waits up to `timeout_s` for the first one."""
        end_s = time.monotonic() + timeout_s
        while True:
            if self._running is not None:
                self._events += self._running.look()
                if self._running.is_over:
                    self._running = None
            self._begin()
            left_s = end_s - time.monotonic()
            if self._events or left_s <= 0:
                events, self._events = self._events, []
                return events
            time.sleep(min(LOOK_S, left_s))

    def cancel(self, attempt: AttemptId) -> None:
        """Ends the attempt. Unknown ids are ignored."""
        for request in [each for each in self._waiting if each.id == attempt]:
            self._waiting.remove(request)
            self._events.append(AttemptEnded(id=attempt, cancelled=True))
        if self._running is not None and self._running.request.id == attempt:
            self._running.trial.cancel()

    def close(self) -> None:
        """Ends the running attempt, and the cluster if it was started here."""
        if self._is_closed:
            return
        self._is_closed = True
        self._waiting.clear()
        if self._running is not None:
            self._running.end()
            self._running = None
        self._cluster.close()

    def _begin(self) -> None:
        if self._running is None and self._waiting:
            self._running = _Run(self._trainer, self._waiting.popleft())


class _Run:
    """One attempt: runs the trainer in a thread, because `fit` blocks."""

    def __init__(self, trainer: Any, request: TrialRequest) -> None:
        import ray

        self.request, self.is_over = request, False
        self.trial = ProgramTrial(request, [parse_step_line], time.monotonic())
        self._began = False
        self._stop_ordered_s: float | None = None
        self._error: BaseException | None = None
        self._folder = TemporaryFolder("ray-train")
        self._recorder = ray.remote(Recorder).options(num_cpus=0).remote(request.config.world_size)
        self._thread = threading.Thread(
            target=self._fit, args=(trainer,), daemon=True, name="autotune ray_train"
        )
        self._thread.start()

    def _fit(self, trainer: Any) -> None:
        try:
            from ray.train import FailureConfig

            study, number, attempt = self.request.id
            run_config = replace(
                trainer.run_config,
                name=f"{study}-{number}-{attempt}",
                storage_path=str(self._folder.path),
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
            )
            loop = measured(trainer.train_loop_per_worker, self._recorder)
            trainer_of_trial = RayTrainRunner.with_config(
                trainer, self.request.config, loop=loop, run_config=run_config
            )
            trainer_of_trial.fit()
        except BaseException as error:  # any exception of the user's code or Ray is evidence
            self._error = error

    def look(self) -> list[RunnerEvent]:
        """The events since the last call. Ends the loop if the attempt must end."""
        events: list[RunnerEvent] = []
        is_done = not self._thread.is_alive()
        events += self._read_recorder()
        self.trial.tick(time.monotonic())
        if is_done:
            events.append(self._end_of())
            self._release()
        elif self.trial.ending:
            self._stop_loop()
        return events

    def _read_recorder(self) -> list[RunnerEvent]:
        import ray

        events: list[RunnerEvent] = []
        try:
            recorded = ray.get(self._recorder.news.remote(), timeout=ANSWER_S)
        except ray.exceptions.RayError:
            return events  # gone, or not answering now: the deadlines decide
        if recorded["began"] and not self._began:
            self._began = True
            events.append(AttemptStarted(id=self.request.id))
        now_s = time.monotonic()
        return [
            *events,
            *self.trial.hear([(now_s, json.dumps(step)) for step in recorded["steps"]], now_s),
        ]

    def _stop_loop(self) -> None:
        """Orders the loop to end at its next report; kills its workers after `LEAVE_S`."""
        import ray

        now_s = time.monotonic()
        with contextlib.suppress(ray.exceptions.RayError):
            if self._stop_ordered_s is None:
                self._stop_ordered_s = now_s
                ray.get(self._recorder.stop.remote(), timeout=ANSWER_S)
            elif now_s - self._stop_ordered_s > LEAVE_S:
                for worker in ray.get(self._recorder.workers.remote(), timeout=ANSWER_S):
                    ray.kill(worker)

    def _end_of(self) -> AttemptEnded:
        evidence = None if self._error is None or self.trial.ending else evidence_of(self._error)
        if evidence is None:
            return self.trial.end([NodeEnd(node=0, code=0, was_told=self.trial.ending)])
        ended = self.trial.end([NodeEnd(node=0, code=0, was_told=True)])
        step = len(ended.measurement.step_times_s) if ended.measurement else None
        failure = evidence.failure()
        tail = tuple("".join(traceback.format_exception(self._error)).splitlines()[-TAIL_LINES:])
        failure_with_log: Failure = replace(
            failure, step=failure.step or step, log_tail=failure.log_tail or tail
        )
        return replace(ended, failure=failure_with_log, stopped="")

    def end(self) -> None:
        """Ends the attempt in any state; bounded in time."""
        self.trial.cancel()
        end_s = time.monotonic() + 2 * LEAVE_S
        while self._thread.is_alive() and time.monotonic() < end_s:
            self._stop_loop()
            self._thread.join(LOOK_S)
        self._release()

    def _release(self) -> None:
        import ray

        self.is_over = True
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._recorder)
        self._folder.remove()


def evidence_of(error: BaseException) -> Evidence:
    """The strongest evidence of the failed ranks, or else that of the error itself."""
    failures = getattr(error, "worker_failures", None) or {}
    by_rank = [_of_worker(failure, rank) for rank, failure in failures.items()]
    controller = getattr(error, "controller_failure", error)
    return weigh(by_rank) or _of_worker(controller, None)


def _of_worker(error: BaseException, rank: int | None) -> Evidence:
    cause = getattr(error, "_base_exc", None) or getattr(error, "cause", None) or error
    name = type(cause).__name__
    if name in _LOST:
        return of_death(
            rank=rank, code=None, phase="training", why=str(cause).splitlines()[0][:300]
        )
    report = {"type": name, "text": str(cause), "errno": getattr(cause, "errno", None)}
    evidence = of_exception(report, rank=rank or 0, phase="training")
    return (
        evidence
        if rank is not None
        else replace(evidence, rank=None, message=f"Ray Train raised {name}: {str(cause)[:300]}")
    )


def _trainer_missing_error() -> RunnerError:
    return RunnerError(
        "the ray_train runner runs a TorchTrainer, which a spec cannot contain",
        remedy="call autotune.ray.tune_torch_trainer(trainer, space=...) from Python",
        field="runner",
    )
