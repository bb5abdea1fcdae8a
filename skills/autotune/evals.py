"""Thirty tasks for an agent that tunes launches, with graders that look at the answer alone. Nothing is run on GPUs: answers are checked by the cost model and the rules.

    python skills/autotune/evals.py                       the tasks as JSON, for an agent: id and prompt
    python skills/autotune/evals.py ANSWERS.json          grades {id: answer}; exit code 1 unless all are right

An answer is a config (`tp=2,pp=1,...`), a cluster's name, or `yes` or `no`. `reference` is the documented command with which a task is solved, and `solve` reads its
JSON as a careful agent would: it is the stand-in that proves the graders, beside `careless`, whose answers are wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import autotune
from autotune.schema.space_models import usual_space
from autotune.space import complete, why_not_in
from autotune.spec import Study

JOBS = (
    ("qwen3-8b", "h200-sxm-4x8", 8192, 512),
    ("llama-8b", "h100-sxm-1x8", 8192, 64),
    ("llama-8b", "a100-80gb-2x8", 4096, 256),
    ("llama-70b", "h100-sxm-16x8", 8192, 512),
    ("gpt2-medium", "h100-sxm-1x8", 1024, 512),
    ("llama-3b", "a100-40gb-1x8", 4096, 128),
    ("gpt2-xl", "v100-32gb-1x8", 1024, 256),
    ("llama-1b", "l40s-1x8", 2048, 256),
)
"""model, cluster, tokens of a sequence, sequences of a step"""
PAIRS = (("h100-sxm", "h200-sxm"), ("a100-80gb", "h100-sxm"), ("a100-40gb", "a100-80gb"), ("h100-sxm", "b200-sxm"))
NEAR = 0.95
"""share of the best predicted speed that a proposed config must reach"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One question with the command that answers it."""

    id: str
    kind: str
    """propose, valid, fits or compare"""
    prompt: str
    reference: tuple[str, ...]
    """arguments of autotune"""
    job: tuple[str, str, int, int]
    asked: str = ""
    """the config or the clusters in question"""


def study_of(job: tuple[str, str, int, int]) -> Study:
    """The study of a job, in the space that ships for it."""
    model, cluster, seq_len, batch = job
    document = {"model": model, "cluster": cluster, "workload": {"seq_len": seq_len, "global_batch_size": batch}}
    return autotune.load_study(document | {"space": usual_space(document), "runner": "simulated"})


def options(job: tuple[str, str, int, int]) -> tuple[str, ...]:
    """A job as options of `autotune plan`."""
    model, cluster, seq_len, batch = job
    return ("--model", model, "--cluster", cluster, "--seq-len", str(seq_len), "--batch", str(batch))


def tasks() -> list[Task]:
    """All tasks."""
    found = []
    for number, job in enumerate(JOBS):
        model, cluster, seq_len, batch = job
        said = f"{model} on {cluster}, {batch} sequences of {seq_len} tokens a step"
        plan = ("plan", *options(job), "--top", "1000", "--json")
        found.append(Task(id=f"propose-{number}", kind="propose", prompt=f"Propose a config that fits and is among the fastest: {said}.", reference=plan, job=job))  # fmt: skip
        for name, asked in (("plain", "tp=1,pp=1,micro_batch_size=1"), ("odd", "tp=3,pp=1,micro_batch_size=1")):
            prompt = f"Is {asked} a valid config that fits in memory (yes or no)? {said}."
            found.append(Task(id=f"fits-{name}-{number}", kind="fits", prompt=prompt, reference=plan, job=job, asked=asked))  # fmt: skip
    for number, (one, other) in enumerate(PAIRS):
        for job in (("llama-8b", f"{one}-4x8", 4096, 256), ("llama-3b", f"{one}-2x8", 2048, 256))[
            : 2 if number < 2 else 1
        ]:
            prompt = f"Which is faster for {job[0]}, {one} or {other}, with the GPUs of {job[1]}?"
            reference = ("plan", *options(job), "--clusters", f"{one},{other}", "--top", "1", "--json")
            found.append(Task(id=f"compare-{number}-{job[0]}", kind="compare", prompt=prompt, reference=reference, job=job, asked=f"{one} {other}"))  # fmt: skip
    return found


def is_right(task: Task, answer: str) -> bool:
    """Whether the answer is right. A proposal must be valid, expected to fit, and near the fastest."""
    if task.kind == "compare":
        speeds = {name: _best(_on(task.job, name)) for name in task.asked.split()}
        return answer == max(speeds, key=lambda name: speeds[name])
    study = study_of(task.job)
    if task.kind == "fits":
        return answer == ("yes" if _fits(study, task.asked) else "no")
    if not _fits(study, answer):
        return False
    speed = float(autotune.estimate(study.workload, complete(study.workload, answer)).tokens_per_s)
    return speed >= NEAR * _best(study)


def solve(task: Task, document: Mapping[str, Any]) -> str:
    """The answer that the JSON of the reference command gives."""
    if task.kind == "compare":
        rows = [row for row in document["clusters"] if row["estimate"]]
        best = max(rows, key=lambda row: row["estimate"]["tokens_per_s"])["cluster"]
        return next(name for name in task.asked.split() if best.startswith(f"{name}-"))
    if task.kind == "propose":
        fast = max(document["configs"], key=lambda row: row["estimate"]["tokens_per_s"] * (row["estimate"]["oom_probability"] <= 0.5))  # fmt: skip
        return ",".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in fast["config"].items() if k != "extra" and v is not None)  # fmt: skip
    return "yes" if _fits(study_of(task.job), task.asked) else "no"


def careless(task: Task) -> str:
    """A wrong answer of each kind."""
    if task.kind == "compare":
        return task.asked.split()[0] if not is_right(task, task.asked.split()[0]) else task.asked.split()[1]
    return "tp=3,pp=1,micro_batch_size=1" if task.kind == "propose" else "yes" if not _fits(study_of(task.job), task.asked) else "no"  # fmt: skip


def _fits(study: Study, config: str) -> bool:
    try:
        asked = complete(study.workload, config)
        if why_not_in(study, asked) is not None:
            return False
        return float(autotune.estimate(study.workload, asked).oom_probability) <= 0.5
    except autotune_errors():
        return False


def autotune_errors() -> type[Exception]:
    """What a config that is none raises."""
    from autotune.errors import AutotuneError

    return AutotuneError


def _on(job: tuple[str, str, int, int], gpu: str) -> Study:
    model, cluster, seq_len, batch = job
    return study_of((model, f"{gpu}-{cluster.rpartition('-')[2]}", seq_len, batch))


def _best(study: Study) -> float:
    """The most tokens/s that is predicted for a config that is expected to fit, by the order of a plan."""
    from autotune.predictions import plan_of

    return max((float(row.estimate.tokens_per_s) for row in plan_of(study, top=1000, profile=False).rows), default=0.0)


def main(arguments: Sequence[str]) -> int:
    """Prints the tasks, or grades answers."""
    if not arguments:
        print(json.dumps([{"id": task.id, "prompt": task.prompt} for task in tasks()], indent=1))
        return 0
    answers = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    right = {task.id: is_right(task, str(answers.get(task.id, ""))) for task in tasks()}
    print(json.dumps({"right": sum(right.values()), "of": len(right), "tasks": right}, indent=1))
    return 0 if all(right.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
