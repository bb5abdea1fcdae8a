"""What a launch says that it changes of the baseline's."""

from __future__ import annotations

from autotune.results.launch_changes import change_notes
from autotune.trainers import Launch
from autotune.trainers.command.overrides import started_with
from autotune.trainers.documents.placeholders import Values


def launch(batch: int, **more: object) -> Launch:
    files = started_with(
        {"train.py": {"DataLoader.batch_size": batch, "Trainer.precision": "32"}}, Values(known={})
    )
    files |= {"run.yaml": f"optim: {{lr: 1}}\ndata: {{batch: {batch}}}\n", "notes.txt": f"{batch}"}
    return Launch(argv=("python", "train.py", f"--batch={batch}"), files=files, **more)  # type: ignore[arg-type]


def test_an_equal_launch_is_reported_as_identical() -> None:
    assert change_notes(launch(4), launch(4)) == (
        "the launch is identical to the baseline's launch",
    )


def test_changed_arguments_variables_and_values_in_files_are_listed() -> None:
    (said,) = change_notes(launch(4, env={"A": "1"}), launch(8, env={"A": "2"}))
    parts = said.partition(": ")[2].split("; ")
    assert parts[:2] == ["--batch=4 -> --batch=8", "A=1 -> 2"]
    assert set(parts[2:]) == {
        "train.py: DataLoader.batch_size=4 -> 8",
        "run.yaml: data.batch=4 -> 8",
        "notes.txt",
    }
