"""Kubernetes: `job.yaml`, a JobSet with one pod per node, and a ConfigMap with the files of the
launch.

JobSet (jobset.x-k8s.io/v1alpha2, kubernetes-sigs/jobset api/jobset/v1alpha2) makes one indexed Job
of `nodes` completions and a headless service with the name of the JobSet. The pod of index 0 is
reached at JOBSET-REPLICATEDJOB-0-0.JOBSET, and each pod is told its index as JOB_COMPLETION_INDEX
(batch/v1, completionMode Indexed).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import ExportError
from autotune.trainers.base.torchrun import Placement
from autotune.trainers.base.trainer_option import Option
from autotune.trainers.documents.file_formats import to_yaml_documents
from autotune.trainers.launch_files import DEFAULT_PORT, SCRIPT, Launch
from autotune.trainers.schedulers.scheduler import Scheduler, heading, job_name

MANIFEST = "job.yaml"
GROUP = "node"
"""name of the JobSet's only group of pods"""
SOURCE, FOLDER = "/autotune/files", "/autotune/launch"
"""where a pod sees the ConfigMap, and the copy of it to which programs can write"""
NO_IMAGE = "SET-THE-IMAGE"
MAX_BYTES = 1 << 20
"""largest size of a ConfigMap's data (kubernetes.io, ConfigMaps)"""


class Kubernetes(Scheduler):
    """A JobSet."""

    name = "kubernetes"
    summary = "job.yaml, a JobSet with one pod per node and the files in a ConfigMap"
    options = (
        Option(
            name="image",
            meaning="container image for the pods, with the program and its libraries",
            default="",
        ),
        Option(
            name="namespace",
            meaning="namespace for the job; default: from kubectl's context",
            default="",
        ),
    )

    def files(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> Mapping[str, str]:
        """The manifest. Raises `ExportError` when the files are too large for a ConfigMap."""
        name, image = job_name(launch), options["image"] or NO_IMAGE
        texts = {**launch.files, SCRIPT: launch.script}
        size = sum(len(text.encode()) for text in texts.values())
        if size > MAX_BYTES:
            raise ExportError(
                f"a ConfigMap holds at most {MAX_BYTES:,} bytes, but the launch files have {size:,}",
                remedy="put the files into the image and export with --on shell",
                field="files",
            )
        # a key has no slashes
        keys = {path: f"{i}-{path.rpartition('/')[2]}" for i, path in enumerate(texts)}
        meta = {
            "name": name,
            **({"namespace": options["namespace"]} if options["namespace"] else {}),
        }
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta,
            "data": {keys[path]: text for path, text in texts.items()},
        }
        job_set = {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": meta,
            "spec": {
                "failurePolicy": {"maxRestarts": 0},
                "replicatedJobs": [
                    {"name": GROUP, "replicas": 1, "template": _job(name, placement, image, keys)}
                ],
            },
        }
        lines = heading(
            launch,
            "Needs the JobSet controller (jobset.sigs.k8s.io). Start the job: "
            + self.start(launch, placement),
            *(
                []
                if options["image"]
                else [f"Replace {NO_IMAGE}, or export again with --option image=NAME."]
            ),
        )
        return {MANIFEST: "\n".join([*lines, to_yaml_documents(config_map, job_set)])}

    def start(self, launch: Launch, placement: Placement) -> str:
        """kubectl."""
        return f"kubectl apply -f {MANIFEST}"

    def notes(
        self, launch: Launch, placement: Placement, options: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """What must be set or be in the image."""
        missing = (
            ()
            if options["image"]
            else (f"replace {NO_IMAGE} in {MANIFEST}, or export again with --option image=NAME",)
        )
        where = f" in {launch.cwd}" if launch.cwd not in ("", ".") else ""
        return (
            *missing,
            f"the image must contain the program{where} and its libraries; only the launch files are sent",
        )


def _job(name: str, placement: Placement, image: str, keys: Mapping[str, str]) -> dict[str, Any]:
    """The template of the only Job (batch/v1)."""
    gpus = {"nvidia.com/gpu": placement.gpus_per_node} if placement.gpus_per_node else {}
    container = {
        "name": "train",
        "image": image,
        "command": ["sh", "-c", _COMMAND],
        "env": [
            {"name": "MASTER_ADDR", "value": f"{name}-{GROUP}-0-0.{name}"},
            {"name": "MASTER_PORT", "value": str(DEFAULT_PORT)},
            {"name": "PYTHONUNBUFFERED", "value": "1"},
        ],
        "ports": [{"containerPort": DEFAULT_PORT}],
        **({"resources": {"limits": gpus}} if gpus else {}),
        "volumeMounts": [
            {"name": "files", "mountPath": SOURCE, "readOnly": True},
            {"name": "launch", "mountPath": FOLDER},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "restartPolicy": "Never",
        **({"affinity": _apart(name)} if placement.nnodes > 1 else {}),
        "containers": [container],
        "volumes": [
            {
                "name": "files",
                "configMap": {
                    "name": name,
                    "items": [{"key": key, "path": path} for path, key in keys.items()],
                },
            },
            {"name": "launch", "emptyDir": {}},
            # NCCL and data loaders need more than 64 MiB
            {
                "name": "shared-memory",
                "emptyDir": {"medium": "Memory"},
            },
        ],
    }
    return {
        "spec": {
            "completionMode": "Indexed",
            "parallelism": placement.nnodes,
            "completions": placement.nnodes,
            "backoffLimit": 0,
            "template": {"spec": pod},
        }
    }


def _apart(name: str) -> dict[str, Any]:
    """Every pod on a node of its own."""
    term = {
        "labelSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": name}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


_COMMAND = f'cp -RL {SOURCE}/* {FOLDER}/ && export NODE_RANK="$JOB_COMPLETION_INDEX" && exec sh {FOLDER}/{SCRIPT}'
