"""Values that a program's own text sets: each trial starts it with others, and the file stays as it
is."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import SpecError
from autotune.schema.files import with_program_files
from autotune.spec import ParallelConfig
from autotune.testing.trainers import WORKLOAD
from autotune.trainers import Launch, trainer
from autotune.trainers.command.overriding import UnclearPlaceError, with_values

TEXT = """
BATCH = 4
config.accumulate: int = 2
args = TrainingArguments(bf16=False, batch=BATCH)
train = DataLoader(data, batch_size=BATCH, shuffle=True)
test = DataLoader(data, batch_size=64)
steps = 1
steps = 2
a, b = 1, 2
c = d = 3
for epoch in range(3):
    pass
size = 8
size //= ranks
"""


@pytest.mark.parametrize(
    ("place", "value", "changed"),
    [
        ("BATCH", 16, "BATCH = 16"),
        ("size", 16, "size = 16"),
        ("config.accumulate", 8, "config.accumulate: int = 8"),
        ("TrainingArguments.bf16", True, "args = TrainingArguments(bf16=True, batch=BATCH)"),
        ("TrainingArguments.batch", 1, "args = TrainingArguments(bf16=False, batch=1)"),
        (
            "TrainingArguments.fsdp",
            "full_shard",
            "args = TrainingArguments(bf16=False, batch=BATCH, fsdp='full_shard')",
        ),
        ("DataLoader:5.batch_size", 2, "train = DataLoader(data, batch_size=2, shuffle=True)"),
    ],
)
def test_one_place_has_the_value(place: str, value: Any, changed: str) -> None:
    before = ast.unparse(ast.parse(TEXT)).splitlines()
    after = ast.unparse(with_values(ast.parse(TEXT), {place: value})).splitlines()
    assert [line for line in after if line not in before] == [changed]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("missing", "nothing sets missing"),
        ("Missing.bf16", "nothing sets Missing.bf16"),
        (
            "DataLoader.batch_size",
            "DataLoader(...) is called on lines 5, 6; write DataLoader:5.batch_size for the first call",
        ),
        ("DataLoader:7.batch_size", "nothing sets DataLoader:7.batch_size"),
        ("steps", "steps is set 2 times, on lines 7, 8"),
        ("a", "line 9 does more than set a"),
        ("d", "line 10 does more than set d"),
        ("epoch", "line 11 does more than set epoch"),
        ("__import__('os')", "is neither NAME, CALL.KEYWORD nor CALL:LINE.KEYWORD"),
    ],
)
def test_a_place_that_is_not_clear_is_refused(place: str, why: str) -> None:
    with pytest.raises(UnclearPlaceError) as told:
        with_values(ast.parse(TEXT), {place: 1})
    assert why in str(told.value)


PROGRAM = '''
"""A program."""
from __future__ import annotations
import json, pickle, sys
from pathlib import Path
import beside
BATCH = 4
class Config:
    def __init__(self, **given): self.given = given
config = Config(bf16=False)
print(json.dumps({
    "batch": BATCH, "given": config.given, "file": __file__, "argv": sys.argv, "folder": str(Path(sys.path[0])), "beside": beside.VALUE, "name": __name__,
    "pickled": len(pickle.dumps(config)) > 0, "names": [name for name in globals() if not name.startswith("__")],
}))
if "fail" in sys.argv: raise ValueError("here")
'''


def _launched(folder: Path, overrides: Any, argv: list[str] | None = None, **config: Any) -> Launch:
    options = {
        "argv": argv or [sys.executable, "train.py", "--x"],
        "overrides": overrides,
        "cwd": str(folder),
        "fixed": {"dp": 8},
    }
    trainer("command").check_options(trainer("command").checked(options), ())
    return trainer("command").launch(
        WORKLOAD, ParallelConfig(dp=8, **{"micro_batch_size": 8, **config}), options
    )


def _run(launch: Launch, folder: Path) -> subprocess.CompletedProcess[str]:
    own = folder / "launch"
    placed = launch.placed(str(own))
    for name, text in placed.files.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    return subprocess.run(placed.argv, cwd=placed.cwd, capture_output=True, text=True, check=False)


def _program(folder: Path) -> Path:
    (folder / "beside.py").write_text("VALUE = 7\n")
    (folder / "train.py").write_text(PROGRAM)
    return folder


def test_the_program_runs_as_itself_with_the_values_of_the_trial(tmp_path: Path) -> None:
    places = {
        "BATCH": "{micro_batch_size}",
        "Config.bf16": {"precision": {"bf16": True, "fp32": False}},
        "Config.out": "{trial_dir}",
        "Config.name": "run-{dp}",
    }
    launch = _launched(_program(tmp_path), {"train.py": places})
    assert launch.argv[1:] == ("@launch-folder@/train.py", "--x")
    said = json.loads(_run(launch, tmp_path).stdout)
    assert said["batch"] == 8
    assert said["given"] == {"bf16": True, "out": f"{tmp_path}/launch/outputs", "name": "run-8"}
    assert said["file"] == str(tmp_path / "train.py")
    assert said["argv"] == ["train.py", "--x"]
    assert said["folder"] == str(tmp_path)
    assert (said["beside"], said["name"], said["pickled"]) == (7, "__main__", True)
    assert not {"ast", "PROGRAM", "VALUES"} & set(said["names"]), (
        "nothing of the file that starts it"
    )
    assert (tmp_path / "train.py").read_text() == PROGRAM


def test_an_override_may_be_a_file_of_the_trial(tmp_path: Path) -> None:
    _program(tmp_path)
    options = {
        "argv": [sys.executable, "train.py"],
        "files": {"zero.json": {"zero_optimization": {"stage": 0}}},
        "overrides": {
            "train.py": {"Config.name": "{files}/zero.json", "BATCH": "{micro_batch_size * dp}"}
        },
    }
    command = trainer("command")
    command.check_options(command.checked(options), ())
    launch = command.launch(WORKLOAD, ParallelConfig(dp=8, micro_batch_size=8), options)
    assert "'@launch-folder@/zero.json'" in launch.files["train.py"]
    assert "zero.json" in launch.files
    del options["files"]
    with pytest.raises(SpecError, match=r"there is no placeholder \{files\}"):
        command.check_options(command.checked(options), ())


def test_a_module_runs_as_python_starts_it(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "near.py").write_text("VALUE = 7\n")
    program = PROGRAM.replace("import beside\n", "from . import near as beside\n")
    (tmp_path / "pkg" / "train.py").write_text(program)
    launch = _launched(
        tmp_path,
        {"pkg.train": {"BATCH": "{micro_batch_size}"}},
        [sys.executable, "-m", "pkg.train", "--x"],
    )
    assert launch.argv[1:] == ("@launch-folder@/train.py", "--x")
    ran = _run(launch, tmp_path)
    said = json.loads(ran.stdout)
    assert (said["batch"], said["beside"], said["folder"]) == (8, 7, str(tmp_path))
    assert said["argv"] == [str(tmp_path / "pkg" / "train.py"), "--x"]


def test_an_error_names_the_lines_of_the_program_and_a_file_that_changed_meanwhile_is_not_started(
    tmp_path: Path,
) -> None:
    launch = _launched(
        _program(tmp_path),
        {"train.py": {"BATCH": "{micro_batch_size}"}},
        [sys.executable, "train.py", "fail"],
    )
    failed = _run(launch, tmp_path)
    assert f'File "{tmp_path}/train.py", line 15' in failed.stderr
    (tmp_path / "train.py").write_text(PROGRAM.replace("BATCH = 4", "BATCH = BATCH_OF = 4"))
    refused = _run(launch, tmp_path)
    assert refused.returncode == 1
    assert "line 7 does more than set BATCH; correct trainer.overrides" in refused.stderr


@pytest.mark.parametrize(
    ("overrides", "argv", "field", "remedy"),
    [
        (
            {"other.py": {"BATCH": 1}},
            ["python", "train.py"],
            "other.py",
            "as it is in argv (train.py)",
        ),
        ({"train.py": {"BATCH": 1}}, ["torchrun", "-m", "train"], "train.py", "file or module"),
        ({"train.py": ["BATCH"]}, ["python", "train.py"], "train.py", "CALL.KEYWORD"),
        (
            {"train.py": {"BATCH": "{micro_batch}"}},
            ["python", "train.py"],
            "train.py.BATCH",
            "micro_batch_size",
        ),
        ({"python": {"BATCH": 1}}, ["python", "train.py"], "python", "file or module that trains"),
        ({1: {"BATCH": 1}}, ["python", "train.py"], "1", "as it is in argv (train.py)"),
        (
            {"train.py": {"BATCH": float("nan")}},
            ["python", "train.py"],
            "train.py.BATCH",
            "in quotes",
        ),
        (
            {"train.py": {"BATCH": {"a": 1, "b": 2}}},
            ["python", "train.py"],
            "train.py.BATCH",
            "precision: {bf16: true",
        ),
    ],
)
def test_a_wrong_override_is_refused_with_its_remedy(
    overrides: Any, argv: list[str], field: str, remedy: str
) -> None:
    with pytest.raises(SpecError) as told:
        trainer("command").check_options(
            trainer("command").checked({"argv": argv, "overrides": overrides}), ()
        )
    assert told.value.field == f"trainer.overrides.{field}"
    assert remedy in told.value.remedy


def test_two_programs_of_one_name_are_refused() -> None:
    options = {
        "argv": ["a", "x/train.py", "y/train.py"],
        "overrides": {"x/train.py": {"A": 1}, "y/train.py": {"A": 2}},
    }
    with pytest.raises(SpecError, match=r"two programs with overrides are both named train\.py"):
        trainer("command").check_options(trainer("command").checked(options), ())


def test_a_spec_names_a_place_that_the_file_has(tmp_path: Path) -> None:
    asked = {
        "kind": "command",
        "argv": ["python", "train.py"],
        "overrides": {"train.py": {"BATCHES": 1}},
    }
    _program(tmp_path)
    with pytest.raises(SpecError, match=r"train.py: nothing sets BATCHES"):
        with_program_files(asked, tmp_path)
    assert with_program_files({**asked, "overrides": {1: {"BATCH": 1}}}, tmp_path)["overrides"], (
        "refused later, in words"
    )
    (tmp_path / "train.py").write_text("if:")
    with pytest.raises(SpecError, match=r"train.py cannot be read as Python"):
        with_program_files(asked, tmp_path)


def test_a_knob_without_a_place_or_value_is_a_limit() -> None:
    options = {
        "argv": ["python", "train.py"],
        "overrides": {"train.py": {"bf16": {"precision": {"bf16": True}}}},
    }
    config = ParallelConfig(dp=1, micro_batch_size=8, precision="fp32")
    limits = trainer("command").limits(WORKLOAD, config, options)
    said = {limit.knob: limit.message for limit in limits}
    assert "bf16 for this precision" in said["precision"]
    assert "overrides have no placeholder {micro_batch_size}" in said["micro_batch_size"]


def test_a_training_has_what_names_a_knob() -> None:
    places = {
        "BATCH": "{micro_batch_size}",
        "steps": "{steps}",
        "saves": False,
        "out": "{trial_dir}",
    }
    options = {"argv": ["python", "train.py"], "overrides": {"train.py": places}}
    kept = trainer("command").in_training(options)["overrides"]
    assert kept == {"train.py": {"BATCH": "{micro_batch_size}"}}
