"""What Megatron-Bridge's performance tables do not print of their recipes, from the recipes
themselves.

`unprinted_knobs` are those that the reader adds to a row with experts, as far as its release says
them. `plausible` are the configs by which a row's memory is judged: recipes changed between
releases, so that it is judged by the one that fits best, the printed one or what its recipe is
known to do besides. No row is taken to recompute everything.

Sources, in NVIDIA-NeMo/Megatron-Bridge: scripts/performance/configs/{deepseek,qwen,qwen3}
(`workload_base_configs.py`, `*_llm_pretrain.py`) as they were when each container was published,
and src/megatron/bridge/perf_recipes/{deepseek,qwen} for 26.06 and later; release notes of v0.5.1.

    experts      whole under tensor parallelism (expert_tensor_parallel_size 1) and equally loaded (moe_router_force_load_balancing, or token drop in 25.09)
    prediction   DeepSeek-V3 trains one layer of multi-token prediction unless its row says "w/o MTP"; its pipeline layout, Et*4|(t*4|)*14tmL, counts the
                 embedding and each loss as layers
    recompute    DeepSeek-V3 repeats the up-projections of its latents (mla_up_proj, 3% of a step; not on GB300 from 26.06 on; on H100 the MLP too), which
                 no knob expresses without other work
    offload      Llama 3 70B under Megatron-FSDP offloads the activations of 5 to 40 of its 80 layers (cpu_offloading_num_layers, not on B300)
    pipelines    those of Llama 3 70B have micro-batches of one sequence and 5 virtual stages; three rows print others, or no FSDP where one GPU cannot hold
                 the weights. Qwen3 and these pipelines recompute nothing
    not modeled fp8 attention and fused experts (CuTeDSL) on GB200, GB300 and, for Qwen3, B300 from 26.06 on

Assumed where the sources leave a gap: a recipe that was listed for one release holds until the next
that lists another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from autotune.spec import KNOBS, ConfigTable
from tests.benchmarks.published.rows import Block

Release = tuple[int, ...]


def release_of(notes: str) -> Release:
    """(26, 4, 1) of the notes `26.04.01 NeMo Container; ...`."""
    return tuple(int(part) for part in notes.partition(" ")[0].split("."))


def unprinted_knobs(model: str, gpu: str, release: Release) -> dict[str, Any]:
    """The knobs of a recipe that its row does not print; `model` and `gpu` as printed. Empty for
    dense models."""
    if model.startswith("DeepSeekV3"):
        return {"pp_split": "edges", **_deepseek(gpu, release)}
    return _qwen(gpu, release) if model.startswith("Qwen3") else {}


def _knobs(dispatcher: str, *, overlap: bool = False, graph: str = "none") -> dict[str, Any]:
    return {"dispatcher": dispatcher, "ep_overlap": overlap, "cuda_graph": graph}


def _deepseek(gpu: str, release: Release) -> dict[str, Any]:
    if gpu == "H100":
        return _knobs("flex", overlap=True)  # DeepEP
    if release < (26, 2):
        return _knobs("alltoall")  # enable_deepep=False
    if gpu in ("GB200", "GB300") and release >= (26, 6):
        return _knobs("flex", overlap=True, graph="step")
    if gpu == "GB300":
        return _knobs("flex")  # cuda_graph_scope=[]
    if gpu == "B200":
        retuned = release >= (26, 4, 1)
        return _knobs("flex", overlap=retuned, graph="layers" if retuned else "none")
    return _knobs("flex", graph="layers")


def _qwen(gpu: str, release: Release) -> dict[str, Any]:
    if release < (25, 11):
        # token drop: all shapes are fixed
        return _knobs("alltoall", graph="none" if gpu == "H100" else "step")
    if release < (26, 2):
        return _knobs("alltoall")
    if gpu == "H100":
        return _knobs("flex")
    return (
        _knobs("flex", overlap=True, graph="step")
        if release >= (26, 6)
        else _knobs("flex", graph="layers")
    )


def plausible(block: Block) -> list[Block]:
    """The block as it is printed, and with what its recipe is known to do besides."""
    model, table = block.workload.model, block.table
    if block.workload.trainer != "nvidia_recipes":
        return [block]
    if model.is_latent:
        codes = [KNOBS["recompute"].encode(word) for word in ("selective", "mlp")]
        return [block, *(_with(block, {"recompute": code}) for code in codes)]
    if model.name != "llama-70b":
        return [block]
    fsdp = (table.pp == 1) & (table.tp == 1)
    recipe = {
        "zero_stage": np.where(fsdp, 3, table.zero_stage),
        "offload": np.where(fsdp, KNOBS["offload"].encode("activations"), table.column("offload")),
        "micro_batch_size": np.where(fsdp, table.micro_batch_size, 1),
        "accumulation_steps": np.where(fsdp, 1, table.micro_batch_size) * table.accumulation_steps,
        "virtual_stages": np.where(fsdp, 1, np.maximum(table.virtual_stages, 5)),
        "pp_schedule": np.where(
            fsdp, table.column("pp_schedule"), KNOBS["pp_schedule"].encode("interleaved_1f1b")
        ),
    }
    return [block, _with(block, recipe)]


def _with(block: Block, codes: dict[str, Any]) -> Block:
    columns = {name: block.table.column(name) for name in KNOBS}
    return replace(block, table=ConfigTable({**columns, **codes}))
