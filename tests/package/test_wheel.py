"""The wheel holds everything: it is built from the tree, installed into a venv of its own, and used
from another folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.extras import MODULES
from tests.package import test_extras

ROOT = Path(__file__).resolve().parents[2]
SPEC = """\
name: from-a-wheel
model: nano-gpt
cluster: {gpu: cpu, num_nodes: 1, gpus_per_node: 2}
workload: {seq_len: 32, global_batch_size: 4}
space: {tp: [1, 2], dp: [1, 2], micro_batch_size: [1, 2], precision: [fp32]}
measure: {warmup_steps: 1, min_steps: 2, max_steps: 3, finalists: 1, final_rounds: 1}
budget: {max_trials: 2}
searcher: cost_ranked
runner: local
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    build = [sys.executable, "-m", "pip", "wheel", *options, str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=900)
    return next(folder.glob("autotune_parallel-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The `autotune` command of a venv that holds the wheel, and the dependencies of this
    environment, but not this checkout."""
    venv = new_venv(wheel.parent / "venv")
    site = next((venv / "lib").glob("python*/site-packages"))
    # Path lines, not installations: the packages below are found, their .pth files (our editable
    # install) are not read.
    packages = [path for path in sys.path if Path(path).name == "site-packages"]
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in packages))
    install(venv, "--no-deps", str(wheel))
    return venv / "bin" / "autotune"


@pytest.fixture(scope="module")
def bare(wheel: Path) -> Path:
    """The `bin` folder of a venv into which pip installed the wheel without any extra, and nothing
    else."""
    venv = new_venv(wheel.parent / "bare")
    install(venv, "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    return venv / "bin"


def new_venv(folder: Path) -> Path:
    """Makes a virtual environment of this Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=900)
    return folder


def install(venv: Path, *arguments: str) -> None:
    """`pip install` in a virtual environment."""
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True, capture_output=True, timeout=600)


def run(
    command: Path, *arguments: str, folder: Path, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """The command, which must end with that code."""
    environment = {**os.environ, "AUTOTUNE_STORE": str(folder / "results.db")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(command), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == code, f"{arguments}: {done.stderr}"
    return done


@pytest.mark.thorough
def test_plans_from_another_folder(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    assert (
        json.loads(run(installed, "plan", "spec.yaml", "--json", folder=tmp_path).stdout)[
            "feasible"
        ]
        > 1
    )


@pytest.mark.thorough
def test_finds_the_data_that_ships(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "spaces", "--json", folder=tmp_path)
    names = {row["name"] for row in json.loads(done.stdout)["spaces"]}
    assert names >= {path.stem for path in (ROOT / "search_spaces").glob("*.yaml")}
    assert str(ROOT) not in done.stdout


@pytest.mark.thorough
def test_tunes_from_another_folder(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    document = json.loads(run(installed, "tune", "spec.yaml", "--json", folder=tmp_path).stdout)
    assert document["best"]["measurement"]["tokens_per_s"] > 0
    assert document["study"]["status"] == "COMPLETED"


@pytest.mark.slow
def test_nothing_of_an_extra_is_installed_with_the_package_itself(
    bare: Path, tmp_path: Path
) -> None:
    names = sorted(module for modules in MODULES.values() for module in modules)
    script = f"from importlib.util import find_spec; print([name for name in {names} if find_spec(name)])"
    assert run(bare / "python", "-c", script, folder=tmp_path).stdout.strip() == "[]"


@pytest.mark.slow
def test_commands_and_client_work_without_any_extra(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(test_extras.SPEC)
    for command in test_extras.WORKS:
        run(bare / "autotune", *command.split(), folder=tmp_path)
    run(bare / "python", "-W", "error", "-c", "import autotune; autotune.Client", folder=tmp_path)


@pytest.mark.slow
def test_names_the_extra_that_is_not_installed(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(test_extras.SPEC)
    run(bare / "autotune", "tune", "spec.yaml", folder=tmp_path)
    for command, (_, extra) in test_extras.LACKS.items():
        said = run(bare / "autotune", *command.split(), folder=tmp_path, code=2).stderr
        assert f" with: pip install 'autotune-parallel[{extra}]'" in said


@pytest.mark.slow
def test_help_imports_no_large_package(bare: Path, tmp_path: Path) -> None:
    script = "from autotune.cli import main; main(['--help'])"
    done = run(bare / "python", "-X", "importtime", "-c", script, folder=tmp_path)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"numpy", "scipy", "sqlalchemy", "pydantic", "httpx"}
