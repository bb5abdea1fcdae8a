"""Ray Train: tunes the training loop of an existing `ray.train.torch.TorchTrainer`.

    result = tune_torch_trainer(trainer, space={"micro_batch_size": [1, 2, 4]}, model="llama-1b", seq_len=2048, global_batch_size=64)
    with_config(trainer, result.best.config).fit()

The loop reads the knobs from its config by their names (`config["micro_batch_size"]`,
`config["zero_stage"]`, ...), and calls `ray.train.report` once per optimizer step, on all ranks. A
trial ends as soon as it is measured. Ray is imported when these functions are called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune import api
from autotune.ports import Store
from autotune.registry import RUNNERS, load
from autotune.results.result import Result
from autotune.spec import FIELDS, ParallelConfig
from autotune.study.progress import OnEvent

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

RAY_TRAIN = "ray_train"
"""name of the runner, and of the trainer"""


def tune_torch_trainer(
    trainer: TorchTrainer,
    *,
    space: str | Mapping[str, Any],
    model: str | Mapping[str, Any],
    seq_len: int,
    global_batch_size: int,
    cluster: str | Mapping[str, Any] | None = None,
    store: Store | str | Path | None = None,
    on_event: OnEvent | None = None,
    same_data: bool = False,
    **study: Any,
) -> Result:
    """Tune the trainer's loop with real trials, and return the result: `result.best.config`,
    `result.trials`, `result.speedup`.

    `space`: knobs and their values, or the name of a built-in space; include only knobs that the
    loop reads. `model`, `seq_len` (tokens) and `global_batch_size` (sequences): what the loop
    trains, for the cost model and for tokens per second. `cluster`: by default, one node with a
    rank for each trainer worker, on CPUs or, with `use_gpu`, on this machine's GPUs. `same_data`:
    whether the loop sees the same batches in the same order with every config, so that losses can
    be compared step by step. `study`: any other key of a study spec, e.g. `budget={"max_trials":
    8}`, `knobs={"prefetch": [0, 2]}`, `baseline={...}`, `name="..."`. The baseline has the current
    knob values of the trainer's `train_loop_config`, if it has any. The trainer itself is not
    changed, and no checkpoint of a trial is kept.

    The same call continues an interrupted study. Raises `MissingExtraError` without Ray Train,
    `SpecError` and `InfeasibleError` before anything starts, and `RunnerError`.
    """
    runner_type = load(RUNNERS, RAY_TRAIN)
    runner_type.check_trainer(trainer)
    workers = int(trainer.scaling_config.max_workers)
    own_knobs = study.get("knobs", {})
    baseline = {
        k: v for k, v in (trainer.train_loop_config or {}).items() if k in FIELDS or k in own_knobs
    }
    document = {
        "name": _name(trainer.train_loop_per_worker),
        **({"baseline": baseline} if baseline else {}),
        "check": False,  # there is no program log to check
        **study,
        "model": model,
        "cluster": cluster or _cluster(trainer, workers),
        "workload": {"seq_len": seq_len, "global_batch_size": global_batch_size},
        "space": space,
        "trainer": {"kind": RAY_TRAIN, "same_data": same_data},
        "runner": RAY_TRAIN,
    }
    loaded = api.load_study(document, base=Path.cwd())
    runner = runner_type(trainer=trainer)
    return api.tune(loaded, spec=document, runner=runner, store=store, on_event=on_event)


def with_config(trainer: TorchTrainer, config: ParallelConfig) -> TorchTrainer:
    """A TorchTrainer like `trainer` with the knobs of `config` in its `train_loop_config` and one
    worker for each rank, ready to `fit`."""
    configured: TorchTrainer = load(RUNNERS, RAY_TRAIN).with_config(trainer, config)
    return configured


def _name(loop: Any) -> str:
    """A study name made from the loop's module and name, without special characters."""
    words = f"{getattr(loop, '__module__', '')}.{getattr(loop, '__qualname__', 'train')}"
    return re.sub(r"[^A-Za-z0-9_.]", "", words).strip("_.")[:100] or "ray-train"


def _cluster(trainer: TorchTrainer, workers: int) -> str | dict[str, Any]:
    if trainer.scaling_config.use_gpu:
        return "local"
    return {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": workers}
