"""What a process trains, as plain JSON values: the model, its wrappers, the optimizers, the ranks,
the libraries. Read once or twice, after a step."""

from __future__ import annotations

import contextlib
import functools
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
"""weights in lists of layers beside the longest, as a share of its own, above which a model is no
plain decoder"""
MOST_OF_CONFIG = 16 << 10
"""characters of a model's own config that are reported"""
_TALKATIVE = (
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
"""names of a mesh's dimensions that are not those of knobs"""
_OF_DATA = ("dp", "data", "shard", "replica", "batch")
"""words in the names of dimensions that cut data, too"""
_OF_MEGATRON = {
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
    """The number of this process among those that train together."""
    return int(torch.distributed.get_rank()) if is_distributed(torch) else launched_rank()


def launched_rank() -> int:
    """The same as a launcher gives it; 0 without one."""
    return _variable(_RANKS, 0)


def program() -> str:
    """The file that this process runs, which tells a launcher from the program that it launches."""
    return os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0])


@functools.cache
def _own_files() -> dict[str, str]:
    """As they are when this is first asked: later they may have been edited."""
    return own_files(program())


@functools.cache
def script_version() -> dict[str, str]:
    """By its contents when this is first asked, which tell an edited one; empty for one that was
    written for this trial."""
    file, trial = program(), os.environ.get("AUTOTUNE_TRIAL_DIR", "")
    if trial and file.startswith(os.path.dirname(trial) + os.sep):
        return {}
    try:
        with open(file, "rb") as content:
            return {"script": hashlib.sha256(content.read()).hexdigest()[:12]}
    except OSError:
        return {}


def autocast(torch: Any) -> str:
    """The type that autocast computes in here; empty where it is off."""
    for kind in ("cuda", "cpu"):
        try:
            if torch.is_autocast_enabled(kind):
                return str(torch.get_autocast_dtype(kind)).replace("torch.", "")
        except TypeError:  # an older torch, which has one function for each device
            if torch.is_autocast_enabled():
                return str(torch.get_autocast_gpu_dtype()).replace("torch.", "")
    return ""


def parameter_count(*modules: Any, stepped: Iterable[Any] = ()) -> int:
    """Parameters of all these modules as far as this process holds a part of them; shared ones
    once. `stepped`: what optimizers step, of which the program may call no module; where most of it
    is no parameter of a module, it is copies of such."""
    total = 0
    flat: set[int] = set()
    parts = {id(part): part for module in modules for part in module.modules()}
    for part in parts.values():
        # of FSDP's first release, where a flat parameter is this rank's share of many
        parameter = getattr(getattr(part, "_handle", None), "flat_param", None)
        if parameter is not None:
            whole = getattr(parameter, "_unpadded_unsharded_size", None)
            total += int(whole.numel()) if whole is not None else 0
            flat.update(id(view) for view in getattr(parameter, "_params", None) or ())
            flat.add(id(parameter))
    own = {id(parameter): parameter for module in modules for parameter in module.parameters()}
    others = {id(each): each for each in stepped if id(each) not in own and id(each) not in flat}
    known = [each for each in stepped if id(each) in own]
    if sum(map(_weights_of, others.values())) <= sum(map(_weights_of, known)):
        own |= others
    for parameter in own.values():
        if id(parameter) in flat:
            continue
        # of a DTensor this is the whole; DeepSpeed says it so
        whole = _weights_of(parameter)
        if getattr(parameter, "tensor_model_parallel", False):
            whole *= _megatron_degree()
        total += whole
    return total


def _megatron_degree() -> int:
    state = sys.modules.get("megatron.core.parallel_state") or sys.modules.get("megatron.mpu")
    try:
        return int(state.get_tensor_model_parallel_world_size()) if state is not None else 1
    except Exception:
        return 1


def facts(torch: Any, seen: Any, optimizers: dict[int, Any]) -> dict[str, Any]:
    """All of them."""
    roots = sorted(seen.roots.values(), key=lambda root: -root.parameters)
    called = [found for found in (root.ref() for root in roots) if found is not None]
    stepping = [found for found in (ref() for ref in optimizers.values()) if found is not None]
    stepped = list(parameters_of(stepping))
    # a teacher, an average of the weights, or a network that computes a loss is called with
    # gradients, too; of copies that are stepped no module has one
    known = {id(parameter) for parameter in stepped}
    own = [module for module in called if any(id(p) in known for p in module.parameters())]
    modules = own or [module for module in called if not is_frozen(module)] or called
    model = modules[0] if modules else None
    running = is_distributed(torch)
    return {
        "rank": rank_of(torch),
        "program": program(),
        "world": int(torch.distributed.get_world_size()) if running else _variable(_WORLDS, 1),
        "is_distributed": running,
        "backend": str(torch.distributed.get_backend()) if running else "",
        # of the whole world alone: torch has no public list of the others
        "groups": [int(torch.distributed.get_world_size())] if running else [],
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
        "frozen": parameter_count(*(module for module in called if module not in modules)),
        **_optimizer_types(stepping),
    }


def is_frozen(module: Any) -> bool:
    """Whether it has parameters, none of which is trained."""
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def of_model(model: Any) -> dict[str, Any]:
    """Those of a model alone, of a program that is in this process."""
    return _model(model, parameter_count(model), Graph())


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__module__ + "." + kind.__qualname__


def parameters_of(optimizers: Iterable[Any]) -> Iterator[Any]:
    """What these optimizers step."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _optimizer_types(optimizers: list[Any]) -> dict[str, Any]:
    """Number of weights by type of what the optimizers step."""
    types: dict[str, int] = {}
    stepped = {id(parameter): parameter for parameter in parameters_of(optimizers)}
    for parameter in stepped.values():
        name = str(parameter.dtype).replace("torch.", "")
        types[name] = types.get(name, 0) + int(parameter.numel())
    return {"stepped_types": types}


def _is_compiled(roots: list[Any], graph: list[str]) -> bool:
    """By the backward graph, and by modules that are compiled as a whole or in place."""
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
        # of FSDP's first release, what is held is a share of it
        "trainable": parameters * trained // held if held else 0,
        "types": types,
        "wrappers": wrappers,
        "zero_stage": stage,
        "sharded_type": sharded,
        "offloads": any(map(_waits_on_host, model.modules())),
        "attention": str(getattr(config, "_attn_implementation", "") or ""),
        "config": _config(config),
        "shape": _shape(_inner(model), graph),
        "is_causal": _is_causal(_inner(model), graph),
        "degrees": _degrees(model),
    }


def _config(config: Any) -> Any:
    """What a model of Hugging Face's says of itself; None for others."""
    if not getattr(config, "model_type", None):
        return None
    try:
        found = {name: value for name, value in config.to_dict().items() if name not in _TALKATIVE}
        return found if len(json.dumps(found)) <= MOST_OF_CONFIG else None
    except Exception:
        return None


def _is_causal(model: Any, graph: Graph) -> bool | None:
    """Whether no token sees a later one: as its first backward pass showed, else as its modules
    say; None where neither does."""
    said = [
        flag for m in model.modules() if isinstance(flag := getattr(m, "is_causal", None), bool)
    ]
    causal, full = graph.masks["causal"], graph.masks["full"]
    if causal or full:
        return causal > full  # a decoder may have a small encoder beside it
    return all(said) if said else None


def _shape(model: Any, graph: Graph) -> dict[str, Any]:
    """Sizes that a decoder with these modules would have, each by what it is called everywhere;
    what is missing is not told. `has_head`: whether something projects onto its vocabulary; None
    where that was not seen."""
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
    # positions may have more rows than the vocabulary, which alone has a projection; two classes
    # are as many as the types of a token
    heads = [table for table in tables if table in projected and table[0] > 2]
    vocab_size, hidden_size = max(heads, default=max(tables))
    stacks = sorted(_stacks(model, hidden_size), key=len)
    if not stacks:
        return {}
    blocks = stacks[-1]
    others = sum(_numel(each) for stack in stacks[:-1] for each in stack)
    if others > OTHER_STACKS * sum(map(_numel, blocks)):
        return {}  # an encoder beside a decoder, or towers: no decoder of these sizes
    inside = list(blocks[0].modules())
    widths = [
        int(m.out_features)
        for m in inside
        if _has(m, "in_features", "out_features") and m.in_features == hidden_size
    ]
    back = {
        int(m.in_features)
        for m in inside
        if _has(m, "in_features", "out_features") and m.out_features == hidden_size
    }
    owners = [*inside, model, getattr(model, "config", None)]
    found = {
        "num_layers": len(blocks),
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "positions": sorted(
            {rows for rows, width in tables if width == hidden_size and rows != vocab_size}
        ),
        # widths into which the stream goes and from which it comes back, wider than itself: those
        # of an MLP
        "ffn_hidden_size": max(
            [width for width in widths if width in back and width != hidden_size], default=None
        ),
        "num_attention_heads": _number(owners, _HEADS),
        "num_kv_heads": _number(owners, _KV_HEADS),
    }
    told = {name: value for name, value in found.items() if value}
    is_seen = bool(heads) or max(tables) in graph.matrices
    return {**told, "has_head": bool(heads)} if is_seen else told


def _stacks(model: Any, hidden_size: int) -> Any:
    """The lists of layers of one kind that lie in no other such list."""
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
    """Weights of a parameter, whole where DeepSpeed has cut it."""
    return int(getattr(parameter, "ds_numel", 0) or parameter.numel())


def _number(owners: list[Any], names: Iterable[str]) -> Any:
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _degrees(model: Any) -> dict[str, int]:
    """Degrees of parallelism as the program's own meshes are named, and as Megatron says them. A
    dimension that cuts parameters without FSDP, and has no name that says what it is, is a
    tensor-parallel one."""
    found: dict[str, int] = {}
    is_sharded = any(
        kind.__name__ == "FSDPModule" for m in model.modules() for kind in type(m).__mro__
    )
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        names = getattr(mesh, "mesh_dim_names", None)
        for place, size in enumerate(getattr(mesh, "shape", ())):
            name = str(names[place]).lower() if names else ""
            name = _DIMENSIONS.get(name, name)
            is_known = is_sharded or name in _OF_MEGATRON or any(w in name for w in _OF_DATA)
            if not is_known and parameter.placements[place].is_shard():
                name = "tp"
            if name:
                found[name] = int(size)
    state = sys.modules.get("megatron.core.parallel_state") or sys.modules.get("megatron.mpu")
    for name, function in _OF_MEGATRON.items():
        try:
            found[name] = int(getattr(state, function)())
        except Exception:  # none, an older release, or one that is not set up
            continue
    return found


def _inner(model: Any) -> Any:
    """Below the wrappers."""
    for _ in range(6):
        inside = (getattr(model, name, None) for name in ("module", "_orig_mod", "_forward_module"))
        # by `is None`: whether a module is true is its length, which a compiled one refuses to tell
        below = next(
            (each for each in inside if each is not None and hasattr(each, "parameters")), None
        )
        if below is None:
            return model
        model = below
    return model


def _wrappers(model: Any) -> Any:
    """Names of data-parallel wrappers, the ZeRO stage that they mean (None: none of them is known),
    and the type that they compute in."""
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


def _fsdp2(part: Any, before: Any) -> Any:
    """Stage and type of a module that `fully_shard` made, by the state that it keeps there."""
    try:
        state = part._get_fsdp_state()
        policy = getattr(state, "_mp_policy", None)
        group = getattr(state, "_fsdp_param_group", None)
        keeps = group is not None and group.post_forward_mesh_info is None
        # the outermost module keeps its own parameters gathered whatever it was told: the ones
        # below it tell
        return (2 if keeps and before in (None, 2) else 3), str(
            getattr(policy, "param_dtype", None) or ""
        )
    except Exception:
        return 3, ""


def _waits_on_host(part: Any) -> bool:
    """Whether FSDP keeps this module's parameters on the host between its passes."""
    policies = [getattr(getattr(part, "cpu_offload", None), "offload_params", False)]
    with contextlib.suppress(Exception):  # a module that `fully_shard` did not make
        group = part._get_fsdp_state()._fsdp_param_group
        policies.append(type(group.offload_policy).__name__ == "CPUOffloadPolicy")
    return policies[-1] is True
