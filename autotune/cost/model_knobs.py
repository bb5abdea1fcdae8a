"""The knobs that the cost model reads: `layout.py` reads the degrees and counts, `compute.py`,
`experts.py`, `recompute.py` and `pipeline.py` the others."""

from __future__ import annotations

from autotune.spec import KnobUse

COST_MODEL = KnobUse(
    part="cost model",
    reads=frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
        "dp_replicas", "pp_split", "loss", "cp_style", "activation_budget", "offload", "async_tp", "cuda_graph",
        "dispatcher", "ep_overlap",
    }),
    own_knobs_neutral="no formula covers a study's own knobs",
)  # fmt: skip
"""A knob that is neither read nor declared neutral here is rejected; neutral ones have an effect
too small to predict."""
