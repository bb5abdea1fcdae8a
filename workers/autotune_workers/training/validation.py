"""What the native trainer cannot run: every law that a request has to keep on the ranks that it was given."""

from __future__ import annotations

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune_workers.training.activation_checkpointing import check_compiler
from autotune_workers.training.context_parallel import check_context
from autotune_workers.training.expert_parallel import check_experts
from autotune_workers.training.loop_knobs import NATIVE_LOOP
from autotune_workers.training.mesh import RankContext
from autotune_workers.training.optimizer import learning_rate
from autotune_workers.training.pipeline_parallel import check_pipeline
from autotune_workers.training.precision import check_precision, first_loss_scale
from autotune_workers.training.tensor_parallel import check_tensor


def validate(request: TrialRequest, context: RankContext) -> None:
    """Raises `ConfigError` with the first law that the request breaks."""
    config, model, seq_len = request.config, request.workload.model, request.workload.seq_len
    if config.world_size != context.world_size:
        raise ConfigError(
            f"tp * pp * dp * cp must be the number of ranks, but {config.world_size} != {context.world_size}"
        )
    NATIVE_LOOP.check(config)
    learning_rate(request)
    first_loss_scale(request)
    check_precision(config, model, context.device)
    if config.compile:
        check_compiler(context.device)
    check_pipeline(model, config)
    check_context(seq_len, config.cp)
    check_experts(model, config)
    check_tensor(model, config, seq_len)
    if model.max_positions and seq_len > model.max_positions:
        raise ConfigError(
            f"seq_len must not exceed max_positions, but {seq_len} > {model.max_positions}", field="seq_len"
        )
