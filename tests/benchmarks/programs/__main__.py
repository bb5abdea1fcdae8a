"""Training scripts of this folder, tuned as they are, from their specs to an exported launch that
is started by hand.

    python -m tests.benchmarks.programs [NAME...] [--steps 12] [--keep FOLDER]

NAME is one of the runs below, or a script for all of its runs; default: all, as far as this machine
can. Each run is what a user would type: `autotune tune SPEC`, `autotune export STUDY --to command
-o launch/`, `sh launch/launch.sh` (on each node). The winner is re-measured in turn with the
script's defaults, which are the spec's `baseline`.

    trials      measured before the finals, baseline included; then those that failed
    minutes     of `autotune tune`
    default, best    median step time over the final rounds
    speedup     as the study says, in tokens per second; and the lowest and highest of the final rounds
    export      steps and losses that the launch printed when it was started by hand

Runs over two nodes need root: the nodes are network namespaces of this machine (`tests.nodes`),
with Ray on them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.api import load_study, open_store, result_of
from autotune.results.result import Result
from autotune.spec import TrialPurpose, config_label
from autotune.trainers import trainer
from tests.nodes.network import Node, what_is_missing
from tests.nodes.ray_nodes import RayNodes, ray_nodes

HERE = Path(__file__).parent
LAUNCH_S = 300.0
"""for an exported launch to end"""
PORT = 29731
"""at which the nodes of an exported launch meet"""
OVER_TWO_NODES = {
    "cluster": {"gpu": "cpu", "num_nodes": 2, "gpus_per_node": 2},
    "workload": {"seq_len": 32, "global_batch_size": 96},
    "space": {
        "world_sizes": [4],
        "micro_batch_size": [1, 2, 3, 4, 6, 8, 12, 24],
        "precision": ["fp32"],
    },
    "baseline": {"dp": 4, "micro_batch_size": 2, "accumulation_steps": 12, "precision": "fp32"},
}
"""what replaces the spec's: two ranks on each of two nodes, so that every config is spread over
both"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A script, and where it is tuned."""

    script: str
    """its name in this folder"""
    runner: str = "local"
    """local or ray"""
    nodes: int = 1
    """machines"""
    needs: str = "torch"
    """module that it imports"""

    @property
    def name(self) -> str:
        """The name on the command line."""
        return (
            self.script
            + ("" if self.runner == "local" else f"-{self.runner}")
            + (f"-{self.nodes}" * (self.nodes > 1))
        )

    def document(self, cluster: RayNodes | None) -> dict[str, Any]:
        """The spec, for where it is tuned."""
        spec: dict[str, Any] = yaml.safe_load((HERE / f"{self.script}.yaml").read_text())
        spec["trainer"]["cwd"] = str(HERE)
        spec["trainer"]["files"] = {
            k: str(HERE / v) for k, v in spec["trainer"].get("files", {}).items()
        }
        spec["name"] = self.name
        if self.runner == "ray":
            spec["runner"] = (
                {"kind": "ray", "address": cluster.address}
                if cluster
                else {"kind": "ray", "num_cpus": 2}
            )
        return spec | (OVER_TWO_NODES if self.nodes > 1 else {})


RUNS = (
    Run(script="single"),
    Run(script="ddp"),
    Run(script="accelerate_loop", needs="accelerate"),
    Run(script="gpt2_trainer", needs="transformers"),
    Run(script="lightning_fit", needs="lightning"),
    Run(script="zero", needs="deepspeed"),
    Run(script="ddp", runner="ray"),
    Run(script="ddp", runner="ray", nodes=2),
    Run(script="accelerate_loop", runner="ray", nodes=2, needs="accelerate"),
    Run(script="gpt2_trainer", runner="ray", nodes=2, needs="transformers"),
)
HEADER = (
    "| program | runner | nodes | spec lines | trials | failed | minutes | default | best | speedup (rounds) | winner | export by hand |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run."""

    run: Run
    """which one"""
    result: Result
    """of its study"""
    minutes: float
    """of `autotune tune`"""
    steps: int
    """that the exported launch printed"""
    losses: tuple[float, ...]
    """of those steps, where it prints them"""

    @property
    def ratios(self) -> list[float]:
        """Speedup of each final round."""
        assert self.result.best is not None
        assert self.result.baseline is not None
        best, baseline = (
            [
                trial.measurement.tokens_per_s
                for trial in self.result.trials
                if trial.purpose is TrialPurpose.FINAL
                and trial.config == of.config
                and trial.measurement
            ]
            for of in (self.result.best, self.result.baseline)
        )
        return [fast / slow for fast, slow in zip(best, baseline, strict=False)]

    @property
    def row(self) -> str:
        """The line of the table."""
        run, result = self.run, self.result
        first = [trial for trial in result.trials if trial.purpose is not TrialPurpose.FINAL]
        default, best = (
            f"{1000 * trial.measurement.step_time_s:.1f} ms"
            if trial and trial.measurement
            else "none"
            for trial in (result.baseline, result.best)
        )
        rounds = self.ratios
        span = f" ({min(rounds):.2f} to {max(rounds):.2f})" if rounds else ""
        lines = len((HERE / f"{run.script}.yaml").read_text().splitlines())
        loss = f", loss {self.losses[0]:.2f} to {self.losses[-1]:.2f}" if self.losses else ""
        return (
            f"| `{run.script}.py` | {run.runner} | {run.nodes} | {lines} | {len(first)} | {len(result.failed)} | {self.minutes:.1f} | {default} "
            f"| {best} | {result.speedup or 0:.2f}{span} | `{config_label(result.best.config) if result.best else '-'}` | {self.steps} steps{loss} |"
        )


def carry_out(run: Run, folder: Path, cluster: RayNodes | None, steps: int) -> Outcome:
    """Tunes, exports and launches. Raises `RuntimeError` with what a command said when it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    spec, store, launch = (
        folder / "spec.yaml",
        f"sqlite:///{folder / 'studies.db'}",
        folder / "launch",
    )
    spec.write_text(yaml.safe_dump(run.document(cluster), sort_keys=False))
    began_s = time.monotonic()
    told = json.loads(_autotune("tune", str(spec), "--json", "--store", store))
    minutes = (time.monotonic() - began_s) / 60
    study = told["study"]["id"]
    _autotune(
        "export",
        study,
        "--to",
        "command",
        "-o",
        str(launch),
        "--option",
        f"steps={steps}",
        "--store",
        store,
    )
    log = _launched(launch, cluster)
    read = trainer("command").reader(load_study(spec).trainer_options)
    metrics = [found for found in map(read, log.replace("\r", "\n").splitlines()) if found]
    losses = tuple(found.loss for found in metrics if found.loss is not None)
    # a bar is drawn at 0 too
    printed = min(steps, max(len({found.step for found in metrics}), len(losses)))
    if printed < steps:
        raise RuntimeError(f"the exported launch printed {printed} of {steps} steps\n{log[-4000:]}")
    with contextlib.closing(open_store(store)) as database:
        return Outcome(
            run=run,
            result=result_of(database, study),
            minutes=minutes,
            steps=printed,
            losses=losses,
        )


def _autotune(*arguments: str) -> str:
    """What the command prints; its progress goes to our stderr."""
    done = subprocess.run(["autotune", *arguments], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(
            f"autotune {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout[-4000:]}"
        )
    return done.stdout


def _launched(launch: Path, cluster: RayNodes | None) -> str:
    """The log of an exported launch that is started by hand, on each node where there are several;
    as it stands in the page of `autotune export`."""
    nodes: Sequence[Node | None] = cluster.nodes if cluster else [None]
    logs = [launch / f"node-{number}.log" for number in range(len(nodes))]
    started = []
    for number, node in enumerate(nodes):
        own = (
            {
                "NODE_RANK": str(number),
                "MASTER_ADDR": cluster.nodes[0].address,
                "MASTER_PORT": str(PORT),
            }
            if cluster
            else {}
        )
        with logs[number].open("wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            words = ("sh", str(launch / "launch.sh"))
            if node is None:
                started.append(subprocess.Popen(words, start_new_session=True, **streams))
            else:
                started.append(node.start(*words, environment=own, **streams))
    try:
        codes = [process.wait(LAUNCH_S) for process in started]
    finally:
        for process in started:
            process.kill()
    log = "\n".join(path.read_text(errors="replace") for path in logs)
    if any(codes):
        raise RuntimeError(f"the exported launch ended with {codes}\n{log[-4000:]}")
    return log


def obstacle(run: Run) -> str:
    """Why this machine cannot carry it out; empty when it can."""
    if importlib.util.find_spec(run.needs) is None:
        return f"{run.needs} is not installed"
    return what_is_missing() if run.nodes > 1 else ""


@contextlib.contextmanager
def _nodes(run: Run) -> Iterator[RayNodes | None]:
    if run.nodes == 1:
        yield None
        return
    with ray_nodes(run.nodes, cpus=2) as cluster:
        yield cluster


def main(arguments: Sequence[str] | None = None) -> None:
    """Carries out the runs one after the other and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=", ".join(run.name for run in RUNS)
    )
    parser.add_argument("--steps", type=int, default=12, help="of an exported launch")
    parser.add_argument(
        "--keep", type=Path, help="folder for specs, results and launches; default: a temporary one"
    )
    args = parser.parse_args(arguments)
    chosen = [
        run for run in RUNS if not args.names or run.name in args.names or run.script in args.names
    ]
    if not chosen:
        parser.error(f"there is no such run; there are {', '.join(run.name for run in RUNS)}")
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    rows, failed = [HEADER], False
    with contextlib.ExitStack() as stack:
        folder = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for run in chosen:
            if why := obstacle(run):
                rows.append(f"{run.name} is left out: {why}")
                continue
            print(f"{run.name}: load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            try:
                with _nodes(run) as cluster:
                    rows.append(
                        carry_out(run, folder.absolute() / run.name, cluster, args.steps).row
                    )
            except RuntimeError as error:
                rows.append(f"{run.name} failed: {error}")
                failed = True
            print(rows[-1], file=sys.stderr, flush=True)
    print("\n".join(rows))
    sys.exit(failed)


if __name__ == "__main__":
    main()
