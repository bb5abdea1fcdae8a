"""Converts the launch in a manifest of Kubernetes, SkyPilot or docker compose to an equivalent shell
script.

    TrainJob    spec.trainer: command, args, env, numNodes, numProcPerNode (Kubeflow Trainer v2: its runtime starts torchrun)
    PyTorchJob  spec.pytorchReplicaSpecs: Master and Worker pods, spec.nprocPerNode (Kubeflow Training Operator v1)
    JobSet      spec.replicatedJobs, each a Job with a pod
    RayJob      spec.entrypoint
    Job, Pod    one pod
    run:        SkyPilot's task: envs, num_nodes, resources.accelerators
    services:   docker compose: entrypoint, command, environment

The recipe of a Makefile is converted, too.

Of several documents in a file, and of several pods, the first one that starts a training counts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import yaml

from autotune.onboarding.launch.launch_script import started_by
from autotune.trainers.present_configuration import at_path, section

KINDS = ("TrainJob", "PyTorchJob", "JobSet", "RayJob", "Job", "Pod", "task", "services")
"""kinds of documents that are read"""
_KEYS = ("apiVersion", "run", "services")
"""top-level keys, one of which each of these documents has"""
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
"""names of GPU resources in Kubernetes"""


class _Pod(NamedTuple):
    """A container of a manifest: command, environment, and the nodes that run it."""

    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    nodes: int
    gpus: int | None
    """GPUs of a pod; None if the manifest does not say"""
    per_node: int | None
    """processes that a runtime starts per node; None: the command starts them itself"""


def is_manifest(text: str) -> bool:
    """Whether a YAML text is a manifest of one of these kinds."""
    return any(f"{key}:" in text for key in _KEYS) and bool(_documents(text))


def launch_of(text: str) -> str:
    """The shell script for a manifest; empty if no pod starts a training."""
    return next((script for _, script in _training(text)), "")


def of_makefile(text: str) -> str:
    """A shell script with the recipe of a Makefile's target `train`, or else of the first target
    whose name begins with it, or else of all targets."""
    lines = text.replace("\\\n", " ").splitlines()
    assignments = (re.fullmatch(r"(?:export\s+)?(\w+)\s*[:?]?=\s*(.*)", line) for line in lines)
    recipes: dict[str, list[str]] = {}
    target = ""
    for line in lines:
        if line.startswith("\t"):
            recipes.setdefault(target, []).append(line.lstrip("\t @-"))
        elif found := re.match(r"([\w.-]+)\s*:(?!=)", line):
            target = found[1]
    train_targets = sorted(
        (name for name in recipes if name.startswith("train")), key="train".__ne__
    )
    train_recipes = [recipes[name] for name in train_targets]
    body = "\n".join("\n".join(recipe) for recipe in train_recipes[:1] or recipes.values())
    script = re.sub(r"\$\((\w+)\)", r"${\1}", body.replace("$$", "$"))
    return "\n".join((*(f'{found[1]}="{found[2]}"' for found in assignments if found), script))


def gpus_of(text: str) -> tuple[int, int] | None:
    """(nodes, GPUs per node) that the first training pod with GPUs requests; None if none does."""
    return next(((pod.nodes, pod.gpus) for pod, _ in _training(text) if pod.gpus), None)


def _training(text: str) -> Iterator[tuple[_Pod, str]]:
    """(pod, its shell script) of each pod that starts a training."""
    for document in _documents(text):
        for pod in _pods(document):
            script = _script(pod)
            if started_by(script) is not None:
                yield pod, script


def _documents(text: str) -> list[Mapping[str, Any]]:
    """The documents of these kinds in a YAML text; empty if it is invalid."""
    try:
        found = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    return [each for each in found if isinstance(each, Mapping) and _kind_of(each) in KINDS]


def _kind_of(document: Mapping[str, Any]) -> Any:
    """The document's kind: that of Kubernetes, "task" for SkyPilot, or "services" for docker
    compose."""
    if "resources" in document and isinstance(document.get("run"), str):
        return "task"
    return "services" if section(document, "services") else document.get("kind")


def _pods(document: Mapping[str, Any]) -> Iterator[_Pod]:
    """The pods of a document."""
    spec = section(document, "spec")
    match _kind_of(document):
        case "task":
            yield _task(document)
        case "services":
            services = section(document, "services").values()
            yield from (_service(each) for each in services if isinstance(each, Mapping))
        case "TrainJob":
            trainer = section(spec, "trainer")
            per_node, requested = trainer.get("numProcPerNode"), _gpus(trainer, "resourcesPerNode")
            count = per_node if isinstance(per_node, int) else requested
            nodes = _count(trainer.get("numNodes"))
            yield _pod(trainer, nodes, per_node=count, gpus=requested or count)
        case "PyTorchJob":
            replicas, per_node = section(spec, "pytorchReplicaSpecs"), str(spec.get("nprocPerNode"))
            nodes = sum(_count(at_path(each, "replicas")) for each in replicas.values())
            count = int(per_node) if per_node.isdecimal() else None
            for container in chain.from_iterable(
                _containers(section(each, "template")) for each in replicas.values()
            ):
                # PET_NPROC_PER_NODE is set for torchrun: to nprocPerNode, else ("auto") to the
                # GPUs of a pod; a plain command is one process
                requested, by_torchrun = _gpus(container), _starts_by_torchrun(container)
                ranks = (count or requested) if by_torchrun else None
                yield _pod(container, nodes, gpus=requested or count, per_node=ranks)
        case "JobSet":
            for each in spec.get("replicatedJobs") or ():
                job = section(each, "template.spec")
                nodes = _count(at_path(each, "replicas")) * _count(job.get("parallelism"))
                yield from (_pod(it, nodes) for it in _containers(section(job, "template")))
        case "RayJob":
            entry = spec.get("entrypoint")
            if isinstance(entry, str):
                yield _Pod(("bash", "-c", entry), (), 1, None, None)
        case "Job":
            nodes = _count(spec.get("parallelism"))
            yield from (_pod(it, nodes) for it in _containers(section(spec, "template")))
        case "Pod":
            yield from (_pod(it, 1) for it in _containers(document))


def _pod(
    container: Mapping[str, Any],
    nodes: int,
    *,
    gpus: int | None = None,
    per_node: int | None = None,
) -> _Pod:
    """A pod from a container. `nodes`: pods of the job; `per_node`: as in `_Pod`."""
    words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
    env = [
        (str(each["name"]), str(each["value"]))
        for each in container.get("env") or ()
        if isinstance(each, Mapping) and "name" in each and "value" in each
    ]
    return _Pod(tuple(words), tuple(env), nodes, gpus or _gpus(container), per_node)


def _task(document: Mapping[str, Any]) -> _Pod:
    """SkyPilot's task, which runs the same commands on each node."""
    accelerators = at_path(document, "resources.accelerators")
    match = re.search(r":\s*(\d+)", str(accelerators))
    gpus, nodes = int(match[1]) if match else 1, _count(document.get("num_nodes"))
    set_by_skypilot = {"SKYPILOT_NUM_GPUS_PER_NODE": gpus, "SKYPILOT_NUM_NODES": nodes}
    env = {**section(document, "envs"), **set_by_skypilot, "SKYPILOT_NODE_RANK": 0}
    pairs = tuple((str(name), str(value)) for name, value in env.items() if value is not None)
    return _Pod(
        ("bash", "-c", str(document["run"])), pairs, nodes, gpus if accelerators else None, None
    )


def _service(service: Mapping[str, Any]) -> _Pod:
    """A service of docker compose."""
    words: list[str] = []
    for key in ("entrypoint", "command"):
        value = service.get(key) or ()
        words += shlex.split(value) if isinstance(value, str) else map(str, value)
    value = service.get("environment") or {}
    pairs = value.items() if isinstance(value, Mapping) else (each.split("=", 1) for each in value)
    env = tuple((str(pair[0]), str(pair[1])) for pair in pairs if len(pair) == 2)
    return _Pod(tuple(words), env, 1, None, None)


def _starts_by_torchrun(container: Mapping[str, Any]) -> bool:
    """Whether the pod's command begins with torchrun."""
    return any(
        str(word).rpartition("/")[2] == "torchrun"
        for key in ("command", "args")
        for word in (container.get(key) or ())[:1]
    )


def _script(pod: _Pod) -> str:
    """The pod as a shell script. A command without a launcher is started by torchrun, as the
    runtime does."""
    words = list(pod.words)
    shell = words[0].rpartition("/")[2] if words else ""
    body = (
        words[2]
        if shell in ("sh", "bash") and len(words) > 2 and words[1].endswith("c")
        else shlex.join(words)
    )
    needs_torchrun = shell.startswith("python") or (shell == "torchrun" and "nproc" not in body)
    if pod.per_node and needs_torchrun:
        body = shlex.join(
            ["torchrun", f"--nnodes={pod.nodes}", f"--nproc-per-node={pod.per_node}", *words[1:]]
        )
    lines = [
        "#!/bin/bash",
        *(f"export {name}={shlex.quote(value)}" for name, value in pod.env),
        body,
    ]
    return "\n".join(lines) + "\n"


def _containers(template: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for each in section(template, "spec").get("containers") or ():
        yield each if isinstance(each, Mapping) else {}


def _gpus(container: Mapping[str, Any], resources: str = "resources") -> int | None:
    """GPUs in the limits or requests of a container; None if there are none."""
    for part in ("limits", "requests"):
        for name in GPU_RESOURCES:
            value = str(section(container, f"{resources}.{part}").get(name, ""))
            if value.isdecimal() and int(value):
                return int(value)
    return None


def _count(value: Any) -> int:
    """A positive integer, or else 1."""
    return value if isinstance(value, int) and value > 0 else 1
