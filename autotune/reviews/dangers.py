"""Warnings about a launch, with the line that causes each. Each rule follows from the text, the
config, or the prediction."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from autotune.cost import estimate
from autotune.plan.plan import FITS
from autotune.reviews.answer import Danger
from autotune.spec import Estimate, ParallelConfig, Workload
from autotune.spec.estimate import AT_THE_LIMIT
from autotune.spec.texts.as_text import format_bytes, number_of

FREE = 0.6
"""share of the GPU's memory that must be free for a warning about recomputation"""
BUBBLE = 0.25
"""share of a step spent in pipeline bubbles above which there is a warning"""

_SLOW_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": (
        "1",
        "every kernel waits for the previous kernel; use this only for debugging",
    ),
    "TORCH_DISTRIBUTED_DEBUG": (
        "DETAIL",
        "every collective is first checked on all ranks; use this only for debugging",
    ),
    "NCCL_P2P_DISABLE": (
        "1",
        "GPUs in a node communicate through the host instead of NVLink or PCIe",
    ),
    "NCCL_IB_DISABLE": ("1", "nodes communicate over TCP instead of InfiniBand or RoCE"),
    "NCCL_SHM_DISABLE": ("1", "ranks on a node communicate through the network stack"),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "the host waits for each collective"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (
        "1",
        "the CUDA driver allocates each tensor; use this only for debugging",
    ),
}
"""environment variables that slow down a training: (value, reason)"""


def dangers_of(
    texts: Mapping[str, str],
    workload: Workload | None = None,
    config: ParallelConfig | None = None,
    predicted: Estimate | None = None,
    *,
    is_upper_bound: bool = False,
    is_lower_bound: bool = False,
) -> Iterator[Danger]:
    """The warnings about a launch, the worst first. `is_upper_bound`: whether the launch saves
    memory in a way that predictions ignore; `is_lower_bound`: whether it needs memory that
    predictions ignore."""
    if workload is not None and config is not None and predicted is not None:
        if (
            not is_upper_bound
            and (words := _sharding_advice(workload, config, predicted, is_lower_bound)) is not None
        ):
            yield Danger(text=words, makes_fit=not is_lower_bound)
        yield from _config_warnings(texts, workload, config, predicted, is_lower_bound)
    for name, text in texts.items():
        yield from _flag_warnings(name, text, workload, config)
        if name.endswith(".py"):
            yield from _program_warnings(name, text, config)
        yield from _variable_warnings(name, text)


_SCALES_LOSSES = re.compile(
    r"GradScaler|loss_scale|initial_scale_power|HfArgumentParser|Trainer\(|accelerat"
)
_SENDS_LATE = re.compile(
    r"no_sync|set_requires_gradient_sync|require_backward_grad_sync|set_is_last_backward|accelerat|Trainer\("
)


def _config_warnings(
    texts: Mapping[str, str],
    workload: Workload,
    config: ParallelConfig,
    predicted: Estimate,
    is_lower_bound: bool,
) -> Iterator[Danger]:
    """Warnings that follow from config and prediction."""
    gpu, is_cpu = workload.cluster.gpu, workload.cluster.gpu.is_cpu
    used = float(predicted.peak_memory_bytes) / gpu.memory_bytes
    bubble = float(predicted.time_parts_s.bubble) / float(predicted.step_time_s)
    # libraries' loops apply loss scaling themselves
    has_own_loop = workload.trainer == "command" and not workload.loop
    has_python = any(name.endswith(".py") for name in texts)
    is_scaled = any(_SCALES_LOSSES.search(text) for text in texts.values())
    rules = (
        (
            config.recompute != "none" and used < 1.0 - FREE and not is_lower_bound,
            r"gradient_checkpoint|activation_checkpoint|checkpoint_activation|activation_checkpointing|recompute",
            f"recompute={config.recompute} repeats the forward pass, but only {used:.0%} of the GPU's {format_bytes(gpu.memory_bytes)} is predicted to be used; switch recomputation off, or use the free memory for a larger micro-batch",
        ),
        (
            bubble > BUBBLE,
            r"pipeline|\bpp\b",
            f"pipeline bubbles take {bubble:.0%} of each step, because {config.pp} stages share {number_of(config.accumulation_steps, 'micro-batch', 'micro-batches')}; use smaller micro-batches, fewer stages or an interleaved schedule",
        ),
        (
            config.precision == "fp32" and "bf16" in gpu.peak_flops_per_s and not is_cpu,
            r"precision|dtype|bf16|fp16",
            f"fp32 does not use {gpu.name}'s tensor cores; bf16, or TF32 with fp32 weights, is several times faster",
        ),
        (
            config.precision == "fp16" and has_own_loop and has_python and not is_scaled,
            r"float16|fp16|half\(",
            "without loss scaling, small fp16 gradients become 0; use torch.amp.GradScaler, or bf16 if the GPU supports it",
        ),
    )
    for is_broken, pattern, words in rules:
        if is_broken:
            yield _at(texts, pattern, words)


def _sharding_advice(
    workload: Workload, config: ParallelConfig, predicted: Estimate, is_lower_bound: bool
) -> str | None:
    """A sentence on how sharding would make a launch fit whose ranks hold the whole model; None if
    it would not, or is not needed."""
    if (
        config.zero_stage == 3
        or config.dp == 1
        or float(predicted.oom_probability) <= AT_THE_LIMIT[1]
    ):
        return None
    cheapest = replace(
        config,
        zero_stage=3,
        recompute="full",
        micro_batch_size=1,
        accumulation_steps=config.global_batch_size // config.dp,
    )
    for other, condition in (
        (replace(config, zero_stage=3), ""),
        (cheapest, " with full recomputation and a micro-batch of 1"),
    ):
        found = estimate(workload, other)
        if float(found.oom_probability) <= FITS:
            parts = predicted.memory_parts_bytes
            states = float(parts.weights) + float(parts.gradients) + float(parts.optimizer)
            return (
                f"with zero_stage={config.zero_stage}, each rank holds {format_bytes(states)} of weights, gradients and optimizer states; if FSDP or ZeRO 3 shards these across {config.dp} ranks"
                f"{condition}, a rank needs {format_bytes(float(found.peak_memory_bytes))} in all, {'plus memory that is not predicted' if is_lower_bound else 'which fits'}"
            )
    return None


def _variable_warnings(name: str, text: str) -> Iterator[Danger]:
    """Warnings about environment variables."""
    for variable, (value, why) in _SLOW_VARIABLES.items():
        for at, line in enumerate(text.splitlines(), start=1):
            # in Python, a mention in a docstring sets nothing
            if name.endswith(".py") and "environ" not in line:
                continue
            if not line.lstrip().startswith("#") and re.search(
                rf"\b{variable}[\"']?\]?\s*=\s*[\"']?{value}\b", line
            ):
                yield Danger(text=f"{variable}={value}: {why}", line=at, file=name)


def _program_warnings(name: str, text: str, config: ParallelConfig | None) -> Iterator[Danger]:
    """Warnings about calls in a Python program."""

    def at(pattern: str) -> int | None:
        return next((n for n, line in code_lines(text) if re.search(pattern, line)), None)

    steps = config.accumulation_steps if config is not None else 1
    sends_each = steps > 1 and not _SENDS_LATE.search(text)
    rules = (
        (
            True,
            r"set_detect_anomaly\(\s*(?:True|mode=True)?\s*\)|detect_anomaly\s*=\s*True",
            "anomaly detection checks every operator in the backward pass; use this only for debugging",
        ),
        (
            sends_each,
            r"fully_shard\(|FullyShardedDataParallel\(|FSDP\(|DistributedDataParallel\(|DDP\(",
            f"gradients are sent after each of {steps} micro-batches; use no_sync() (FSDP2: set_requires_gradient_sync(False)) for all micro-batches but the last",
        ),
        (
            True,
            r"find_unused_parameters\s*=\s*True",
            "find_unused_parameters walks the graph after each forward pass; set it to False if all parameters are used",
        ),
    )
    for may_be, pattern, why in rules:
        if may_be and (line := at(pattern)):
            yield Danger(text=why, line=line, file=name)
    for number, line_text in code_lines(text):
        found = re.search(r"\bDataLoader\((.*)", line_text)
        if not found:
            continue
        call = "\n".join(each for n, each in code_lines(text) if number <= n < number + 12)
        workers = re.search(r"num_workers\s*=\s*([\w.]+)", call)
        if workers is None or workers[1] == "0":
            yield Danger(
                text="the data loader has no workers (num_workers=0), so training waits while a batch is prepared; set 2 to 8 workers",
                line=number,
                file=name,
            )
        break


def _flag_warnings(
    name: str, text: str, workload: Workload | None, config: ParallelConfig | None
) -> Iterator[Danger]:
    """Warnings about flags that have no effect, or contradict each other."""
    flags: dict[str, tuple[int, str]] = {}
    for number, line in code_lines(text):
        for found in re.finditer(r"(?:^|\s)--([A-Za-z][\w.-]*)(?:[=\s]+([^\s\\-][^\s\\]*))?", line):
            flags.setdefault(
                found[1].replace("-", "_"), (number, (found[2] or "true").strip("\"'").lower())
            )

    def on(flag: str) -> bool:
        return flag in flags and flags[flag][1] not in ("false", "0", "no", "none")

    recomputes = config is not None and config.recompute != "none"  # some programs do by default
    is_python, unset = name.endswith(".py"), "dataloader_num_workers" not in flags
    rules = (
        (
            on("bf16") and on("fp16"),
            "fp16",
            "--bf16 and --fp16 are both on; programs reject this, or use only one of the two",
        ),
        (
            "amp_dtype" in flags and not on("amp") and not is_python,
            "amp_dtype",
            "--amp-dtype has no effect without --amp, so the training runs in fp32",
        ),
        (
            "gradient_checkpointing_kwargs" in flags
            and not (recomputes or on("gradient_checkpointing")),
            "gradient_checkpointing_kwargs",
            "--gradient_checkpointing_kwargs has no effect without --gradient_checkpointing",
        ),
        (
            flags.get("dataloader_num_workers", (0, ""))[1] == "0",
            "dataloader_num_workers",
            "with --dataloader_num_workers 0, the GPU waits while a batch is prepared; set 2 to 8 workers to prepare batches in advance",
        ),
        (
            # a program with another loop may have the option for the batch, but not the one for workers
            "per_device_train_batch_size" in flags
            and unset
            and not is_python
            and workload is not None
            and workload.loop == "hf_trainer",
            "per_device_train_batch_size",
            "--dataloader_num_workers is not set, and with transformers' default of 0 the GPU waits while a batch is prepared; add --dataloader_num_workers 4",
        ),
        (
            on("auto_find_batch_size"),
            "auto_find_batch_size",
            "--auto_find_batch_size halves the micro-batch when memory runs out, which changes the batch per step",
        ),
        (
            on("tp_comm_overlap") and not on("sequence_parallel"),
            "tp_comm_overlap",
            "--tp-comm-overlap needs --sequence-parallel",
        ),
    )
    for is_broken, flag, why in rules:
        if is_broken:
            yield Danger(text=why, line=flags[flag][0], file=name)


def code_lines(text: str) -> list[tuple[int, str]]:
    """(number, text) of the lines that are not comments."""
    return [
        (n, line)
        for n, line in enumerate(text.splitlines(), start=1)
        if not line.lstrip().startswith("#")
    ]


def _at(texts: Mapping[str, str], pattern: str, words: str) -> Danger:
    """The warning, at the first line that matches the pattern."""
    for name, text in texts.items():
        for number, line in code_lines(text):
            if re.search(pattern, line, re.IGNORECASE):
                return Danger(text=words, line=number, file=name)
    return Danger(text=words)
