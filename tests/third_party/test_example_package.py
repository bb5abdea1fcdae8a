"""A package of somebody else brings a searcher, a trainer and a runner: found by its metadata, they
keep the contracts and run a study."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import pytest

from autotune import api, cli
from autotune.ports import TrialRequest
from autotune.registry import make_runner
from autotune.space import SearchSpace
from autotune.spec import MeasureSpec, ParallelConfig, StudyStatus
from autotune.store import MemoryStore
from autotune.testing.runners import RunnerContract, ended
from autotune.testing.searchers import SearcherContract
from autotune.testing.trainers import WORKLOAD, TrainerContract
from autotune.trainers import StepMetrics

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(__file__).parent / "autotune_example"
PROJECT = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
CONFIGS = [
    ParallelConfig(dp=8, micro_batch_size=size, accumulation_steps=8 // size)
    for size in (1, 2, 4, 8)
]
SPEC = {
    "name": "recorded",
    "model": "gpt2-small",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 1024, "global_batch_size": 64},
    "space": {"micro_batch_size": [1, 2, 4, 8], "precision": ["fp32", "bf16"]},
    "objective": {"stability_weight": 0},
    "budget": {"max_trials": 8, "min_gain": 0},
    "searcher": "hill_climbing",
    "trainer": "ddp_script",
}


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package on the path with the metadata that an installation writes, unless it is
    installed."""
    if any(found.name == PROJECT["name"] for found in metadata.distributions()):
        yield
        return
    folder = tmp_path_factory.mktemp("site")
    info = folder / f"autotune_example-{PROJECT['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n"
    )
    groups = PROJECT["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{n} = {value}\n" for n, value in entries.items())
        for group, entries in groups
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.syspath_prepend(str(PACKAGE))
        yield


def table(path: Path, times_s: dict[ParallelConfig, float]) -> str:
    """Writes the table of a `recorded` runner."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows(
            [
                ("config", "step_time_s"),
                *((str(config), time_s) for config, time_s in times_s.items()),
            ]
        )
    return str(path)


class TestHillClimbing(SearcherContract):
    searcher = "hill_climbing"

    def test_goes_on_near_the_best(self) -> None:
        searcher = self.make()
        told = self.play(searcher, trials=12)
        best = min((t for t in told if t.is_measured), key=lambda t: t.measurement.step_time_s)
        (config,) = searcher.ask(1)
        names = ("tp", "pp", "dp", "micro_batch_size", "accumulation_steps", "zero_stage")
        differing = sum(getattr(config, name) != getattr(best.config, name) for name in names)
        assert f"differs in {differing} knobs" in searcher.reason(config)
        assert differing < len(names)


@pytest.mark.thorough
class TestDdpScript(TrainerContract):
    trainer = "ddp_script"
    log_lines: ClassVar = {
        "step 3: 0.251 s, loss 4.17": StepMetrics(step=3, step_time_s=0.251, loss=4.17),
        "\x1b[32mstep 12: 1 s, loss 11.0\x1b[0m": StepMetrics(step=12, step_time_s=1.0, loss=11.0),
        "saved a checkpoint at step 3": None,
    }


class TestRecorded(RunnerContract):
    @pytest.fixture
    def runner(self, tmp_path: Path) -> Iterator[Any]:
        runner = make_runner(
            "recorded", table=table(tmp_path / "times.csv", dict.fromkeys(CONFIGS, 0.25))
        )
        yield runner
        runner.close()

    @pytest.fixture
    def request_for(self) -> Callable[[int], TrialRequest]:
        measure = MeasureSpec(warmup_steps=1, min_steps=3, max_steps=5)
        return lambda number: TrialRequest(
            study="s",
            number=number,
            attempt=1,
            workload=WORKLOAD,
            config=CONFIGS[number],
            measure=measure,
        )

    def test_what_the_table_has_not_is_a_failure(self, runner: Any, request_for: Any) -> None:
        absent = TrialRequest(
            study="s",
            number=0,
            attempt=1,
            workload=WORKLOAD,
            config=ParallelConfig(tp=8),
            measure=MeasureSpec(),
        )
        runner.start(absent)
        end = ended(runner.poll(0.0))
        assert end.failure is not None
        assert end.failure.kind == "INVALID"


@pytest.mark.parametrize(
    ("command", "name"),
    [("searchers", "hill_climbing"), ("trainers", "ddp_script"), ("runners", "recorded")],
)
def test_the_lists_say_from_which_package_it_comes(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([command, "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out)[command] if row["name"] == name]
    assert (row["package"], row["version"]) == ("autotune-example", PROJECT["version"])
    assert row["summary"]
    assert cli.run([command]) == 0
    assert f"autotune-example {PROJECT['version']}" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_study_names_all_three(tmp_path: Path) -> None:
    """The best of the table is found, and handed on as a launch of the script."""
    study = api.load_study({**SPEC, "runner": {"kind": "recorded"}})
    space = SearchSpace.build(study.workload, study.space)
    times_s = {config: 0.1 + 0.01 * index for index, config in enumerate(space)}
    path = table(tmp_path / "times.csv", times_s)
    store = MemoryStore()
    result = api.tune({**SPEC, "runner": {"kind": "recorded", "table": path}}, store=store)
    assert result.record.status is StudyStatus.COMPLETED
    assert result.best is not None
    assert result.best.config == min(times_s, key=times_s.__getitem__)
    launch = api.export_document(store, "recorded", "ddp_script", {})
    assert "train.py" in launch["argv"]
    store.close()


@pytest.mark.slow
def test_it_is_installed_from_its_project_and_keeps_the_contracts(tmp_path: Path) -> None:
    """`pip install` of the folder into a venv of its own; the tests above pass there, with the
    metadata that pip wrote."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(PACKAGE),
    ]
    subprocess.run(build, check=True, timeout=900, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=900)
    (site,) = (venv / "lib").glob("python*/site-packages")
    shared = [folder for folder in sys.path if folder.endswith("site-packages")]
    (site / "shared.pth").write_text("\n".join([str(ROOT), str(ROOT / "workers"), *shared]) + "\n")
    python = str(venv / "bin" / "python")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)],
        check=True,
        timeout=900,
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = [python, "-c", "import autotune_example; print(autotune_example.__file__)"]
    home = subprocess.run(
        where, check=True, capture_output=True, text=True, cwd=tmp_path, timeout=600
    ).stdout
    assert home.startswith(str(site))
    tests = [python, "-m", "pytest", "-p", "no:cacheprovider", "-n0", "-m", "not slow", __file__]
    done = subprocess.run(
        tests, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
