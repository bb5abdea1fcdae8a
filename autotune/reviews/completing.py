"""The spec of a launch completed by the user's values, and what is still missing."""

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
"""(what is missing, how to set it) by key of the spec"""
VOCABULARY = "fill in: vocab_size"
"""comment of a shape without a vocabulary size"""
WORKLOAD_KEYS = {"seq_len": "seq_len", "batch": "global_batch_size"}
"""arguments of a review that set a field of the workload"""
_OF_SPEC = {"precision": "space.precision", "config": "baseline", "cluster": "cluster"}
"""other arguments of a review, with the key of the spec that they set"""


def completed(
    found: Target,
    user_values: Mapping[str, Any],
    local_cluster: Callable[[], ClusterSpec] | None,
    log: str | None,
    *,
    is_measured: bool,
) -> tuple[dict[str, Any], list[Missing], tuple[str, ...]]:
    """(the spec with the user's values; missing values; sentences on unknown values that are
    assumed to be at their limit)."""
    document = _with_user_values(found, user_values)
    generates = "rollout" in document and not found.is_spec
    answered: tuple[str, ...] = ()
    if log is not None and generates:
        changed, answered = answered_by_log(document, log)
        document |= changed
    open_keys = _open_keys(found, user_values, document, local_cluster)
    open_keys = [key for key in open_keys if key not in answered]
    bounds: tuple[str, ...] = ()
    if generates and not {"workload.seq_len", "rl.prompts"} & set(open_keys):
        # the measured step time depends on the real lengths and generation, so limits in their place
        # would count as an error of the prediction
        parts = ("rl.prompt_lengths",) if is_measured else ("rl.", "rollout.")
        bounded = [key for key in open_keys if key.startswith(parts)]
        seq_len = user_values.get("seq_len") if "workload.seq_len" in found.fill_in else None
        changed, bounds = at_the_longest(document, bounded, seq_len)
        document |= changed
        open_keys = [key for key in open_keys if key not in bounded]
    shell_values = [] if user_values.get("config") else _shell_values(found)
    keys = (_missing(found, user_values, key, has_log=log is not None) for key in open_keys)
    return document, [*shell_values, *keys], bounds


def _with_user_values(found: Target, user_values: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with the user's values."""
    document = dict(found.document)
    workload_values = {
        key: user_values[name]
        for name, key in WORKLOAD_KEYS.items()
        if user_values.get(name) is not None
    }
    document["workload"] = {**(document.get("workload") or {}), **workload_values}
    if found.is_spec:  # a draft already contains these values
        document |= {key: user_values[key] for key in ("model", "cluster") if user_values.get(key)}
    if user_values.get("precision"):
        document |= _with_precision(document, user_values["precision"])
    if user_values.get("config"):
        document["baseline"] = user_values["config"]
        document |= {} if found.is_spec else _with_config(document, user_values["config"])
    return document


def _with_precision(document: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """The changed sections of the spec for this precision: space, baseline and trainer."""
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
    """Whether the spec's trainer is the user's own program."""
    return isinstance(launcher, dict) and launcher.get("kind") == "command"


def _with_fixed(launcher: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer section with these values fixed."""
    return {**launcher, "fixed": {**(launcher.get("fixed") or {}), **values}}


def _open_keys(
    found: Target,
    user_values: Mapping[str, Any],
    document: Mapping[str, Any],
    local_cluster: Callable[[], ClusterSpec] | None,
) -> list[str]:
    """Keys of the spec that neither the launch nor the user sets."""
    one_gpu = _one_gpu(found, user_values)
    known = {"trainer.argv", "trainer.cwd"}
    known |= {
        f"workload.{key}"
        for name, key in WORKLOAD_KEYS.items()
        if user_values.get(name) is not None
    }
    known |= {key for name, key in _OF_SPEC.items() if user_values.get(name)}
    if any(VOCABULARY in comment for comment in found.comments):  # only the vocabulary is missing
        known.add("model")
    keys = [key for key in found.fill_in if key not in known or (key == "cluster" and one_gpu)]
    if one_gpu or (
        not user_values.get("cluster") and _is_elsewhere(found, document, local_cluster)
    ):
        keys.append("cluster")
    if "baseline" not in document and not found.is_spec:
        keys.append("baseline")
    return list(dict.fromkeys(keys))


def _is_elsewhere(
    found: Target,
    document: Mapping[str, Any],
    local_cluster: Callable[[], ClusterSpec] | None,
) -> bool:
    """Whether the launch runs on GPUs that this machine does not have."""
    if document.get("cluster") != "local" or found.is_spec:
        return False
    here = local_cluster() if local_cluster else None
    return here is None or here.gpu.is_cpu


def _shell_values(found: Target) -> Iterator[Missing]:
    """Missing values that the launch takes from variables which nothing sets."""
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


def _missing(found: Target, user_values: Mapping[str, Any], key: str, *, has_log: bool) -> Missing:
    """The missing value of a key, with how to set it."""
    write_it = (
        f"create a spec with autotune init {found.name} -o study.yaml, and set {key} in that spec"
    )
    missing, remedy = _HOW.get(key, (key, write_it))
    if has_log and key.startswith(("rl.", "rollout.")):
        remedy = f"the log does not contain this value; {write_it}"
    elif key == "cluster" and (one_gpu := _one_gpu(found, user_values)):
        missing = f"the number of GPUs, because {one_gpu} is only a GPU type"
        remedy = f"set nodes and GPUs per node, e.g. --cluster {one_gpu}-1x8"
    elif key == "cluster" and found.asked:
        remedy = f"set the type of the {found.asked[0]} x {found.asked[1]} GPUs that the launch requests, e.g. --cluster h100-sxm"
    elif key == "baseline":
        missing, remedy = _no_baseline(found, missing, remedy)
    return Missing(what=missing, remedy=remedy)


def _with_config(document: Mapping[str, Any], config: str) -> dict[str, Any]:
    """The changed sections of the spec for a config of the user: knobs for which the program has no
    option are fixed."""
    launcher, space = document.get("trainer"), document.get("space")
    if not (_is_command(launcher) and isinstance(space, dict)):
        return {}
    template = str({key: value for key, value in launcher.items() if key != "fixed"})
    fixed = {
        name: value
        for name, value in _with_accumulation(document, knobs_of(config)).items()
        if name not in ("dp", "extra") and re.search(rf"\{{[^{{}}]*\b{name}\b", template) is None
    }
    return {
        "trainer": _with_fixed(launcher, fixed),
        "space": {**space, **{name: [value] for name, value in fixed.items()}},
    }


def _with_accumulation(document: Mapping[str, Any], knobs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The knobs with the accumulation that follows from batch and ranks, if these are known."""
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


def _no_baseline(found: Target, missing: str, remedy: str) -> tuple[str, str]:
    """(why there is no current config, what to do). If it violates a rule, with the lines of the
    launch that do."""
    baseline_note = next(
        (note for note in found.notes if note.startswith(("no baseline", NOT_VALID))), ""
    )
    if not baseline_note:
        return missing, remedy
    reason_and_remedy = re.sub(_OF_A_BASELINE, "", baseline_note.removeprefix(NOT_VALID))
    why, _, rest = reason_and_remedy.partition("; ")
    if places := lines_of_values(why, found.texts):
        return (
            f"a valid configuration, because {why} ({places})",
            rest or "change one of these values in the launch",
        )
    if baseline_note.startswith(NOT_VALID):
        return (
            f"a valid configuration, because {reason_and_remedy}",
            "correct the launch, or set another config with --config micro_batch_size=4,tp=2,...",
        )
    return f"the current configuration ({why})", remedy


_OF_A_BASELINE = r"^no baseline: (the current settings of .* are not valid for a study: )?"


def remarks_of(found: Target) -> tuple[str, ...]:
    """Sentences on what was not understood of a launch."""
    return found.draft.remarks if found.draft else ()


_DECIDES_NO_STEP = re.compile(
    r"\b(?:seed|total_epochs|total_training_steps|max_steps|max_num_steps|train-iters)\b"
)
"""options that do not affect a single step"""


def _open_nodes(started: Started | None) -> str:
    """The launcher's value for its number of nodes, if that is a variable that the launch does not
    set; or else empty."""
    nodes = next(
        (word for name in ("nnodes", "num_machines") if started and (word := started.option(name))),
        "",
    )
    return nodes if nodes.startswith("$") and started is not None and started.nodes == 1 else ""


def _one_gpu(found: Target, user_values: Mapping[str, Any]) -> str:
    """The GPU type that was passed as cluster, if the launch does not give the number of GPUs;
    empty if the cluster is known."""
    name = str(user_values.get("cluster") or "")
    return name if name in catalog.gpu_names() and found.asked is None and not found.is_spec else ""
