"""The spec of a launch with what was said beside it, and what nobody said."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autotune.onboarding.draft import named_cluster
from autotune.onboarding.imported_spec import NOT_VALID
from autotune.onboarding.present_post_training import (
    LENGTHS,
    SPEED,
    answered_by_log,
    at_the_longest,
)
from autotune.reviews.answer import Missing
from autotune.reviews.said_where import lines_of_values
from autotune.reviews.target import Target
from autotune.spec import ClusterSpec, catalog
from autotune.spec.config import knobs_of
from autotune.trainers.present_configuration import ONLY_THE_SHELL

if TYPE_CHECKING:
    from autotune.onboarding.launch.launch_script import Started

_HOW = {
    "model": (
        "the model's shape",
        "add --model with a catalog name, a hub id or the path of its config.json",
    ),
    "cluster": ("the GPUs it runs on", "give --cluster, e.g. --cluster h100-sxm-1x8"),
    "workload.seq_len": ("the tokens per sequence", "give --seq-len"),
    "workload.global_batch_size": ("the sequences per optimizer step", "give --batch"),
    "space.precision": ("the precision", "add --precision bf16, fp16 or fp32"),
    "baseline": ("the config it trains with", "add --config micro_batch_size=4,tp=2,..."),
    **{
        f"rl.{key}": (
            f"the {key.replace('_', ' ')}",
            f"add --log with the log of a run, or write rl.{key} into a spec",
        )
        for key in LENGTHS
    },
    f"rollout.{SPEED}": (
        "the generation speed",
        f"add --log with the log of a run, or write rollout.{SPEED} into a spec",
    ),
}
VOCABULARY = "fill in: vocab_size"
"""the comment of a shape that lacks only that"""
OF_WORKLOAD = {"seq_len": "seq_len", "batch": "global_batch_size"}
"""what is said of the workload: its keys there"""


def completed(
    found: Target,
    said: Mapping[str, Any],
    local_cluster: Callable[[], ClusterSpec] | None,
    log: str | None,
    *,
    is_measured: bool,
) -> tuple[dict[str, Any], list[Missing], tuple[str, ...]]:
    """The spec with what was said in its place, what is still missing, and what is at its limit because nobody told it."""
    document = dict(found.document)
    workload = dict(document.get("workload") or {})
    open_keys = dict.fromkeys(
        key for key in found.fill_in if key not in ("trainer.argv", "trainer.cwd")
    )
    if any(VOCABULARY in comment for comment in found.comments):  # the shape is known but for that
        open_keys.pop("model", None)
    for name, key in OF_WORKLOAD.items():
        if said.get(name) is not None:
            workload[key] = said[name]
            open_keys.pop(f"workload.{key}", None)
    document["workload"] = workload
    if log is not None and "rl" in document and not found.is_spec:
        changed, answered = answered_by_log(document, log)
        document |= changed
        for key in answered:
            open_keys.pop(key, None)
    if found.is_spec:  # a draft has them already
        document |= {key: said[key] for key in ("model", "cluster") if said.get(key)}
    if said.get("precision"):
        document["space"] = (
            {**document["space"], "precision": [said["precision"]]}
            if isinstance(document.get("space"), dict)
            else document.get("space")
        )
        if isinstance(document.get("baseline"), str):
            document["baseline"] = re.sub(
                r"precision=\w+", f"precision={said['precision']}", document["baseline"]
            )
        launcher = document.get("trainer")
        if (
            isinstance(launcher, dict)
            and launcher.get("kind") == "command"
            and "{precision}" not in str(launcher.get("argv"))
        ):
            document["trainer"] = {
                **launcher,
                "fixed": {**(launcher.get("fixed") or {}), "precision": said["precision"]},
            }
        open_keys.pop("space.precision", None)
    if said.get("config"):
        document["baseline"] = said["config"]
        document |= {} if found.is_spec else _with_config(document, said["config"])
        open_keys.pop("baseline", None)
    if one_gpu := _one_gpu(found, said):
        open_keys["cluster"] = None
    elif said.get("cluster"):
        open_keys.pop("cluster", None)
    elif document.get("cluster") == "local" and not found.is_spec:
        here = local_cluster() if local_cluster else None
        if here is None or here.gpu.is_cpu:
            open_keys["cluster"] = None
    if "baseline" not in document and not found.is_spec:
        open_keys["baseline"] = None
    bounds: tuple[str, ...] = ()
    if (
        "rl" in document
        and not found.is_spec
        and not open_keys.keys() & {"workload.seq_len", "rl.prompts"}
    ):
        seq_len = said.get("seq_len") if "workload.seq_len" in found.fill_in else None
        # a measured step has its own lengths and generation: at their limits they would pass for its error
        bounded = [
            key
            for key in open_keys
            if key.startswith("rl.prompt_lengths" if is_measured else ("rl.", "rollout."))
        ]
        changed, bounds = at_the_longest(document, bounded, seq_len)
        document |= changed
        open_keys = {key: None for key in open_keys if key not in bounded}
    missing = []
    if (nodes := _open_nodes(found.started)) and not said.get("config"):
        missing.append(
            Missing(
                what=f"the number of nodes: only the shell can compute {nodes}",
                remedy="write the number into the launch, or give the config: --config dp=...",
            )
        )
    for remark in remarks_of(found):
        option, mark, _ = remark.partition(f": {ONLY_THE_SHELL}")
        if mark and not said.get("config") and not _DECIDES_NO_STEP.search(option):
            missing.append(
                Missing(
                    what=f"a number that only the shell can compute: {option}",
                    remedy="write it into the launch, or give the config: --config micro_batch_size=4,tp=2,...",
                )
            )
    for key in open_keys:
        if log is not None and key.startswith(("rl.", "rollout.")):
            missing.append(
                Missing(
                    what=_HOW.get(key, (key, ""))[0],
                    remedy=f"the log contains none; create a spec with autotune init {found.name} -o study.yaml and write {key} into it",
                )
            )
            continue
        what, remedy = _HOW.get(
            key,
            (
                key,
                f"create a spec with autotune init {found.name} -o study.yaml and write {key} into it",
            ),
        )
        if key == "cluster" and one_gpu:
            what, remedy = (
                f"the number of GPUs: {one_gpu} gives only the GPU type",
                f"give nodes and GPUs: --cluster {one_gpu}-1x8",
            )
        elif key == "cluster" and found.asked:
            remedy = f"name the GPU type, e.g. --cluster h100-sxm: the launch requests {found.asked[0]} x {found.asked[1]} GPUs"
        if key == "baseline":
            what, remedy = _no_baseline(found, what, remedy)
        missing.append(Missing(what=what, remedy=remedy))
    return document, missing, bounds


def _with_config(document: Mapping[str, Any], said: str) -> dict[str, Any]:
    """Trainer and space of a program that has no options for some of the knobs that are said: it does them all the same, and none of them changes."""
    launcher, space = document.get("trainer"), document.get("space")
    if not (
        isinstance(launcher, dict) and launcher.get("kind") == "command" and isinstance(space, dict)
    ):
        return {}
    told = str({key: value for key, value in launcher.items() if key != "fixed"})
    held = {
        name: value
        for name, value in _with_accumulation(document, knobs_of(said)).items()
        if name not in ("dp", "extra") and re.search(rf"\{{[^{{}}]*\b{name}\b", told) is None
    }
    return {
        "trainer": {**launcher, "fixed": {**(launcher.get("fixed") or {}), **held}},
        "space": {**space, **{name: [value] for name, value in held.items()}},
    }


def _with_accumulation(document: Mapping[str, Any], knobs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The knobs with the accumulation that batch and ranks leave, where these are known."""
    cluster, batch = (
        named_cluster(document.get("cluster")),
        document["workload"].get("global_batch_size"),
    )
    if cluster is None or not isinstance(batch, int):
        return knobs
    degrees = math.prod(knobs.get(name, 1) for name in ("tp", "pp", "cp"))
    per_step = knobs.get("micro_batch_size", 1) * knobs.get(
        "dp", max(1, cluster.num_gpus // degrees)
    )
    return knobs if batch % per_step else {"accumulation_steps": batch // per_step, **knobs}


def _no_baseline(found: Target, what: str, remedy: str) -> tuple[str, str]:
    """(why there is no current configuration, what to do): a rule that it breaks, with its lines, is to be mended in the launch."""
    told = next((note for note in found.notes if note.startswith(("no baseline", NOT_VALID))), "")
    if not told:
        return what, remedy
    said = re.sub(_OF_A_BASELINE, "", told.removeprefix(NOT_VALID))
    why, _, rest = said.partition("; ")
    if places := lines_of_values(why, found.texts):
        return (
            f"a valid configuration: {why} ({places})",
            rest or "change one of them in the launch",
        )
    if told.startswith(NOT_VALID):
        return (
            f"a valid configuration: {said}",
            "correct the launch, or give another: --config micro_batch_size=4,tp=2,...",
        )
    return f"the current configuration ({why})", remedy


_OF_A_BASELINE = r"^no baseline: (the current settings of .* are not valid for a study: )?"


def remarks_of(found: Target) -> tuple[str, ...]:
    """What was not understood of a launch, in words."""
    return found.draft.remarks if found.draft else ()


_DECIDES_NO_STEP = re.compile(
    r"\b(?:seed|total_epochs|total_training_steps|max_steps|max_num_steps|train-iters)\b"
)
"""numbers that decide nothing about one step"""


def _open_nodes(started: Started | None) -> str:
    """The word that a launcher is told for its nodes, where that is a variable whose value nothing in the launch says."""
    told = next(
        (word for name in ("nnodes", "num_machines") if started and (word := started.option(name))),
        "",
    )
    return told if told.startswith("$") and started is not None and started.nodes == 1 else ""


def _one_gpu(found: Target, said: Mapping[str, Any]) -> str:
    """The type of GPU that was named as the cluster of a launch that does not say how many there are; empty where the cluster is known."""
    name = str(said.get("cluster") or "")
    return name if name in catalog.gpu_names() and found.asked is None and not found.is_spec else ""
