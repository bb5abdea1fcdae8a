"""A study as a RayJob of KubeRay (1.5.1 or newer), made where the spec is: NAME/study.yaml, and
NAME/job.yaml with a ConfigMap and the RayJob.

    head      the first node; runs `autotune tune` too              worker group      the other nodes
    files     study.yaml and what `kubernetes.files` names come in the ConfigMap; a container copies them to a folder to which programs can write
    results   in the database that a secret names, or in a folder of a volume

Field names are those of ray.io/v1 (ray-operator/apis/ray/v1 of KubeRay) and of core/v1.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune.job_folder import SPEC, Submission, folder_name
from autotune.kubernetes.deadline import LIMIT, START_S
from autotune.schema.spec_models import KubernetesDocument
from autotune.spec import Study
from autotune.spec.texts.secrets import secret_places
from autotune.trainers.documents.file_formats import to_yaml, to_yaml_documents
from autotune.trainers.schedulers.kubernetes import MANIFEST, MAX_BYTES

SOURCE, FOLDER = "/autotune/files", "/autotune/study"
"""where a pod sees the ConfigMap, and the copy of it"""
LONGEST_PATH = 4096
USUAL_RAY = "2.60.0"
"""where Ray is not installed here"""
_PROBE: dict[str, Any] = {
    "httpGet": {"path": "/api/healthz", "port": 52365},
    "timeoutSeconds": 5,
    "failureThreshold": 12,
}
"""Ray's agent; KubeRay before 1.6 would ask by wget, which slim images lack"""


def submission(
    study: Study, document: Mapping[str, Any], job: KubernetesDocument, *, base: Path, folder: Path
) -> Submission:
    """The files for the study of that document. `base`: folder of its paths; `folder`: where the
    job's folder is made. Raises `SpecError`."""
    hardware = study.at_hand or study.workload.cluster
    _check(study, document, job, nodes=hardware.num_nodes)
    name = folder_name(study)
    base = base.resolve()
    sent = _texts(job, base)
    texts = {SPEC: to_yaml(_in_pods(document, base, sent)), **sent}
    if (size := sum(len(text.encode()) for text in texts.values())) > MAX_BYTES:
        raise SpecError(
            f"a ConfigMap holds at most {MAX_BYTES:,} bytes, but the spec and kubernetes.files have {size:,}",
            remedy="put large files into the image or on a volume (kubernetes.volumes)",
            field="kubernetes.files",
        )
    manifest = _manifest(
        _label(name),
        name,
        job,
        texts,
        nodes=hardware.num_nodes,
        ranks=hardware.gpus_per_node,
        on_gpu=not hardware.gpu.is_cpu,
    )
    head = (
        f"# An autotune study. Needs KubeRay 1.5.1 or newer. Start it: kubectl apply -f {MANIFEST}"
    )
    return Submission(
        folder=folder / name,
        files={SPEC: texts[SPEC], MANIFEST: f"{head}\n{to_yaml_documents(*manifest)}"},
        start=f"kubectl apply -f {shlex.quote(str(folder / name / MANIFEST))}",
    )


def check_asked(document: Mapping[str, Any]) -> None:
    """Raises `SpecError` for a spec that says nothing of the job, and for a cluster that is looked
    at where the study runs: a job must ask for its nodes before."""
    if not document.get("kubernetes"):
        raise SpecError(
            "a Kubernetes job needs an image and a location for its results",
            remedy="set kubernetes: {image: NAME, store: SECRET}, or pass --option image=NAME --option store=SECRET",
            field="kubernetes",
        )
    if document.get("cluster") in ("local", "slurm"):
        raise SpecError(
            f"a Kubernetes job must request known nodes, but the cluster is {document['cluster']!r}",
            remedy="specify the cluster, e.g. h100-sxm-2x8",
            field="cluster",
        )


def _check(
    study: Study, document: Mapping[str, Any], job: KubernetesDocument, *, nodes: int
) -> None:
    """Raises `SpecError` for what would fail in the pods."""
    if study.runner == "slurm" or (study.runner == "local" and nodes > 1):
        raise SpecError(
            f"the {study.runner!r} runner cannot use the {nodes} pods of a RayJob",
            remedy="omit `runner`, so that trials run on the job's Ray cluster",
            field="runner",
        )
    if job.store is None and job.results is None:
        raise SpecError(
            "pods are deleted when their job ends, but no location is set for the results",
            remedy="set kubernetes: {store: SECRET}, whose key `url` is the address of a PostgreSQL database; or {results: /data/studies}, a folder on a volume",
            field="kubernetes.store",
        )
    if job.results is not None and not any(
        _is_below(job.results, volume.path) for volume in job.volumes
    ):
        raise SpecError(
            f"results must be on a volume that outlives the pods, but {job.results} is on none of kubernetes.volumes",
            remedy="e.g. volumes: [{claim: data, path: /data}]",
            field="kubernetes.results",
        )
    if secrets := secret_places(dict(document)):
        raise SpecError(
            f"the spec is stored in a ConfigMap, which others can read, but {', '.join(secrets)} looks like a secret",
            remedy="set its value to `from-environment`, and list the secret with that variable in kubernetes.env_from",
            field="trainer.env",
        )


def _is_below(path: str, folder: str) -> bool:
    return (
        Path(path).is_absolute()
        and ".." not in Path(path).parts
        and Path(path).is_relative_to(folder)
    )


def _in_pods(document: Mapping[str, Any], base: Path, sent: Collection[str]) -> dict[str, Any]:
    """The document with paths as they are in the pods. Raises `SpecError` for what it names below
    `base` and nobody sends."""
    trainer = document.get("trainer")
    cwd = trainer.get("cwd") if isinstance(trainer, Mapping) else None
    folders = [base, *([base / cwd] if isinstance(cwd, str) else [])]
    missing: set[str] = set()

    def moved(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: moved(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [moved(inner) for inner in value]
        if not isinstance(value, str) or len(value) > LONGEST_PATH or "\0" in value:
            return value
        for word in filter(None, (value, value.partition("=")[2])):
            for path in dict.fromkeys(Path(os.path.abspath(folder / word)) for folder in folders):
                if path.is_relative_to(base) and path.exists():
                    name = path.relative_to(base).as_posix()
                    is_there = (
                        name in sent
                        if path.is_file()
                        else any(Path(file).is_relative_to(name) for file in sent)
                    )
                    if (
                        not is_there
                        and (path.is_file() or Path(word).is_absolute())
                        and path != base
                    ):
                        missing.add(name)
        return (
            value.replace(str(base), FOLDER)
            if _is_below(value.partition("=")[2] or value, str(base))
            else value
        )

    found = {key: value if key == "kubernetes" else moved(value) for key, value in document.items()}
    if missing:
        raise SpecError(
            f"the spec uses local files that the pods do not have: {', '.join(sorted(missing))}",
            remedy=f"set kubernetes: {{files: {json.dumps(sorted(missing))}}} for text files; otherwise use paths in the image or on a volume",
            field="kubernetes.files",
        )
    return found


def _texts(job: KubernetesDocument, base: Path) -> dict[str, str]:
    """The files that are sent along, by their paths below `base`."""
    found = {}
    for name in job.files:
        path = (base / name).resolve()
        if not path.is_relative_to(base) or not path.is_file():
            raise SpecError(
                f"kubernetes.files must exist below {base}, but there is no file {name!r}",
                remedy="list only files in the spec folder or below",
                field="kubernetes.files",
            )
        try:
            found[path.relative_to(base).as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise SpecError(
                f"a ConfigMap can hold only text, but {name} is not a text file",
                remedy="put the file into the image or on a volume",
                field="kubernetes.files",
            ) from None
    return found


def _label(name: str) -> str:
    """A name as Kubernetes takes it (RFC 1123), short enough for what Ray's operator appends."""
    return f"autotune-{re.sub(r'[^a-z0-9]+', '-', name.lower())}"[:40].strip("-")


def _manifest(
    label: str,
    name: str,
    job: KubernetesDocument,
    texts: Mapping[str, str],
    *,
    nodes: int,
    ranks: int,
    on_gpu: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    # a key has no slashes
    keys = {path: f"{i}-{path.rpartition('/')[2]}" for i, path in enumerate(texts)}
    named = {"namespace": job.namespace} if job.namespace else {}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": label, **named},
        "data": {keys[path]: text for path, text in texts.items()},
    }
    command = f"autotune tune {FOLDER}/{SPEC}"
    if job.results is not None:
        results = shlex.quote(f"{job.results.rstrip('/')}/{name}")
        command = f"mkdir -p {results} && {command} --in {results}"
    group = {
        "rayStartParams": {},
        "template": _pod(
            label, job, keys, gpus=ranks if on_gpu else 0, cpus=job.cpus or (0 if on_gpu else ranks)
        ),
    }
    workers = {
        "groupName": "node",
        "replicas": nodes - 1,
        "minReplicas": nodes - 1,
        "maxReplicas": nodes - 1,
        **group,
    }
    limit_s = {} if job.time is None else {"activeDeadlineSeconds": round(job.time + START_S)}
    queue = {"labels": {"kueue.x-k8s.io/queue-name": job.queue}} if job.queue else {}
    ray_job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": label, **named, **queue},
        "spec": {
            "entrypoint": command,
            "shutdownAfterJobFinishes": True,  # Kueue admits no other
            "ttlSecondsAfterFinished": 600,
            **limit_s,
            "backoffLimit": job.retries,
            "rayClusterSpec": {
                "rayVersion": _ray_version(),
                "authOptions": {"mode": "token"},
                "headGroupSpec": group,
                **({"workerGroupSpecs": [workers]} if nodes > 1 else {}),
            },
        },
    }
    return config_map, ray_job


def _pod(
    label: str, job: KubernetesDocument, keys: Mapping[str, str], *, gpus: int, cpus: int
) -> dict[str, Any]:
    """The template of a node."""
    sizes = {
        "cpu": str(cpus) if cpus else "",
        "memory": job.memory or "",
        job.gpu_resource: str(gpus) if gpus else "",
    }
    asked = {resource: size for resource, size in sizes.items() if size}
    time_s = [] if job.time is None else [{"name": LIMIT, "value": str(round(job.time))}]
    store = {"valueFrom": {"secretKeyRef": {"name": job.store, "key": "url"}}}
    copy = [
        {"name": "files", "mountPath": SOURCE, "readOnly": True},
        {"name": "study", "mountPath": FOLDER},
    ]
    confined = {"allowPrivilegeEscalation": False}
    container = {
        "name": "ray",
        "image": job.image,
        "env": [*time_s, *([{"name": "AUTOTUNE_STORE", **store}] if job.store else [])],
        **(
            {"envFrom": [{"secretRef": {"name": name}} for name in job.env_from]}
            if job.env_from
            else {}
        ),
        "readinessProbe": _PROBE | {"periodSeconds": 5},
        "livenessProbe": _PROBE | {"periodSeconds": 10, "initialDelaySeconds": 60},
        "securityContext": confined,
        **({"resources": {"requests": asked, "limits": asked}} if asked else {}),
        "volumeMounts": [
            {"name": "study", "mountPath": FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            *(
                {"name": f"volume-{i}", "mountPath": volume.path}
                for i, volume in enumerate(job.volumes)
            ),
        ],
    }
    copier = {
        "name": "files",
        "image": job.image,
        "command": ["sh", "-c", f"cp -RL {SOURCE}/. {FOLDER}/"],
        "securityContext": confined,
        "volumeMounts": copy,
    }
    items = [{"key": key, "path": path} for path, key in keys.items()]
    spec = {
        "enableServiceLinks": False,
        **({"nodeSelector": dict(job.node_selector)} if job.node_selector else {}),
        "initContainers": [copier],
        "containers": [container],
        "volumes": [
            {"name": "files", "configMap": {"name": label, "items": items}},
            {"name": "study", "emptyDir": {}},
            # Ray, NCCL and data loaders need more than 64 MiB
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            *(
                {"name": f"volume-{i}", "persistentVolumeClaim": {"claimName": volume.claim}}
                for i, volume in enumerate(job.volumes)
            ),
        ],
    }
    return {"spec": spec}


def _ray_version() -> str:
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        return USUAL_RAY
