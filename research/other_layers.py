"""How far the formulas lie from dry runs for models whose layers are not a decoder's: weights, and
activations of one rank without recomputation.

    python -m research.other_layers

Reduced models of transformers' classes (width 512, 4 to 8 layers) under the native trainer, fp32,
two sequences of 256 tokens. Activations are those of torch's own code for state-space layers, which
a GPU's kernels keep less of.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import autotune
from autotune.errors import AutotuneError
from autotune.ports import DryRunLimits
from autotune.registry import dry_runner
from autotune.schema.files import transformers_model
from autotune.spec import ModelSpec, ParallelConfig, Workload, catalog

SIZES = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "num_hidden_layers": 8,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
FILES: dict[str, dict[str, Any]] = {
    "qwen3_next": {**EXPERTS, "head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64},
    "qwen3_5_text": {"intermediate_size": 1536, "head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64},
    # jamba's own scan takes minutes under fake tensors
    "mamba2": {"num_heads": 16, "head_dim": 64, "state_size": 64, "expand": 2, "n_groups": 1},
    "bamba": {"intermediate_size": 1536, "attn_layer_indices": [3], "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 64},
    "granitemoehybrid": {
        "intermediate_size": 512, "shared_intermediate_size": 1024, "num_local_experts": 4, "num_experts_per_tok": 2, "mamba_n_heads": 16, "mamba_d_head": 64,
        "layer_types": ["mamba", "mamba", "mamba", "attention"], "mamba_d_state": 64, "mamba_expand": 2,
    },
    "falcon_h1": {"intermediate_size": 1536, "head_dim": 64, "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_ssm": 1024, "mamba_d_state": 64},
    "olmo_hybrid": {"intermediate_size": 1536, "pad_token_id": 0},
    "lfm2": {"intermediate_size": 1536, "layer_types": ["conv", "conv", "full_attention", "conv"], "pad_token_id": 0},
    "recurrent_gemma": {"intermediate_size": 3072, "lru_width": 512, "head_dim": 64},
    "nemotron_h": {"intermediate_size": 1536, "hybrid_override_pattern": "M-M*M-M-", "mamba_num_heads": 16, "mamba_head_dim": 64, "head_dim": 64, "ssm_state_size": 64},
}  # fmt: skip


def main() -> None:
    """Prints the table."""
    runner, limits, logs = dry_runner(), DryRunLimits(), []
    print(
        f"{'family':18}{'weights':>12}{'formulas':>12}{'activations, dry run':>22}{'formulas':>12}{'ratio':>8}"
    )
    for family, sizes in FILES.items():
        source = json.dumps({**SIZES, **sizes, "model_type": family})
        try:
            model = transformers_model(
                family,
                source,
                base=Path.cwd(),
                inspect=lambda one: runner.inspect(one, limits=limits),
            )
            ratio = _row(model, family)
        except AutotuneError as error:
            print(f"{family:18}{' '.join(str(error).split())[:110]}")
        else:
            logs.append(math.log(ratio))
    mean = sum(logs) / len(logs)
    print(f"{len(logs)} families: activations {math.exp(mean):.2f} times the formulas, standard deviation of the log {math.sqrt(sum((one - mean) ** 2 for one in logs) / (len(logs) - 1)):.2f}")  # fmt: skip


def _row(model: ModelSpec, family: str) -> float:
    workload = Workload(
        model=model, cluster=catalog.cluster("h100-sxm-1x1"), seq_len=256, global_batch_size=2
    )
    (fit,) = autotune.fit(
        workload,
        ParallelConfig(micro_batch_size=2, precision="fp32"),
        limits=DryRunLimits(wall_s=120.0),
    )
    if fit.fullest is None:
        raise AutotuneError(fit.problem)
    parts, formulas = fit.fullest.peak.parts_bytes, fit.estimate.memory_parts_bytes
    found = sum(parts.get(name, 0) for name in ("activations", "temporaries", "inputs"))
    said = float(formulas.activations) + float(formulas.logits)
    print(
        f"{family:18}{parts['parameters'] / 2**20:8.1f} MiB{float(formulas.weights) / 2**20:8.1f} MiB"
        f"{found / 2**20:18.0f} MiB{said / 2**20:8.0f} MiB{found / said:8.2f}",
        flush=True,
    )
    return found / said


if __name__ == "__main__":
    main()
