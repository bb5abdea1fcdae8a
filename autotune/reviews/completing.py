"""The spec of a launch with what was said beside it, and what nobody said."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

from autotune.onboarding.draft import named_cluster
from autotune.onboarding.imported_spec import NOT_VALID
from autotune.onboarding.launch.launch_script import Started
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

_HOW = {
    "model": (
        "the model's shape",
        "add --model with a catalog name, a hub id or the path of its config.json",
    ),
    "cluster": ("the GPUs to train on", "add --cluster, e.g. --cluster h100-sxm-1x8"),
    "workload.seq_len": ("the tokens per sequence", "add --seq-len"),
    "workload.global_batch_size": ("the sequences per optimizer step", "add --batch"),
    "space.precision": ("the precision", "add --precision bf16, fp16 or fp32"),
    "baseline": ("the current config", "add --config micro_batch_size=4,tp=2,..."),
    **{
        f"rl.{key}": (
            f"the {key.replace('_', ' ')}",
            f"add --log with the log of a run, or set rl.{key} in a spec",
        )
        for key in LENGTHS
    },
    f"rollout.{SPEED}": (
        "the generation speed",
        f"add --log with the log of a run, or set rollout.{SPEED} in a spec",
    ),
}
VOCABULARY = "fill in: vocab_size"
"""the comment of a shape that lacks only that"""
OF_WORKLOAD = {"seq_len": "seq_len", "batch": "global_batch_size"}
"""what is said of the workload: its keys there"""
_TOLD = {"precision": "space.precision", "config": "baseline", "cluster": "cluster"}
"""what else is said, and the key that it fills in"""


def completed(
    found: Target,
    said: Mapping[str, Any],
    local_cluster: Callable[[], ClusterSpec] | None,
    log: str | None,
    *,
    is_measured: bool,
) -> tuple[dict[str, Any], list[Missing], tuple[str, ...]]:
    """The spec with what was said in its place, what is still missing, and what is at its limit
    because nobody told it."""
    document = _with_said(found, said)
    generates = "rl" in document and not found.is_spec
    answered: tuple[str, ...] = ()
    if log is not None and generates:
        changed, answered = answered_by_log(document, log)
        document |= changed
    open_keys = _open_keys(found, said, document, local_cluster)
    open_keys = [key for key in open_keys if key not in answered]
    bounds: tuple[str, ...] = ()
    if generates and not {"workload.seq_len", "rl.prompts"} & set(open_keys):
        # a measured step has its own lengths and generation: at their limits they would pass for
        # its error
        parts = ("rl.prompt_lengths",) if is_measured else ("rl.", "rollout.")
        bounded = [key for key in open_keys if key.startswith(parts)]
        seq_len = said.get("seq_len") if "workload.seq_len" in found.fill_in else None
        changed, bounds = at_the_longest(document, bounded, seq_len)
        document |= changed
        open_keys = [key for key in open_keys if key not in bounded]
    of_shell = [] if said.get("config") else _only_the_shell_knows(found)
    keys = (_missing(found, said, key, has_log=log is not None) for key in open_keys)
    return document, [*of_shell, *keys], bounds


def _with_said(found: Target, said: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with what was said in its place."""
    document = dict(found.document)
    told = {key: said[name] for name, key in OF_WORKLOAD.items() if said.get(name) is not None}
    document["workload"] = {**(document.get("workload") or {}), **told}
    if found.is_spec:  # a draft has them already
        document |= {key: said[key] for key in ("model", "cluster") if said.get(key)}
    if said.get("precision"):
        document |= _with_precision(document, said["precision"])
    if said.get("config"):
        document["baseline"] = said["config"]
        document |= {} if found.is_spec else _with_config(document, said["config"])
    return document


def _with_precision(document: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """Space, baseline and trainer of a program that trains in this precision."""
    changed: dict[str, Any] = {}
    space, baseline, launcher = (document.get(key) for key in ("space", "baseline", "trainer"))
    if isinstance(space, dict):
        changed["space"] = {**space, "precision": [precision]}
    if isinstance(baseline, str):
        changed["baseline"] = re.sub(r"precision=\w+", f"precision={precision}", baseline)
    if _is_command(launcher) and "{precision}" not in str(launcher.get("argv")):
        changed["trainer"] = _with_fixed(launcher, {"precision": precision})
    return changed


def _is_command(launcher: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a spec's trainer is a program of the user's own."""
    return isinstance(launcher, dict) and launcher.get("kind") == "command"


def _with_fixed(launcher: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer of a program that does these in every config."""
    return {**launcher, "fixed": {**(launcher.get("fixed") or {}), **values}}


def _open_keys(
    found: Target,
    said: Mapping[str, Any],
    document: Mapping[str, Any],
    local_cluster: Callable[[], ClusterSpec] | None,
) -> list[str]:
    """The keys of the spec that nobody told."""
    one_gpu = _one_gpu(found, said)
    told = {"trainer.argv", "trainer.cwd"}
    told |= {f"workload.{key}" for name, key in OF_WORKLOAD.items() if said.get(name) is not None}
    told |= {key for name, key in _TOLD.items() if said.get(name)}
    if any(VOCABULARY in comment for comment in found.comments):  # the shape is known but for that
        told.add("model")
    keys = [key for key in found.fill_in if key not in told or (key == "cluster" and one_gpu)]
    if one_gpu or (not said.get("cluster") and _is_elsewhere(found, document, local_cluster)):
        keys.append("cluster")
    if "baseline" not in document and not found.is_spec:
        keys.append("baseline")
    return list(dict.fromkeys(keys))


def _is_elsewhere(
    found: Target,
    document: Mapping[str, Any],
    local_cluster: Callable[[], ClusterSpec] | None,
) -> bool:
    """Whether a launch runs on GPUs that this machine does not have."""
    if document.get("cluster") != "local" or found.is_spec:
        return False
    here = local_cluster() if local_cluster else None
    return here is None or here.gpu.is_cpu


def _only_the_shell_knows(found: Target) -> Iterator[Missing]:
    """Numbers of a step that are variables which nothing sets."""
    if nodes := _open_nodes(found.started):
        yield Missing(
            what=f"the number of nodes, because only the shell can compute {nodes}",
            remedy="write the number into the launch, or set the config with --config dp=...",
        )
    for remark in remarks_of(found):
        option, mark, _ = remark.partition(f": {ONLY_THE_SHELL}")
        if mark and not _DECIDES_NO_STEP.search(option):
            yield Missing(
                what=f"a number that only the shell can compute ({option})",
                remedy="write the number into the launch, or set the config with --config micro_batch_size=4,tp=2,...",
            )


def _missing(found: Target, said: Mapping[str, Any], key: str, *, has_log: bool) -> Missing:
    """What nobody told, and how to say it."""
    write_it = (
        f"create a spec with autotune init {found.name} -o study.yaml, and set {key} in that spec"
    )
    what, remedy = _HOW.get(key, (key, write_it))
    if has_log and key.startswith(("rl.", "rollout.")):
        remedy = f"the log does not contain this value; {write_it}"
    elif key == "cluster" and (one_gpu := _one_gpu(found, said)):
        what = f"the number of GPUs, because {one_gpu} is only a GPU type"
        remedy = f"set nodes and GPUs per node, e.g. --cluster {one_gpu}-1x8"
    elif key == "cluster" and found.asked:
        remedy = f"set the type of the {found.asked[0]} x {found.asked[1]} GPUs that the launch requests, e.g. --cluster h100-sxm"
    elif key == "baseline":
        what, remedy = _no_baseline(found, what, remedy)
    return Missing(what=what, remedy=remedy)


def _with_config(document: Mapping[str, Any], said: str) -> dict[str, Any]:
    """Trainer and space of a program that has no options for some of the knobs that are said: it
    does them all the same, and none of them changes."""
    launcher, space = document.get("trainer"), document.get("space")
    if not (_is_command(launcher) and isinstance(space, dict)):
        return {}
    told = str({key: value for key, value in launcher.items() if key != "fixed"})
    held = {
        name: value
        for name, value in _with_accumulation(document, knobs_of(said)).items()
        if name not in ("dp", "extra") and re.search(rf"\{{[^{{}}]*\b{name}\b", told) is None
    }
    return {
        "trainer": _with_fixed(launcher, held),
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
    """(why there is no current configuration, what to do): a rule that it breaks, with its lines,
    is to be mended in the launch."""
    told = next((note for note in found.notes if note.startswith(("no baseline", NOT_VALID))), "")
    if not told:
        return what, remedy
    said = re.sub(_OF_A_BASELINE, "", told.removeprefix(NOT_VALID))
    why, _, rest = said.partition("; ")
    if places := lines_of_values(why, found.texts):
        return (
            f"a valid configuration, because {why} ({places})",
            rest or "change one of these values in the launch",
        )
    if told.startswith(NOT_VALID):
        return (
            f"a valid configuration, because {said}",
            "fix the launch, or set another config with --config micro_batch_size=4,tp=2,...",
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
    """The word that a launcher is told for its nodes, where that is a variable whose value nothing
    in the launch says."""
    told = next(
        (word for name in ("nnodes", "num_machines") if started and (word := started.option(name))),
        "",
    )
    return told if told.startswith("$") and started is not None and started.nodes == 1 else ""


def _one_gpu(found: Target, said: Mapping[str, Any]) -> str:
    """The type of GPU that was named as the cluster of a launch that does not say how many there
    are; empty where the cluster is known."""
    name = str(said.get("cluster") or "")
    return name if name in catalog.gpu_names() and found.asked is None and not found.is_spec else ""
