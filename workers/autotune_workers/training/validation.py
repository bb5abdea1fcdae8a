"""What the native trainer cannot run: every law that a request has to keep on the ranks that it was given.

What the native training loop does with each knob: it reads those that its trainer says it reads (`autotune.trainers.catalog.native`).
"""

from __future__ import annotations

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.spec import KnobUse
from autotune.trainers.catalog.native import NativeTrainer
from autotune.trainers.workload_limits import own_model_limits
from autotune_workers.training.activation_checkpointing import check_compiler
from autotune_workers.training.context_parallel import check_context
from autotune_workers.training.expert_parallel import check_experts
from autotune_workers.training.low_rank_adapters import check_adapters
from autotune_workers.training.mesh import RankContext, check_replicas
from autotune_workers.training.optimizer import check_optimizer, learning_rate
from autotune_workers.training.pipeline_parallel import check_pipeline, check_schedule
from autotune_workers.training.precision import check_precision, first_loss_scale
from autotune_workers.training.tensor_parallel import check_tensor

NATIVE_LOOP = KnobUse(
    part="native training loop",
    reads=NativeTrainer.reads,
    neutral=NativeTrainer.neutral,
    cannot=NativeTrainer.cannot,
)
"""A config with a knob that it does not know fails as invalid before anything is built."""


def validate(request: TrialRequest, context: RankContext) -> None:
    """Raises `ConfigError` with the first law that the request breaks."""
    config, model, seq_len = request.config, request.workload.model, request.workload.seq_len
    if config.world_size != context.world_size:
        raise ConfigError(
            f"tp * pp * dp * cp must be the number of ranks, but {config.world_size} != {context.world_size}"
        )
    NATIVE_LOOP.check(config)
    check_optimizer(request)
    learning_rate(request)
    first_loss_scale(request)
    check_precision(config, model, context.device)
    if config.compile:
        check_compiler(context.device)
    check_replicas(config)
    if model.code is not None:
        _check_own(request)
        return
    check_pipeline(model, config)
    check_context(request.workload, config)
    check_experts(model, config)
    check_tensor(model, config, seq_len)
    check_adapters(request.workload, config)
    if model.max_positions and seq_len > model.max_positions:
        raise ConfigError(
            f"seq_len must not exceed max_positions, but {seq_len} > {model.max_positions}", field="seq_len"
        )


def _check_own(request: TrialRequest) -> None:
    """Raises `ConfigError` for what the loop cannot do with a model that code builds."""
    limits = tuple(own_model_limits(request.workload, request.config))
    if limits:
        raise ConfigError("; ".join(map(str, limits)), field=limits[0].knob)
    if request.config.pp > 1:
        check_schedule(request.config)
