"""Each package that the product imports is a dependency with a lower bound, which the job of lowest
versions installs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: asked
    for name, asked in PROJECT["optional-dependencies"].items()
    if name not in ("all", "docs", "dev")
}
ASKED = [*PROJECT["dependencies"], *(one for asked in EXTRAS.values() for one in asked)]
BROUGHT = {
    "anyio": "fastapi",
    "click": "typer",
    "h11": "uvicorn",
    "markupsafe": "jinja2",
    "mcp_types": "mcp",
    "psutil": "ray",
    "pydantic_core": "pydantic",
    "starlette": "fastapi",
    "typing_extensions": "pydantic",
}
"""modules of packages that another dependency brings, which has a bound"""
OF_USERS = {
    "accelerate", "IPython", "lightning", "megatron", "optunahub", "pandas", "pytest", "torchao", "torchtitan", "transformers",
}  # fmt: skip
"""modules that a user's own environment has where they are used"""


def version_job() -> ModuleType:
    loader = SourceFileLoader("version_job", str(ROOT / ".ci" / "version_job"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = bytecode
    return module


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=!~;]", requirement)[0].strip().lower().replace("_", "-")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def imported() -> dict[str, set[Path]]:
    """The top-level modules of other packages that the product imports, each with the files that
    do."""
    found: dict[str, set[Path]] = {}
    for path in [
        *(ROOT / "autotune").rglob("*.py"),
        *(ROOT / "workers" / "autotune_workers").rglob("*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(path.relative_to(ROOT))
    own = {"autotune", "autotune_probe", "autotune_workers", *sys.stdlib_module_names}
    return {name: paths for name, paths in found.items() if name not in own}


def test_the_job_installs_all_that_users_are_asked_for_at_its_lowest() -> None:
    job = version_job()
    assert {*job.EXTRAS, job.LAST} == set(EXTRAS)
    assert sorted(job.requirements((*job.EXTRAS, job.LAST))) == sorted(ASKED)
    assert all("==" in job.lowest(one) for one in ASKED)
    with pytest.raises(ValueError, match="no lower bound"):
        job.lowest("numpy")


@pytest.mark.thorough
def test_each_package_that_is_imported_is_a_dependency() -> None:
    asked = {name_of(one) for one in ASKED}
    packages = metadata.packages_distributions()
    unknown = {
        module: sorted(map(str, paths))
        for module, paths in imported().items()
        if module not in OF_USERS
        and BROUGHT.get(module) not in asked
        and asked.isdisjoint(name.lower().replace("_", "-") for name in packages.get(module, ()))
    }
    assert unknown == {}


def test_tested_versions_lie_within_the_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {name_of(line): line.partition("==")[2] for line in lines if "==" in line}
    for one in ASKED:
        bound = version_job().lowest(one).partition("==")[2]
        assert numbers(pins[name_of(one)]) >= numbers(bound), one


def test_the_job_keeps_what_it_tried_in_its_own_column() -> None:
    job = version_job()
    text = f"before\n{job.BEGIN}| package |\n| --- |\n{job.END}after\n"
    first = {"tried on": "2026-01-02", "torch": "2.13.0", "numpy": "2.0.0"}
    text = job.with_column(text, "lowest, Python 3.11", first)
    text = job.with_column(text, "newest, Python 3.12", {"tried on": "2026-03-04", "mcp": "2.3.0"})
    text = job.with_column(text, "newest, Python 3.12", {"tried on": "2026-05-06", "mcp": "2.4.0"})
    assert text == (
        f"before\n{job.BEGIN}"
        "| package | lowest, Python 3.11 | newest, Python 3.12 |\n"
        "| --- | --- | --- |\n"
        "| tried on | 2026-01-02 | 2026-05-06 |\n"
        "| mcp | - | 2.4.0 |\n"
        "| numpy | 2.0.0 | - |\n"
        "| torch | 2.13.0 | - |\n"
        f"{job.END}after\n"
    )


def test_each_python_that_is_declared_was_tried_with_every_package_within_its_bounds() -> None:
    job = version_job()
    table = job.PAGE.read_text().split(job.BEGIN)[1].split(job.END)[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    rows = {name: dict(zip(cells[0][1:], row, strict=True)) for name, *row in cells[2:]}
    declared = [
        word.rpartition(":: ")[2] for word in PROJECT["classifiers"] if re.search(r":: 3\.\d", word)
    ]
    assert {f"newest, Python {each}" for each in declared} <= {*cells[0]}
    for one in ASKED:
        bound = numbers(job.lowest(one).partition("==")[2])
        tried = [version for version in rows[name_of(one)].values() if version != "-"]
        assert tried, f"{one} was never tried"
        assert all(numbers(version) >= bound for version in tried), one
