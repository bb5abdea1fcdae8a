"""`AutotuneCallback()` for transformers' and Lightning's `Trainer`: prints a review when training
begins, and stores the observed run when it ends.

A step time is the time between the ends of two optimizer steps. Peak memory is that of torch's CUDA
allocator, or without a GPU that of the process. Only the first rank of a job prints and stores. If
the library does not call the end hook, as after an exception, the run is stored at process exit.
"""

from __future__ import annotations

import atexit
import os
import resource
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.observing.rank import is_first
from autotune.settings import user_name
from autotune.spec import Failure, Measurement, ObservedRun, Outcome

SKIPPED, MOST_STEPS = 2, 4096
"""steps skipped as warm-up; maximum number of step times kept, beyond which only every second one
is kept, then every fourth, and so on"""
_BASES = (
    ("transformers.trainer_callback", "TrainerCallback"),
    ("lightning.pytorch.callbacks", "Callback"),
    ("pytorch_lightning.callbacks", "Callback"),
)
_LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "deepspeed",
    "peft",
    "trl",
)


class AutotuneCallback:
    """A callback for transformers' or Lightning's `Trainer`, whichever the program has imported."""

    def __new__(cls, *args: Any, **options: Any) -> AutotuneCallback:
        """Create an instance that also inherits from the callback classes of the imported
        libraries."""
        bases = [
            getattr(sys.modules[module], name) for module, name in _BASES if module in sys.modules
        ]
        kind = (
            type(cls.__name__, (cls, *dict.fromkeys(bases)), {})
            if cls is AutotuneCallback and bases
            else cls
        )
        callback: AutotuneCallback = object.__new__(kind)
        return callback

    def __init__(
        self,
        *,
        seq_len: int | None = None,
        batch: int | None = None,
        cluster: str | None = None,
        store: str | Path | None = None,
    ) -> None:
        """`seq_len`, `batch`, `cluster`, `store`: as in `autotune.advise`."""
        self._options: dict[str, Any] = {
            "seq_len": seq_len,
            "batch": batch,
            "cluster": cluster,
            "store": store,
        }
        self._review: Any = None
        self._began: datetime | None = None
        self._ended_s = 0.0
        self._times: list[float] = []
        self._count, self._every, self._steps = 0, 1, 0
        self._awaits_batch = False

    def __reduce__(self) -> Any:
        return (_from_options, (self._options,))

    # transformers

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print the review."""
        dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
        self._begin(_TransformersTrainer(args, kwargs.get("model"), dataset))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the end of an optimizer step."""
        self._step()

    # Lightning

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Print the review if the sequence length is known; otherwise wait for the first batch."""
        from autotune.observing.objects import length_of

        loader = getattr(trainer, "train_dataloader", None)
        self._awaits_batch = (
            self._options["seq_len"] is None and length_of(getattr(loader, "dataset", None)) is None
        )
        if not self._awaits_batch:
            self._begin(trainer)

    def on_train_batch_start(
        self, trainer: Any, module: Any, batch: Any, index: int, *more: Any
    ) -> None:
        """Print the review, with the sequence length of the first batch, if it was unknown."""
        if self._awaits_batch:
            from autotune.observing.objects import length_of_batch

            self._awaits_batch = False
            self._options["seq_len"] = length_of_batch(batch)
            self._begin(trainer)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int, *more: Any
    ) -> None:
        """Record the end of an optimizer step, if this micro-batch was its last."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self._step()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Store the run as failed or interrupted."""
        self._end(exception)

    # both

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Store the run."""
        self._end(None)

    def _begin(self, trainer: Any) -> None:
        if not is_first(os.environ, ()):
            return
        from autotune.observing.advice import advise

        self._review = advise(trainer, **self._options)
        self._began, self._ended_s = datetime.now(UTC), 0.0
        self._times, self._count, self._every = [], 0, 1
        atexit.register(self._end_with_the_process)

    def _step(self) -> None:
        now_s = time.perf_counter()
        if self._ended_s and self._count % self._every == 0:
            self._times.append(now_s - self._ended_s)
            if len(self._times) > MOST_STEPS:
                self._times, self._every = self._times[::2], 2 * self._every
        self._count += 1
        self._ended_s = now_s

    def _end_with_the_process(self) -> None:
        self._end(getattr(sys, "last_value", None), is_late=True)

    def _end(self, error: BaseException | None, *, is_late: bool = False) -> None:
        began, self._began = self._began, None
        if began is None:
            return
        from autotune.observing import advice

        try:
            advice.kept(self._run(began, error, is_late), self._options["store"])
        except Exception as trouble:
            advice.warn(trouble)

    def _run(self, began: datetime, error: BaseException | None, is_late: bool) -> ObservedRun:
        from autotune.observing import advice

        study, config = (self._review.study, self._review.config) if self._review else (None, None)
        interrupted = isinstance(error, KeyboardInterrupt) or (is_late and error is None)
        outcome = Outcome.of(is_interrupted=interrupted, has_failed=error is not None)
        seen = _measurement(self._times)
        if study is not None and config is not None:
            from autotune.cost import training_flops_per_token

            gpu = study.workload.cluster.gpu
            seen = replace(
                seen,
                tokens_per_step=round(
                    config.global_batch_size * study.workload.tokens_per_sequence
                ),
                num_ranks=config.world_size,
                memory_capacity_bytes=gpu.memory_bytes,
                peak_flops_per_s=gpu.peak_flops_per_s.get(config.precision),
                flops_per_token=training_flops_per_token(study.workload),
            )
        return ObservedRun(
            program=advice.program(),
            outcome=outcome,
            workload=study.workload if study else None,
            config=config,
            estimate=self._review.estimate if self._review else None,
            measurement=seen,
            failure=_failure(error, self._count)
            if outcome is Outcome.FAILED and error is not None
            else None,
            versions=_versions(),
            host=socket.gethostname(),
            owner=user_name(),
            started_at=began,
            ended_at=datetime.now(UTC),
        )


def _from_options(options: dict[str, Any]) -> AutotuneCallback:
    return AutotuneCallback(**options)


class _TransformersTrainer:
    """The parts of transformers' `Trainer` that its callbacks receive. `objects.training_of`
    recognizes it by its class name."""

    def __init__(self, args: Any, model: Any, train_dataset: Any) -> None:
        self.args, self.model, self.train_dataset = args, model, train_dataset


_TransformersTrainer.__module__, _TransformersTrainer.__name__ = "transformers", "Trainer"


def _measurement(times: Sequence[float]) -> Measurement:
    counted = tuple(times[SKIPPED - 1 :] if len(times) > SKIPPED else times[-1:])
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        peak = float(torch.cuda.max_memory_allocated())
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return Measurement(step_times_s=counted, peak_memory_bytes=peak, time_from="callback")


def _failure(error: BaseException, steps: int) -> Failure:
    from autotune.registry import RUNNERS, load

    failure: Failure = load(RUNNERS, "local").failure_of(error, steps)
    return failure


def _versions() -> dict[str, str]:
    versions = {
        name: str(getattr(sys.modules[name], "__version__", ""))
        for name in _LIBRARIES
        if name in sys.modules
    }
    return {"python": f"{sys.version_info[0]}.{sys.version_info[1]}", **versions}
