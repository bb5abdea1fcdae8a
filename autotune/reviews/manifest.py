"""The launch in a Kubernetes manifest, as the shell script that does the same.

    TrainJob    spec.trainer: command, args, env, numNodes, numProcPerNode (Kubeflow Trainer v2: its runtime starts torchrun)
    PyTorchJob  spec.pytorchReplicaSpecs: Master and Worker pods, spec.nprocPerNode (Kubeflow Training Operator v1)
    JobSet      spec.replicatedJobs, each a Job with a pod
    RayJob      spec.entrypoint
    Job, Pod    one pod

Of several documents in a file, and of several pods, the first one counts that starts a training.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from autotune.onboarding.launch.launch_script import started_by

KINDS = ("TrainJob", "PyTorchJob", "JobSet", "RayJob", "Job", "Pod")
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")


class _Pod(NamedTuple):
    words: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    nodes: int
    gpus: int | None
    """of a pod"""
    per_node: int | None
    """processes that a runtime starts on a node; None: the command starts them itself"""


def is_manifest(text: str) -> bool:
    """Whether a YAML text is a manifest of one of these kinds."""
    return "apiVersion:" in text and bool(_documents(text))


def launch_of(text: str) -> str:
    """The shell script; empty where no pod starts a training."""
    return next((script for _, script in _training(text)), "")


def gpus_of(text: str) -> tuple[int, int] | None:
    """(nodes, GPUs of a node) that the pods which train ask for; None where they do not say."""
    return next(((pod.nodes, pod.gpus) for pod, _ in _training(text) if pod.gpus), None)


def _training(text: str) -> Iterator[tuple[_Pod, str]]:
    """(pod, its shell script) of each that starts a training."""
    for document in _documents(text):
        for pod in _pods(document):
            script = _script(pod)
            if started_by(script) is not None:
                yield pod, script


def _documents(text: str) -> list[Mapping[str, Any]]:
    """Those of these kinds."""
    try:
        found = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    return [each for each in found if isinstance(each, Mapping) and each.get("kind") in KINDS]


def _pods(document: Mapping[str, Any]) -> Iterator[_Pod]:
    spec = _mapping(document.get("spec"))
    match document.get("kind"):
        case "TrainJob":
            trainer = _mapping(spec.get("trainer"))
            per_node = trainer.get("numProcPerNode")
            asked = _gpus(_mapping(trainer.get("resourcesPerNode")))
            count = per_node if isinstance(per_node, int) else asked
            yield _pod(
                trainer, _count(trainer.get("numNodes")), per_node=count, gpus=asked or count
            )
        case "PyTorchJob":
            replicas = _mapping(spec.get("pytorchReplicaSpecs"))
            nodes = sum(_count(_mapping(each).get("replicas")) for each in replicas.values())
            per_node = spec.get("nprocPerNode")
            for each in replicas.values():
                for container in _containers(_mapping(_mapping(each).get("template"))):
                    asked = _gpus(_mapping(container.get("resources")))
                    count = int(str(per_node)) if str(per_node).isdecimal() else None
                    # PET_NPROC_PER_NODE is set for torchrun: to nprocPerNode, else ("auto") to the
                    # GPUs of a pod; a plain command is one process
                    ranks = count or (asked if _starts_by_torchrun(container) else None)
                    yield _pod(
                        container,
                        nodes,
                        gpus=asked or count,
                        per_node=ranks if _starts_by_torchrun(container) else None,
                    )
        case "JobSet":
            for each in spec.get("replicatedJobs") or ():
                job = _mapping(_mapping(_mapping(each).get("template")).get("spec"))
                nodes = _count(_mapping(each).get("replicas")) * _count(job.get("parallelism"))
                for container in _containers(_mapping(job.get("template"))):
                    yield _pod(container, nodes, gpus=_gpus(_mapping(container.get("resources"))))
        case "RayJob":
            entry = spec.get("entrypoint")
            if isinstance(entry, str):
                yield _Pod(("bash", "-c", entry), (), 1, None, None)
        case "Job":
            for container in _containers(_mapping(spec.get("template"))):
                yield _pod(
                    container,
                    _count(spec.get("parallelism")),
                    gpus=_gpus(_mapping(container.get("resources"))),
                )
        case "Pod":
            for container in _containers(document):
                yield _pod(container, 1, gpus=_gpus(_mapping(container.get("resources"))))


def _pod(
    container: Mapping[str, Any], nodes: int, *, gpus: int | None, per_node: int | None = None
) -> _Pod:
    words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
    env = [
        (str(each["name"]), str(each["value"]))
        for each in container.get("env") or ()
        if isinstance(each, Mapping) and "name" in each and "value" in each
    ]
    return _Pod(tuple(words), tuple(env), nodes, gpus, per_node)


def _starts_by_torchrun(container: Mapping[str, Any]) -> bool:
    """Whether the pod's command begins with torchrun."""
    return any(
        str(word).rpartition("/")[2] == "torchrun"
        for key in ("command", "args")
        for word in (container.get(key) or ())[:1]
    )


def _script(pod: _Pod) -> str:
    """The pod as a shell script; a command that no launcher starts is started by the runtime's
    torchrun."""
    words = list(pod.words)
    shell = words[0].rpartition("/")[2] if words else ""
    body = (
        words[2]
        if shell in ("sh", "bash") and len(words) > 2 and words[1].endswith("c")
        else shlex.join(words)
    )
    is_bare = shell.startswith("python") or (shell == "torchrun" and "nproc" not in body)
    if pod.per_node and is_bare:
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
    for each in _mapping(template.get("spec")).get("containers") or ():
        yield _mapping(each)


def _gpus(resources: Mapping[str, Any]) -> int | None:
    for part in ("limits", "requests"):
        for name in GPU_RESOURCES:
            value = str(_mapping(resources.get(part)).get(name, ""))
            if value.isdecimal() and int(value):
                return int(value)
    return None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
