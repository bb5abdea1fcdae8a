"""The bound on torch admits the installed torch, equals the bound that pip reads, and is named when
another torch is installed."""

from __future__ import annotations

import ast
import importlib
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from autotune.errors import RunnerError
from autotune_workers.training import torch_internals, torch_version
from autotune_workers.training.torch_version import check_torch_version, requirement

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_the_installed_torch_is_inside_the_bound() -> None:
    check_torch_version()


def test_pip_reads_the_same_bound() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    lists = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    stated = {line for lines in lists for line in lines if line.partition(">")[0] == "torch"}
    assert stated == {requirement()}


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cpu", "2.13.0a0+git1234"])
def test_releases_inside_the_bound_are_taken(version: str) -> None:
    check_torch_version(version)


@pytest.mark.parametrize("version", ["1.13.1", "2.9.1", "2.14.0", "2.99.0", "3.0", "nightly"])
def test_a_release_outside_is_refused_with_bound_version_and_remedy(version: str) -> None:
    with pytest.raises(RunnerError) as raised:
        check_torch_version(version)
    assert requirement() in str(raised.value)
    assert f"torch {version} is installed" in str(raised.value)
    assert "pip install" in str(raised.value)


def test_without_torch_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(RunnerError, match="torch is not installed"):
        check_torch_version()


def test_the_internals_are_not_imported_under_another_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_version, "FIRST_UNTESTED", (2, 0))
    with pytest.raises(RunnerError, match="is installed"):
        importlib.reload(torch_internals)


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def private_uses(source: str) -> list[str]:
    """Private names of torch that this source imports, or reads from `torch` or `dist`."""
    used = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            used += [
                name for alias in node.names if is_private(name := f"{node.module}.{alias.name}")
            ]
        elif isinstance(node, ast.Import):
            used += [
                alias.name
                for alias in node.names
                if alias.name.startswith("torch.") and is_private(alias.name)
            ]
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if is_private(name) and name.startswith(("torch.", "dist.")):
                used.append(name)
    return used


def test_private_names_of_torch_are_found() -> None:
    source = (
        "from torch.a._b import c\nimport torch, torch._d\n"
        "def f():\n    return torch._foo(1), dist.x._y.z, torch.__version__"
    )
    assert set(private_uses(source)) >= {"torch.a._b.c", "torch._d", "torch._foo", "dist.x._y"}
    assert not private_uses("from torch import nn\nprint(torch.__version__, self._torch.x)")


def test_only_one_module_of_training_and_two_of_dry_runs_name_private_parts_of_torch() -> None:
    workers = PYPROJECT.parent / "workers" / "autotune_workers"
    uses = {
        str(path.relative_to(workers)): private_uses(path.read_text())
        for path in workers.rglob("*.py")
    }
    assert uses.pop("training/torch_internals.py")
    assert uses.pop("dryrun/torch_private.py")
    assert uses.pop("dryrun/torch_patches.py")
    assert not {name: used for name, used in uses.items() if used}
