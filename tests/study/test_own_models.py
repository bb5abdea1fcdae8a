"""Studies of models that code builds, from the spec's file to the winner, with real ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.spec import TrialStatus
from tests.workers import own_models

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
} | {"intermediate_size": 48}
SPEC: dict[str, Any] = {
    "cluster": {"gpu": "cpu", "num_nodes": 1, "gpus_per_node": 2},
    "workload": {"seq_len": 32, "global_batch_size": 4},
    "space": {"tp": [1, 2], "pp": [1, 2], "micro_batch_size": [1, 2], "precision": ["fp32"]},
    "measure": {
        "warmup_steps": 0,
        "min_steps": 2,
        "max_steps": 2,
        "finalists": 0,
        "final_rounds": 0,
        "first_look": 0,
    },
    "budget": {"max_trials": 3},
    "searcher": "grid",
    "runner": "local",
}


def written(folder: Path, model: dict[str, Any], **changes: Any) -> Path:
    """The spec's file, with the user's code and a config.json beside it."""
    shutil.copy(own_models.__file__, folder / "mine.py")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    path = folder / "spec.json"
    path.write_text(json.dumps({**SPEC, **changes, "model": model}))
    return path


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    "model",
    [{"module": "mine:language_model", "args": {"depth": 2}}, {"hf": "config.json"}],
    ids=["module", "hf"],
)
def test_a_study_tries_data_tensor_and_pipeline_parallelism_of_the_model(
    tmp_path: Path, model: dict[str, Any]
) -> None:
    every = ["dp=2,micro_batch_size=2,precision=fp32", "tp=2,micro_batch_size=2,precision=fp32"]
    every.append("pp=2,micro_batch_size=2,precision=fp32")
    result = autotune.tune(written(tmp_path, model, enqueue=every), store=tmp_path / "store.db")
    done = [trial for trial in result.trials if trial.status is TrialStatus.COMPLETED]
    assert {(t.config.tp, t.config.pp, t.config.dp) for t in done} >= {
        (2, 1, 1),
        (1, 2, 1),
        (1, 1, 2),
    }
    losses = [trial.measurement.losses for trial in done if trial.measurement is not None]
    assert all(loss == pytest.approx(losses[0], rel=1e-4) for loss in losses)


@pytest.mark.slow
def test_changed_code_is_another_study_than_what_was_begun_with_it(tmp_path: Path) -> None:
    path = written(tmp_path, {"module": "mine:language_model"})
    before = autotune.load_study(path)
    assert autotune.load_study(path) == before
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace("4 * width", "3 * width"))
    after = autotune.load_study(path)
    assert after.workload.model.code != before.workload.model.code
    assert after.workload.model.num_parameters < before.workload.model.num_parameters
