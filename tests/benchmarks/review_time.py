"""Processor time of `autotune review`, imports included, for launches of all kinds: `python -m
tests.benchmarks.review_time [--rounds 7]`.

Each launch is reviewed in a fresh process, all of them in turn, and `import numpy` beside them: how
long that takes says how fast the machine is at the moment. Printed are medians of user and system
time, in seconds, and their ratio to that import. Modules are compiled before, as those of an
installed package are.
"""

from __future__ import annotations

import argparse
import compileall
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.onboarding import test_post_training_launches as post_training
from tests.reviews.test_lines import MEGATRON
from tests.reviews.test_post_training_reviews import LAUNCH as VERL
from tests.reviews.test_reviews import ACCELERATE, PYTORCH_JOB, SPEC, TITAN, TRAIN_JOB, TRAINER
from tests.reviews.test_words import LOOP
from tests.trainers.test_post_trainers import OPENRLHF_SCRIPT, VERL_FILE

ROOT = Path(__file__).resolve().parents[2]
NODE = "h100-sxm-1x8"
CLM = "run_clm.py --model_name_or_path Qwen/Qwen3-14B --block_size 4096 --bf16 --per_device_train_batch_size 1 --gradient_accumulation_steps 8"
FP8_70B = MEGATRON.format(value="1").replace("num-layers 32 --hidden-size 4096 --num-attention-heads 32", "num-layers 80 --hidden-size 8192 --num-attention-heads 64").replace(
    "ffn-hidden-size 14336", "ffn-hidden-size 28672").replace("--bf16", "--bf16 --fp8-format hybrid --tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 2").replace(
    "--nproc_per_node 8", "--nproc_per_node 8 --nnodes 8")  # fmt: skip
NANOTRON = """
parallelism: {dp: 4, tp: 2, pp: 1, pp_engine: 1f1b, tp_linear_async_communication: true, tp_mode: REDUCE_SCATTER}
tokens: {batch_accumulation_per_replica: 8, micro_batch_size: 2, sequence_length: 4096, train_steps: 100}
optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true}
model: {dtype: bfloat16, model_config: {hidden_size: 2048, intermediate_size: 8192, num_attention_heads: 32, num_hidden_layers: 16, num_key_value_heads: 8,
  vocab_size: 49152, max_position_embeddings: 4096, tie_word_embeddings: true, is_llama_config: true}}
"""
LIGHTNING = """import lightning as L
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B")
loader = DataLoader(data, batch_size=4, num_workers=4)
trainer = L.Trainer(accelerator="gpu", devices=8, num_nodes=1, precision="bf16-mixed", strategy="fsdp", accumulate_grad_batches=4, max_steps=100)
trainer.fit(Module(model), loader)
"""
ZERO_3 = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}'
LAUNCHES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "transformers' Trainer, FSDP": ({"train.sh": TRAINER}, ("--cluster", "h200-sxm")),
    "the same, one line": ({"run.sh": f'torchrun --nproc-per-node 8 {CLM} --fsdp "full_shard auto_wrap"\n'}, ("--cluster", NODE)),
    "the same, LoRA": ({"run.sh": f"torchrun --nproc-per-node 8 {CLM} --use_peft --lora_r 16\n"}, ("--cluster", NODE)),
    "accelerate": ({"run.sh": "accelerate launch --config_file fsdp.yaml sft.py --model_name_or_path google/gemma-2-9b --per_device_train_batch_size 1 --max_length 2048\n", "fsdp.yaml": ACCELERATE}, ("--cluster", NODE)),
    "DeepSpeed": ({"run.sh": f"deepspeed --num_gpus 8 {CLM} --deepspeed z3.json\n", "z3.json": ZERO_3}, ("--cluster", NODE)),
    "Lightning": ({"train.py": LIGHTNING}, ("--cluster", NODE, "--model", "llama-1b", "--seq-len", "2048")),
    "a loop of one's own": ({"loop.py": LOOP}, ("--cluster", NODE, "--model", "llama-1b")),
    "Megatron-LM, 8B": ({"run.sh": MEGATRON.format(value="1")}, ("--cluster", NODE)),
    "Megatron-LM, 70B in fp8, 8 nodes": ({"run.sh": FP8_70B}, ("--cluster", "h100-sxm-8x8")),
    "torchtitan": ({"llama.toml": TITAN}, ("--cluster", NODE)),
    "nanotron": ({"config.yaml": NANOTRON}, ("--cluster", NODE)),
    "Kubernetes, TrainJob": ({"job.yaml": TRAIN_JOB}, ("--cluster", "h200-sxm")),
    "Kubernetes, PyTorchJob": ({"job.yaml": PYTORCH_JOB}, ("--cluster", "h200-sxm")),
    "a study spec": ({"study.yaml": SPEC}, ()),
    "a study spec, 128 GPUs": ({"study.yaml": (ROOT / "search_spaces/studies/llama-70b-16x8.yaml").read_text()}, ()),
    "a study spec of post-training": ({"study.yaml": (ROOT / "search_spaces/studies/post-training.yaml").read_text()}, ()),
    "verl": ({"run.sh": VERL}, ("--cluster", NODE)),
    "verl, a file": ({"verl.yaml": VERL_FILE}, ("--cluster", NODE)),
    "TRL": ({"grpo.yaml": post_training.TRL}, ("--cluster", NODE, "--seq-len", "1024")),
    "NeMo-RL": ({"grpo.yaml": post_training.BASE}, ("--cluster", NODE)),
    "OpenRLHF": ({"run.sh": OPENRLHF_SCRIPT}, ("--cluster", NODE)),
}  # fmt: skip
"""of each: its files, of which the first is reviewed, and options"""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    compileall.compile_dir(ROOT / "autotune", quiet=1)
    with tempfile.TemporaryDirectory() as place:
        folders = [
            _written(Path(place) / str(number), files)
            for number, (files, _) in enumerate(LAUNCHES.values())
        ]
        words = [["review", next(iter(files)), *options] for files, options in LAUNCHES.values()]
        answers = [_run(line, folder)[1] for line, folder in zip(words, folders, strict=True)]
        seconds: list[list[float]] = [[] for _ in words]
        numpy_s = []
        for _ in range(rounds):
            numpy_s.append(_run(None, Path(place))[0])
            for own, line, folder in zip(seconds, words, folders, strict=True):
                own.append(_run(line, folder)[0])
    base_s = median(numpy_s)
    print(f"{base_s:.2f} s  1.0  import numpy")
    for name, own, answer in zip(LAUNCHES, seconds, answers, strict=True):
        print(
            f"{median(own):.2f} s  {median(own) / base_s:.1f}  {name}{'' if answer in (0, 1) else ' (no verdict)'}"
        )
    print(
        f"{median([median(own) for own in seconds]):.2f} s median, {max(median(own) for own in seconds):.2f} s most"
    )


def _written(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def _run(words: list[str] | None, folder: Path) -> tuple[float, int]:
    """(user and system time in seconds, exit code) of the command, or of the import of NumPy."""
    program = (
        "import numpy"
        if words is None
        else f"import sys; from autotune.cli import run; sys.exit(run({words!r}))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "AUTOTUNE_STORE": str(folder / "none.db")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if b"Traceback" in done.stderr:
        raise SystemExit(f"{words}: {done.stderr.decode()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.returncode


if __name__ == "__main__":
    main()
