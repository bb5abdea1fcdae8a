"""One rank's share of the training that a config describes: built once, then stepped.

A step: forward and backward of all micro-batches (in a pipeline or one after the other), gradients summed over ranks, one verdict for all
ranks on loss and gradient, clipping to norm 1, optimizer. The optimizer works on plain fp32 tensors, whatever cut the weights.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import record_function

from autotune.errors import ConfigError
from autotune.ports import TrialRequest
from autotune.reward import learning_rate_factor
from autotune.spec import ParallelConfig
from autotune_workers.training.activation_checkpointing import (
    check_compiler,
    compile_layers,
    no_silent_fallback,
    recompute_layers,
)
from autotune_workers.training.context_parallel import check_context, context_attention, positions_of
from autotune_workers.training.data import TokenStream, rows_of
from autotune_workers.training.data_parallel import GradientSync, Replicated, Weight, local_gradient
from autotune_workers.training.decoder import Block, DecoderStage, draw, global_names
from autotune_workers.training.expert_parallel import MixtureOfExperts, check_experts
from autotune_workers.training.fully_sharded import FullySharded, shard_module
from autotune_workers.training.mesh import RankContext, build_mesh
from autotune_workers.training.pipeline_parallel import Pipeline, check_pipeline, layers_of_rank
from autotune_workers.training.precision import DTYPES, LossScaler, check_precision, matrix_products, to_float8
from autotune_workers.training.profile import OPTIMIZER
from autotune_workers.training.tensor_parallel import VocabularyParallelLoss, cut_stage, local_part, vocabulary_slice

LEARNING_RATES = {"adamw": 3e-4, "sgd": 1e-2}
CLIP_NORM = 1.0
LOSS_SCALE = 2.0**16
"""as in torch.amp"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step did, the same on all ranks."""

    loss: float
    """mean over all tokens of the global batch, nats"""
    grad_norm: float
    """global norm before clipping"""
    finite: bool
    """loss and gradient norm are"""
    skipped: bool
    """loss scaling explains the overflow; nothing was updated"""
    part_square: float
    """squared norm of the mean gradient of `part_size` sequences, before clipping; nan where it is not known"""


class Training:
    """The model, data and optimizer of one rank."""

    def __init__(self, request: TrialRequest, context: RankContext) -> None:
        """Builds everything; collective. Raises `ConfigError` when the config cannot be trained here, before anything is built."""
        self.request, self.context = request, context
        self.config, self.model = request.config, request.workload.model
        _check(request, context)
        self.stream = TokenStream(
            request.data, seq_len=request.workload.seq_len, vocab_size=self.model.vocab_size, seed=request.seed
        )
        self.mesh = build_mesh(self.config, context)
        self._twins = self._twin_group()
        self._scaler = LossScaler(self.config.precision, start=_loss_scale(request))
        self._first_square = torch.zeros((), dtype=torch.float64, device=context.device)
        self._vocabulary = (0, self.model.vocab_size)
        self._stages = {i: self._build_stage(layers) for i, layers in self._layers().items()}
        weights = [w for stage in self._stages.values() for w in self._weights(stage)]
        self.sync: GradientSync
        if self.config.zero_stage >= 2:
            modules = [m for stage in self._stages.values() for m in stage.modules()]
            self.sync = FullySharded(modules, weights, stage=self.config.zero_stage)
        else:
            self.sync = Replicated(weights, stage=self.config.zero_stage)
        self._optimizer = self._build_optimizer()
        self._pipeline = self._build_pipeline() if self.config.pp > 1 else None

    def _layers(self) -> dict[int, range]:
        return layers_of_rank(self.model, self.config, self.mesh.pp)

    def _build_stage(self, layers: range) -> DecoderStage:
        config, device = self.config, self.context.device
        with torch.device("meta"):
            stage = DecoderStage(self.model, layers, dtype=DTYPES[config.precision], experts=self._experts())
        if config.precision == "fp8":
            to_float8(stage)
        if config.tp > 1:
            cut_stage(stage, self.mesh.axes["tp"], sequence_parallel=config.sequence_parallel)
        if stage.is_last:
            self._vocabulary = vocabulary_slice(stage)
        recompute_layers(stage, config.recompute)
        if config.compile:
            compile_layers(stage)
        names = {p: n for n, p in global_names(stage)}
        # layer by layer: a cut layer's whole weights are freed before the next one's are made
        for module in (*stage.layers.values(), stage):
            self._fill(module, names)
            if config.zero_stage >= 2:
                self._shard(module)
        attention, stream = self._positions()
        stage.place(attention.to(device), stream.to(device))
        if config.cp > 1:
            core = context_attention(self.request.workload.seq_len, self.mesh.group("cp"), device)
            for block in stage.layers.values():
                block.attention.attend = core
        return stage

    def _experts(self) -> Callable[[], nn.Module] | None:
        if not self.model.num_experts:
            return None
        group = self.mesh.group("ep") if self.config.ep > 1 else None
        return functools.partial(MixtureOfExperts, self.model, group=group)

    def _shard(self, module: nn.Module) -> None:
        dtype, stage = DTYPES[self.config.precision], self.config.zero_stage
        if self.config.ep > 1 and isinstance(module, Block):
            assert isinstance(module.mlp, MixtureOfExperts)
            shard_module(module.mlp.experts, self.mesh.axes["expert_data"], stage=stage, dtype=dtype)
        shard_module(module, self.mesh.axes["dp_cp"], stage=stage, dtype=dtype)

    def _fill(self, module: nn.Module, names: dict[nn.Parameter, str]) -> None:
        """Gives the module's weights on meta their memory and starting values."""
        for inner in module.modules():
            for key, parameter in inner.named_parameters(recurse=False):
                if parameter.device.type != "meta":
                    continue
                name = names[parameter]
                whole = draw(name, parameter.shape, self.model, self.request.seed, self.context.device)
                values: Tensor = local_part(whole, parameter).clone()
                if isinstance(parameter, DTensor):
                    values = DTensor.from_local(
                        values,
                        parameter.device_mesh,
                        parameter.placements,
                        run_check=False,
                        shape=parameter.shape,
                        stride=parameter.stride(),
                    )
                inner.register_parameter(key, nn.Parameter(values))
        for stage in (m for m in module.modules() if isinstance(m, DecoderStage)):
            stage.tie()

    def _positions(self) -> tuple[Tensor, Tensor]:
        """Positions that attention sees on this rank, and those that the residual stream holds."""
        config = self.config
        here = positions_of(self.request.workload.seq_len, config.cp, self.mesh.cp)
        stream = here.chunk(config.tp)[self.mesh.tp] if config.sequence_parallel and config.tp > 1 else here
        return here, stream

    def _weights(self, stage: DecoderStage) -> Iterator[Weight]:
        ranks = self.config.dp * self.config.cp
        dense = self.mesh.group("dp_cp") if ranks > 1 else None
        experts = dense if self.config.ep == 1 else self.mesh.group("expert_data") if ranks > self.config.ep else None
        for name, parameter in global_names(stage):
            cut = isinstance(parameter, DTensor) and any(
                p.is_shard()
                for p, axis in zip(parameter.placements, parameter.device_mesh.mesh_dim_names or (), strict=True)
                if axis == "tp"
            )
            tied = name == "embed.weight" and self._twins is not None
            yield Weight(
                name=name,
                parameter=parameter,
                group=experts if ".experts." in name else dense,
                twins=self._twins if tied else None,
                copies=(1 if cut else self.config.tp) * (2 if tied else 1),
            )

    def _twin_group(self) -> dist.ProcessGroup | None:
        """First and last pipeline rank, which both hold a tied embedding."""
        if self.config.pp == 1 or not self.model.tied_embeddings:
            return None
        ranks = self.mesh.root.mesh
        ends = torch.stack((ranks[0].flatten(), ranks[-1].flatten()), dim=1).tolist()
        groups = [dist.new_group(pair) for pair in ends]
        mine = [g for g, pair in zip(groups, ends, strict=True) if self.context.rank in pair]
        return mine[0] if mine else None

    def _build_optimizer(self) -> torch.optim.Optimizer:
        tensors = [s.tensor for s in self.sync.shards]
        kind = self.request.workload.optimizer
        rate = _learning_rate(self.request)
        if kind == "sgd":
            return torch.optim.SGD(tensors, lr=rate, foreach=True)
        return torch.optim.AdamW(tensors, lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def _build_pipeline(self) -> Pipeline:
        config, workload = self.config, self.request.workload
        seq_len = workload.seq_len // config.cp
        stream_len = seq_len // config.tp if config.sequence_parallel else seq_len
        return Pipeline(
            self._stages,
            config,
            group=self.mesh.group("pp"),
            device=self.context.device,
            stream_shape=(config.micro_batch_size, stream_len, self.model.hidden_size),
            logits_shape=(config.micro_batch_size, seq_len, self._vocabulary[1]),
            loss=self._loss,
        )

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """This micro-batch's share of the global mean loss, scaled for fp16."""
        flat, wanted = logits.flatten(0, 1).float(), targets.flatten()
        if self.config.tp > 1:
            losses = VocabularyParallelLoss.apply(flat, wanted, self._vocabulary[0], self.mesh.group("tp")).mean()
        else:
            losses = F.cross_entropy(flat, wanted)
        parts = self.config.accumulation_steps * self.config.dp * self.config.cp
        return losses * (self._scaler.scale / parts)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets (micro_batch_size * accumulation_steps, s) of this rank in a step."""
        config = self.config
        rows = rows_of(
            step,
            dp=config.dp,
            dp_rank=self.mesh.dp,
            micro_batch_size=config.micro_batch_size,
            accumulation_steps=config.accumulation_steps,
        )
        windows = self.stream.sequences(rows).to(self.context.device)
        here = positions_of(self.request.workload.seq_len, config.cp, self.mesh.cp).to(windows.device)
        return windows[:, :-1][:, here], windows[:, 1:][:, here]

    def step(self, tokens: Tensor, targets: Tensor) -> Outcome:
        """One optimizer step; collective."""
        count = self.config.accumulation_steps
        self.sync.expect(count)
        compiled = no_silent_fallback() if self.config.compile else nullcontext()
        with matrix_products(self.config.precision), compiled, warnings.catch_warnings():
            # logits are a view of a DTensor's local part; nothing here writes into them
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            losses = self._pipeline.step(tokens, targets) if self._pipeline else self._accumulate(tokens, targets)
        self.sync.finish()
        loss = torch.stack([x.detach() for x in losses]).sum() if losses else torch.zeros((), device=tokens.device)
        scale = self._scaler.scale
        outcome = self._agree(loss)
        if not outcome.skipped and outcome.finite:
            with record_function(OPTIMIZER):
                self._update(outcome.grad_norm, scale)
        self.sync.publish()
        return outcome

    @property
    def _notes_first(self) -> bool:
        """Whether the first micro-batch's gradient is seen alone and whole, and wanted."""
        config = self.config
        alone = config.dp * config.pp * config.cp * config.ep == 1
        return alone and config.zero_stage < 2 and config.accumulation_steps > 1

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        (stage,) = self._stages.values()
        losses = []
        for i, (x, y) in enumerate(
            zip(tokens.split(self.config.micro_batch_size), targets.split(self.config.micro_batch_size), strict=True)
        ):
            if isinstance(self.sync, FullySharded):
                self.sync.micro_batch(i)
            loss = self._loss(stage(x), y)
            loss.backward()
            losses.append(loss.detach())
            if i == 0 and self._notes_first:
                self._first_square = self._local_square(stage)
        return losses

    def _local_square(self, stage: DecoderStage) -> Tensor:
        """This rank's share of the squared norm of the gradient so far; collective over tp."""
        weights = list(self._weights(stage))
        norms = torch._foreach_norm([local_gradient(w.parameter) for w in weights])
        shares = [norm.double().square() / w.copies for norm, w in zip(norms, weights, strict=True)]
        return torch.stack(shares).sum()

    def _agree(self, loss: Tensor) -> Outcome:
        """Sums over all ranks what each knows of loss and gradient, so that all come to one verdict."""
        square = torch.zeros((), device=loss.device, dtype=torch.float64)
        grads = [s.tensor.grad for s in self.sync.shards]
        norms = torch._foreach_norm(grads)
        for norm, shard in zip(norms, self.sync.shards, strict=True):
            square += norm.double().square() / shard.copies
        part = self._part_square()
        sums = torch.stack(
            (loss.double() / self.config.tp, square, square.new_tensor(math.nan) if part is None else part)
        )
        dist.all_reduce(sums)
        scale = self._scaler.scale
        total_loss, total_square, total_part = sums.tolist()
        total_loss, norm = total_loss / scale, math.sqrt(total_square) / scale if total_square >= 0 else math.nan
        finite = math.isfinite(norm)
        skipped = self._scaler.update(finite)
        return Outcome(
            loss=total_loss,
            grad_norm=norm,
            finite=finite and math.isfinite(total_loss),
            skipped=skipped and math.isfinite(total_loss),
            part_square=total_part / scale**2,
        )

    def _part_square(self) -> Tensor | None:
        """This rank's share of the squared norm of the mean gradient of `part_size` sequences, times the loss scale squared; shares add up."""
        count, dp = self.config.accumulation_steps, self.config.dp
        if self.config.cp > 1 or self.config.ep > 1:  # what a rank sees are no whole sequences
            return None
        if dp == 1:  # the first micro-batch alone
            return self._first_square * count**2 if self._notes_first else None
        own = self.sync.local_square  # of this rank's part of the batch alone; wanted is the mean over ranks
        return None if own is None else own.double() * dp

    def _update(self, norm: float, scale: float) -> None:
        grads = [s.tensor.grad for s in self.sync.shards]
        factor = min(1.0, CLIP_NORM / (norm + 1e-6)) / scale
        if factor != 1.0:
            torch._foreach_mul_(grads, factor)
        self._optimizer.step()


def part_size(config: ParallelConfig) -> int:
    """Sequences of which `Outcome.part_square` tells the gradient: one data-parallel rank's, or on one rank the first micro-batch's."""
    return config.global_batch_size // config.dp if config.dp > 1 else config.micro_batch_size


def _learning_rate(request: TrialRequest) -> float:
    """The trainer option `learning_rate` (or what is usual for the optimizer), which is that of the smallest global batch of the
    workload; larger ones take more, as the efficiency of a batch presupposes (`autotune.reward.goodput`)."""
    workload = request.workload
    rate = request.trainer_options.get("learning_rate", LEARNING_RATES[workload.optimizer])
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise ConfigError(
            f"learning_rate must be a finite number of at least 0, but is {rate!r}", field="learning_rate"
        )
    smallest = min(workload.global_batch_sizes)
    return float(rate) * learning_rate_factor(request.config.global_batch_size, smallest, workload.optimizer)


def _loss_scale(request: TrialRequest) -> float:
    """The trainer option `loss_scale`: what loss scaling starts from in fp16."""
    scale = request.trainer_options.get("loss_scale", LOSS_SCALE)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 1 <= scale < math.inf:
        raise ConfigError(f"loss_scale must be a finite number of at least 1, but is {scale!r}", field="loss_scale")
    return float(scale)


def _check(request: TrialRequest, context: RankContext) -> None:
    """Raises `ConfigError` for what this trainer cannot run, with the law that forbids it."""
    config, model, seq_len = request.config, request.workload.model, request.workload.seq_len
    if config.world_size != context.world_size:
        raise ConfigError(
            f"tp * pp * dp * cp must be the number of ranks, but {config.world_size} != {context.world_size}"
        )
    _learning_rate(request)
    _loss_scale(request)
    check_precision(config, model, context.device)
    if config.compile:
        check_compiler(context.device)
    check_pipeline(model, config)
    check_context(seq_len, config.cp)
    check_experts(model, config)
    for name, value in (
        ("num_attention_heads", model.num_attention_heads),
        ("num_kv_heads", model.num_kv_heads),
        ("ffn_hidden_size", model.ffn_hidden_size),
    ):
        if value % config.tp:
            raise ConfigError(f"tp must divide {name}, but tp={config.tp} and {name}={value}", field="tp")
    if config.sequence_parallel and seq_len // config.cp % config.tp:
        raise ConfigError(
            f"tp must divide seq_len / cp under sequence_parallel, but tp={config.tp} and {seq_len // config.cp}",
            field="tp",
        )
    if model.max_positions and seq_len > model.max_positions:
        raise ConfigError(
            f"seq_len must not exceed max_positions, but {seq_len} > {model.max_positions}", field="seq_len"
        )
