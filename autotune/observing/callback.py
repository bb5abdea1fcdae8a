"""`AutotuneCallback()` for transformers' and Lightning's `Trainer`: prints a review when training
begins, and stores the observed run when it ends.

A step time is the time between the ends of two optimizer steps. Peak memory comes from torch's CUDA
allocator, or, without a GPU, from the process. Only the first rank of a job prints and stores. If
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
LENGTH_TOLERANCE = 0.05
"""difference between the reviewed and the mean sequence length, as a share, that is not reported"""
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
        self._awaits_batch = False
        """whether the review waits for the length of the first batch"""
        self._training: Any = None
        self._review: Any = None
        self._began: datetime | None = None
        self._ended_s = 0.0
        self._times: list[float] = []
        self._count, self._every, self._steps = 0, 1, 0
        self._batches, self._tokens = 0, 0

    def __reduce__(self) -> Any:
        return (_from_options, (self._options,))

    # transformers

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print the review if the sequence length is known; otherwise wait for the first batch."""
        loader = kwargs.get("train_dataloader")
        dataset = getattr(loader, "dataset", None)
        waits = self._observe_batches(loader)
        self._begin(_TransformersTrainer(args, kwargs.get("model"), dataset), waits=waits)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the end of an optimizer step."""
        self._step()

    # Lightning

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Print the review if the sequence length is known; otherwise wait for the first batch."""
        self._begin(trainer, waits=True)

    def on_train_batch_start(
        self, trainer: Any, module: Any, batch: Any, index: int, *more: Any
    ) -> None:
        """Count the batch's tokens, and print the review if it waits for their number."""
        self._observe(batch)

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

    def _begin(self, trainer: Any, *, waits: bool) -> None:
        """Start to record, and review the training; if its sequence length is unknown and a batch
        will come (`waits`), then."""
        if not is_first(os.environ, ()):
            return
        from autotune.observing import advice
        from autotune.observing.objects import training_of

        self._review, self._awaits_batch, self._training = None, False, None
        self._began, self._ended_s = datetime.now(UTC), 0.0
        self._times, self._count, self._every = [], 0, 1
        self._batches, self._tokens = 0, 0
        atexit.register(self._end_with_the_process)
        given = {name: self._options[name] for name in ("seq_len", "batch")}
        try:
            self._training = training_of(trainer, **given)
            if waits and (self._training.seq_len is None or self._training.is_length_assumed):
                self._awaits_batch = True
            else:
                self._review = advice.announced(self._training, **self._where)
        except Exception as error:
            advice.warn(error)

    @property
    def _where(self) -> dict[str, Any]:
        return {name: self._options[name] for name in ("cluster", "store")}

    def _observe(self, batch: Any) -> None:
        """Count a batch's tokens, and review the training if it waits for them. Never raises."""
        from autotune.observing import advice
        from autotune.observing.objects import tokens_of_batch

        try:
            tokens = tokens_of_batch(batch)
            if tokens is not None:
                self._batches, self._tokens = self._batches + 1, self._tokens + tokens
            if self._awaits_batch:
                self._awaits_batch = False
                self._training = self._with_seen_length()
                self._review = advice.announced(self._training, **self._where)
        except Exception as error:
            advice.warn(error)

    def _observe_batches(self, loader: Any) -> bool:
        """Whether the batches of this loader will be observed. Never raises."""
        from autotune.observing import advice
        from autotune.observing.objects import observe_batches

        if loader is None or not is_first(os.environ, ()):
            return False
        try:
            observe_batches(loader, self._observe)
        except Exception as error:
            advice.warn(error)
            return False
        return True

    def _with_seen_length(self) -> Any:
        """The training with the mean number of tokens per sequence that its batches had; as it is if
        no batch said it."""
        if not (self._batches and self._training and self._training.micro_batch):
            return self._training
        seen = self._tokens / (self._batches * self._training.micro_batch)
        return replace(self._training, seq_len=max(1, round(seen)), is_length_assumed=False)

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
            self._review_seen_length()
            advice.kept(self._run(began, error, is_late), self._options["store"])
        except Exception as trouble:
            advice.warn(trouble)

    def _review_seen_length(self) -> None:
        """Review the training again if its batches had other lengths than it was reviewed for, so
        that the run is compared and stored with the tokens that were trained."""
        from autotune.observing import advice

        seen = self._with_seen_length()
        if self._review is None or seen is None:
            return
        reviewed = self._training.seq_len
        if abs(seen.seq_len - reviewed) <= LENGTH_TOLERANCE * reviewed:
            return
        self._review = advice.reviewed(seen, **self._where)
        advice.say(
            f"sequences had {seen.seq_len} tokens on average, not the {reviewed} that were reviewed; the run is compared and stored with {seen.seq_len}"
        )

    def _run(self, began: datetime, error: BaseException | None, is_late: bool) -> ObservedRun:
        from autotune.observing import advice

        study, config = (self._review.study, self._review.config) if self._review else (None, None)
        interrupted = isinstance(error, KeyboardInterrupt) or (is_late and error is None)
        outcome = Outcome.of(is_interrupted=interrupted, has_failed=error is not None)
        seen = _measurement(self._times)
        if study is not None and config is not None:
            from autotune.cost import training_flops_per_token

            gpu = study.workload.cluster.gpu
            tokens = config.global_batch_size * study.workload.tokens_per_sequence
            if self._batches:
                tokens = self._tokens / self._batches * config.accumulation_steps * config.dp
            seen = replace(
                seen,
                tokens_per_step=round(tokens),
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
