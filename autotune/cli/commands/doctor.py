"""The command `doctor`, which checks what trials and the service need on this machine and prints
how to fix what is missing."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import typer

from autotune import __version__
from autotune.cli.output import JsonOption, StoreOption, bare_table, consoles, emit
from autotune.errors import NotFoundError, SpecError, StoreError
from autotune.extras import install_command, is_installed, own_requirements

OK, HINT, WARNING, FAILED = "ok", "hint", "warning", "failed"
MIN_FREE_BYTES = 1 << 30
"""free disk space, bytes, below which the check warns: 1 GiB"""
MIN_SHARED_MEMORY_BYTES = 1 << 28
"""size of /dev/shm, bytes, below which the check warns: 256 MiB"""
MIN_OPEN_FILES = 1024
"""soft limit of open files below which the check warns"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check."""

    name: str
    status: str
    """ok, hint (advice; nothing was checked), warning (something will not work) or failed (nothing
    will work)"""
    detail: str
    remedy: str = ""


def doctor(store: StoreOption = None, json: JsonOption = False) -> None:
    """Check this machine and say how to fix what is missing.

    The check covers Python, torch, Ray, GPUs, NCCL, the results database, disk, ports and limits.
    """
    check_functions: tuple[Callable[[], Check], ...] = (
        _python,
        _torch,
        _dry_runs,
        _gpus,
        _ray,
        _ray_dashboard,
        *([_slurm] if shutil.which("srun") else []),
        partial(_store, store),
        partial(_disk, store),
        _shared_memory,
        _open_files,
        partial(_port, "service port", 8600, "choose another port with `autotune serve --port N`"),
        partial(_port, "Ray dashboard port", 8265, "nothing to do: Ray takes the next free port"),
    )
    checks = []
    for check_function in check_functions:
        try:
            checks.append(check_function())
        except Exception as error:
            # a broken installation can raise anything, and the other checks must still run
            name = getattr(check_function, "func", check_function).__name__.strip("_")
            checks.append(
                Check(name=name, status=FAILED, detail=f"{type(error).__name__}: {error}")
            )
    failed = any(c.status == FAILED for c in checks)
    if json:
        emit({"ok": not failed, "checks": [asdict(c) for c in checks]})
    else:
        _print(checks)
    raise typer.Exit(1 if failed else 0)


def _print(checks: list[Check]) -> None:
    from rich.text import Text

    colors = {OK: "green", HINT: "cyan", WARNING: "yellow", FAILED: "red"}
    table = bare_table()
    table.add_column("")
    table.add_column("check")
    table.add_column("result", overflow="fold")
    for check in checks:
        result = check.detail + (
            f"\n-> {check.remedy}" if check.remedy and check.status != OK else ""
        )
        table.add_row(Text(check.status, style=colors[check.status]), check.name, result)
    consoles()[0].print(table)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check(name="Python", status=OK, detail=f"{version}, autotune {__version__}")


def _torch() -> Check:
    if not is_installed("torch"):
        detail = "not installed; the native trainer and `autotune calibrate` are unavailable"
        return Check(name="torch", status=WARNING, detail=detail, remedy=install_command("native"))
    import torch
    import torch.distributed as dist

    backends = [
        n
        for n, there in (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available()))
        if there
    ]
    return Check(
        name="torch",
        status=OK,
        detail=f"{torch.__version__}, collective backends: {', '.join(backends) or 'none'}",
    )


def _dry_runs() -> Check:
    """Check that the installed torch is a release tested with `autotune fit`, which uses torch's
    private functions."""
    bound = _torch_requirement()
    if not is_installed("torch"):
        return Check(
            name="dry runs",
            status=HINT,
            detail="`autotune fit` needs torch; `autotune plan` uses formulas without it",
            remedy=install_command("native"),
        )
    installed = metadata.version("torch")
    if not _is_within(installed, bound):
        return Check(
            name="dry runs",
            status=WARNING,
            detail=f"`autotune fit` needs torch{bound}, but torch {installed} is installed",
            remedy=f"pip install 'torch{bound}'",
        )
    return Check(
        name="dry runs",
        status=OK,
        detail=f"`autotune fit` can run models on torch {installed} without a GPU",
    )


def _torch_requirement() -> str:
    """Return the versions of torch that the extra `native` requires, in pip's notation, e.g.
    `<2.14,>=2.13`; an empty text if it does not require torch."""
    requirement = re.compile(r"torch([<>=][^;]*?)\s*;\s*extra == ['\"]native['\"]")
    matches = (requirement.fullmatch(line) for line in own_requirements())
    return next((match[1] for match in matches if match), "")


def _is_within(version: str, bound: str) -> bool:
    """Return whether a version's major and minor numbers are within `>=X.Y` and `<X.Y`."""
    release = _major_minor(version)
    least, under = re.search(r">=\s*([\d.]+)", bound), re.search(r"<\s*([\d.]+)", bound)
    return (not least or release >= _major_minor(least[1])) and (
        not under or release < _major_minor(under[1])
    )


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _gpus() -> Check:
    if not is_installed("torch"):
        return Check(
            name="GPUs",
            status=HINT,
            detail="not checked: the check needs torch",
            remedy=install_command("native"),
        )
    import torch

    if not torch.cuda.is_available():
        announced = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
        if announced not in ("", "-1"):
            build = torch.version.cuda or torch.version.hip
            found = "finds no GPU" if build else "is a CPU build"
            return Check(
                name="GPUs",
                status=WARNING,
                detail=f"CUDA_VISIBLE_DEVICES={announced} lists GPUs, but torch {torch.__version__} {found}, so the native trainer rejects trials",
                remedy="install a build of torch for these GPUs and their driver, or unset CUDA_VISIBLE_DEVICES to train on the CPU",
            )
        if shutil.which("nvidia-smi"):
            return Check(
                name="GPUs",
                status=WARNING,
                detail=f"nvidia-smi is installed, but torch {torch.__version__} finds no GPU",
                remedy="install a CUDA build of torch that matches the driver (nvidia-smi prints its version)",
            )
        return Check(name="GPUs", status=OK, detail="none; trials run on the CPU")
    names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    detail = f"{torch.cuda.device_count()} x {', '.join(sorted(names))}, CUDA {torch.version.cuda}, NCCL {nccl}"
    return Check(name="GPUs", status=OK, detail=detail)


def _ray() -> Check:
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Check(
            name="Ray",
            status=WARNING,
            detail="not installed; only the runners local and simulated work",
            remedy=install_command("ray"),
        )
    return Check(name="Ray", status=OK, detail=version)


def _ray_dashboard() -> Check:
    from autotune import assets

    folder = assets.dashboards() / "grafana"
    return Check(
        name="Ray dashboard panels",
        status=HINT,
        detail=f"to see autotune's panels in the Ray dashboard, provision Grafana from {folder} and start Ray with "
        "RAY_GRAFANA_HOST and RAY_PROMETHEUS_HOST set to your servers",
    )


def _slurm() -> Check:
    """Check this process's Slurm allocation; on a login node, print how to run a study as a job."""
    from autotune.slurm.allocation import allocation, in_container
    from autotune.spec.texts.as_text import format_span, number_of

    job = allocation()
    if job is None:
        return Check(
            name="Slurm",
            status=HINT,
            detail="no allocation here; `autotune tune SPEC --on slurm` runs a study as a job",
        )
    left_s = job.left_s()
    cpus = f" with {job.cpus_per_node} CPUs each" if job.cpus_per_node else ""
    detail = f"job {job.job}: {number_of(job.num_nodes, 'node')} ({job.node_list}){cpus}"
    detail += f", {format_span(left_s)} left" if left_s is not None else ", no known limit"
    detail += (
        "; the ray runner starts Ray on these nodes, the slurm runner starts programs without Ray"
    )
    detail += ", in a container" if in_container() else ""
    if job.cpus_per_node == 1:
        remedy = "request more CPUs with --cpus-per-task or --exclusive; Slurm's default is one CPU"
        return Check(name="Slurm", status=WARNING, detail=detail, remedy=remedy)
    return Check(name="Slurm", status=OK, detail=detail)


def _store(url: str | None) -> Check:
    from autotune.api import open_store

    try:
        with closing(open_store(url, create=False)) as store:
            count = len(store.studies(limit=1))
    except NotFoundError as error:
        folder = _folder(url)
        is_writable = os.access(folder, os.W_OK)
        outlook = (
            "; the first study creates it" if is_writable else f", and {folder} is not writable"
        )
        return Check(
            name="results database",
            status=OK if is_writable else FAILED,
            detail=error.message + outlook,
            remedy=f"make {folder} writable, or use another store (--store)",
        )
    except (SpecError, StoreError) as error:
        return Check(
            name="results database", status=FAILED, detail=error.message, remedy=error.remedy
        )
    return Check(
        name="results database",
        status=OK,
        detail="can be opened" + ("" if count else "; no studies yet"),
    )


def _folder(url: str | None) -> Path:
    """Return the store's folder, or the nearest existing folder above it."""
    from autotune.settings import data_folder
    from autotune.store.connection.location import find_location

    path = find_location(url).path
    folder = path.parent if path is not None else data_folder()
    while not folder.exists():
        folder = folder.parent
    return folder


def _disk(url: str | None) -> Check:
    folder = _folder(url)
    free = shutil.disk_usage(folder).free
    status = OK if free >= MIN_FREE_BYTES else WARNING
    return Check(
        name="disk",
        status=status,
        detail=f"{free / 2**30:.1f} GiB free at {folder}",
        remedy="free some space, or use a store on another disk (--store)",
    )


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check(name="shared memory", status=OK, detail="this system has no /dev/shm")
    size = shutil.disk_usage(folder).total
    status = OK if size >= MIN_SHARED_MEMORY_BYTES else WARNING
    return Check(
        name="shared memory",
        status=status,
        detail=f"{size / 2**30:.1f} GiB at {folder}",
        remedy="Ray and NCCL need more shared memory; start the container with --shm-size=8g or --ipc=host",
    )


def _open_files() -> Check:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    status = OK if soft >= MIN_OPEN_FILES or soft == resource.RLIM_INFINITY else WARNING
    return Check(
        name="open files",
        status=status,
        detail=f"limit {soft}",
        remedy="raise the limit with `ulimit -n 65536`",
    )


def _port(name: str, port: int, remedy: str) -> Check:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        taken = probe.connect_ex(("127.0.0.1", port)) == 0
    if taken:
        return Check(
            name=name, status=WARNING, detail=f"{port} is in use on this machine", remedy=remedy
        )
    return Check(name=name, status=OK, detail=f"{port} is free")
