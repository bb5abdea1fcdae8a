"""The probe on a GPU: its step times are those of events on the device, and it slows nothing down.

Needs torch with CUDA, and neither Ray nor a launcher: `pytest -m gpu tests/gpu/test_probe.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from tests.workers.probe.watching import Watched, python, watched

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
ALONE = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "CUDA_VISIBLE_DEVICES": "0",
}
STEPS = 60


def run(folder: Path, port: int, **env: str) -> Watched:
    command = python("cuda_events.py", str(STEPS))
    done = watched(command, cwd=folder, env={**ALONE, "MASTER_PORT": str(port), **env})
    assert done.code == 0, done.text
    return done


def own(done: Watched) -> dict[str, object]:
    return json.loads(next(line for line in done.text.splitlines() if line.startswith("{")))


def test_steps_are_timed_by_the_device(tmp_path: Path) -> None:
    done = run(tmp_path, 29610)
    told, steps, facts = own(done), done.steps(), done.facts()
    assert [(s["micro"], s["sequences"]) for s in steps] == [(3, [3 * 512])] * STEPS
    seen = [step["s"] for step in steps[6:]]
    assert len(seen) == len(told["times"][5:])
    # events are recorded at slightly other places of a step, so single steps differ by some percent
    # and their sum does not
    assert median(seen) == pytest.approx(median(told["times"][5:]), rel=0.02)
    assert sum(seen) == pytest.approx(sum(told["times"][5:]), rel=0.02)
    assert (facts["backend"], facts["device"], facts["autocast"]) == ("nccl", "cuda", "bfloat16")
    assert facts["parameters"] == 8 * (2048 * 2048 + 2048)
    peak = max(report["peak"] for report in done.of("step"))
    assert peak == pytest.approx(told["peak"], rel=0.01)


def test_a_program_is_as_fast_as_without_it(tmp_path: Path) -> None:
    seen = [own(run(tmp_path, 29620 + 2 * n))["each"] for n in range(3)]
    alone = [own(run(tmp_path, 29621 + 2 * n, AUTOTUNE_PROBE_REPORTS=""))["each"] for n in range(3)]
    assert median(seen) <= 1.03 * median(alone), (seen, alone)
