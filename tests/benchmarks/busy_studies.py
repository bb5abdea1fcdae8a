"""Real studies of a small program beside eight busy processes and without them, and the truth of
each by alternating pairs.

    python -m tests.benchmarks.busy_studies [--studies 5] [--pairs 20] [--busy 8] [--keep FOLDER]

The program is `programs/single.py`. Odd studies search its micro-batch and threads, even ones two
configs that are nearly equal. Each is what a user types: `autotune tune SPEC` with the default
measurement. Then the winner and the baseline are started by hand in alternating pairs beside the
same busy processes; the ratio of a pair is that of the medians of the steps that both print.

    claim    speedup and its 95% interval as the study says, or why it claims none
    truth    median of the pairs' ratios, with their quartiles
    held     the truth lies in the claimed interval, or the study claims nothing

The machine must be idle otherwise: each line says the load average at which it began.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch  # noqa: F401  # for the forks of step_ms
import yaml

PROGRAM = Path(__file__).parent / "programs" / "single.py"
STEPS, SKIPPED = 30, 5
SPACES: tuple[dict[str, Any], ...] = (
    {
        "space": {"micro_batch_size": [1, 2, 4, 8, 16], "precision": ["fp32"]},
        "knobs": {"threads": [1, 2]},
        "baseline": {"micro_batch_size": 2, "accumulation_steps": 8, "precision": "fp32"},
    },
    {
        "space": {"micro_batch_size": [8, 16], "precision": ["fp32"]},
        "knobs": {"threads": [1]},
        "baseline": {"micro_batch_size": 8, "accumulation_steps": 2, "precision": "fp32"},
    },
)
HEADER = "| busy | study | load | trials | claim | truth (quartiles) | held |\n|---|---|---|---|---|---|---|"


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that use a core each for as long as they get one."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def study(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What `autotune tune --json` answers. Raises `RuntimeError` with what it said when it
    fails."""
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    words = [
        "autotune",
        "tune",
        str(folder / "spec.yaml"),
        "--json",
        "--store",
        f"sqlite:///{folder / 'studies.db'}",
    ]
    with (folder / "stderr.txt").open("w") as errors:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=errors, text=True)
    (folder / "result.json").write_text(done.stdout)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit code {done.returncode}, see {folder}")
    return json.loads(done.stdout)


def step_ms(config: dict[str, Any]) -> float:
    """Median step time that a launch by hand prints, without its first steps. The program starts in
    a fork of this process, which has imported torch."""
    words = (
        f"--batch-size={config['micro_batch_size']}",
        f"--grad-accum={config['accumulation_steps']}",
        f"--threads={config['extra']['threads']}",
        f"--iters={STEPS}",
    )
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.dup2(write, sys.stdout.fileno())
            sys.argv = [str(PROGRAM), *words]
            runpy.run_path(str(PROGRAM), run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
        finally:
            os._exit(1)  # whatever was raised: the child goes no further
    os.close(write)
    with open(read) as lines:
        printed = lines.read()
    if os.waitpid(child, 0)[1]:
        raise RuntimeError(f"{PROGRAM} {' '.join(words)} failed")
    return statistics.median(
        [float(ms) for ms in re.findall(r"\| ([0-9.]+) ms", printed)][SKIPPED:]
    )


def pairs(baseline: dict[str, Any], winner: dict[str, Any], count: int) -> list[float]:
    """How many times as fast the winner is, by pair; each begins with the config that ended the
    pair before."""
    ratios = []
    for number in range(count):
        order = (baseline, winner) if number % 2 == 0 else (winner, baseline)
        times = {id(config): step_ms(config) for config in order}
        ratios.append(times[id(baseline)] / times[id(winner)])
    return ratios


def main() -> None:
    """Print a row for each study."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=8)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    folder = asked.keep or Path(tempfile.mkdtemp())
    template = yaml.safe_load(PROGRAM.with_suffix(".yaml").read_text())
    del template["measure"], template["budget"]
    template["trainer"]["cwd"] = str(PROGRAM.parent)
    known: dict[str, list[float]] = {}
    print(HEADER, flush=True)
    with busy_processes(asked.busy):
        for number in range(asked.studies):
            load = os.getloadavg()[0]
            spec = template | SPACES[number % len(SPACES)] | {"name": f"busy-{asked.busy}-{number}"}
            answer = study(spec, folder / spec["name"])
            best, baseline = answer["best"]["config"], answer["baseline"]["config"]
            told = json.dumps([baseline, best], sort_keys=True)
            if best != baseline and told not in known:
                known[told] = pairs(baseline, best, asked.pairs)
            print(row(asked.busy, number, load, answer, known.get(told)), flush=True)


def row(
    busy: int, number: int, load: float, answer: dict[str, Any], ratios: list[float] | None
) -> str:
    """The line of the table."""
    result = answer["study"]["result"]
    low, high = result["speedup_low"], result["speedup_high"]
    speedup = answer["study"]["speedup"]
    claims = not result["too_noisy"] and speedup not in (None, 1.0)
    claim = (
        f"{speedup:.2f} ({low:.2f} to {high:.2f})"
        if claims
        else "too noisy"
        if result["too_noisy"]
        else "none"
    )
    claim += ", tied" * (claims and low <= 1)
    first, middle, last = statistics.quantiles(ratios, n=4) if ratios else (1.0, 1.0, 1.0)
    held = "yes" if not claims or low <= middle <= high else "**no**"
    trials = sum(answer["study"]["trials"].values())
    return f"| {busy} | {number} | {load:.1f} | {trials} | {claim} | {middle:.2f} ({first:.2f} to {last:.2f}) | {held} |"


if __name__ == "__main__":
    main()
