"""Facts about what a process trains, as JSON values: model, wrappers, optimizers, ranks, libraries.
Read once or twice, after a step."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from .graph_facts import Graph
from .own_files import own_files
from .versions import versions

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLDS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_LIBRARIES = (
    "transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed", "composer", "fairseq", "megatron.core", "trl", "olmo",
    "torchtitan", "nanotron", "timm", "open_clip", "flash_attn", "transformer_engine", "torchao", "apex", "colossalai", "fairscale",
)  # fmt: skip

OTHER_STACKS = 0.2
"""a model is not a plain decoder if lists of layers other than the longest have more than this
share of the longest's weights"""
REPLICA_SAMPLE = 8
"""number of weights of each parameter that are compared between ranks"""
MOST_OF_CONFIG = 16 << 10
"""largest size of a model's config that is reported, characters"""
_OMITTED_CONFIG_KEYS = (
    "id2label",
    "label2id",
    "task_specific_params",
    "transformers_version",
    "_name_or_path",
)
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_query_groups")
_DIMENSIONS = {
    "tensor": "tp",
    "model": "tp",
    "mp": "tp",
    "tensor_parallel": "tp",
    "model_parallel": "tp",
    "pipe": "pp",
    "pipeline": "pp",
    "context": "cp",
    "expert": "ep",
}
"""knobs by names of mesh dimensions that differ from them"""
_DATA_WORDS = ("dp", "data", "shard", "replica", "batch")
"""words in names of data-parallel dimensions, which may shard parameters too"""
_MEGATRON_DEGREES = {
    "tp": "get_tensor_model_parallel_world_size",
    "pp": "get_pipeline_model_parallel_world_size",
    "cp": "get_context_parallel_world_size",
    "ep": "get_expert_model_parallel_world_size",
}


def is_distributed(torch: Any) -> bool:
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def _variable(names: Iterable[str], default: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return default


def rank_of(torch: Any) -> int:
    """Global rank of this process."""
    return int(torch.distributed.get_rank()) if is_distributed(torch) else launched_rank()


def launched_rank() -> int:
    """Global rank according to the launcher's variables; 0 without a launcher."""
    return _variable(_RANKS, 0)


def program() -> str:
    """Path of the script that this process runs, which distinguishes a launcher from its
    program."""
    return os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0])


@functools.cache
def _own_files() -> dict[str, str]:
    """The user's files as of the first call, because they may be edited later."""
    return own_files(program())


@functools.cache
def script_version() -> dict[str, str]:
    """{"script": hash of the script's content as of the first call}, to detect edits; empty for a
    script written for this trial."""
    file, trial = program(), os.environ.get("AUTOTUNE_TRIAL_DIR", "")
    if trial and file.startswith(os.path.dirname(trial) + os.sep):
        return {}
    try:
        with open(file, "rb") as content:
            return {"script": hashlib.sha256(content.read()).hexdigest()[:12]}
    except OSError:
        return {}


def autocast(torch: Any) -> str:
    """The data type of autocast at this point; empty if it is off."""
    for kind in ("cuda", "cpu"):
        try:
            if torch.is_autocast_enabled(kind):
                return str(torch.get_autocast_dtype(kind)).replace("torch.", "")
        except TypeError:  # an older torch, which has one function for each device
            if torch.is_autocast_enabled():
                return str(torch.get_autocast_gpu_dtype()).replace("torch.", "")
    return ""


def parameter_count(*modules: Any, stepped: Iterable[Any] = ()) -> int:
    """Number of parameters of these modules, counting shared ones once and sharded ones as a whole.
    `stepped`: what the optimizers step. Parameters among it that belong to no module are added,
    unless they outweigh the others: then they are copies, such as master weights."""
    total = 0
    flat: set[int] = set()
    parts = {id(part): part for module in modules for part in module.modules()}
    for part in parts.values():
        # FSDP1: a flat parameter is this rank's shard of several parameters
        parameter = getattr(getattr(part, "_handle", None), "flat_param", None)
        if parameter is not None:
            size = getattr(parameter, "_unpadded_unsharded_size", None)
            total += int(size.numel()) if size is not None else 0
            flat.update(id(view) for view in getattr(parameter, "_params", None) or ())
            flat.add(id(parameter))
    by_id = {id(parameter): parameter for module in modules for parameter in module.parameters()}
    others = {id(each): each for each in stepped if id(each) not in by_id and id(each) not in flat}
    known = [each for each in stepped if id(each) in by_id]
    if sum(map(_weights_of, others.values())) <= sum(map(_weights_of, known)):
        by_id |= others
    for parameter in by_id.values():
        if id(parameter) in flat:
            continue
        # the full size, also for a DTensor and DeepSpeed's shards
        size = _weights_of(parameter)
        if getattr(parameter, "tensor_model_parallel", False):
            size *= _megatron_degree()
        total += size
    return total


def _megatron_degree() -> int:
    state = sys.modules.get("megatron.core.parallel_state") or sys.modules.get("megatron.mpu")
    try:
        return int(state.get_tensor_model_parallel_world_size()) if state is not None else 1
    except Exception:
        return 1


def facts(torch: Any, seen: Any, optimizers: dict[int, Any]) -> dict[str, Any]:
    """All facts, for the report."""
    roots = sorted(seen.roots.values(), key=lambda root: -root.parameters)
    called = [each for each in (root.ref() for root in roots) if each is not None]
    stepping = [each for each in (ref() for ref in optimizers.values()) if each is not None]
    stepped = list(parameters_of(stepping))
    # teachers, averaged weights and loss networks are called with gradients too; if the optimizers
    # step copies, no module has a stepped parameter
    known = {id(parameter) for parameter in stepped}
    own = [module for module in called if any(id(p) in known for p in module.parameters())]
    modules = own or [module for module in called if not is_frozen(module)] or called
    model = modules[0] if modules else None
    # a policy that also generates, or is evaluated, is no other model
    evaluated = (ref() for ref in seen.evaluated.values())
    # `is not None`, because a compiled module has no truth value
    others = [*called, *(module for module in evaluated if module is not None)]
    if seen.copied is None:
        seen.copied = _copied(torch, modules, others, stepping)
    is_running = is_distributed(torch)
    return {
        "rank": rank_of(torch),
        "program": program(),
        "world": int(torch.distributed.get_world_size()) if is_running else _variable(_WORLDS, 1),
        "is_distributed": is_running,
        "backend": str(torch.distributed.get_backend()) if is_running else "",
        # the world's group only: torch has no public list of the others
        "groups": [int(torch.distributed.get_world_size())] if is_running else [],
        "torch": str(torch.__version__),
        "versions": {**versions(torch), **script_version()},
        "files": _own_files() if rank_of(torch) == 0 else {},
        "libraries": {
            name: str(getattr(sys.modules[name], "__version__", ""))
            for name in _LIBRARIES
            if name in sys.modules
        },
        "device": next((str(parameter.device.type) for parameter in stepped), ""),
        "optimizers": sorted({_name(optimizer) for optimizer in stepping}),
        "autocast": seen.autocast,
        "matmul": str(torch.get_float32_matmul_precision()),
        "recomputed": round(seen.repeated / seen.calls, 3) if seen.calls else 0.0,
        "graph": [
            name
            for name in seen.graph.names
            if any(word in name for word in ("Attention", "Attn", "Compiled", "Checkpoint"))
        ],
        "workers": seen.workers,
        "compiled": _is_compiled(roots, seen.graph.names),
        **(
            _model(model, parameter_count(*modules, stepped=stepped), seen.graph)
            if model is not None
            else {}
        ),
        "frozen": parameter_count(*modules, *others) - parameter_count(*modules),
        "copied": seen.copied,
        **_optimizer_types(stepping),
    }


def _copied(torch: Any, modules: list[Any], others: list[Any], optimizers: list[Any]) -> int:
    """Number of weights in tensors that have shapes of the models' weights, but belong to no model
    that is called and to no optimizer, such as a moving average; 0 for less than half a model, and
    if weights are sharded."""
    own = [parameter for module in modules for parameter in module.parameters()]
    if any(_wrappers(module)[1] for module in modules):
        return 0
    used = [tensor for module in (*modules, *others) for tensor in module.state_dict().values()]
    used += [getattr(p, name, None) for p in own for name in ("grad", "main_grad")]
    used += parameters_of(optimizers)
    used += [t for each in optimizers for state in each.state.values() for t in state.values()]
    plain = (torch.Tensor, torch.nn.Parameter)
    storages = {t.untyped_storage().data_ptr() for t in used if type(t) in plain}
    shapes = {parameter.shape for parameter in own if parameter.dim() > 1}
    count = 0
    for each in gc.get_objects():
        if type(each) in plain and each.shape in shapes and each.is_floating_point():
            try:
                storage = each.untyped_storage().data_ptr()
            except RuntimeError:  # without storage, such as inside torch.func
                continue
            count += 0 if storage in storages else int(each.numel())
            storages.add(storage)
    return count if count > sum(map(_weights_of, own)) / 2 else 0


def replica(torch: Any, seen: Any) -> str:
    """Hash of some trained weights of this rank, which data-parallel replicas have in common; empty
    for a single process, and if the program shards weights or says that it splits the model."""
    modules = [root.ref() for root in seen.roots.values() if not root.is_frozen]
    known = [module for module in modules if module is not None]
    if not is_distributed(torch) or any(_wrappers(m)[1] or _degrees(m) for m in known):
        return ""
    weights = (parameter for module in known for parameter in module.parameters())
    trained = (p.detach() for p in weights if p.requires_grad)
    samples = [weight.flatten()[:REPLICA_SAMPLE].float() for weight in trained]
    values = torch.cat(samples).tolist() if samples else []
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


def is_frozen(module: Any) -> bool:
    """Whether it has parameters and all are frozen."""
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def of_model(model: Any) -> dict[str, Any]:
    """The facts about a model in this process."""
    return _model(model, parameter_count(model), Graph())


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__module__ + "." + kind.__qualname__


def parameters_of(optimizers: Iterable[Any]) -> Iterator[Any]:
    """Yields the parameters that these optimizers step."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _optimizer_types(optimizers: list[Any]) -> dict[str, Any]:
    """Number of weights by data type, of what the optimizers step."""
    types: dict[str, int] = {}
    stepped = {id(parameter): parameter for parameter in parameters_of(optimizers)}
    for parameter in stepped.values():
        name = str(parameter.dtype).replace("torch.", "")
        types[name] = types.get(name, 0) + int(parameter.numel())
    return {"stepped_types": types}


def _is_compiled(roots: list[Any], graph: list[str]) -> bool:
    """Whether the model is compiled, by the backward graph and by modules compiled as a whole or in
    place."""
    if any("Compiled" in name for name in graph):
        return True
    for root in roots[:8]:
        module = root.ref()
        if module is not None and any(
            type(part).__name__ == "OptimizedModule"
            or getattr(part, "_compiled_call_impl", None) is not None
            for part in module.modules()
        ):
            return True
    return False


def _model(model: Any, parameters: int, graph: Graph) -> dict[str, Any]:
    types: dict[str, int] = {}
    held = trained = 0
    for parameter in model.parameters():
        name, count = str(parameter.dtype).replace("torch.", ""), _weights_of(parameter)
        types[name] = types.get(name, 0) + count
        held += count
        trained += count if parameter.requires_grad else 0
    wrappers, stage, sharded = _wrappers(model)
    config = getattr(_inner(model), "config", None)
    return {
        "model": _name(_inner(model)),
        "outermost": _name(model),
        "parameters": parameters,
        # with FSDP1 the process holds a shard only
        "trainable": parameters * trained // held if held else 0,
        "types": types,
        "wrappers": wrappers,
        "zero_stage": stage,
        "sharded_type": sharded,
        "offloads": any(map(_is_offloaded, model.modules())),
        "attention": str(getattr(config, "_attn_implementation", "") or ""),
        "config": _config(config),
        "shape": _shape(_inner(model), graph),
        "is_causal": _is_causal(_inner(model), graph),
        "degrees": _degrees(model),
    }


def _config(config: Any) -> Any:
    """The config of a Hugging Face model; None for other models, or if it is too long."""
    if not getattr(config, "model_type", None):
        return None
    try:
        found = {
            name: value
            for name, value in config.to_dict().items()
            if name not in _OMITTED_CONFIG_KEYS
        }
        return found if len(json.dumps(found)) <= MOST_OF_CONFIG else None
    except Exception:
        return None


def _is_causal(model: Any, graph: Graph) -> bool | None:
    """Whether attention is causal, by the first backward pass, else by the modules' flags; None if
    neither shows it."""
    flags = [
        flag for m in model.modules() if isinstance(flag := getattr(m, "is_causal", None), bool)
    ]
    causal, full = graph.masks["causal"], graph.masks["full"]
    if causal or full:
        return causal > full  # a decoder may come with a small encoder
    return all(flags) if flags else None


def _shape(model: Any, graph: Graph) -> dict[str, Any]:
    """Sizes of a decoder with these modules, by the usual config names, without unknown ones; empty
    if it is not a plain decoder. `has_head`: whether something projects onto its vocabulary; absent
    if unknown."""
    tables = [
        (int(m.num_embeddings), int(m.embedding_dim))
        for m in model.modules()
        if _has(m, "num_embeddings", "embedding_dim")
    ]
    if not tables:
        return {}
    projected = {
        (int(m.out_features), int(m.in_features))
        for m in model.modules()
        if _has(m, "in_features", "out_features")
    } | {shape for shape, is_read in graph.matrices.items() if is_read}
    # a table of positions may have more rows than the vocabulary, but only the vocabulary has a
    # projection; a table with two rows may be token types, matched by a classifier of two classes
    heads = [table for table in tables if table in projected and table[0] > 2]
    vocab_size, hidden_size = max(heads, default=max(tables))
    stacks = sorted(_stacks(model, hidden_size), key=len)
    if not stacks:
        return {}
    blocks = stacks[-1]
    others = sum(_numel(each) for stack in stacks[:-1] for each in stack)
    if others > OTHER_STACKS * sum(map(_numel, blocks)):
        return {}  # encoder and decoder, or several towers
    block_modules = list(blocks[0].modules())
    widths = [
        int(m.out_features)
        for m in block_modules
        if _has(m, "in_features", "out_features") and m.in_features == hidden_size
    ]
    widths_back = {
        int(m.in_features)
        for m in block_modules
        if _has(m, "in_features", "out_features") and m.out_features == hidden_size
    }
    owners = [*block_modules, model, getattr(model, "config", None)]
    candidates = {
        "num_layers": len(blocks),
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "positions": sorted(
            {rows for rows, width in tables if width == hidden_size and rows != vocab_size}
        ),
        # an MLP's width: hidden_size is projected to it and back
        "ffn_hidden_size": max(
            [width for width in widths if width in widths_back and width != hidden_size],
            default=None,
        ),
        "num_attention_heads": _number(owners, _HEADS),
        "num_kv_heads": _number(owners, _KV_HEADS),
    }
    sizes = {name: value for name, value in candidates.items() if value}
    is_seen = bool(heads) or max(tables) in graph.matrices
    return {**sizes, "has_head": bool(heads)} if is_seen else sizes


def _stacks(model: Any, hidden_size: int) -> Any:
    """Yields the lists of equal layers that are not inside another such list."""
    within: set[int] = set()
    for part in model.modules():
        parts = (
            list(part.children())
            if type(part).__name__ in ("ModuleList", "Sequential", "ModuleDict")
            else []
        )
        if id(part) in within or len({type(_inner(each)) for each in parts}) != 1:
            continue
        if _numel(parts[0]) > hidden_size**2:
            within.update(id(each) for each in part.modules())
            yield parts


def _has(module: Any, *names: str) -> bool:
    return all(isinstance(getattr(module, name, None), int) for name in names)


def _numel(module: Any) -> int:
    return sum(_weights_of(parameter) for parameter in module.parameters())


def _weights_of(parameter: Any) -> int:
    """Number of weights of a parameter, also if DeepSpeed has sharded it."""
    return int(getattr(parameter, "ds_numel", 0) or parameter.numel())


def _number(owners: list[Any], names: Iterable[str]) -> Any:
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _degrees(model: Any) -> dict[str, int]:
    """Degrees of parallelism, by names of the program's device meshes and by Megatron. A dimension
    that shards parameters, without FSDP and without a known name, is taken for tensor
    parallelism."""
    degrees: dict[str, int] = {}
    is_sharded = any(
        kind.__name__ == "FSDPModule" for m in model.modules() for kind in type(m).__mro__
    )
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        names = getattr(mesh, "mesh_dim_names", None)
        for dimension, size in enumerate(getattr(mesh, "shape", ())):
            name = str(names[dimension]).lower() if names else ""
            name = _DIMENSIONS.get(name, name)
            is_known = (
                is_sharded or name in _MEGATRON_DEGREES or any(w in name for w in _DATA_WORDS)
            )
            if not is_known and parameter.placements[dimension].is_shard():
                name = "tp"
            if name:
                degrees[name] = int(size)
    state = sys.modules.get("megatron.core.parallel_state") or sys.modules.get("megatron.mpu")
    for name, function in _MEGATRON_DEGREES.items():
        try:
            degrees[name] = int(getattr(state, function)())
        except Exception:  # no Megatron, an older release, or not initialized
            continue
    return degrees


def _inner(model: Any) -> Any:
    """The model inside its wrappers."""
    for _ in range(6):
        inside = (getattr(model, name, None) for name in ("module", "_orig_mod", "_forward_module"))
        # `is None`, because a module's truth value is its length, which a compiled one does not have
        below = next(
            (each for each in inside if each is not None and hasattr(each, "parameters")), None
        )
        if below is None:
            return model
        model = below
    return model


def _wrappers(model: Any) -> Any:
    """(names of data-parallel wrappers, their ZeRO stage or None if unknown, the data type they
    compute in)."""
    names: list[str] = []
    stage, sharded = None, ""
    for part in model.modules():
        kinds = [kind.__name__ for kind in type(part).__mro__]
        if "DistributedDataParallel" in kinds:
            names.append("DDP")
            stage = stage or 0
        elif "FullyShardedDataParallel" in kinds:
            names.append("FSDP1")
            strategy = str(getattr(part, "sharding_strategy", "")).rsplit(".", 1)[-1]
            stage = {"NO_SHARD": 0, "SHARD_GRAD_OP": 2, "_HYBRID_SHARD_ZERO2": 2}.get(strategy, 3)
            policy = getattr(part, "mixed_precision", None)
            sharded = sharded or str(getattr(policy, "param_dtype", None) or "")
        elif "FSDPModule" in kinds:
            names.append("FSDP2")
            stage, found = _fsdp2(part, stage)
            sharded = sharded or found
        elif "DeepSpeedEngine" in kinds:
            names.append("DeepSpeed")
            stage = int(part.zero_optimization_stage())
        elif "DataParallel" in kinds:
            names.append("DataParallel")
    return sorted(set(names)), stage, sharded.replace("torch.", "")


def _fsdp2(part: Any, previous_stage: Any) -> Any:
    """(ZeRO stage, data type) of a module made by `fully_shard`, by its private state."""
    try:
        state = part._get_fsdp_state()
        policy = getattr(state, "_mp_policy", None)
        group = getattr(state, "_fsdp_param_group", None)
        keeps_gathered = group is not None and group.post_forward_mesh_info is None
        # the outermost module always keeps its parameters gathered, so the inner ones decide
        return (2 if keeps_gathered and previous_stage in (None, 2) else 3), str(
            getattr(policy, "param_dtype", None) or ""
        )
    except Exception:
        return 3, ""


def _is_offloaded(part: Any) -> bool:
    """Whether FSDP offloads this module's parameters to the host between passes."""
    policies = [getattr(getattr(part, "cpu_offload", None), "offload_params", False)]
    with contextlib.suppress(Exception):  # not made by `fully_shard`
        group = part._get_fsdp_state()._fsdp_param_group
        policies.append(type(group.offload_policy).__name__ == "CPUOffloadPolicy")
    return policies[-1] is True
