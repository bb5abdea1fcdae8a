"""Workloads that the tests of this folder share."""

from __future__ import annotations

from autotune.spec import ClusterSpec, GpuSpec, LinkSpec, ModelSpec, Workload

GIB = float(1 << 30)
GPU = GpuSpec(
    name="made-up",
    memory_bytes=64 * GIB,
    peak_flops_per_s={"fp32": 50e12, "bf16": 400e12, "fp16": 400e12},
    memory_bytes_per_s=2e12,
)
MODEL = ModelSpec(
    name="small", num_layers=16, hidden_size=2048, num_attention_heads=16, num_kv_heads=8, ffn_hidden_size=8192,
    vocab_size=32000, gated_mlp=True,
)  # fmt: skip
EXPERTS = ModelSpec(
    name="experts", num_layers=16, hidden_size=2048, num_attention_heads=16, vocab_size=32000, num_experts=8,
    experts_per_token=2, gated_mlp=True,
)  # fmt: skip


def cluster(nodes: int = 4, per_node: int = 8, gpu: GpuSpec = GPU) -> ClusterSpec:
    """A cluster of made-up GPUs."""
    return ClusterSpec(
        name="made-up", gpu=gpu, num_nodes=nodes, gpus_per_node=per_node,
        intra_node=LinkSpec(latency_s=5e-6, bytes_per_s=300e9), inter_node=LinkSpec(latency_s=1e-5, bytes_per_s=25e9),
    )  # fmt: skip


def workload(
    model: ModelSpec = MODEL,
    *,
    seq_len: int = 2048,
    batch: int = 256,
    trainer: str = "native",
    **where: int,
) -> Workload:
    """A workload on that cluster."""
    return Workload(
        model=model,
        cluster=cluster(**where),
        seq_len=seq_len,
        global_batch_size=batch,
        trainer=trainer,
    )
