"""Real studies on a real Ray cluster under a real Prometheus: every query of the dashboard's panels
has data at every scrape until its study ends.

One begins with a calibration of the cluster, as the first on every new machine does; the trials of
another fail.
"""

from __future__ import annotations

import json
import math
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from autotune.client import Client
from tests.dashboards.test_prometheus import FOLDER, ask, needs_prometheus, prometheus
from tests.service.running import spec
from tests.service.served import served

LONG_S = 600.0
GPU_PANELS = ("ray_node_gpus_utilization", "ray_node_gram_used")
"""what Ray exports of nodes with GPUs alone"""


def real(name: str, *, calibrate: bool = True, **measure: float) -> dict[str, Any]:
    """Trains for about a minute on two ranks of this machine, whose speed nobody has measured
    yet."""
    return spec(
        name=name,
        model="nano-gpt",
        cluster="local",
        workload={"seq_len": 64, "global_batch_size": 16},
        space={"world_sizes": [1, 2], "micro_batch_size": [1, 2, 4, 8], "precision": ["fp32"]},
        budget={"max_trials": 4, "min_gain": 0},
        measure={
            "finalists": 0,
            "min_steps": 40,
            "max_steps": 40,
            "start_timeout_s": 300,
            **measure,
        },
        runner="ray",
        calibrate=calibrate,
    )


def queries() -> list[str]:
    """Of all panels."""
    panels = json.loads((FOLDER / "grafana" / "autotune.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def samples(client: httpx.Client, text: str, *, start: float, end: float) -> dict[float, float]:
    """By time the sum of what a query has at each second at which it has anything."""
    found: dict[float, float] = {}
    for series in ask(client, "query_range", query=text, start=start, end=end, step="1s"):
        for at, value in series["values"]:
            if not math.isnan(float(value)):
                found[float(at)] = found.get(float(at), 0.0) + float(value)
    return found


def ended_s(status: dict[str, Any]) -> float:
    """When the study ended, in seconds of the epoch."""
    return datetime.fromisoformat(status["study"]["ended_at"]).timestamp()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore")
@needs_prometheus
def test_every_panel_has_data_at_every_scrape_of_a_study_that_calibrates_its_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    with (
        served(tmp_path, "--runner", "ray") as (_, url),
        prometheus(tmp_path, every_s=5) as client,
        Client(url) as asking,
    ):
        began_s = time.time()
        fails = real(
            "never-ends", calibrate=False, min_steps=100_000, max_steps=100_000, trial_timeout_s=10
        )
        failing, study = (asking.submit(asked)["study"]["id"] for asked in (fails, real("trains")))
        ends_s = {each: ended_s(asking.wait(each, timeout_s=LONG_S)) for each in (study, failing)}
        assert asking.status(study)["study"]["status"] == "COMPLETED"
        assert "cluster.calibrated" in [event["kind"] for event in asking.events(study)]
        for text in queries():
            if any(name in text for name in GPU_PANELS) and not torch.cuda.is_available():
                continue
            of = failing if "failure!=" in text else study
            end_s = ends_s[of] - 2.0
            found = samples(client, text.replace("$study", of), start=began_s, end=end_s)
            assert found, text
            times = sorted(found)
            assert len(times) == round(times[-1] - times[0]) + 1, f"{text} has gaps"
            assert times[-1] > end_s - 1.0, f"{text} ends before its study"
        trials = samples(
            client,
            f'ray_autotune_trials_total{{study="{study}"}}',
            start=began_s,
            end=ends_s[study],
        )
        assert len(set(trials.values())) >= 2, "they move while the study runs"
