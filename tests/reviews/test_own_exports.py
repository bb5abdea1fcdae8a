"""Exported launches, reviewed: they are read as what was exported, and their edits lead to what was
proposed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import autotune
from autotune.reviews.lines import edited
from autotune.space import SearchSpace
from autotune.spec import ParallelConfig, Study
from autotune.trainers import trainer, write_launch

OPTIONS = {"torchtitan": {"hf_assets_path": "/data"}, "nanotron": {"entrypoint": "/n/run_train.py"}}
TRAINERS = (
    *("accelerate", "deepspeed", "hf_trainer", "lightning", "megatron", "megatron_bridge"),
    *("nanotron", "native", "torchtitan"),
)
CLUSTER = "h200-sxm-1x8"


def _study(name: str) -> Study:
    return autotune.load_study(
        {
            "name": "exported",
            "model": "llama-8b",
            "cluster": CLUSTER,
            "workload": {"seq_len": 4096, "global_batch_size": 256},
            "space": "dense-single-node",
            "trainer": name,
            "runner": "simulated",
        }
    )


def _exported(study: Study, config: ParallelConfig, folder: Path) -> Path:
    launch = trainer(study.trainer).launch(study.workload, config, OPTIONS.get(study.trainer, {}))
    write_launch(launch, folder)
    return folder / "launch.sh"


def _drawn(study: Study, count: int) -> list[ParallelConfig]:
    space = SearchSpace.of_study(study)
    rng = random.Random(study.trainer)
    return [space[rng.randrange(len(space))] for _ in range(count)]


@pytest.mark.parametrize(
    "count", [2, pytest.param(12, marks=pytest.mark.thorough)], ids=["few", "many"]
)
@pytest.mark.parametrize("name", TRAINERS)
def test_an_export_is_read_as_it_was_and_its_edits_lead_where_they_say(
    tmp_path: Path, name: str, count: int
) -> None:
    study = _study(name)
    for number, config in enumerate(_drawn(study, count)):
        script = _exported(study, config, tmp_path / str(number))
        found = autotune.review(script, cluster=CLUSTER)
        assert (found.missing, found.config) == ((), config)
        assert found.study is not None
        assert found.study.workload.model.num_parameters == study.workload.model.num_parameters
        if found.together is None:
            continue
        assert found.unplaced == ()
        for file, text in edited(found.texts, found.lines).items():
            (script.parent / file).write_text(text)
        assert autotune.review(script, cluster=CLUSTER).config == found.together.config


@pytest.mark.parametrize("target", ["launch.sh", ""])
def test_what_somebody_changed_in_an_exported_launch_counts(tmp_path: Path, target: str) -> None:
    config = ParallelConfig(dp=8, micro_batch_size=1, accumulation_steps=32, zero_stage=1)
    script = _exported(_study("megatron"), config, tmp_path)
    before, after = "--micro-batch-size 1 ", "--micro-batch-size 4 "
    assert before in script.read_text()
    script.write_text(script.read_text().replace(before, after))
    found = autotune.review(tmp_path / target, cluster=CLUSTER).config
    assert found is not None
    assert (found.micro_batch_size, found.accumulation_steps) == (4, 8)
