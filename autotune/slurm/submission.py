"""A study as a job of Slurm, made on the login node: NAME/study.yaml and NAME/job.sbatch.

The job runs `autotune tune study.yaml --in .`: Ray on its nodes, the study's store on the first
node's disk, and after every trial a copy of it in the folder, which the login node reads (`autotune
status --in NAME`). Two jobs of one name follow each other (`--dependency=singleton`), and a job
that begins again continues.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from autotune.errors import RunnerError, SpecError
from autotune.job_folder import SPEC, Submission, folder_name
from autotune.schema.spec_models import SlurmDocument
from autotune.slurm.allocation import SRUN, ask, notice_s, step_environment
from autotune.spec import ClusterSpec, Study
from autotune.spec.catalog import cluster, cluster_of, gpu
from autotune.trainers.documents.file_formats import to_yaml
from autotune.trainers.schedulers.slurm import JOB, directive_lines

SUBMITTED = "job.json"
"""file of a study's folder with the number of the job that was submitted last"""
SBATCH_OPTIONS = frozenset({
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint", "clusters", "comment", "constraint", "container",
    "container-id", "contiguous", "core-spec", "cores-per-socket", "cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency",
    "distribution", "error", "exclude", "exclusive", "export", "export-file", "extra", "extra-node-info", "get-user-env", "gid", "gpu-bind", "gpu-freq",
    "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "hold", "input", "job-name", "kill-on-invalid-dep",
    "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network", "nice", "no-kill",
    "no-requeue", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node", "ntasks-per-socket", "open-mode",
    "output", "overcommit", "oversubscribe", "partition", "power", "prefer", "priority", "profile", "propagate", "qos", "quiet", "reboot", "requeue",
    "reservation", "resv-ports", "segment", "signal", "sockets-per-node", "spread-job", "stepmgr", "switches", "thread-spec", "threads-per-core", "time",
    "time-min", "tmp", "tres-bind", "tres-per-task", "uid", "use-min-nodes", "verbose", "wait", "wait-all-nodes", "wckey",
})  # fmt: skip
"""as sbatch(1) of Slurm 24.11 names them"""
USUAL_LIMIT_S = 3600.0
"""taken for the limit where only the partition knows it, to choose how early the job is told of
it"""


def stand_in(job: SlurmDocument) -> ClusterSpec:
    """For `cluster: slurm` on the login node, where nobody knows yet what the nodes have: nodes of
    the usual kind. Raises `SpecError` without numbers."""
    if job.nodes is None or job.gpus_per_node is None:
        raise SpecError(
            "with `cluster: slurm` the number of nodes and GPUs must be set, because the login node cannot detect them",
            remedy="set slurm: {nodes: 2, gpus_per_node: 8} (0 GPUs for CPU nodes), or specify the cluster, e.g. h100-sxm-2x8",
            field="slurm.nodes",
        )
    if job.gpus_per_node:
        return cluster(f"h100-sxm-{job.nodes}x{job.gpus_per_node}")
    return cluster_of(gpu("cpu"), num_nodes=job.nodes, gpus_per_node=1)


def submission(
    study: Study,
    document: Mapping[str, Any],
    job: SlurmDocument,
    *,
    base: Path,
    folder: Path,
    keeps_store: bool = True,
) -> Submission:
    """The files for the study of that document. `base`: folder of its paths; `folder`: where the
    job's folder is made; `keeps_store`: whether its results lie there, and not in a database that
    the environment names."""
    hardware = study.at_hand or study.workload.cluster
    nodes = job.nodes if document["cluster"] == "slurm" and job.nodes else hardware.num_nodes
    gpus = hardware.gpus_per_node if not hardware.gpu.is_cpu else 0
    if document["cluster"] != "slurm" and (
        said := {"nodes": job.nodes, "gpus_per_node": job.gpus_per_node}
    ) != dict.fromkeys(said):
        raise SpecError(
            f"the cluster {hardware.name} already sets the job's nodes and GPUs, but slurm sets them too",
            remedy="remove nodes and gpus_per_node from slurm, or set cluster: slurm",
            field="slurm.nodes",
        )
    if study.runner == "local" and hardware.num_nodes > 1:
        raise SpecError(
            f"the 'local' runner has one node, but the cluster {hardware.name} has {hardware.num_nodes}",
            remedy="omit `runner`, so that the job starts Ray on all its nodes, or set runner: slurm, which starts programs without Ray",
            field="runner",
        )
    if study.runner == "local" and job.container is not None:
        raise SpecError(
            "slurm.container needs trials that srun starts, but the 'local' runner starts them outside the container",
            remedy="set runner: slurm for programs, or runner: ray",
            field="runner",
        )
    name = folder_name(study)
    where = folder / name
    texts = {
        SPEC: to_yaml(dict(document)),
        JOB: _script(
            name, job, nodes=nodes, gpus=gpus, base=base, folder=where, keeps_store=keeps_store
        ),
    }
    return Submission(
        folder=where, files=texts, start=f"cd {shlex.quote(str(where))} && sbatch {JOB}"
    )


def _script(
    name: str,
    job: SlurmDocument,
    *,
    nodes: int,
    gpus: int,
    base: Path,
    folder: Path,
    keeps_store: bool,
) -> str:
    named = {key.replace("_", "-"): value for key, value in job.options.items()}
    # sites that do not know --gpus-per-node
    is_otherwise = {
        "gres",
        "gpus",
        "gpus-per-task",
    } & named.keys()
    asked = {key: getattr(job, key) or "" for key in ("partition", "account", "qos")}
    asked["time"] = _slurm_time(job.time) if job.time else ""
    lines = directive_lines(
        f"autotune-{name}",
        nodes=nodes + job.spare_nodes,
        gpus_per_node=0 if is_otherwise else gpus,
        asked=asked,
        exclusive=job.exclusive,
    )
    lines += (
        ["#SBATCH --mem=0"]
        if job.exclusive and not any(key.startswith("mem") for key in named)
        else []
    )
    notice = round(notice_s(job.time or USUAL_LIMIT_S))
    lines += [
        *(
            f"#SBATCH --{key}" + ("" if value is True else f"={value}")
            for key, value in named.items()
            if value is not False
        ),
        "#SBATCH --output=job-%j.out",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:USR1@{notice}",
        "#SBATCH --dependency=singleton",
        "#SBATCH --requeue" if job.requeue else "#SBATCH --no-requeue",
        *(["#SBATCH --no-kill"] if job.spare_nodes else []),
    ]
    autotune = shlex.quote(str(Path(sys.executable).with_name("autotune")))
    body = ["set -e", f"cd {shlex.quote(str(folder))}", *job.setup]
    if (box := job.container) is not None:
        mounts = ",".join([str(folder), str(base), *box.mounts])
        body.append(
            f"export {SRUN}={shlex.quote(f'--container-image={box.image} --container-mounts={mounts}')}"
        )
    where = "--in ." if keeps_store else ""
    body += [
        "# Slurm's signals reach autotune directly, so it can pause the study and resume it later.",
        f"exec {autotune} tune {SPEC} --base {shlex.quote(str(base))} {where}".rstrip(),
    ]
    comment = f"# An autotune study. Submit it in this folder, which must be visible to all nodes: sbatch {JOB}"
    return "\n".join(["#!/bin/bash", *lines, comment, *body, ""])


def _slurm_time(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"


def doubtful_options(job: SlurmDocument) -> Iterator[str]:
    """Keys that become options of sbatch and look like a misspelling of another key or option. A
    site may have options of its own, so they are not refused."""
    known = sorted({name.replace("_", "-") for name in SlurmDocument.model_fields} | SBATCH_OPTIONS)
    for key in job.options:
        name = key.replace("_", "-")
        if name not in known and (near := get_close_matches(name, known, n=1, cutoff=0.8)):
            yield f"slurm.{key} becomes #SBATCH --{name}, which Slurm itself does not have; did you mean {near[0].replace('-', '_')}?"


def check(made: Submission) -> str:
    """What Slurm says of the job without submitting it: when it would start; empty where this
    machine has no sbatch. Raises `SpecError` with its words."""
    if shutil.which("sbatch") is None:
        return ""
    done = subprocess.run(
        ["sbatch", "--test-only", JOB],
        cwd=made.folder,
        env=step_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = (done.stderr.strip() or done.stdout.strip()).replace("sbatch: ", "")
    if done.returncode and re.search(
        r"ontact slurm controller|configuration source|resolve controller", said
    ):
        return f"no answer: {said.splitlines()[0]}"
    if done.returncode:
        raise SpecError(
            f"Slurm would reject the job: {said}",
            remedy="change `slurm` in the spec, or the --option that overrides it; `sinfo` lists partitions",
            field="slurm",
        )
    return said.removeprefix("Job 0 ").strip()


def submit(made: Submission) -> str:
    """Submits the job; its number. Raises `RunnerError` with Slurm's words."""
    if shutil.which("sbatch") is None:
        raise RunnerError(
            "sbatch is not installed on this machine",
            remedy=f"submit the job on a login node: {made.start}",
            field="on",
        )
    number = ask("sbatch", "--parsable", JOB, folder=made.folder).partition(";")[0]
    (made.folder / SUBMITTED).write_text(json.dumps({"job": number}) + "\n")
    return number
