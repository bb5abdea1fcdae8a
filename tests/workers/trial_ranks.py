"""Ranks for tests of the trial: one process per rank runs a list of configs one after the other and
writes what it saw.

    python -m tests.workers.trial_ranks DIRECTORY      reads DIRECTORY/jobs.json {world size: jobs}, writes DIRECTORY/SIZE/results.json

torch is imported once, and the ranks are forked from there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from autotune.ports import TrialRequest
from autotune.spec import (
    ClusterSpec,
    GpuSpec,
    MeasureSpec,
    ModelCode,
    ModelSpec,
    ParallelConfig,
    Peft,
    Workload,
)
from autotune.spec.hugging_face.shapes import PIPELINE_SPLITS, TENSOR_PLANS
from autotune.spec.lengths import Lengths
from autotune.spec.post_training import PostTraining, Rollout
from tests.workers.processes import CHECKOUT, CHECKOUT_PATH

SIZE: dict[str, Any] = {"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4}
MODELS = {
    "gpt": ModelSpec(name="gpt", vocab_size=257, tied_embeddings=True, max_positions=40, **SIZE),
    "uneven": ModelSpec(
        name="uneven", vocab_size=256, max_positions=32, **{**SIZE, "num_layers": 5}
    ),
    "llama": ModelSpec(
        name="llama", vocab_size=256, num_kv_heads=2, gated_mlp=True, ffn_hidden_size=48, **SIZE
    ),
    "moe": ModelSpec(
        name="moe",
        vocab_size=256,
        num_kv_heads=2,
        gated_mlp=True,
        ffn_hidden_size=48,
        num_experts=4,
        experts_per_token=2,
        **SIZE,
    ),
}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "num_hidden_layers": 4,
} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 256,
    "initializer_range": 0.05,
}
HERE = str(Path(__file__).parents[2])


def own(name: str, module: str, *, file: str = "own_models", **args: Any) -> ModelSpec:
    """A model that a function of a file of `tests.workers` builds."""
    return _with_code(
        name, ModelCode(module=f"tests.workers.{file}:{module}", args=json.dumps(args), folder=HERE)
    )


def transformers_class(name: str, config: Mapping[str, Any]) -> ModelSpec:
    """transformers' own class of that config."""
    return replace(_with_code(name, ModelCode()), source=json.dumps({**LLAMA, **config}))


def _with_code(name: str, code: ModelCode) -> ModelSpec:
    """As inspection would describe it, with all plans: what a model does not bring is a matter of
    laws, not of numerics."""
    code = replace(code, has_tensor_plan=True, has_pipeline_split=True, num_cuts=3)
    return ModelSpec(
        name=name,
        vocab_size=256,
        num_kv_heads=2,
        gated_mlp=True,
        ffn_hidden_size=48,
        code=code,
        **SIZE,
    )


MODELS |= {
    "hf": transformers_class("hf", {}),
    "hf_tied": transformers_class("hf_tied", {"tie_word_embeddings": True}),
    "plain": own("plain", "language_model"),
    "plain_tied": own("plain_tied", "language_model", tied=True),
    "split_by_function": own("split_by_function", "split_by_function"),
    "recommender": own("recommender", "recommender"),
    "convolutional": own("convolutional", "convolutional"),
    **{
        name: own(name, name, file="own_architectures")
        for name in ("encoder_decoder", "capacity_experts", "u_net")
    },
    **{name: own(name, name) for name in ("no_module", "raises", "failing_forward")},
}
ROUTED = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
} | dict.fromkeys(("n_routed_experts", "num_local_experts", "num_experts"), 4)
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 4,
}
FAMILIES: dict[str, dict[str, Any]] = {
    **{family: {} for family in sorted(TENSOR_PLANS | PIPELINE_SPLITS)},
    **dict.fromkeys(
        ("gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "flex_olmo"), ROUTED
    ),
    **{
        family: {**ROUTED, "head_dim": 8}
        for family in ("exaone_moe", "hy_v3", "minimax_m2", "solar_open")
    },
    "ernie4_5_moe": {**ROUTED, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1},
    **dict.fromkeys(("minicpm3", "youtu"), LATENT),
    **{family: {**ROUTED, **LATENT} for family in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")},
    "dots1": {**ROUTED, "n_shared_experts": 1},
    "granite": {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 3.0},
    **{
        family: {"head_dim": 8}
        for family in (
            "ministral",
            "helium",
            "ernie4_5",
            "cwm",
            "internlm3",
            "iquestcoder",
            "ministral3",
        )
    },
    "seed_oss": {"attention_dropout": 0.0, "residual_dropout": 0.0},
}
"""figures of small models of every family whose class brings a plan, beside the sizes"""
MODELS |= {
    f"hf_{family}": transformers_class(
        f"hf_{family}", {"architectures": None, "model_type": family, "pad_token_id": 0, **figures}
    )
    for family, figures in FAMILIES.items()
}
CPU = ClusterSpec(
    name="cpu-1x8",
    gpu=GpuSpec(
        name="cpu",
        memory_bytes=4e9,
        peak_flops_per_s={"fp32": 1e11, "bf16": 1e11},
        memory_bytes_per_s=1e10,
    ),
    gpus_per_node=8,
)
STEPS = 2


def request(
    model: str,
    config: str,
    *,
    steps: int = STEPS,
    workload: Mapping[str, Any] | None = None,
    **changes: Any,
) -> TrialRequest:
    """A short trial with a learning rate at which a wrong gradient shows in the next loss.
    `workload`: further fields of it, as plain values."""
    point = ParallelConfig.parse(config)
    more = dict(workload or {})
    if more.get("peft"):
        more["peft"] = Peft(**more["peft"])
    if more.get("rl"):
        lengths = Lengths(values=tuple(more["rl"].pop("lengths")))
        speed = Rollout(tokens_per_s_per_gpu=((1, 1e4),))
        more["rl"] = PostTraining(
            prompt_lengths=Lengths(values=(0.0,)),
            response_lengths=lengths,
            rollout=speed,
            **more["rl"],
        )
    plain = TrialRequest(
        study="test",
        number=0,
        attempt=1,
        workload=Workload(
            model=MODELS[model],
            cluster=CPU,
            seq_len=32,
            global_batch_size=point.global_batch_size,
            **more,
        ),
        config=point,
        measure=MeasureSpec(warmup_steps=0, min_steps=steps, max_steps=steps, precision=0.0),
        trainer_options={"learning_rate": 1e-2},
    )
    return replace(plain, **changes)


def run_jobs(
    jobs: dict[int, list[dict[str, Any]]], directory: Path, *, deadline_s: float = 1500
) -> list[dict[str, Any]]:
    """Results of the jobs ({model, config, changes}) by world size, in order; those after a crash
    are missing."""
    for size in jobs:
        (directory / str(size)).mkdir(parents=True, exist_ok=True)
    (directory / "jobs.json").write_text(json.dumps(jobs))
    run_module("tests.workers.trial_ranks", directory, deadline_s=deadline_s)
    paths = [directory / str(size) / "results.json" for size in jobs]
    return [result for path in paths if path.exists() for result in json.loads(path.read_text())]


def run_module(module: str, directory: Path, *, deadline_s: float) -> None:
    """Runs the module on the directory in a process group of its own, which is gone afterwards; its
    words go to DIRECTORY/log."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": CHECKOUT_PATH,
    }
    with (directory / "log").open("w") as log:
        parent = subprocess.Popen(
            [sys.executable, "-m", module, str(directory)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=CHECKOUT,
            start_new_session=True,
        )
        try:
            parent.wait(timeout=deadline_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()


def _serve_all(directory: Path) -> None:
    import autotune_workers.training.run_trial  # noqa: F401 - so that the ranks need not import it again

    jobs = json.loads((directory / "jobs.json").read_text())
    if any(job["model"].startswith("hf") for group in jobs.values() for job in group):
        import transformers.models.llama.modeling_llama  # noqa: F401 - likewise
    for size in jobs:
        ranks = []
        for rank in range(int(size)):
            child = os.fork()
            if child == 0:
                _serve(int(size), rank, directory)
                sys.stdout.flush()
                os._exit(0)
            ranks.append(child)
        for child in ranks:
            os.waitpid(child, 0)


def _serve(world_size: int, rank: int, directory: Path) -> None:
    import torch
    import torch.distributed as dist

    from autotune_workers.training.run_trial import RankContext, TrialFailed, run_trial

    torch.set_num_threads(1)
    jobs = json.loads((directory / "jobs.json").read_text())[str(world_size)]
    directory = directory / str(world_size)
    store = dist.FileStore(str(directory / "store"), world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=300)
    )
    context = RankContext(rank=rank, world_size=world_size, device=torch.device("cpu"))
    results = []
    for job in jobs:
        groups = len(dist.distributed_c10d._world.pg_map)
        try:
            trial = request(job["model"], job["config"], **job.get("changes", {}))
            outcome = run_trial(trial, context, lambda _: True)
            result = {
                **job,
                "measurement": outcome.measurement.to_dict(),
                "stopped": outcome.stopped,
            }
        except TrialFailed as error:
            result = {**job, "failure": error.failure.to_dict()}
        except BaseException:
            traceback.print_exc()
            result = {**job, "error": traceback.format_exc()}
        result["groups_left"] = len(dist.distributed_c10d._world.pg_map) - groups
        results.append(result)
        if rank == 0:
            (directory / "results.tmp").write_text(json.dumps(results))
            (directory / "results.tmp").rename(directory / "results.json")
        if "error" in result:
            sys.stdout.flush()
            os._exit(1)  # the others are left without a peer, and end too
    dist.destroy_process_group()


if __name__ == "__main__":
    _serve_all(Path(sys.argv[1]))
