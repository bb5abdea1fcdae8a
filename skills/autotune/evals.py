"""Thirty tasks for an agent that tunes launches, with graders that look at the answer alone.
Nothing is run on GPUs: studies are simulated.

    python skills/autotune/evals.py                       the tasks as JSON, for an agent: id, prompt and files
    python skills/autotune/evals.py ANSWERS.json          grades {id: answer}; exit code 1 unless all are right

An answer is a config (`tp=2,pp=1,...`), a name, or `yes` or `no`. Each task has a transcript: the
documented commands with which it is solved in a folder that has its files. `solve` reads their JSON
as a careful agent would, and `proposed` lists the configs that they recommend: these two are the
stand-in that proves the graders. `careless` is the other stand-in, whose answers are wrong.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import autotune
from autotune.errors import AutotuneError
from autotune.schema.space_models import usual_space
from autotune.space import complete, why_not_in
from autotune.spec import Study

Job = tuple[str, str, int, int]
"""model, cluster, tokens per sequence, sequences per step"""
JOBS: tuple[Job, ...] = (
    ("qwen3-8b", "h200-sxm-4x8", 8192, 512),
    ("llama-8b", "a100-80gb-2x8", 4096, 256),
    ("llama-70b", "h100-sxm-16x8", 8192, 512),
    ("gpt2-medium", "h100-sxm-1x8", 1024, 512),
    ("gpt2-xl", "v100-32gb-1x8", 1024, 256),
    ("llama-1b", "l40s-1x8", 2048, 256),
)
ASKED: tuple[tuple[Job, str, int], ...] = (
    (JOBS[1], "tp=1,pp=1,micro_batch_size=1", 0),
    (JOBS[2], "tp=3,pp=1,micro_batch_size=1", 2),
    (JOBS[2], "tp=1,pp=1,micro_batch_size=1", 0),
    (JOBS[3], "tp=1,pp=1,micro_batch_size=16", 0),
    (JOBS[5], "tp=1,pp=1,micro_batch_size=64", 2),
    (JOBS[0], "tp=8,pp=1,micro_batch_size=1,recompute=full", 0),
)
"""configs of which an agent is asked whether they are valid and fit, and how `estimate` ends: 2
where one is not valid"""
COMPARED: tuple[tuple[Job, str], ...] = (
    (("llama-8b", "h100-sxm-4x8", 4096, 256), "h100-sxm h200-sxm"),
    (("llama-3b", "a100-80gb-2x8", 2048, 256), "a100-80gb h100-sxm"),
    (("llama-8b", "h100-sxm-4x8", 4096, 256), "h100-sxm b200-sxm"),
    (("llama-3b", "a100-40gb-2x8", 2048, 256), "a100-40gb a100-80gb"),
)
LAUNCH = """torchrun --nproc_per_node=8 run_clm.py {model}--block_size 4096 --bf16 True --dataloader_num_workers 4 \\
    --fsdp full_shard {more}--per_device_train_batch_size {micro} --gradient_accumulation_steps {steps}
"""
LLAMA = "--model_name_or_path meta-llama/Llama-3.1-8B "
SPEC = """name: {name}
model: gpt2-medium
cluster: h100-sxm-1x8
workload: {{seq_len: 1024, global_batch_size: 64}}
space: {space}
budget: {{max_trials: 4, min_gain: 0}}
searcher: cost_ranked
trainer: native
"""
WIDE = "{micro_batch_size: [1, 2, 4, 8], precision: [bf16]}"
ALIKE = "{micro_batch_size: [8], zero_stage: [0, 1], precision: [bf16]}"
QUIET = "runner: {kind: simulated, noise: 0.01, outlier_every: 0}\n"
NOISY = "runner: {kind: simulated, noise: 0.6, outlier_every: 0}\nmeasure: {warmup_steps: 1, first_look: 0, min_steps: 1, max_steps: 1}\n"
UNEVEN = "runner: {kind: simulated, noise: 0.2, bias: 0, outlier_every: 0}\nbaseline: micro_batch_size=8\n"
FAULTY = "runner: {{kind: simulated, noise: 0.01, outlier_every: 0, faults: [{{kind: {kind}, trial: 1}}]}}\n"
NEAR = 0.95
"""share of the best predicted speed that a proposed config must reach"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One question with the commands that answer it."""

    id: str
    kind: str
    """what is asked, which says how an answer is graded and how the stand-in reads the last
    command's JSON"""
    prompt: str
    transcript: tuple[tuple[str, ...], ...]
    """arguments of `autotune`, command by command; all but the last may be without JSON"""
    files: Mapping[str, str] = field(default_factory=dict)
    job: Job | None = None
    asked: str = ""
    """the config or the clusters in question"""
    right: str = ""
    """the answer, where it follows from how the task was made; empty: the cost model and the rules
    say it"""
    exit_code: int = 0
    """of the last command"""


def tasks() -> list[Task]:
    """All tasks."""
    return [*_plans(), *_checks(), *_comparisons(), *_launches(), *_refusals(), *_studies()]


def _plans() -> Iterator[Task]:
    for number, job in enumerate(JOBS):
        prompt = f"Propose a config that fits and is among the fastest: {_said(job)}."
        plan = ("plan", *options(job), "--top", "1000", "--json")
        yield Task(
            id=f"propose-{number}", kind="propose", prompt=prompt, transcript=(plan,), job=job
        )
    job = ("llama-70b", "a100-40gb-1x1", 4096, 8)
    yield Task(id="nothing-fits", kind="feasible", prompt=f"Is there a config that fits (yes or no)? {_said(job)}.", transcript=(("plan", *options(job), "--json"),), right="no", exit_code=1)  # fmt: skip


def _checks() -> Iterator[Task]:
    for number, (job, asked, code) in enumerate(ASKED):
        files = {"study.yaml": json.dumps(document_of(job))}
        prompt = f"Is {asked} a valid config that fits in memory (yes or no)? {_said(job)}; the spec is study.yaml."
        transcript = (("estimate", "study.yaml", "--config", asked, "--json"),)
        yield Task(id=f"fits-{number}", kind="fits", prompt=prompt, transcript=transcript, files=files, job=job, asked=asked, exit_code=code)  # fmt: skip


def _comparisons() -> Iterator[Task]:
    for number, (job, asked) in enumerate(COMPARED):
        one, other = asked.split()
        prompt = f"Which is faster for {job[0]}, {one} or {other}, with the GPUs of {job[1]}?"
        plan = ("plan", *options(job), "--clusters", f"{one},{other}", "--top", "1", "--json")
        yield Task(
            id=f"compare-{number}",
            kind="compare",
            prompt=prompt,
            transcript=(plan,),
            job=job,
            asked=asked,
        )


def _launches() -> Iterator[Task]:
    def launch(**changes: Any) -> dict[str, str]:
        return {
            "train.sh": LAUNCH.format(
                **{"model": LLAMA, "more": "", "micro": 1, "steps": 16} | changes
            )
        }

    def review(*more: str) -> tuple[tuple[str, ...], ...]:
        return (("review", "train.sh", "--cluster", "h100-sxm", *more, "--json"),)

    large, safe = launch(micro=16, steps=1), launch(more="--gradient_checkpointing True ")
    yield Task(id="launch-oom", kind="launch-fits", prompt="Does train.sh fit on h100-sxm (yes or no)?", transcript=review(), files=large, right="no", exit_code=1)  # fmt: skip
    yield Task(id="launch-fits", kind="launch-fits", prompt="Does train.sh fit on h100-sxm (yes or no)?", transcript=review(), files=safe, right="yes")  # fmt: skip
    yield Task(id="launch-repair", kind="repair", prompt="train.sh runs out of memory on h100-sxm. Propose a config with the same batch that fits.", transcript=review(), files=large, job=("llama-8b", "h100-sxm-1x8", 4096, 128), exit_code=1)  # fmt: skip
    yield Task(id="launch-without-model", kind="missing", prompt="What must you know before you can judge train.sh on h100-sxm?", transcript=review(), files=launch(model=""), right="model", exit_code=2)  # fmt: skip
    yield Task(id="launch-two-formats", kind="warning", prompt="What is wrong with train.sh?", transcript=review(), files=launch(more="--gradient_checkpointing True --fp16 True "), right="--fp16")  # fmt: skip


def _refusals() -> Iterator[Task]:
    def refused(name: str, text: str, right: str) -> Task:
        prompt = "Which key of study.yaml is wrong?"
        transcript = (("plan", "study.yaml", "--json"),)
        return Task(id=name, kind="field", prompt=prompt, transcript=transcript, files={"study.yaml": text}, right=right, exit_code=2)  # fmt: skip

    spec = SPEC.format(name="refused", space=WIDE)
    yield refused("unknown-key", spec.replace("max_trials", "max_trails"), "budget.max_trails")
    yield refused("invalid-baseline", f"{spec}baseline: tp=3\n", "baseline")
    yield refused("ambiguous-batch", spec.replace("global_batch_size: 64", "global_batch_size: -64"), "workload.global_batch_size")  # fmt: skip


def _studies() -> Iterator[Task]:
    def study(
        name: str, kind: str, prompt: str, more: str, *last: str, right: str, space: str = WIDE
    ) -> Task:
        transcript = (("tune", "study.yaml", "--json"), (*last, "--json"))
        files = {"study.yaml": SPEC.format(name=name, space=space) + more}
        return Task(id=name, kind=kind, prompt=f"Tune study.yaml (simulated). {prompt}", transcript=transcript, files=files, right=right)  # fmt: skip

    faster = "Is the winner significantly faster than the baseline (yes or no)?"
    yield study("clear-winner", "faster", faster, QUIET, "best", "clear-winner", right="yes")
    yield study("tie", "faster", faster, UNEVEN, "best", "tie", right="no", space=ALIKE)
    yield study("noisy-machine", "faster", faster, NOISY, "best", "noisy-machine", right="no")
    for kind in ("out_of_memory", "hang"):
        prompt = "How did trial 1 fail?"
        yield study(f"failed-{kind}", "failure", prompt, FAULTY.format(kind=kind), "logs", f"failed-{kind}", "1", right=kind.upper())  # fmt: skip


def document_of(job: Job) -> dict[str, Any]:
    """The spec of a job, in the space that ships for it."""
    model, cluster, seq_len, batch = job
    document = {
        "model": model,
        "cluster": cluster,
        "workload": {"seq_len": seq_len, "global_batch_size": batch},
    }
    return document | {"space": usual_space(document), "runner": "simulated"}


def study_of(job: Job) -> Study:
    """The study of a job."""
    return autotune.load_study(document_of(job))


def options(job: Job) -> tuple[str, ...]:
    """A job as options of `autotune plan`."""
    model, cluster, seq_len, batch = job
    return (
        "--model",
        model,
        "--cluster",
        cluster,
        "--seq-len",
        str(seq_len),
        "--batch",
        str(batch),
    )


def _said(job: Job) -> str:
    model, cluster, seq_len, batch = job
    return f"{model} on {cluster}, {batch} sequences of {seq_len} tokens a step"


def is_right(task: Task, answer: str) -> bool:
    """Whether the answer is right. A proposal must be valid, expected to fit, and near the
    fastest."""
    if task.kind in ("missing", "warning"):
        return task.right in answer
    if task.right:
        return answer == task.right
    assert task.job is not None
    if task.kind == "compare":
        speeds = {name: _best(_on(task.job, name)) for name in task.asked.split()}
        return answer == max(speeds, key=lambda name: speeds[name])
    study = study_of(task.job)
    if task.kind == "fits":
        return answer == ("yes" if fits(study, task.asked) else "no")
    if task.kind == "repair":
        study = replace(study, workload=replace(study.workload, trainer="command"))
        return fits(study, answer, is_in_space=False)
    if not fits(study, answer):
        return False
    speed = float(autotune.estimate(study.workload, complete(study.workload, answer)).tokens_per_s)
    return speed >= NEAR * _best(study)


def solve(task: Task, document: Mapping[str, Any]) -> str:
    """The answer that the JSON of the transcript's last command gives."""
    match task.kind:
        case "compare":
            rows = [row for row in document["clusters"] if row["estimate"]]
            best = max(rows, key=lambda row: row["estimate"]["tokens_per_s"])["cluster"]
            return next(name for name in task.asked.split() if best.startswith(f"{name}-"))
        case "propose":
            return label(
                max(document["configs"], key=lambda row: row["estimate"]["tokens_per_s"])["config"]
            )
        case "repair":
            return label(document["together"]["config"])
        case "feasible":
            return "yes" if document["configs"] else "no"
        case "fits":
            return (
                "yes"
                if document["legal"] and document["estimate"]["oom_probability"] <= 0.5
                else "no"
            )
        case "launch-fits":
            return "yes" if document["fits"] else "no"
        case "missing":
            return str(document["missing"][0]["what"])
        case "warning":
            return str(document["warnings"][0]["text"])
        case "field":
            return str(document["error"]["field"])
        case "faster":
            is_claimed = document["too_noisy"] is None and (document["speedup_low"] or 0.0) > 1.0
            return (
                "yes"
                if is_claimed and document["baseline"]["number"] not in document["tied_with"]
                else "no"
            )
        case _:
            return str(document["trial"]["failure"]["kind"])


def proposed(task: Task, document: Mapping[str, Any]) -> Iterator[tuple[Study, str]]:
    """The configs that the JSON of a command recommends to run, each with the study in which it
    must be valid and fit."""
    if task.kind == "propose" and task.job is not None:
        for row in document["configs"]:
            yield study_of(task.job), label(row["config"])
    if task.kind == "faster" and document.get("best"):
        yield (
            autotune.load_study({**_read(task.files["study.yaml"])}),
            label(document["best"]["config"]),
        )


def careless(task: Task) -> str:
    """A wrong answer."""
    if task.right in ("yes", "no"):
        return "no" if task.right == "yes" else "yes"
    if task.kind == "compare":
        one, other = task.asked.split()
        return one if not is_right(task, one) else other
    if task.kind == "fits":
        return "no" if is_right(task, "yes") else "yes"
    return "tp=3,pp=1,micro_batch_size=1" if task.kind in ("propose", "repair") else "nothing"


def label(config: Mapping[str, Any]) -> str:
    """A config of a JSON document as text that every command takes."""
    words = {
        k: str(v).lower() if isinstance(v, bool) else v for k, v in config.items() if k != "extra"
    }
    return ",".join(f"{k}={v}" for k, v in words.items() if v is not None)


def fits(study: Study, config: str, *, is_in_space: bool = True) -> bool:
    """Whether a config is valid and expected to fit."""
    try:
        asked = complete(study.workload, config)
        if is_in_space and why_not_in(study, asked) is not None:
            return False
        if asked.global_batch_size not in study.workload.global_batch_sizes:
            return False
        return float(autotune.estimate(study.workload, asked).oom_probability) <= 0.5
    except AutotuneError:
        return False


def _read(text: str) -> Mapping[str, Any]:
    import yaml

    return yaml.safe_load(text)


def _on(job: Job, gpu: str) -> Study:
    model, cluster, seq_len, batch = job
    return study_of((model, f"{gpu}-{cluster.rpartition('-')[2]}", seq_len, batch))


def _best(study: Study) -> float:
    """The most tokens/s that is predicted for a config that is expected to fit, by the order of a
    plan."""
    from autotune.plan.predictions import plan_of

    return max(
        (float(row.estimate.tokens_per_s) for row in plan_of(study, top=1000, profile=False).rows),
        default=0.0,
    )


def main(arguments: Sequence[str]) -> int:
    """Prints the tasks, or grades answers."""
    if not arguments:
        print(json.dumps([{"id": task.id, "prompt": task.prompt, "files": dict(task.files)} for task in tasks()], indent=1))  # fmt: skip
        return 0
    answers = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    right = {task.id: is_right(task, str(answers.get(task.id, ""))) for task in tasks()}
    print(json.dumps({"right": sum(right.values()), "of": len(right), "tasks": right}, indent=1))
    return 0 if all(right.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
