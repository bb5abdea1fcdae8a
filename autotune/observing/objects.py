"""Reads model, ranks, batch and knobs of a training from the object that runs it: transformers' or
Lightning's `Trainer`, accelerate's `Accelerator`, a `DeviceMesh` with a module, or a module. None
of these packages is imported; objects are recognized by the names of their classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import SpecError
from autotune.slurm.allocation import number
from autotune.spec.texts.fsdp import STAGE_KEYS, fsdp_of, stage_of

_PRECISIONS = (
    ("bf16", "bf16"),
    ("bfloat16", "bf16"),
    ("fp16", "fp16"),
    ("16", "fp16"),
    ("32", "fp32"),
    ("no", "fp32"),
)
_LENGTHS = ("max_length", "max_seq_length", "block_size", "seq_len")
"""attributes with the tokens per sequence, in the arguments of fine-tuning libraries"""
_MESH = {"dp": "dp", "data": "dp", "fsdp": "dp", "replicate": "dp", "shard": "dp", "tp": "tp", "tensor": "tp", "pp": "pp", "pipeline": "pp", "cp": "cp", "context": "cp"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training as read from an object. None: not found."""

    trainer: str
    """name of autotune's trainer for this training loop"""
    model: Any
    """the module"""
    ranks: int
    nodes: int
    micro_batch: int | None
    """sequences per rank in a forward pass"""
    accumulation: int
    seq_len: int | None
    """tokens per sequence"""
    is_length_assumed: bool
    """whether `seq_len` is only the model's maximum, because the object does not contain it"""
    knobs: Mapping[str, Any]
    """other knobs that the object sets"""

    @property
    def document(self) -> dict[str, Any]:
        """The knobs as in the config of a spec, with dp from the number of ranks."""
        degrees = {name: int(self.knobs.get(name, 1)) for name in ("tp", "pp", "cp")}
        ranks_per_replica = degrees["tp"] * degrees["pp"] * degrees["cp"]
        batch = {"micro_batch_size": self.micro_batch, "accumulation_steps": self.accumulation}
        return {**self.knobs, **batch, "dp": max(1, self.ranks // ranks_per_replica)}


def training_of(
    thing: Any, *, model: Any = None, batch: int | None = None, seq_len: int | None = None
) -> Training:
    """Read a training from an object. `model`: for an `Accelerator` or a `DeviceMesh`, which may not
    hold it; `batch`: sequences per rank in a forward pass; `seq_len`: tokens per sequence. Raises
    `SpecError` for an object of another kind or without a model."""
    names = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(thing).__mro__}
    if "transformers.Trainer" in names:
        read = _of_transformers(thing)
    elif names & {"lightning.Trainer", "pytorch_lightning.Trainer"}:
        read = _of_lightning(thing, model)
    elif "accelerate.Accelerator" in names:
        read = _of_accelerate(thing, model)
    elif "torch.DeviceMesh" in names:
        read = _of_mesh(thing, model)
    elif "torch.Module" in names:
        read = {
            "trainer": "native",
            "model": thing,
            "ranks": number(os.environ, "WORLD_SIZE") or 1,
            "knobs": _precision_of(thing),
        }
    else:
        raise SpecError(
            f"autotune cannot read a training setup from a {type(thing).__name__}",
            remedy="pass transformers' or Lightning's Trainer, accelerate's Accelerator with model=, or a module",
            field="object",
        )
    if read["model"] is None:
        raise SpecError(
            "the object has no model yet",
            remedy="pass the model: advise(object, model=...)",
            field="model",
        )
    length = seq_len or read.get("seq_len")
    assumed = length or _max_positions(read["model"])
    micro = batch or read.get("micro_batch")
    return Training(
        trainer=read["trainer"],
        model=read["model"],
        ranks=read["ranks"],
        nodes=max(1, read["ranks"] // (number(os.environ, "LOCAL_WORLD_SIZE") or read["ranks"])),
        micro_batch=int(micro) if micro else None,
        accumulation=int(read.get("accumulation") or 1),
        seq_len=int(assumed) if assumed else None,
        is_length_assumed=not length and bool(assumed),
        knobs=read["knobs"],
    )


def _of_transformers(trainer: Any) -> dict[str, Any]:
    args = trainer.args
    precision = next((name for name in ("bf16", "fp16") if getattr(args, name)), "fp32")
    knobs: dict[str, Any] = {"precision": precision}
    # `activation_checkpointing` from transformers 5.24 on
    switches = ("activation_checkpointing", "gradient_checkpointing")
    recomputes = any(getattr(args, name, False) for name in switches)
    knobs["recompute"] = "full" if recomputes else "none"
    knobs["compile"] = bool(args.torch_compile)
    deepspeed = getattr(args, "deepspeed", None)
    if sharded := fsdp_of(args.fsdp, args.fsdp_config):
        knobs["zero_stage"] = sharded.zero_stage
        knobs |= {"recompute": "full"} if sharded.recomputes else {}
    elif isinstance(deepspeed, Mapping):
        knobs["zero_stage"] = int((deepspeed.get("zero_optimization") or {}).get("stage", 0))
    return {
        "trainer": "hf_trainer",
        "model": trainer.model,
        "ranks": int(args.world_size),
        "micro_batch": int(args.per_device_train_batch_size),
        "accumulation": int(args.gradient_accumulation_steps),
        "seq_len": _first_positive(args, _LENGTHS)
        or length_of(getattr(trainer, "train_dataset", None)),
        "knobs": knobs,
    }


def _of_lightning(trainer: Any, model: Any) -> dict[str, Any]:
    loaders = trainer.train_dataloader
    return {
        "trainer": "lightning",
        "model": model if model is not None else trainer.lightning_module,
        "ranks": int(trainer.world_size),
        "micro_batch": _batch_of(loaders),
        "accumulation": int(trainer.accumulate_grad_batches),
        "seq_len": length_of(getattr(loaders, "dataset", None)),
        "knobs": {"precision": _precision_named(str(trainer.precision))},
    }


def _of_accelerate(accelerator: Any, model: Any) -> dict[str, Any]:
    models, loaders = list(accelerator._models), list(accelerator._dataloaders)
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    knobs: dict[str, Any] = {"precision": _precision_named(str(accelerator.mixed_precision))}
    stages = (stage_of(getattr(plugin, key, None)) for key in STAGE_KEYS)
    if (stage := next((stage for stage in stages if stage is not None), None)) is not None:
        knobs["zero_stage"] = stage
    return {
        "trainer": "accelerate",
        "model": model if model is not None else next(iter(models), None),
        "ranks": int(accelerator.num_processes),
        "micro_batch": _batch_of(loaders[0]) if loaders else None,
        "accumulation": int(accelerator.gradient_accumulation_steps),
        "seq_len": length_of(getattr(loaders[0], "dataset", None)) if loaders else None,
        "knobs": knobs,
    }


def _of_mesh(mesh: Any, model: Any) -> dict[str, Any]:
    degrees: dict[str, int] = {}
    for name, size in zip(mesh.mesh_dim_names or (), mesh.shape, strict=False):
        knob = next((knob for sign, knob in _MESH.items() if sign in str(name).lower()), "")
        if knob:
            degrees[knob] = degrees.get(knob, 1) * int(size)
    degrees.pop("dp", None)
    return {
        "trainer": "native",
        "model": model,
        "ranks": int(mesh.size()),
        "knobs": {**degrees, **_precision_of(model)},
    }


def _precision_named(text: str) -> str:
    return next((precision for part, precision in _PRECISIONS if part in text), "fp32")


def _precision_of(model: Any) -> dict[str, str]:
    parameter = next(iter(model.parameters()), None) if model is not None else None
    return {
        "precision": _precision_named(
            str(getattr(parameter, "dtype", "float32")).removeprefix("torch.")
        )
    }


def _batch_of(loader: Any) -> int | None:
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None)
    return size if isinstance(size, int) else None


def length_of(dataset: Any) -> int | None:
    """Tokens per sequence of a dataset whose (first) tensor is two-dimensional; None otherwise. No
    sample is taken, because that may draw random numbers, read files or block."""
    tensor = dataset
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, tuple) and tensors:
        tensor = tensors[0]
    if "Tensor" in [kind.__name__ for kind in type(tensor).__mro__] and tensor.dim() == 2:
        return int(tensor.shape[1])
    return None


def _values_of_batch(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    return batch if isinstance(batch, list | tuple) else (batch,)


def tokens_of_batch(batch: Any) -> int | None:
    """Number of tokens in a batch: elements of its first integer tensor with two dimensions; None if
    it has no such tensor."""
    for value in _values_of_batch(batch):
        is_tensor = "Tensor" in [kind.__name__ for kind in type(value).__mro__]
        if is_tensor and value.dim() == 2 and not value.is_floating_point():
            return int(value.numel())
    return None


def observe_batches(loader: Any, observe: Callable[[Any], None]) -> None:
    """Call `observe` with every batch that a data loader yields from now on. The loader's class
    becomes a subclass of its own, because `iter` looks a method up in the class. `observe` must not
    raise."""
    own = type(loader)

    def batches(self: Any) -> Iterator[Any]:
        for batch in own.__iter__(self):
            observe(batch)
            yield batch

    observed = type(own.__name__, (own,), {"__iter__": batches, "__module__": own.__module__})
    # accelerate's loaders hide their class behind a property
    vars(object)["__class__"].__set__(loader, observed)


def _first_positive(owner: Any, names: Iterable[str]) -> int | None:
    return next(
        (
            value
            for name in names
            if isinstance(value := getattr(owner, name, None), int) and value > 0
        ),
        None,
    )


def _max_positions(model: Any) -> int | None:
    return _first_positive(
        getattr(model, "config", None), ("max_position_embeddings", "n_positions")
    )
