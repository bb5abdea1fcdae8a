"""Numerical error of randomly drawn combinations of all knobs against one fp32 rank: `python -m
tests.benchmarks.numerics [SEED [CONFIGS [RANKS]]]`.

Tiny models of four families (GPT-2 style with tied embeddings and an odd vocabulary size, one with
uneven stages, Llama style with grouped heads, mixture of experts) take two optimizer steps on CPU
ranks. The second loss shows whether the first update was right.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import numpy as np

from autotune.spec import SCHEDULES
from tests.workers.training.test_numerics import TOLERANCES
from tests.workers.trial_ranks import MODELS, run_jobs

BATCH = 4


def draw(random_: random.Random, ranks: int) -> tuple[str, str]:
    """A model and a config that the trainer accepts."""
    while True:
        tp, pp, cp = (random_.choice([1, 2]) for _ in range(3))
        dp = ranks // (tp * pp * cp)
        if not 1 <= dp <= BATCH or dp * tp * pp * cp != ranks:
            continue
        model = random_.choice(list(MODELS))
        ep = random_.choice([1, 2]) if model == "moe" and dp * cp % 2 == 0 else 1
        size = random_.choice([m for m in (1, 2, 4) if BATCH % (m * dp) == 0])
        accumulation = BATCH // (size * dp)
        schedule = random_.choice(SCHEDULES) if pp > 1 else "1f1b"
        if pp > 1 and schedule != "gpipe" and accumulation < pp:
            continue
        virtual = random_.choice([1, 2]) if schedule.startswith("interleaved") else 1
        words = ["none", "norm", "mlp", "selective", "full"]
        recompute = "none" if schedule == "interleaved_zero_bubble" else random_.choice(words)
        stage = random_.choice([0, 1, 2] if schedule == "interleaved_zero_bubble" else [0, 1, 2, 3])
        copies = [
            n for n in (1, 2) if stage and dp % n == 0 and dp * cp // ep % n == 0 and dp * cp > n
        ]
        knobs = {
            "tp": tp,
            "pp": pp,
            "cp": cp,
            "dp": dp,
            "ep": ep,
            "micro_batch_size": size,
            "accumulation_steps": accumulation,
            "precision": random_.choice(["fp32", "bf16", "fp16"]),
            "zero_stage": stage,
            "dp_replicas": random_.choice(copies or [1]),
            "sequence_parallel": str(tp > 1 and random_.random() < 0.5).lower(),
            "pp_schedule": schedule,
            "virtual_stages": virtual,
            "recompute": recompute,
            "pp_split": random_.choice(["layers", "edges"]) if pp > 1 else "layers",
            "loss": random_.choice(["own", "chunked"]),
            "cp_style": random_.choice(_styles(model, tp)) if cp > 1 else "ring",
            "dispatcher": random_.choice(["alltoall", "allgather"]) if ep > 1 else "alltoall",
        }
        return model, ",".join(f"{name}={value}" for name, value in knobs.items())


def _styles(model: str, tp: int) -> list[str]:
    """Styles of context parallelism over two ranks."""
    return ["ring", "gather", *(["heads"] if MODELS[model].num_kv_heads // tp % 2 == 0 else [])]


def main(seed: int = 1, configs: int = 24, ranks: int = 4) -> None:
    """Prints the worst relative differences by precision, and every config that failed."""
    random_ = random.Random(seed)
    plain = [
        {"model": model, "config": f"micro_batch_size={BATCH},precision=fp32"} for model in MODELS
    ]
    drawn = [
        dict(zip(("model", "config"), draw(random_, ranks), strict=True)) for _ in range(configs)
    ]
    with tempfile.TemporaryDirectory() as directory:
        results = run_jobs({1: plain, ranks: drawn}, Path(directory))
    wanted = {r["model"]: r["measurement"] for r in results[: len(plain)]}
    worst: dict[str, list[tuple[float, float]]] = {}
    for result in results[len(plain) :]:
        if "measurement" not in result:
            print(
                "failed:",
                result["model"],
                result["config"],
                result.get("failure") or result.get("error"),
            )
            continue
        pairs = [
            np.abs(np.divide(result["measurement"][key], wanted[result["model"]][key]) - 1).max()
            for key in ("losses", "grad_norms")
        ]
        precision = result["config"].partition("precision=")[2].partition(",")[0]
        worst.setdefault(precision, []).append((pairs[0], pairs[1]))
        if pairs[0] > TOLERANCES[precision] or pairs[1] > 10 * TOLERANCES[precision]:
            print("beyond the tests' tolerance:", result["model"], result["config"], *pairs)
    print("| precision | configs | worst loss | worst gradient norm |\n|---|---|---|---|")
    for precision, rows in sorted(worst.items()):
        print(
            f"| {precision} | {len(rows)} | {max(a for a, _ in rows):.1e} | {max(b for _, b in rows):.1e} |"
        )
    print(f"{sum(map(len, worst.values()))} of {configs} drawn configs trained")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
