"""What is registered is found by name, with its package; mistakes are answered with the law and a
remedy; a broken package does not affect the others."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune import __version__, cli, registry
from autotune.errors import CatalogError, RunnerError, SpecError
from autotune.extras import DISTRIBUTION, FORMERLY
from autotune.registry import RUNNERS, calibrator_names, make_runner, registered
from autotune.search import Searcher, make_searcher, searcher_names
from autotune.space import SearchSpace
from autotune.testing.searchers import WORKLOAD, candidates
from autotune.trainers import trainer, trainer_names

GROUPS = (
    registry.SEARCHERS,
    registry.TRAINERS,
    registry.RUNNERS,
    registry.CALIBRATORS,
    registry.VIEWS,
)
OWN = (DISTRIBUTION, FORMERLY)
BROKEN = """\
[autotune.searchers]
absent = no_such_module:Searcher
faulty = faulty_plugin:Searcher
grid = faulty_plugin:Searcher
notone = builtins:repr
[autotune.trainers]
absent = no_such_module:TRAINER
notone = collections:OrderedDict
[autotune.runners]
absent = collections:NoSuchRunner
"""
OUTDATED = """\
[console_scripts]
autotune = autotune.cli:main
[autotune.trainers]
native = autotune.trainers.catalog.native:TRAINER
"""


def searcher(name: str) -> Searcher:
    return make_searcher(name, SearchSpace.of(WORKLOAD, candidates()))


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package whose entries cannot be loaded."""
    (tmp_path / "faulty_plugin.py").write_text("raise OSError('no licence')\n")
    installed(tmp_path, monkeypatch, "broken-plugins", "0.3", BROKEN)


def installed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, version: str, entry_points: str
) -> None:
    """Writes the metadata of an installed package into a folder, which is then the first that is
    looked into."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(str(folder))


def test_what_ships_is_registered_as_the_project_file_says() -> None:
    """Old metadata of an installation would hide what was added since: `pip install -e .` writes it
    anew."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    for group in GROUPS:
        own = {n: r.entry.value for n, r in registered(group).items() if r.package in OWN}
        assert own == project["entry-points"][group]
        assert {r.version for r in registered(group).values() if r.package in OWN} == {__version__}


def test_the_shipped_names_are_there() -> None:
    assert {"local", "ray", "simulated"} <= set(registered(RUNNERS))
    assert "local" in calibrator_names()
    assert {"bayesian", "optuna:tpe", "grid"} <= set(searcher_names())
    assert {"native", "command", "megatron"} <= set(trainer_names())


def test_options_reach_the_runner() -> None:
    runner = make_runner("simulated", capacity=7)
    assert runner.capacity == 7
    runner.close()


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (make_runner, "simulate", "did you mean simulated"),
        (trainer, "megatrom", "did you mean megatron"),
        (searcher, "optuna:tpo", "there is no searcher 'optuna:tpo'.*; .*optuna:tpe"),
        (searcher, "optuna", "there is no searcher 'optuna'.*; .*optuna:nsga2"),
        (searcher, "optuna:", "there is no searcher 'optuna:'.*; .*optuna:"),
        (searcher, "grid:all", "there is no searcher 'grid:all'.*; .*grid"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(
    make: Callable[[str], object], name: str, words: str
) -> None:
    with pytest.raises(CatalogError, match=words):
        make(name)


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean noise") as raised:
        make_runner("simulated", noize=0.1)
    assert raised.value.field == "runner.noize"


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (
            searcher,
            "absent",
            r"'absent' \(no_such_module:Searcher of broken-plugins 0.3\) cannot be loaded.*No module",
        ),
        (searcher, "faulty", "OSError: no licence"),
        (searcher, "notone", "'notone' returned str"),
        (trainer, "notone", "'notone' is OrderedDict"),
        (make_runner, "absent", "no attribute 'NoSuchRunner'"),
    ],
)
def test_a_broken_entry_is_named_with_its_package_and_the_reason(
    broken: None, make: Callable[[str], object], name: str, words: str
) -> None:
    with pytest.raises(RunnerError, match=words):
        make(name)


def test_an_installation_that_is_older_than_its_files_says_how_to_install_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editable installation keeps the entry points that it was made with, and finds the files of
    today."""
    installed(tmp_path, monkeypatch, DISTRIBUTION, __version__, OUTDATED)
    with pytest.raises(RunnerError) as caught:
        trainer("native")
    assert (
        f"the installation of {DISTRIBUTION} {__version__} is older than its files"
        in caught.value.message
    )
    assert "autotune.trainers.catalog.native" in caught.value.message
    checkout = Path(__file__).parents[1]
    assert (
        caught.value.remedy
        == f"install {DISTRIBUTION} again with: pip install --no-deps --editable {checkout}"
    )


def test_a_package_cannot_take_a_name_of_autotune(broken: None) -> None:
    assert registered(registry.SEARCHERS)["grid"].package in OWN
    assert searcher("grid").ask(1)


@pytest.mark.parametrize("command", ["searchers", "trainers", "runners"])
def test_the_lists_name_packages_and_what_is_broken(
    broken: None, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)[command]
    by_name = {row["name"]: row for row in rows}
    absent = by_name.pop("absent")
    assert (absent["package"], absent["version"]) == ("broken-plugins", "0.3")
    assert absent["summary"].startswith("cannot be loaded: the ")
    others = [row for row in by_name.values() if row["package"] in OWN]
    assert len(others) >= 3
    assert {row["version"] for row in others} == {__version__}
    assert not any(row["summary"].startswith("cannot") for row in others)
    assert cli.run([command]) == 0
    table = capsys.readouterr().out
    assert "broken-plugins 0.3" in table
    assert any(f"{name} {__version__}" in table for name in OWN)
