"""The user's own program under a trainer that writes its configuration: it runs in its own folder,
and finds the configuration all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune import api
from autotune.errors import SpecError
from autotune.onboarding.configuration_files import read_present
from autotune.onboarding.imported_spec import import_draft
from autotune.schema import read_spec
from autotune.spec import ParallelConfig, Study
from autotune.trainers import Launch, trainer, write_launch
from autotune.trainers.launch_files import FOLDER

PROGRAMS = {
    "accelerate": "script",
    "deepspeed": "script",
    "lightning": "script",
    "nanotron": "entrypoint",
}
"""trainers that start the user's own program with configuration files, each with the option that
names it"""


def study_of(folder: Path, **asked: Any) -> Study:
    """The study of a spec in that folder with this trainer."""
    spec = folder / "study.json"
    document = {
        "model": "nano-llama",
        "cluster": "cpu-1x2",
        "workload": {"seq_len": 64, "global_batch_size": 16},
        "space": {"micro_batch_size": [1]},
        "trainer": asked,
    }
    spec.write_text(json.dumps(document), encoding="utf-8")
    return api.load_study(read_spec(spec))


def launched(folder: Path, **asked: Any) -> Launch:
    """The launch of the baseline of such a study."""
    study = study_of(folder, **asked)
    config = ParallelConfig(dp=2, accumulation_steps=8)
    return trainer(study.trainer).launch(study.workload, config, study.trainer_options)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_with_a_relative_path_runs_in_the_folder_of_the_spec(
    tmp_path: Path, kind: str
) -> None:
    launch = launched(tmp_path, kind=kind, **{PROGRAMS[kind]: "code/train.py"})
    assert launch.cwd == str(tmp_path)
    assert "code/train.py" in launch.argv
    told = [word for word in launch.argv if any(name in word for name in launch.files)]
    assert told == [f"{FOLDER}/{name}" for name in launch.files]
    assert f"cd {tmp_path}" in launch.script
    assert f'"$here"/{told[0].rpartition("/")[2]}' in launch.script


@pytest.mark.parametrize("kind", PROGRAMS)
def test_its_export_is_imported_with_program_arguments_and_folder(
    tmp_path: Path, kind: str
) -> None:
    arguments = {} if kind == "nanotron" else {"script_args": ["--config", "base.yaml"]}
    launch = launched(tmp_path, kind=kind, **{PROGRAMS[kind]: "train.py"}, **arguments)
    write_launch(launch, tmp_path / "launch")
    folder = tmp_path / "launch"
    draft = import_draft(
        read_present(folder), kind, folder, model="nano-llama", cluster="cpu-1x2", folder=tmp_path
    )
    asked = draft.document["trainer"]
    assert (asked[PROGRAMS[kind]], asked["cwd"]) == ("train.py", str(tmp_path))
    assert list(asked.get("script_args", ())) == arguments.get("script_args", [])


def test_a_launch_script_of_flags_alone_runs_there_too(tmp_path: Path) -> None:
    assert launched(tmp_path, kind="megatron", entrypoint="Megatron-LM/pretrain_gpt.py").cwd == str(
        tmp_path
    )


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_with_a_whole_path_runs_beside_its_configuration(
    tmp_path: Path, kind: str
) -> None:
    launch = launched(tmp_path, kind=kind, **{PROGRAMS[kind]: "/home/me/train.py"})
    assert launch.cwd == ""
    assert FOLDER not in " ".join(launch.argv)


def test_a_folder_that_is_named_is_relative_to_the_spec(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    assert launched(tmp_path, kind="deepspeed", script="train.py", cwd="code").cwd == str(
        tmp_path / "code"
    )
    with pytest.raises(SpecError, match=r"the program's folder 'nowhere' does not exist"):
        study_of(tmp_path, kind="deepspeed", script="train.py", cwd="nowhere")


def test_a_folder_without_a_program_and_a_relative_one_without_a_spec_file_are_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(SpecError, match="no program is set"):
        launched(tmp_path, kind="deepspeed", cwd=".")
    study = study_of(tmp_path, kind="deepspeed", script="train.py")
    options = {**study.trainer_options, "cwd": "code"}
    with pytest.raises(SpecError, match="a relative folder can only be used if the spec is a file"):
        trainer("deepspeed").launch(
            study.workload, ParallelConfig(dp=2, accumulation_steps=8), options
        )


def test_data_that_lies_beside_the_spec_is_named_by_its_whole_path(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("text", encoding="utf-8")
    (tmp_path / "text_document.bin").touch()
    assert (
        study_of(tmp_path, kind="hf_trainer", data="corpus.txt").trainer_options["data"]
        == f"{tmp_path}/corpus.txt"
    )
    options = {
        "data_path": "text_document",
        "tokenizer_model": "gpt2",
        "tokenizer_type": "HuggingFaceTokenizer",
    }
    asked = study_of(tmp_path, kind="megatron", **options).trainer_options
    assert (asked["data_path"], asked["tokenizer_model"]) == (f"{tmp_path}/text_document", "gpt2")
