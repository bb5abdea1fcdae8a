"""The package without its extras: what works, and that each missing extra is named. The modules of
all extras are hidden by an import hook."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import MissingExtraError
from autotune.extras import MODULES, is_installed, missing_extra, require_extra, require_extras

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())[
    "project"
]
SPEC = """\
name: bare
model: nano-gpt
cluster: {gpu: cpu, num_nodes: 1, gpus_per_node: 2}
workload: {seq_len: 32, global_batch_size: 4}
space: {tp: [1, 2], dp: [1, 2], micro_batch_size: [1, 2], precision: [fp32]}
measure: {warmup_steps: 1, min_steps: 2, max_steps: 3, finalists: 1, final_rounds: 1}
budget: {max_trials: 3}
runner: simulated
"""
WORKS = (
    "--help",
    "plan spec.yaml --json",
    "estimate spec.yaml --config tp=1,dp=2,micro_batch_size=1 --json",
    "searchers --json",
    "models --json",
    "clusters --json",
    "spaces --json",
    "trainers --json",
    "runners --json",
    "tune spec.yaml --json",
    "best bare --json",
    "best --model nano-gpt --runner simulated --json",
    "report bare -o report.html",
    "export bare --to megatron -o launch",
    "store check",
    "store export tables",
    "token create --scope read",
    "doctor --json",
)
LACKS = {
    "tune spec.yaml --new --runner local": ("torch", "native"),
    "tune spec.yaml --new --runner ray": ("ray and torch", "ray,native"),
    "tune laptop": ("ray and torch", "ray,native"),
    "tune spec.yaml --new --searcher optuna:tpe": ("optuna", "optuna"),
    "tune spec.yaml --new --searcher optuna:gp": ("optuna", "optuna"),
    "calibrate": ("torch", "native"),
    "serve --port 0 --runner local": ("fastapi", "service"),
    "store export tables --format parquet": ("pyarrow", "parquet"),
    "mcp": ("mcp", "mcp"),
    "list --store postgresql://localhost/results": ("psycopg", "postgresql"),
}
WITHOUT_JSON = ("store export tables --format parquet",)
"""commands that print no JSON document"""
DRIVER = """
import contextlib, io, json, sys
from autotune.extras import MODULES

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

hidden = {module for modules in MODULES.values() for module in modules}
sys.meta_path.insert(0, Hidden())
from autotune import Client, cli

for command in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(command.split())
    print(json.dumps({"command": command, "code": code, "out": out.getvalue(), "err": err.getvalue()}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each command line answers in a process that finds no module of any extra, by command
    line."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "spec.yaml").write_text(SPEC)
    commands = [*WORKS, *LACKS, *(f"{command} --json" for command in LACKS)]
    environment = {
        **os.environ,
        "AUTOTUNE_STORE": str(folder / "results.db"),
        "XDG_DATA_HOME": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {answer["command"]: answer for answer in map(json.loads, done.stdout.splitlines())}


@pytest.mark.thorough
@pytest.mark.parametrize("command", WORKS)
def test_works_without_any_extra(answers: dict[str, dict[str, Any]], command: str) -> None:
    assert answers[command]["code"] == 0, answers[command]["err"]


@pytest.mark.parametrize("command", LACKS)
def test_one_line_names_the_extra_that_is_missing(
    answers: dict[str, dict[str, Any]], command: str
) -> None:
    module, extra = LACKS[command]
    answer = answers[command]
    said = [line for line in answer["err"].splitlines() if line.startswith("error: ")]
    assert answer["code"] == 2
    assert len(said) == 1, answer["err"]
    assert re.search(
        rf" needs {module}, which (is|are) not installed; install (it|them) with: ", said[0]
    )
    assert f" with: pip install 'autotune-parallel[{extra}]'" in said[0]
    assert ("--runner local" in said[0]) == (module.startswith("ray") and command != "serve")


def test_without_ray_and_torch_the_local_runner_needs_only_torch(
    answers: dict[str, dict[str, Any]],
) -> None:
    said = answers["tune laptop"]["err"]
    assert "; or only torch, for --runner local: pip install 'autotune-parallel[native]'" in said
    assert "or add --runner local" not in said


@pytest.mark.parametrize("command", [command for command in LACKS if command not in WITHOUT_JSON])
def test_the_error_document_names_the_extra_that_is_missing(
    answers: dict[str, dict[str, Any]], command: str
) -> None:
    answer = answers[f"{command} --json"]
    error = json.loads(answer["out"])["error"]
    assert answer["code"] == 2
    assert error["kind"] == "missing_extra"
    assert f" with: pip install 'autotune-parallel[{LACKS[command][1]}]'" in error["remedy"]


def test_the_doctor_names_the_extras_of_torch_and_ray(answers: dict[str, dict[str, Any]]) -> None:
    checks = {
        check["name"]: check for check in json.loads(answers["doctor --json"]["out"])["checks"]
    }
    assert checks["torch"]["remedy"] == "pip install 'autotune-parallel[native]'"
    assert checks["GPUs"]["remedy"] == "pip install 'autotune-parallel[native]'"


def test_the_extras_are_those_of_the_project_file() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras) - set(MODULES) <= {"all", "dev", "docs"}
    assert set(MODULES) <= set(extras)
    (everything,) = extras["all"]
    assert set(re.findall(r"\w+", everything)) - {"autotune", "parallel"} == set(MODULES)


def test_each_module_comes_with_its_extra_and_not_with_the_package_itself() -> None:
    base = {name for line in PROJECT["dependencies"] for name in _top_names(line)}
    for extra, modules in MODULES.items():
        brought = {
            name for line in PROJECT["optional-dependencies"][extra] for name in _top_names(line)
        }
        assert {module for module in modules if is_installed(module)} <= brought - base, (
            f"of the {extra} extra"
        )


def test_an_extra_that_is_installed_is_not_missing() -> None:
    require_extra("native", "this test")
    assert (
        missing_extra(
            ModuleNotFoundError("No module named 'torch.none'", name="torch.none"), "this test"
        )
        is None
    )


def test_only_what_is_missing_of_several_extras_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.extras.is_installed", lambda module: module != "torch")
    with pytest.raises(
        MissingExtraError, match=r"this test needs torch, which is .*install it with: .*\[native\]'"
    ):
        require_extras(("ray", "native"), "this test")


def test_a_module_of_no_extra_is_somebody_elses_business() -> None:
    assert (
        missing_extra(ModuleNotFoundError("No module named 'nobody'", name="nobody"), "this test")
        is None
    )
    assert missing_extra(ImportError("cannot import name 'x' from 'torch'"), "this test") is None


def test_a_missing_extra_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError) as caught:
        require_extra("parquet", "this test")
    assert isinstance(caught.value, MissingExtraError)
    assert str(caught.value) == (
        "this test needs pyarrow, which is not installed; install it with: pip install 'autotune-parallel[parquet]'"
    )


def _top_names(requirement: str) -> set[str]:
    """The folders and modules that the package of a requirement puts into site-packages; none when
    it is not installed."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name
    try:
        return {file.parts[0].removesuffix(".py") for file in metadata.files(name[0]) or ()}
    except metadata.PackageNotFoundError:
        return set()
