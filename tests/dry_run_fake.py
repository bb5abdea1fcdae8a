"""A dry runner of tests: the runs of a small decoder by plain arithmetic, without torch. Every
figure follows from the workload and the config."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.errors import DryRunError
from autotune.ports import DryRunLimits
from autotune.spec import (
    CollectiveCall,
    DryRun,
    MatrixProduct,
    MemorySample,
    ModelSpec,
    ModuleCost,
    Moment,
    ParallelConfig,
    Phase,
    Workload,
)

LAYERS = 4
"""samples of a forward or backward pass"""


@dataclass
class FakeDryRunner:
    """Answers at once; raises `error` where one is set, and remembers which pipeline ranks it was
    asked for."""

    error: DryRunError | None = None
    guesses: tuple[str, ...] = ()
    asked: list[int] = field(default_factory=list)
    limits: list[DryRunLimits] = field(default_factory=list)

    def inspect(self, model: ModelSpec, *, limits: DryRunLimits) -> ModelSpec:
        """The model as it is."""
        self.limits.append(limits)
        return model

    def run(
        self,
        workload: Workload,
        config: ParallelConfig,
        *,
        pp_rank: int,
        limits: DryRunLimits,
    ) -> DryRun:
        """The run of one rank; the first rank of a pipeline holds the most micro-batches, so it is
        the fullest."""
        self.asked.append(pp_rank)
        self.limits.append(limits)
        if self.error is not None:
            raise self.error
        model = workload.model
        weights = 2 * model.num_parameters // (config.tp * config.pp)
        tokens = config.micro_batch_size * workload.seq_len
        layer = 34 * tokens * model.hidden_size // config.tp
        held = config.pp - pp_rank

        def sample(phase: Phase, micro_batch: int, layers: int, module: str) -> MemorySample:
            parts = {"parameters": weights, "gradients": weights, "optimizer": 4 * weights}
            parts |= {"activations": held * layers * layer, "inputs": 16 * tokens}
            return MemorySample(
                moment=Moment(step=1, phase=phase, micro_batch=micro_batch, module=module),
                parts_bytes=parts,
            )

        last = min(config.accumulation_steps, held) - 1
        forward = [sample("forward", last, i + 1, f"layers.{i}") for i in range(LAYERS)]
        backward = [
            sample("backward", last, LAYERS - i, f"layers.{LAYERS - 1 - i}") for i in range(LAYERS)
        ]
        timeline = (*forward, *backward, sample("optimizer", -1, 0, ""))
        dp = CollectiveCall(
            kind="all_reduce",
            axis="dp_cp",
            ranks=tuple(range(config.dp)),
            num_bytes=weights,
            phase="backward",
            count=2,
        )
        return DryRun(
            rank=pp_rank * config.dp * config.tp,
            pp_rank=pp_rank,
            world_size=config.world_size,
            num_parameters=model.num_parameters,
            rank_parameters=weights // 2,
            peak=max(timeline, key=lambda s: s.total_bytes),
            phase_peaks=timeline[-1:],
            timeline=timeline,
            modules=tuple(
                ModuleCost(
                    name=f"layers.{i}",
                    kind="Block",
                    parameter_bytes=weights // LAYERS,
                    saved_bytes=layer,
                    at_peak_bytes=(i + 1) * layer,
                    forward_flops=2 * weights * tokens // LAYERS,
                    backward_flops=4 * weights * tokens // LAYERS,
                )
                for i in range(LAYERS)
            ),
            flops=3 * weights * tokens,
            products=(
                MatrixProduct(
                    m=tokens, n=model.hidden_size, k=model.hidden_size, dtype="bfloat16", count=12
                ),
            ),
            collectives=(dp,) if config.dp > 1 else (),
            guesses=self.guesses,
            took_s=1.5,
            process_peak_bytes=400 << 20,
            versions={"torch": "2.13.0"},
        )
